"""Commands that list clients, by server and device."""

from __future__ import annotations

from typing import Final

from pympsd.commands.arguments import after_option, loose_pid, optional_pid
from pympsd.commands.registry import Caller, Decision, command
from pympsd.state_machine.daemon_state import Client, Daemon, Server
from pympsd.vocabulary.answers import Answer, Part, lines, refusal

PS_ROW: Final = "{:<10}{:<10}{:<15}{:<26}{:<15}{}"
"""The recorded columns of ps; only the heading pads the last one, to 15."""
UUID_SHOWN: Final = 22
"""The number of characters of the UUID that ps shows."""


@command("get_client_list", asks_servers=True, pid=loose_pid)
def get_client_list(daemon: Daemon, caller: Caller, pid: int) -> Decision:
    """List the PIDs of the client processes connected to the server PID, one a line."""
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found"))
    return Decision(lines(*(str(client.pid) for client in server.clients.values())))


@command("get_device_client_list", asks_servers=True, pid=optional_pid)
def get_device_client_list(daemon: Daemon, caller: Caller, pid: int | None) -> Decision:
    """List the devices in use and, under each, its client contexts as PID.CONTEXT; of the server PID or of all."""
    if pid is not None and daemon.server_by_pid(pid) is None:
        return Decision(refusal(f"Server {pid} not found"))
    servers = daemon.running_servers() if pid is None else [daemon.server_by_pid(pid)]
    return Decision(lines(*(line for server in servers if server for line in _device_clients(daemon, server))))


def _device_clients(daemon: Daemon, server: Server) -> list[str]:
    shown: list[str] = []
    for ordinal, device in enumerate(daemon.devices):
        contexts = [
            f"{client.pid}.{context.number}"
            for client in server.clients.values()
            for context in client.contexts.values()
            if context.device == ordinal
        ]
        if contexts:
            shown += [f"[{ordinal}] 00:0{ordinal}.0, {device.name}", *contexts]
    return shown


@command("ps", asks_servers=True, pid=after_option("-p"))
def ps(daemon: Daemon, caller: Caller, pid: int | None) -> Decision:
    """Show the client processes that have a context; with -p PID those of one server."""
    if pid is not None and daemon.server_by_pid(pid) is None:
        text = f"Server {pid} not found"
        # Recorded: the line twice, then an empty line that is not logged.
        return Decision(Answer((Part(text), Part(text), Part("", logged=False)), refused=True))
    servers = [server for server in daemon.running_servers() if pid in (None, server.pid)]
    if not servers:
        return Decision(refusal("Server not found"))
    rows = [
        _ps_row(daemon, server, client) for server in servers for client in server.clients.values() if client.contexts
    ]
    heading = PS_ROW.format("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", f"{'COMMAND':<15}")
    return Decision(lines(heading, *rows) if rows else lines())


def _ps_row(daemon: Daemon, server: Server, client: Client) -> str:
    first = next(iter(client.contexts.values()))
    # A server may know a device that this daemon does not.
    uuid = daemon.devices[first.device].uuid[:UUID_SHOWN] if 0 <= first.device < len(daemon.devices) else ""
    return PS_ROW.format(client.pid, first.serial, server.pid, uuid, client.namespace, client.command)
