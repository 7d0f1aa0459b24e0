"""Commands that list clients and devices, by server."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pympsd.commands.grammar.privileges import Caller, sees_all
from pympsd.commands.grammar.recorded import OPTIONAL_PID, PID, read_pid
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import Option, Syntax
from pympsd.commands.v2.records import (
    client_record,
    context_record,
    device_record,
    find_server,
    make_device_record,
    target_text,
)
from pympsd.state_machine.state.client import Client, ReportedContext
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.answers import Answer, AnswerPart, lines, refusal
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.texts import format_memory_in_use, limit_of_memory_text

PS_ROW: Final = "{:<10}{:<10}{:<15}{:<26}{:<15}{}"
"""The recorded columns of ps. Only the heading pads the last column, to 15 characters."""
UUID_SHOWN: Final = 22
"""The number of characters of the UUID that ps shows."""
LIMITS_ROW: Final = "{:<8}{:<6}{:<11}{:<11}{:<10}"
"""The columns of limits in ``ps --limits``, to the left of the command."""
DEVICE_HEADING: Final = ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")
DEVICE_ROW: Final = "{:<16}{:<15}{:<42}{:<34}{}"


@command(Syntax("get_client_list", required=(PID,)), asks_servers=True)
def get_client_list(daemon: Daemon, caller: Caller, pid: int) -> Decision:
    """List the PIDs of the client processes of the server PID, one to a line."""
    clients = find_server(daemon, pid).clients.values()
    return Decision(
        lines(*(str(client.pid) for client in clients)), data=[client_record(daemon, client) for client in clients]
    )


@command(Syntax("get_device_client_list", optional=(OPTIONAL_PID,)), asks_servers=True)
def get_device_client_list(daemon: Daemon, caller: Caller, pid: int | None) -> Decision:
    """List the devices in use and, below each, its client contexts as PID.CONTEXT; with PID, those of one server.
    With --json all devices of the servers, and how many more clients with one context fit on each.
    """
    if pid is not None:
        find_server(daemon, pid)
    texts: list[str] = []
    data = []
    for server in daemon.list_running_servers():
        if pid not in (None, server.pid):
            continue
        for ordinal, device in enumerate(daemon.devices):
            contexts = _contexts(server, ordinal)
            if contexts:
                texts += [f"[{ordinal}] 00:0{ordinal}.0, {device.name}"]
                texts += [f"{client.pid}.{context.number}" for client, context in contexts]
            elif ordinal not in daemon.ordinals_of(server):
                continue
            data.append(
                {
                    **device_record(daemon, ordinal),
                    "server": server.pid,
                    "contexts": [{"pid": client.pid, **context_record(context)} for client, context in contexts],
                    "max_clients": device.max_contexts,
                    # A tenant must not see the clients of others.
                    "free_clients": daemon.count_free(server, ordinal) if sees_all(daemon, caller) else None,
                }
            )
    return Decision(lines(*texts), data=data)


def _contexts(server: Server, device: int) -> list[tuple[Client, ReportedContext]]:
    clients = server.clients.values()
    return [
        (client, context) for client in clients for context in client.contexts.values() if context.device == device
    ]


@command(Syntax("ps", options={"pid": Option(read_pid, "PID", "-p")}, flags=("limits",)), asks_servers=True)
def ps(daemon: Daemon, caller: Caller, pid: int | None, limits: bool) -> Decision:
    """Show the client processes that have a context; with -p PID, those of one server. With --limits, show also each
    client's limits on the device shown: the share and the number of its SMs, its memory in use and the memory limit,
    and its priority (0 normal, 1 below normal).
    """
    if pid is not None and daemon.server_by_pid(pid) is None:
        text = f"Server {pid} not found"
        # Recorded: the line is printed twice, then an empty line that is not logged.
        return Decision(Answer((AnswerPart(text), AnswerPart(text), AnswerPart("", logged=False)), refused=True))
    servers = [server for server in daemon.list_running_servers() if pid in (None, server.pid)]
    if not servers:
        return Decision(refusal("Server not found"), data=[])
    rows = [
        _ps_row(daemon, server, client) for server in servers for client in server.clients.values() if client.contexts
    ]
    between = LIMITS_ROW.format("SM %", "SMS", "MEMORY", "LIMIT", "PRIORITY") if limits else ""
    heading = PS_ROW.format("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", f"{between}{'COMMAND':<15}")
    texts = [_ps_line(row, limits) for row in rows]
    return Decision(lines(heading, *texts) if rows else lines(), data=rows)


def _ps_line(row: Mapping[str, Any], limits: bool) -> str:
    cells = row["pid"], row["id"], row["server"], row["device"][:UUID_SHOWN], row["pid_namespace"]
    between = LIMITS_ROW.format(*_limit_cells(row)) if limits else ""
    return PS_ROW.format(*cells, f"{between}{row['command']}")


def _limit_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of LIMITS_ROW, with ``-`` for an unknown limit."""
    percentage, count, priority = (row[name] for name in ("active_thread_percentage", "multiprocessors", "priority"))
    if percentage is None:
        return ("-", "-", format_memory_in_use(row["memory_bytes"]), "-", "-")
    memory = format_memory_in_use(row["memory_bytes"]), limit_of_memory_text(row["memory_limit"])
    return (f"{percentage:.1f}", str(count or "-"), *memory, str(priority))


def _ps_row(daemon: Daemon, server: Server, client: Client) -> dict[str, Any]:
    """Return the cells of a client's row by their names in JSON."""
    first = next(iter(client.contexts.values()))
    # A server may report a device that this daemon does not have.
    uuid = daemon.devices[first.device].uuid if 0 <= first.device < len(daemon.devices) else ""
    return {
        "pid": client.pid,
        "id": first.id,
        "server": server.pid,
        "device": uuid,
        "pid_namespace": client.process.pid_namespace,
        "command": client.process.command,
        **make_device_record(client, first.device, memory=0 if daemon.options.has_own_servers else None),
        "draining": target_text(daemon.drains.find_by_client(client.id)),
    }


@command(Syntax("device_query", optional=(OPTIONAL_PID,), flags=("csv",)))
def device_query(daemon: Daemon, caller: Caller, pid: int | None, csv: bool) -> Decision:
    """Show the devices of the daemon and of its servers; with PID, of one server; with --csv, as comma-separated
    values.
    """
    if pid is not None:
        find_server(daemon, pid)
    texts = ["Default", *_device_rows(daemon.devices, csv)]
    servers = [server for server in daemon.list_running_servers() if pid in (None, server.pid)]
    for server in servers:
        # Recorded: the heading of a server begins with a newline.
        texts += [
            f"\nServer {server.pid}",
            *_device_rows([daemon.devices[n] for n in daemon.ordinals_of(server)], csv),
        ]
    devices = [device_record(daemon, ordinal) for ordinal in range(len(daemon.devices))]
    return Decision(lines(*texts), data={"devices": devices, "servers": [server.pid for server in servers]})


def _device_rows(devices: Sequence[DeviceProperties], csv: bool) -> list[str]:
    rows = [DEVICE_HEADING, *((n, device.pci, device.uuid, device.name, "N/A") for n, device in enumerate(devices))]
    return [",".join(map(str, row)) if csv else DEVICE_ROW.format(*row) for row in rows]
