"""The module ``client``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Refused, Syntax
from pympsd.commands.v3.options import FORMAT, SECONDS, SERVER
from pympsd.commands.v3.output import Column, Format, Row, cell_text, moment
from pympsd.commands.v3.registry import command, data, listing
from pympsd.state_machine import terminations
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.state_machine.v3.cgroups import limit_of, total_of
from pympsd.state_machine.v3.servers import clients as clients_of
from pympsd.state_machine.v3.servers import server as server_named

COLUMNS: Final = (
    Column("PID", "PID", "pid"),
    Column("SERVER", "SERVER", "server"),
    Column("DEVICE", "DEVICE", "device"),
    Column("MAWS NS", "MAWS NS", "maws-ns"),
    Column("CMD", "CMD", "cmd"),
)
_OF_DEVICES: Final = (
    "sm_partition",
    "sm_count",
    "memory_limit",
    "total_memory_limit",
    "memory_soft_limit",
    "memory_hard_limit",
    "memory_used",
)
FIELDS: Final = ("cmd", "device", "linux-ns", "maws-ns", "pci-id", "pid", "server")


@command(Syntax("client list", options={"server": SERVER, "format": FORMAT}, flags=("all",)), asks_servers=True)
def list_clients(
    daemon: Daemon, caller: Caller, server: str | None = None, all: bool = False, format: Format | None = None
) -> Decision:
    """List the clients, one row for each device of each: of a server, with --all of all, otherwise of the servers
    that the asking user owns (root: all).
    """
    if server is not None:
        shown = [server_named(daemon, server)]
    else:
        shown = [each for each in view.servers(daemon) if all or caller.uid in (0, each.uid)]
    clients = sorted(
        ((client, owner) for owner in shown for client in clients_of(daemon, owner.name)),
        key=lambda pair: pair[0].pid,
    )
    rows = [row for client, owner in clients for row in _rows(daemon, client, owner)]
    return listing(COLUMNS, rows, format)


@command(Syntax("client get", required=("pid", "field")), asks_servers=True)
def get(daemon: Daemon, caller: Caller, pid: str, field: str) -> Decision:
    """Print one field of a client; of one on several devices a line each. A client in a container may be named by its
    PID there, if no other one has that.
    """
    client, server = _client(daemon, pid, None)
    wanted = field.replace("_", "-")
    if wanted not in FIELDS:
        raise Refused(f"A client has no field '{field}'. Fields: {', '.join(FIELDS)}.")
    if wanted == "linux-ns":
        return data(str(view.linux_namespace(daemon, client)))
    if wanted == "pci-id":
        return data("\n".join(daemon.devices[each].pci for each in _devices(daemon, client)) or "-")
    keys = [column.key for column in COLUMNS]
    values = [cell_text(row.cells[keys.index(wanted)]) for row in _rows(daemon, client, server)]
    return data("\n".join(dict.fromkeys(values)))


@command(Syntax("client terminate", required=("pid",), options={"server": SERVER, "timeout": SECONDS}))
def terminate(
    daemon: Daemon, caller: Caller, pid: str, server: str | None = None, timeout: float | None = None
) -> Decision:
    """End a client's work on the GPU when its kernels have ended; give up after --timeout seconds, or 10 if that is
    less (30 with --terminate-by-reset). Its PID may be that in its container, as in client get.
    """
    client, owner = _client(daemon, pid, server)
    view.check_owner(caller, owner, "client terminate")
    process = daemon.server_named(owner.name)
    assert process is not None
    begun = terminations.begin(daemon, caller.session, process, client.pid, timeout=timeout, in_words=True)
    return Decision(None, tuple(begun))


def _client(daemon: Daemon, pid: str, server: str | None) -> tuple[Client, NamedServer]:
    """Return the client with a PID, or if no server has one the one that has it in its container."""
    only = None if server is None else server_named(daemon, server)
    clients = [(client, owner) for owner in view.servers(daemon) for client in clients_of(daemon, owner.name)]
    known = [each for each in clients if str(each[0].pid) == pid]
    known = known or [each for each in clients if each[0].container_pid and str(each[0].container_pid) == pid]
    found = [each for each in known if only in (None, each[1])]
    if not found:
        where = "" if server is None else f" on server '{server}'"
        raise Refused(f"No client with PID {pid}{where}.")
    if len(pids := sorted({client.pid for client, _ in found})) > 1:
        raise Refused(f"Several clients have PID {pid} in their containers: name {' or '.join(map(str, pids))}.")
    if len(found) > 1:
        names = ", ".join(f"'{owner.name}'" for _, owner in found)
        raise Refused(f"Client {pid} is on several servers: {names}; --server chooses one.")
    return found[0]


def _devices(daemon: Daemon, client: Client) -> list[int]:
    """Return the ordinals of a client's devices; a server may know some that this daemon does not."""
    ordinals = {context.device for context in client.contexts.values()}
    return sorted(ordinal for ordinal in ordinals if 0 <= ordinal < len(daemon.devices))


def _rows(daemon: Daemon, client: Client, server: NamedServer) -> Iterator[Row]:
    limits = client.limits
    extra = {
        "uid": client.uid,
        "namespace": view.namespace_of(client),
        "linux-ns": view.linux_namespace(daemon, client),
        "container_pid": client.container_pid or None,
        "cgroup": client.cgroups[-1] if client.cgroups else None,
        "priority": None if limits is None else limits.priority,
        "contexts": sorted(context.serial for context in client.contexts.values()),
        "since": moment(client.since),
    }
    where = view.maws_namespace(daemon, client, server)
    for ordinal in _devices(daemon, client) or (None,):
        device = None if ordinal is None else daemon.devices[ordinal]
        uuid, pci = (device.uuid, device.pci) if device else (None, None)
        on_device = {"pci-id": pci, **_on_device(daemon, client, server, ordinal)}
        yield Row((client.pid, server.name, uuid, where, client.command), {**extra, **on_device})


def _on_device(daemon: Daemon, client: Client, server: NamedServer, ordinal: int | None) -> dict[str, Any]:
    """Return what holds for a client on a device and what it has there; all of it None without a device."""
    process, limits = daemon.server_named(server.name), client.limits
    if ordinal is None or process is None:
        return dict.fromkeys(_OF_DEVICES)
    of_cgroups = limit_of(process, client, ordinal)
    values = (
        client.partitions.get(ordinal) or None,
        None if limits is None else limits.multiprocessors.get(ordinal),
        None if limits is None else limits.memory.get(ordinal),
        total_of(process, client, ordinal),
        of_cgroups.soft and of_cgroups.soft.value,
        of_cgroups.hard and of_cgroups.hard.value,
        client.memory.get(ordinal, 0 if daemon.options.has_own_servers else None),
    )
    return dict(zip(_OF_DEVICES, values, strict=True))
