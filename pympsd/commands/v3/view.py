"""Servers, namespaces, clients and limits of the daemon's state as protocol 3 names them and prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pympsd.commands.grammar.privileges import namespace_of
from pympsd.commands.grammar.syntax import Refused
from pympsd.commands.v3.output import ABSENT, Shown
from pympsd.devices.visible import find_device, listed
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.namespaces import NamespaceLimits
from pympsd.vocabulary.partitions import no_partition_note
from pympsd.vocabulary.texts import memory_limits_text, percentage_text

NO_TOTALS: Final = (
    "{} is not possible with the driver's own server: it knows limits of single clients only; "
    "--pinned-memory-limit of a namespace limits each of its clients."
)


def servers(daemon: Daemon) -> list[NamedServer]:
    """Return the named servers, sorted by name."""
    return [server for _, server in sorted(daemon.named_servers.items())]


def namespace_named(server: NamedServer, name: str) -> Namespace:
    """Return the namespace of a name; raise Refused."""
    namespace = server.namespaces.get(name)
    if namespace is None:
        raise Refused(f"No namespace named '{name}' on server '{server.name}'.")
    return namespace


def linux_namespace(daemon: Daemon, client: Client) -> int:
    """Return 0 for a client in the daemon's PID namespace, otherwise the inode of its own."""
    namespace = client.process.pid_namespace
    return 0 if namespace == daemon.options.pid_namespace else namespace


def maws_namespace(daemon: Daemon, client: Client, server: NamedServer) -> str:
    """Return ``server/namespace (n)`` of a client, with n the inode of its PID namespace, or 0."""
    return f"{server.name}/{namespace_of(client)} ({linux_namespace(daemon, client)})"


def percentage_cell(percentage: ThreadPercentage) -> Shown:
    """Return a percentage as a cell."""
    return Shown(percentage_text(percentage), percentage.value)


def memory_cell(daemon: Daemon, server: NamedServer, limits: Mapping[int, PinnedMemory]) -> Shown:
    """Return the limits of a server's devices as a cell: one if all have the same, otherwise one a device, by the
    ordinals that its clients see. A server without devices has none.
    """
    ordinals = server.ordinals(len(daemon.devices))
    if not ordinals:
        return Shown(ABSENT, None)
    each = [limits[ordinal].value if ordinal in limits else None for ordinal in ordinals]
    by_device = {str(shown): value for shown, value in enumerate(each)}
    return Shown(memory_limits_text(limits, ordinals), by_device if len(set(each)) > 1 else each[0])


def limits_given(
    daemon: Daemon,
    server: NamedServer,
    namespace: Namespace,
    active_thread_percentage: ThreadPercentage | None = None,
    client_priority: ClientPriority | None = None,
    pinned_memory_limit: Mapping[str, PinnedMemory | None] | None = None,
    total_memory_limit: Mapping[str, PinnedMemory | None] | None = None,
    sm_partition: str | None = None,
) -> NamespaceLimits:
    """Return the change of a namespace's limits that options ask for; memory may be that of some of the server's
    devices only.
    """
    if total_memory_limit is not None and not daemon.options.has_own_servers:
        raise Refused(NO_TOTALS.format("--total-memory-limit"))
    if sm_partition and not daemon.options.has_own_servers:
        raise Refused("--sm-partition is not possible with the driver's own server of this release.")
    memory = _with_limits(daemon, server, namespace.pinned_memory, pinned_memory_limit)
    total = _with_limits(daemon, server, namespace.total_memory, total_memory_limit)
    return NamespaceLimits(active_thread_percentage, memory, client_priority, total, sm_partition)


def _with_limits(
    daemon: Daemon,
    server: NamedServer,
    limits: Mapping[int, PinnedMemory],
    given: Mapping[str, PinnedMemory | None] | None,
) -> dict[int, PinnedMemory] | None:
    """Return limits by the daemon's ordinals with those that were given by words for a server's devices, an empty one
    for all that there are; None: none were given.
    """
    if given is None:
        return None
    changed = dict(limits)
    for word, limit in given.items():
        for ordinal in [device_of(daemon, server, word)] if word else range(len(daemon.devices)):
            changed.pop(ordinal, None)
            if limit is not None:
                changed[ordinal] = limit
    return changed


def keeps_limits(count: int) -> str:
    """Return a note on the clients that keep the limits they started with."""
    if not count:
        return ""
    if count == 1:
        return "1 client keeps its limits until it restarts."
    return f"{count} clients keep their limits until they restart."


def no_partition_yet(server: NamedServer, namespace: str, partition: str | None) -> str:
    """Return a note on a namespace that is bound to an SM partition which its server does not have."""
    if not partition or any(existing.name == partition for existing in server.partitions):
        return ""
    return no_partition_note(server.name, namespace, partition)


def device_named(daemon: Daemon, word: str) -> int:
    """Return the index of the device that a word names; raise Refused."""
    index = find_device(daemon.devices, word)
    if index is None:
        raise Refused(f"No device '{word}'. Devices: {listed(daemon.devices)}.")
    return index


def device_of(daemon: Daemon, server: NamedServer, word: str) -> int:
    """Return the daemon's index of the device that a word names as the server's clients do; raise Refused."""
    indices = server.ordinals(len(daemon.devices))
    devices = [daemon.devices[each] for each in indices]
    index = find_device(devices, word)
    if index is None:
        raise Refused(f"No device '{word}' of server '{server.name}'. Devices: {listed(devices) or 'none'}.")
    return indices[index]
