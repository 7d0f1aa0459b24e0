"""What protocol 3 calls the servers, namespaces and clients of the daemon's state, and who may change them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from pympsd.commands.privileges import ASK_FROM
from pympsd.commands.registry import Caller
from pympsd.commands.v3.grammar import Refused
from pympsd.commands.v3.output import ABSENT, Shown
from pympsd.devices.visible import find_device, listed
from pympsd.state_machine.clients import Client
from pympsd.state_machine.daemon_state import Daemon
from pympsd.state_machine.v3.named_server import NamedServer, Namespace
from pympsd.vocabulary.identities import NO_USER
from pympsd.vocabulary.limit_table import LIMITS, Limit, Limits
from pympsd.vocabulary.limits import ALL_DEVICES
from pympsd.vocabulary.namespaces import DEFAULT
from pympsd.vocabulary.partitions import no_partition_note


def servers(daemon: Daemon) -> list[NamedServer]:
    """Return the servers by name."""
    return [server for _, server in sorted(daemon.named_servers.items())]


def seen_by(daemon: Daemon, caller: Caller) -> Daemon:
    """Return the state as a caller may see it.

    One who came by the socket of a namespace, and is neither root nor the server's owner, sees what is of that
    namespace: a tenant in a container must not see the others' limits and programs.
    """
    if sees_all(daemon, caller):
        return daemon
    named = daemon.named_servers.get(caller.server)
    # Neither the text of the file nor its differences concern others.
    hidden: dict[str, Any] = {
        "rules": None,
        "cgroup_limits": {},
        "taken": defaultdict(Counter),
        "refusals": Counter(),
        "configuration": evolve(daemon.configuration, text=None, plan=None),
    }
    if named is None:
        return evolve(daemon, named_servers={}, servers={}, **hidden)
    name = caller.namespace or DEFAULT
    own = {each: found for each, found in named.namespaces.items() if each == name}
    process = daemon.server_named(named.name)
    processes = {}
    if process is not None:
        clients = {serial: each for serial, each in process.clients.items() if namespace_of(each) == name}
        processes[process.serial] = evolve(process, clients=clients)
    servers = {named.name: evolve(named, namespaces=own)}
    return evolve(daemon, named_servers=servers, servers=processes, **hidden)


def sees_all(daemon: Daemon, caller: Caller) -> bool:
    """Return whether queries of a caller show more than the namespace whose socket it came by."""
    named = daemon.named_servers.get(caller.server)
    is_owner = caller.uid == 0 or (named is not None and caller.uid == named.uid)
    return daemon.open_queries or not caller.server or is_owner


def namespace_named(server: NamedServer, name: str) -> Namespace:
    """Return the namespace of a name; raise Refused."""
    found = server.namespaces.get(name)
    if found is None:
        raise Refused(f"No namespace named '{name}' on server '{server.name}'.")
    return found


def check_owner(caller: Caller, server: NamedServer, command: str) -> None:
    """Raise Refused unless the caller is the owner of a server, or root."""
    if caller.uid not in (0, server.uid):
        raise insufficient(caller, command, "server")


def check_daemon_owner(daemon: Daemon, caller: Caller, command: str) -> None:
    """Raise Refused unless the caller is the user who started the daemon, or root."""
    if caller.uid not in (0, daemon.uid):
        raise insufficient(caller, command, "daemon")


def insufficient(caller: Caller, command: str, owned: str) -> Refused:
    """Return the refusal of a command whose caller does not own what it changes."""
    if caller.uid != NO_USER:
        return Refused(f"Insufficient privileges for UID {caller.uid}. '{command.upper()}' requires {owned} owner.")
    said = f"Insufficient privileges in a container. '{command.upper()}' requires {owned} owner."
    return Refused(said, ASK_FROM)


def namespace_of(client: Client) -> str:
    """Return the namespace of a client."""
    return client.mps_namespace or DEFAULT


def linux_namespace(daemon: Daemon, client: Client) -> int:
    """Return 0 for a client in the daemon's PID namespace, else the inode of its own."""
    return 0 if client.namespace == daemon.pid_namespace else client.namespace


def maws_namespace(daemon: Daemon, client: Client, server: NamedServer) -> str:
    """Return ``server/namespace (n)``: n is the PID namespace."""
    return f"{server.name}/{namespace_of(client)} ({linux_namespace(daemon, client)})"


def limit_cell(daemon: Daemon, server: NamedServer, row: Limit, limits: Limits) -> Shown:
    """Return a limit as a cell: one value if all of a server's devices have the same, otherwise one for each, by the
    index that its clients see. A server without devices has no limits of memory.
    """
    indices = server.ordinals(len(daemon.devices))
    if row.is_by_device and not row.is_for_all and not indices:
        return Shown(ABSENT, None)
    return Shown(row.text(limits, indices), row.json(limits, indices))


def limits_given(
    daemon: Daemon, server: NamedServer, before: Limits, given: Mapping[str, Any], prefix: str = ""
) -> Limits:
    """Return the change of limits that options ask for; a limit by device may be that of some of the server's devices
    only. ``before``: the limits that are changed; ``prefix``: that of the options' names. Raise Refused.
    """
    changes: dict[str, Any] = {}
    for row in LIMITS:
        value = given.get(f"{prefix}{row.key}")
        if value is None:
            continue
        if not daemon.has_own_servers and (lack := row.driver_lacks(value)):
            name = f"{prefix}{row.key}".replace("_", "-")
            raise Refused(f"--{name} is not possible with the driver's own server{lack}.")
        if row.is_by_device:
            by_index = {
                device_of(daemon, server, word) if word else ALL_DEVICES: each for word, each in value.items()
            }
            value = row.changed(row.of(before), by_index, range(len(daemon.devices)))
        changes[row.field] = value
    return Limits(**changes)


def keeps_limits(count: int) -> str:
    """Return a note on the clients that a change of limits does not reach."""
    if not count:
        return ""
    return (
        "1 client keeps its limits" + " until it starts anew."
        if count == 1
        else (f"{count} clients keep their limits until they start anew.")
    )


def no_partition_yet(server: NamedServer, namespace: str, partition: str | None) -> str:
    """Return a note on a namespace that is bound to an SM partition that its server does not have."""
    if not partition or any(one.name == partition for one in server.partitions):
        return ""
    return no_partition_note(server.name, namespace, partition)


def device_named(daemon: Daemon, word: str) -> int:
    """Return the ordinal of a device; raise Refused."""
    found = find_device(daemon.devices, word)
    if found is None:
        raise Refused(f"No device '{word}'. Devices: {listed(daemon.devices)}.")
    return found


def device_of(daemon: Daemon, server: NamedServer, word: str) -> int:
    """Return the daemon's ordinal of a device that a word names as the server's clients do; raise Refused."""
    ordinals = server.ordinals(len(daemon.devices))
    facts = [daemon.devices[ordinal] for ordinal in ordinals]
    found = find_device(facts, word)
    if found is None:
        raise Refused(f"No device '{word}' of server '{server.name}'. Devices: {listed(facts) or 'none'}.")
    return ordinals[found]
