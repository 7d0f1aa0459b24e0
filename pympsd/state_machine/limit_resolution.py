"""Which limits apply: those of a server's later clients, and the device that an operator's word names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve

from pympsd.devices import memory_limits
from pympsd.devices.visible import find_device
from pympsd.errors import InputError
from pympsd.state_machine import registration
from pympsd.state_machine.destination import Destination
from pympsd.state_machine.instructions import AdmitClient, ClientLimits, UpdateServerLimits
from pympsd.state_machine.partition_choice import chosen
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import (
    MOST_MEMORY,
    CgroupLimit,
    CgroupLimits,
    LimitsInForce,
    MemoryGroup,
    PinnedMemory,
    ThreadPercentage,
    cgroup_group,
    least,
)
from pympsd.vocabulary.namespaces import DEFAULT, NamespaceLimits
from pympsd.vocabulary.rules import Unknown, at_or_above, first_fitting
from pympsd.vocabulary.sm_rounding import multiprocessors
from pympsd.vocabulary.variables import MEMORY_LIMITS

_NO_LIMIT: Final = PinnedMemory(MOST_MEMORY)


class UnknownDevice(InputError, ValueError):
    """A word names no device of this machine; ``well_formed``: it could name one of another machine."""

    def __init__(self, word: str, well_formed: bool, reason: str) -> None:
        super().__init__(reason)
        self.word = word
        self.well_formed = well_formed


def limits_update(server: Server) -> UpdateServerLimits:
    """Return the instruction that sends a server its current limits."""
    limits = {ordinal: limit.value for ordinal, limit in server.memory_limits.items()}
    return UpdateServerLimits(server.serial, server.thread_percentage.value, limits)


def default_limits(devices: Sequence[DeviceFacts], text: str) -> tuple[dict[int, PinnedMemory], list[str]]:
    """Read the daemon's own ``0=1G,GPU-...=512MB``; return the limits by ordinal, and a complaint per bad entry.

    Each valid entry counts, whatever the others are; the last one for a device wins.
    """
    limits, bad = memory_limits.read(devices, text, "this daemon")
    complaints = [f"{MEMORY_LIMITS[0]}: {one.entry!r} is left out: {one.reason}" for one in bad]
    return limits, complaints


def device_named(devices: Sequence[DeviceFacts], word: str) -> int:
    """Return the ordinal of the device a word names: an ordinal, a UUID or a unique prefix; raise UnknownDevice."""
    ordinal = find_device(devices, word)
    if ordinal is not None:
        return ordinal
    reason = memory_limits.no_such_device(devices, word, "this daemon")
    raise UnknownDevice(word, word.isdecimal() or word.startswith("GPU-"), reason)


def limits_by_rule(daemon: Daemon, process: ClientProcess, target: Destination) -> NamespaceLimits | None:
    """Return the limits that hold for a client by rule, None if there are no rules; raise Unknown."""
    if daemon.process_limits.rules is None:
        return None
    if process.origin is None:  # it came before there were rules
        raise Unknown("the rules have just changed; connect again")
    rule = first_fitting(daemon.process_limits.rules, process.origin, str(target))
    return NamespaceLimits() if rule is None else rule.limits


def client_limits(
    daemon: Daemon,
    server: Server,
    namespace: str,
    rule: NamespaceLimits | None,
    cgroups: Sequence[str] = (),
    kernel_limits: CgroupLimits | None = None,
    sm_partition: str = "",
) -> ClientLimits | None:
    """Return the limits of a client: those of its namespace, lowered by its server's ceiling, or of its server in
    protocol 2; lowered by a rule.

    None: they are its server's. ``cgroups``, ``kernel_limits`` and ``sm_partition``: as in QueueEntry.
    """
    own = registration.client_limits(daemon, server.name, namespace)
    if own is not None:
        groups = _memory_groups(daemon, server.name, namespace, cgroups, kernel_limits or {})
        partitions = chosen(daemon, server.name, namespace, sm_partition)
        own = evolve(own, partitions=partitions, groups=groups, audited=daemon.process_limits.audits_memory)
        own = _below(own, daemon.named_servers[server.name].ceiling)
    if rule is None:
        return own
    if own is None:
        in_bytes = {ordinal: limit.value for ordinal, limit in server.memory_limits.items()}
        own = ClientLimits(server.thread_percentage.value, in_bytes)
    return _below(own, rule)


def grant(daemon: Daemon, server: Server, client: int, namespace: str, limits: ClientLimits | None) -> AdmitClient:
    """Return the admission of a client with its limits and priority."""
    priority = registration.priority(daemon, server.name, namespace)
    if limits is not None:
        priority = max(priority, limits.least_priority)
    return AdmitClient(client, server.serial, server.pid, priority, limits)


def in_force(daemon: Daemon, server: Server, grant: AdmitClient) -> LimitsInForce:
    """Return what the daemon has set for a client of the driver's server, which does not report its limits.

    The client's own environment may lower them further; the daemon does not see that.
    """
    limits = grant.limits
    percentage = server.thread_percentage if limits is None else ThreadPercentage(limits.thread_percentage)
    in_bytes = {ordinal: limit.value for ordinal, limit in server.memory_limits.items()}
    return LimitsInForce(
        percentage.value,
        grant.priority,
        in_bytes if limits is None else dict(limits.memory_limits),
        {ordinal: multiprocessors(percentage, device) for ordinal, device in enumerate(daemon.devices)},
    )


def _below(limits: ClientLimits, highest: NamespaceLimits) -> ClientLimits:
    """Return limits lowered to what is allowed at most."""
    percentage = limits.thread_percentage
    if highest.thread_percentage is not None:
        percentage = min(percentage, highest.thread_percentage.value)
    memory = lowered(limits.memory_limits, highest.pinned_memory or {})
    least = 0 if highest.client_priority is None else highest.client_priority.level
    return evolve(limits, thread_percentage=percentage, memory_limits=memory, least_priority=least)


def _memory_groups(
    daemon: Daemon, server: str, namespace: str, cgroups: Sequence[str], kernel_limits: CgroupLimits
) -> dict[int, tuple[MemoryGroup, ...]]:
    """Return the limits of memory that a client has together with others, by device ordinal: those of its namespace,
    and of each cgroup that it is in or below, the least of the daemon's own and the kernel's.
    """
    named = daemon.named_servers.get(server)
    groups: dict[int, tuple[MemoryGroup, ...]] = {}

    if named is not None:
        found = named.namespaces.get(namespace or DEFAULT) or named.namespaces[DEFAULT]
        for ordinal, total in found.total_memory.items():
            groups[ordinal] = (MemoryGroup(f"namespace {server}/{found.name}", total.value),)
    for path in at_or_above(cgroups):
        own, kernels = daemon.process_limits.cgroups.get(path, {}), kernel_limits.get(path, {})
        for ordinal in {**own, **kernels}:
            limit = least(own.get(ordinal, CgroupLimit()), kernels.get(ordinal, CgroupLimit()))
            # While they do not hold, what clients take is counted all the same: they may hold again.
            holds = limit if daemon.process_limits.accounts_cgroups else CgroupLimit()
            most, soft = holds.hard or _NO_LIMIT, holds.soft
            group = MemoryGroup(cgroup_group(path), most.value, 0 if soft is None else soft.value)
            groups[ordinal] = (*groups.get(ordinal, ()), group)
    return groups


def check_cgroups(daemon: Daemon, process: ClientProcess) -> None:
    """Raise Unknown if limits of cgroups hold, and the daemon cannot see which ones a client is in."""
    if (
        daemon.process_limits.cgroups
        and daemon.process_limits.accounts_cgroups
        and (process.origin is None or process.origin.cgroups is None)
    ):
        raise Unknown("limits of cgroups hold (memacct), and the daemon cannot see its cgroup")


def lowered(limits: Mapping[int, int], by: Mapping[int, PinnedMemory]) -> dict[int, int]:
    """Return for each device the lower of two limits, in bytes."""
    return {
        **limits,
        **{ordinal: min(limits.get(ordinal, limit.value), limit.value) for ordinal, limit in by.items()},
    }
