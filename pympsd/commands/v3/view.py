"""Find and print servers, namespaces, clients and limits of the daemon's state as protocol 3 does."""

from collections.abc import Iterable, Mapping
from typing import Any

from pympsd.commands.grammar.privileges import namespace_of
from pympsd.commands.grammar.syntax import CommandRefused
from pympsd.commands.v3.output import ABSENT, Shown
from pympsd.devices.visible import find_device, list_devices
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace
from pympsd.vocabulary.limit_table import LIMITS, LimitRow, Limits
from pympsd.vocabulary.limits import ALL_DEVICES
from pympsd.vocabulary.partitions import describe_missing_partition


def servers(daemon: Daemon) -> list[NamedServer]:
    """Return the named servers, sorted by name."""
    return [server for _, server in sorted(daemon.named_servers.items())]


def namespace_named(server: NamedServer, name: str) -> Namespace:
    """Return a server's namespace with a name; raise CommandRefused."""
    namespace = server.namespaces.get(name)
    if namespace is None:
        raise CommandRefused(f"No namespace named '{name}' on server '{server.name}'.")
    return namespace


def linux_namespace(daemon: Daemon, client: Client) -> int:
    """Return the inode of a client's PID namespace; 0 for the daemon's own."""
    namespace = client.process.pid_namespace
    return 0 if namespace == daemon.options.pid_namespace else namespace


def maws_namespace(daemon: Daemon, client: Client, server: NamedServer) -> str:
    """Return ``server/namespace (n)`` for a client; n is its PID namespace as in `linux_namespace`."""
    return f"{server.name}/{namespace_of(client)} ({linux_namespace(daemon, client)})"


def limit_cell(daemon: Daemon, server: NamedServer, row: LimitRow, limits: Limits) -> Shown:
    """Return a limit as a cell: one value if it is the same on all of a server's devices, otherwise one for each
    device.

    Devices have the indices that the server's clients see. A server without devices has no memory limits.
    """
    indices = server.ordinals(len(daemon.devices))
    if row.is_for_devices and not indices:
        return Shown(ABSENT, None)
    return Shown(row.text(limits, indices), row.json(limits, indices))


def limit_values(
    daemon: Daemon, server: NamedServer, rows: Iterable[LimitRow], limits: Limits, prefix: str = ""
) -> dict[str, Any]:
    """Return limits as values for JSON, in the order of the rows; ``prefix`` begins each key."""
    indices = server.ordinals(len(daemon.devices))
    return {
        f"{prefix}{row.key}": None if row.is_for_devices and not indices else row.json(limits, indices)
        for row in rows
    }


def limits_given(
    daemon: Daemon, server: NamedServer, before: Limits, options: Mapping[str, Any], prefix: str = ""
) -> Limits:
    """Return the new values of the limits that options set. A limit by device may be set on some devices only.

    ``before``: the limits to change; ``prefix``: the beginning of the options' names. Raise CommandRefused.
    """
    changes: dict[str, Any] = {}
    for row in LIMITS:
        value = options.get(f"{prefix}{row.key}")
        if value is None:
            continue
        if not daemon.options.has_own_servers and (lack := row.driver_lacks(value)):
            name = f"{prefix}{row.key}".replace("_", "-")
            raise CommandRefused(f"--{name} is not possible with the driver's own server{lack}.")
        if row.is_by_device:
            by_index = {
                device_of(daemon, server, word) if word else ALL_DEVICES: limit for word, limit in value.items()
            }
            value = row.apply_change(row.of(before), by_index, range(len(daemon.devices)))
        changes[row.field] = value
    return Limits(**changes)


def note_kept_limits(count: int) -> str:
    """Return a note on the number of clients that keep the limits with which they started."""
    if not count:
        return ""
    if count == 1:
        return "1 client keeps its limits until it restarts."
    return f"{count} clients keep their limits until they restart."


def note_missing_partition(server: NamedServer, namespace: str, partition: str | None) -> str:
    """Return a note on a namespace whose SM partition its server does not have; empty otherwise."""
    if not partition or any(existing.name == partition for existing in server.partitions):
        return ""
    return describe_missing_partition(server.name, namespace, partition)


def device_named(daemon: Daemon, word: str) -> int:
    """Return the ordinal of the device that a word names; raise CommandRefused."""
    index = find_device(daemon.devices, word)
    if index is None:
        raise CommandRefused(f"No device '{word}'. Devices: {list_devices(daemon.devices)}.")
    return index


def device_of(daemon: Daemon, server: NamedServer, word: str) -> int:
    """Return the daemon's ordinal of the device that a word names among a server's; raise CommandRefused."""
    ordinals = server.ordinals(len(daemon.devices))
    devices = [daemon.devices[ordinal] for ordinal in ordinals]
    index = find_device(devices, word)
    if index is None:
        raise CommandRefused(
            f"No device '{word}' of server '{server.name}'. Devices: {list_devices(devices) or 'none'}."
        )
    return ordinals[index]
