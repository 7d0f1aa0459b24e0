"""terminate_client: end the GPU work of one client process."""

from __future__ import annotations

from pympsd.commands.arguments import pid_at, read_loose_pid
from pympsd.commands.privileges import may_change_settings
from pympsd.commands.registry import Caller, Decision, command
from pympsd.state_machine import terminations
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import refusal
from pympsd.vocabulary.results import Result


@command("terminate_client", pid=read_loose_pid, client=pid_at(1))
def terminate_client(daemon: Daemon, caller: Caller, pid: int, client: int) -> Decision:
    """End all contexts of the client process CLIENT-PID on the server SERVER-PID; prints 0, or an error number:
    702 when a kernel still runs after 10 s, and its device cannot stop it (see --terminate-by-reset).
    """
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    server = daemon.server_by_pid(pid)
    if server is None:
        return Decision(refusal(f"Server {pid} not found", f"Server {pid} not found!", "1"))
    unseen = sum(not each.pid for each in server.clients.values())
    if unseen > 1 and not client:
        why = f"{unseen} clients are shown as 0, as their PIDs are not visible here: none can be ended alone"
        return Decision(refusal(f"{Result.ERROR_INVALID_CONTEXT}", diagnostic=f"terminate_client: {why}"))
    return Decision(None, tuple(terminations.begin(daemon, caller.session, server, client)))
