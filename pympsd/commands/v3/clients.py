"""The module ``client``: list clients and the limits that apply to each, and terminate them.

Each row is a client on one device that it uses. The table has the vendor's columns, which programs parse. JSON always
has limits and memory; the table has them with --limits.
"""

from collections.abc import Iterator
from typing import Any, Final

from pympsd.commands.grammar.privileges import Caller, check_owner, namespace_of, sees_all
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import CommandRefused, Syntax
from pympsd.commands.v2.records import target_text
from pympsd.commands.v3 import output, view
from pympsd.commands.v3.options import FORMAT, SECONDS, SERVER
from pympsd.state_machine import terminations
from pympsd.state_machine.cgroups import limit_of, total_of
from pympsd.state_machine.named_servers import clients as clients_of
from pympsd.state_machine.named_servers import server as server_named
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.vocabulary.texts import format_memory_in_use, limit_of_memory_text, moment

COLUMNS: Final = tuple(
    output.Column(name, name, name.lower().replace(" ", "-"))
    for name in ("PID", "SERVER", "DEVICE", "MAWS NS", "CMD")
)
LIMIT_COLUMNS: Final = (
    output.Column("SM %", "SM %", "active_thread_percentage"),
    output.Column("SMS", "SMS", "sm_count"),
    output.Column("MEMORY", "MEMORY", "memory_used"),
    output.Column("LIMIT", "LIMIT", "memory_limit"),
    output.Column("PRIORITY", "PRIORITY", "priority"),
    output.Column("FREE", "FREE", "free_clients"),
)
"""The columns of --limits, to the left of the command. JSON always has them."""
_OF_DEVICES: Final = (
    "active_thread_percentage",
    "sm_partition",
    "sm_count",
    "memory_limit",
    "total_memory_limit",
    "memory_soft_limit",
    "memory_hard_limit",
    "memory_used",
    "max_clients",
    "free_clients",
)
FIELDS: Final = ("cmd", "device", "linux-ns", "maws-ns", "pci-id", "pid", "server")


@command(
    Syntax("client list", options={"server": SERVER, "format": FORMAT}, flags=("all", "limits")), asks_servers=True
)
def list_clients(
    daemon: Daemon,
    caller: Caller,
    server: str | None = None,
    all: bool = False,
    limits: bool = False,
    format: output.Format | None = None,
) -> Decision:
    """List clients, with a row for each device that a client uses: those of the server --server, with --all those of
    all servers, otherwise those of the servers that the caller owns (root: all). With --limits also the limits in
    force for each: the share and the number of its SMs, memory in use and its limit, the priority (0 normal, 1 below
    normal); and how many more clients with one context fit on the server's device.
    """
    if server is not None:
        servers = [server_named(daemon, server)]
    else:
        servers = [owned for owned in view.servers(daemon) if all or caller.uid in (0, owned.uid)]
    clients = sorted(
        ((client, owner) for owner in servers for client in clients_of(daemon, owner.name)),
        key=lambda pair: pair[0].pid,
    )
    rows = [row for client, owner in clients for row in _rows(daemon, caller, client, owner)]
    if not limits:
        return output.listing(COLUMNS, rows, format)
    *identity, command_line = COLUMNS
    return output.listing((*identity, *LIMIT_COLUMNS, command_line), [_insert_limits(row) for row in rows], format)


def _insert_limits(row: output.Row) -> output.Row:
    """Return a row with the cells of LIMIT_COLUMNS inserted before its last cell."""
    extra, (*identity, command_line) = row.extra, row.cells
    percentage, memory, limit = (extra[name] for name in ("active_thread_percentage", "memory_used", "memory_limit"))
    cells: tuple[output.Cell, ...] = (
        None if percentage is None else output.Shown(f"{percentage:.2f}", percentage),
        extra["sm_count"],
        output.Shown(format_memory_in_use(memory), memory),
        None if percentage is None else output.Shown(limit_of_memory_text(limit), limit),
        extra["priority"],
        extra["free_clients"],
    )
    return output.Row((*identity, *cells, command_line), extra)


@command(Syntax("client get", required=("pid", "field")), asks_servers=True)
def get(daemon: Daemon, caller: Caller, pid: str, field: str) -> Decision:
    """Print one field of a client; if the client uses several devices, a line for each value. A client in a container
    may be named by its PID there, unless another client has that PID.
    """
    client, server = _client(daemon, pid, None)
    name = output.find_field("client", FIELDS, field)
    if name == "linux-ns":
        return output.data(str(view.linux_namespace(daemon, client)))
    if name == "pci-id":
        return output.data("\n".join(daemon.devices[index].pci for index in _devices(daemon, client)) or "-")
    keys = [column.key for column in COLUMNS]
    values = [output.cell_text(row.cells[keys.index(name)]) for row in _rows(daemon, caller, client, server)]
    return output.data("\n".join(dict.fromkeys(values)))


@command(Syntax("client terminate", required=("pid",), options={"server": SERVER, "timeout": SECONDS}))
def terminate(
    daemon: Daemon, caller: Caller, pid: str, server: str | None = None, timeout: float | None = None
) -> Decision:
    """End a client's work on the GPU when its running kernels have ended; give up after --timeout seconds, at most 10
    (30 with --terminate-by-reset). The PID may be the one in the client's container, as in client get.
    """
    client, owner = _client(daemon, pid, server)
    check_owner(caller, owner, "client terminate")
    process = daemon.server_named(owner.name)
    assert process is not None
    instructions = terminations.begin(daemon, caller.session, process, client.pid, timeout=timeout, in_words=True)
    return Decision(None, tuple(instructions))


def _client(daemon: Daemon, pid: str, server: str | None) -> tuple[Client, NamedServer]:
    """Return the client with a PID, or else the client that has the PID in its container, and its server."""
    only = None if server is None else server_named(daemon, server)
    clients = [(client, owner) for owner in view.servers(daemon) for client in clients_of(daemon, owner.name)]
    with_pid = [entry for entry in clients if str(entry[0].pid) == pid]
    with_pid = with_pid or [
        entry for entry in clients if entry[0].process.container_pid and str(entry[0].process.container_pid) == pid
    ]
    matches = [entry for entry in with_pid if only in (None, entry[1])]
    if not matches:
        where = "" if server is None else f" on server '{server}'"
        raise CommandRefused(f"No client with PID {pid}{where}.")
    if len(pids := sorted({client.pid for client, _ in matches})) > 1:
        raise CommandRefused(
            f"Several clients have PID {pid} in their containers; use one of {', '.join(map(str, pids))}."
        )
    if len(matches) > 1:
        names = ", ".join(f"'{owner.name}'" for _, owner in matches)
        raise CommandRefused(f"Client {pid} is on several servers ({names}); choose one with --server.")
    return matches[0]


def _devices(daemon: Daemon, client: Client) -> list[int]:
    """Return the indices of a client's devices, without those that this daemon does not have."""
    ordinals = {context.device for context in client.contexts.values()}
    return sorted(ordinal for ordinal in ordinals if 0 <= ordinal < len(daemon.devices))


def _rows(daemon: Daemon, caller: Caller, client: Client, server: NamedServer) -> Iterator[output.Row]:
    """Yield a row for each device that a client uses."""
    limits = client.limits
    extra = {
        "uid": client.uid,
        "namespace": namespace_of(client),
        "linux-ns": view.linux_namespace(daemon, client),
        "container_pid": client.process.container_pid or None,
        "cgroup": client.process.cgroups[-1] if client.process.cgroups else None,
        "priority": None if limits is None else limits.priority,
        "contexts": sorted(context.id for context in client.contexts.values()),
        "since": moment(client.process.since),
        "draining": target_text(daemon.drains.find_by_client(client.id)),
    }
    where = view.maws_namespace(daemon, client, server)
    for ordinal in _devices(daemon, client) or (None,):
        device = None if ordinal is None else daemon.devices[ordinal]
        uuid, pci = (device.uuid, device.pci) if device else (None, None)
        on_device = {"pci-id": pci, **_describe_use(daemon, client, server, ordinal)}
        if not sees_all(daemon, caller):  # a tenant must not see the clients of others
            on_device["free_clients"] = None
        yield output.Row((client.pid, server.name, uuid, where, client.process.command), {**extra, **on_device})


def _describe_use(daemon: Daemon, client: Client, server: NamedServer, ordinal: int | None) -> dict[str, Any]:
    """Return a client's limits and use on a device; without a device every value is None."""
    process, limits = daemon.server_named(server.name), client.limits
    if ordinal is None or process is None:
        return dict.fromkeys(_OF_DEVICES)
    of_cgroups = limit_of(process, client, ordinal)
    values = (
        None if limits is None else limits.percentage_on(ordinal),
        client.partitions.get(ordinal) or None,
        None if limits is None else limits.multiprocessors.get(ordinal) or None,
        None if limits is None else limits.memory.get(ordinal),
        total_of(process, client, ordinal),
        of_cgroups.soft and of_cgroups.soft.value,
        of_cgroups.hard and of_cgroups.hard.value,
        client.memory.get(ordinal, 0 if daemon.options.has_own_servers else None),
        daemon.devices[ordinal].max_contexts,
        daemon.count_free(process, ordinal),
    )
    return dict(zip(_OF_DEVICES, values, strict=True))
