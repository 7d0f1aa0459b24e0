"""Find the limits that apply to a client, and the device that an operator's word names."""

from collections.abc import Sequence
from typing import Final

from attrs import evolve

from pympsd.devices import memory_limits
from pympsd.devices.visible import find_device
from pympsd.errors import InputError
from pympsd.state_machine.destination import Destination
from pympsd.state_machine.instructions import AdmitClient, UpdateServerLimits
from pympsd.state_machine.partition_choice import choose
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limit_table import ClientLimits, Limits, count_bytes, percentage_on
from pympsd.vocabulary.limits import (
    MAX_MEMORY,
    CgroupLimit,
    ClientPriority,
    LimitsInForce,
    MemoryGroup,
    PinnedMemory,
    cgroup_group,
    combine_cgroup_limits,
)
from pympsd.vocabulary.rules import Unknown, expand_cgroups, first_fitting
from pympsd.vocabulary.sm_rounding import count_multiprocessors
from pympsd.vocabulary.variables import MEMORY_LIMITS

_UNLIMITED: Final = PinnedMemory(MAX_MEMORY)


class UnknownDevice(InputError, ValueError):
    """A word does not name a device of this machine; ``well_formed``: it could name one on another machine.

    ``word`` is the word. The message names it and lists the devices that there are.
    """

    def __init__(self, word: str, well_formed: bool, reason: str) -> None:
        super().__init__(reason)
        self.word = word
        self.well_formed = well_formed


def limits_update(server: Server) -> UpdateServerLimits:
    """Return the instruction that sends a server its current limits.

    Protocol 2 only. The limits are for later clients: a percentage, and bytes by the daemon's device ordinal.
    """
    return UpdateServerLimits(server.id, server.thread_percentage.value, count_bytes(server.memory_limits))


def default_limits(devices: Sequence[DeviceProperties], text: str) -> tuple[dict[int, PinnedMemory], list[str]]:
    """Read the daemon's own ``0=1G,GPU-...=512MB``; return the limits by ordinal, and a complaint per bad entry.

    Each valid entry counts, even if another one is invalid; the last one for a device wins.
    """
    limits, bad = memory_limits.read(devices, text, "this daemon")
    complaints = [f"{MEMORY_LIMITS[0]}: {entry.entry!r} is left out: {entry.reason}" for entry in bad]
    return limits, complaints


def device_named(devices: Sequence[DeviceProperties], word: str) -> int:
    """Return the ordinal of the device that a word names by ordinal, UUID or unique prefix; raise UnknownDevice.

    ``word`` is 0, 1, ..., a UUID, or the beginning of a UUID that only one device has.
    """
    ordinal = find_device(devices, word)
    if ordinal is not None:
        return ordinal
    reason = memory_limits.describe_unknown_device(devices, word, "this daemon")
    raise UnknownDevice(word, word.isdecimal() or word.startswith("GPU-"), reason)


def limits_by_rule(daemon: Daemon, process: ClientProcess, target: Destination) -> Limits | None:
    """Return the limits that a rule sets for a client, None without rules; raise Unknown.

    The first rule that fits the client's process and destination counts, and no other; if none fits, the limits are
    empty. Unknown is raised for a client that connected before there were rules, because its cgroup and executable
    were not read then.
    """
    if daemon.process_limits.rules is None:
        return None
    if process.origin is None:  # the client came before there were rules
        raise Unknown("the rules have just changed; connect again")
    rule = first_fitting(daemon.process_limits.rules, process.origin, str(target))
    return Limits() if rule is None else rule.limits


def client_limits(
    daemon: Daemon,
    server: Server,
    process: ClientProcess,
    rule: Limits | None,
    sm_partition: str = "",
) -> ClientLimits | None:
    """Return the limits of a client, for its server; None if only the limits of the server apply.

    ``rule`` and ``sm_partition``: as in QueueEntry.
    """
    bounds = (rule,) if rule is not None else ()
    named_server = daemon.named_servers.get(server.name)
    partitions = choose(daemon, server.name, process.namespace, sm_partition)
    if named_server is None:
        own = evolve(server.limits, client_priority=daemon.defaults.client_priority)
        is_static = daemon.options.static
        return ClientLimits(own, bounds, partitions=partitions, static=is_static) if bounds or partitions else None
    target = named_server.namespace(process.namespace)
    return ClientLimits(
        target.limits,
        (named_server.maximum, *bounds),
        named_server.allowed_devices,
        target.name,
        partitions,
        _memory_groups(daemon, named_server, target, process),
        daemon.process_limits.audits_memory,
    )


def grant(daemon: Daemon, server: Server, client: int, limits: ClientLimits | None) -> AdmitClient:
    """Return the admission of a client with its limits and its priority unless the client sets one itself.

    ``limits`` None: the client has those of its server (protocol 2). A priority that nobody set is 0, normal.
    """
    priority = daemon.defaults.client_priority if limits is None else limits.combine().client_priority
    return AdmitClient(client, server.id, server.pid, (priority or ClientPriority()).level, limits)


def resolve_in_force(daemon: Daemon, server: Server, grant: AdmitClient) -> LimitsInForce:
    """Return the limits that the daemon has set for a client of the driver's server, which does not report them.

    The client's own environment may lower these limits further; the daemon cannot see it.
    """
    combined = server.limits if grant.limits is None else grant.limits.combine()
    percentage = percentage_on(combined)
    multiprocessors = {
        ordinal: count_multiprocessors(percentage, device)
        for ordinal, device in enumerate(daemon.devices)
        if device.multiprocessors  # the driver's server does not report their number
    }
    return LimitsInForce(percentage.value, grant.priority, count_bytes(combined.pinned_memory), multiprocessors)


def _memory_groups(
    daemon: Daemon, named_server: NamedServer, namespace: Namespace, process: ClientProcess
) -> dict[int, tuple[MemoryGroup, ...]]:
    """Return the limits of memory that a client shares with others, by device ordinal.

    They are the limits of its namespace, and the limits of each cgroup that the client is in or below: the daemon's
    or the kernel's, whichever is lower.
    """
    name = f"namespace {named_server.name}/{namespace.name}"
    totals = count_bytes(namespace.limits.total_memory)
    groups: dict[int, tuple[MemoryGroup, ...]] = {
        ordinal: (MemoryGroup(name, total),) for ordinal, total in totals.items()
    }
    for path in expand_cgroups(process.cgroups):
        own, kernels = daemon.process_limits.cgroups.get(path, {}), process.kernel_limits.get(path, {})
        for ordinal in {**own, **kernels}:
            limit = combine_cgroup_limits(own.get(ordinal, CgroupLimit()), kernels.get(ordinal, CgroupLimit()))
            # Memory is counted even while the limits are not enforced, because they may be enforced again.
            holds = limit if daemon.process_limits.accounts_cgroups else CgroupLimit()
            most, soft = holds.hard or _UNLIMITED, holds.soft
            group = MemoryGroup(cgroup_group(path), most.value, 0 if soft is None else soft.value)
            groups[ordinal] = (*groups.get(ordinal, ()), group)
    return groups


def check_cgroups(daemon: Daemon, process: ClientProcess) -> None:
    """Raise Unknown if limits of cgroups hold, and the daemon cannot see which ones a client is in.

    Otherwise a client whose cgroup is hidden would have no limit.
    """
    if (
        daemon.process_limits.cgroups
        and daemon.process_limits.accounts_cgroups
        and (process.origin is None or process.origin.cgroups is None)
    ):
        raise Unknown("limits of cgroups hold (memacct), but the daemon cannot see the client's cgroup")
