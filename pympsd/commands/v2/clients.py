"""Commands that list clients, by server and device."""

from __future__ import annotations

from typing import Any, Final

from pympsd.commands.arguments import A_PID, MAYBE_A_PID, after_option, read_loose_pid, read_optional_pid
from pympsd.commands.registry import Caller, Decision, command
from pympsd.commands.v2.records import client_record, context_record, device_record
from pympsd.state_machine.state.client import Client, Context
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.answers import Answer, Part, lines, refusal

PS_ROW: Final = "{:<10}{:<10}{:<15}{:<26}{:<15}{}"
"""The recorded columns of ps; only the heading pads the last one, to 15."""
UUID_SHOWN: Final = 22
"""The number of characters of the UUID that ps shows."""


@command("get_client_list", asks_servers=True, takes=A_PID, pid=read_loose_pid)
def get_client_list(daemon: Daemon, caller: Caller, pid: int) -> Decision:
    """List the PIDs of the client processes connected to the server PID, one a line."""
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found"))
    clients = server.clients.values()
    return Decision(lines(*(str(each.pid) for each in clients)), data=[client_record(each) for each in clients])


@command("get_device_client_list", asks_servers=True, takes=MAYBE_A_PID, pid=read_optional_pid)
def get_device_client_list(daemon: Daemon, caller: Caller, pid: int | None) -> Decision:
    """List the devices in use and, under each, its client contexts as PID.CONTEXT; of the server PID or of all."""
    if pid is not None and daemon.server_by_pid(pid) is None:
        return Decision(refusal(f"Server {pid} not found"))
    shown: list[str] = []
    data = []
    for server in daemon.running_servers():
        for ordinal, device in enumerate(daemon.devices):
            if pid in (None, server.pid) and (contexts := _contexts(server, ordinal)):
                shown += [f"[{ordinal}] 00:0{ordinal}.0, {device.name}"]
                shown += [f"{client.pid}.{context.number}" for client, context in contexts]
                found = [{"pid": client.pid, **context_record(context)} for client, context in contexts]
                data.append({**device_record(daemon, ordinal), "server": server.pid, "contexts": found})
    return Decision(lines(*shown), data=data)


def _contexts(server: Server, device: int) -> list[tuple[Client, Context]]:
    clients = server.clients.values()
    return [(client, each) for client in clients for each in client.contexts.values() if each.device == device]


@command("ps", asks_servers=True, takes=rf"(-p {A_PID})?", pid=after_option("-p"))
def ps(daemon: Daemon, caller: Caller, pid: int | None) -> Decision:
    """Show the client processes that have a context; with -p PID those of one server."""
    if pid is not None and daemon.server_by_pid(pid) is None:
        text = f"Server {pid} not found"
        # Recorded: the line twice, then an empty line that is not logged.
        return Decision(Answer((Part(text), Part(text), Part("", logged=False)), refused=True))
    servers = [server for server in daemon.running_servers() if pid in (None, server.pid)]
    if not servers:
        return Decision(refusal("Server not found"), data=[])
    rows = [
        _ps_row(daemon, server, client) for server in servers for client in server.clients.values() if client.contexts
    ]
    heading = PS_ROW.format("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", f"{'COMMAND':<15}")
    texts = [PS_ROW.format(*{**row, "device": row["device"][:UUID_SHOWN]}.values()) for row in rows]
    return Decision(lines(heading, *texts) if rows else lines(), data=rows)


def _ps_row(daemon: Daemon, server: Server, client: Client) -> dict[str, Any]:
    """Return the cells of a client's row by the names that JSON has."""
    first = next(iter(client.contexts.values()))
    # A server may know a device that this daemon does not.
    uuid = daemon.devices[first.device].uuid if 0 <= first.device < len(daemon.devices) else ""
    return {
        "pid": client.pid,
        "id": first.serial,
        "server": server.pid,
        "device": uuid,
        "pid_namespace": client.namespace,
        "command": client.command,
    }
