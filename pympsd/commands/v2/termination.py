"""terminate_client: end the GPU work of one client process."""

from __future__ import annotations

from collections.abc import Sequence

from pympsd.commands.numbers import atoi
from pympsd.commands.privileges import may_change_settings
from pympsd.commands.registry import Caller, Decision, command
from pympsd.state_machine import terminations
from pympsd.state_machine.daemon_state import Daemon
from pympsd.vocabulary.answers import refusal
from pympsd.vocabulary.results import Result


def _two_pids(words: Sequence[str]) -> tuple[int, int]:
    return atoi(words[0] if words else None), atoi(words[1] if len(words) > 1 else None)


@command("terminate_client", pids=_two_pids)
def terminate_client(daemon: Daemon, caller: Caller, pids: tuple[int, int]) -> Decision:
    """End all contexts of the client process CLIENT-PID on the server SERVER-PID; prints 0, or an error number:
    702 when a kernel still runs after 10 s, and its device cannot stop it (see --terminate-by-reset).
    """
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    server = daemon.server_by_pid(pids[0])
    if server is None:
        return Decision(refusal(f"Server {pids[0]} not found", f"Server {pids[0]} not found!", "1"))
    unseen = sum(not client.pid for client in server.clients.values())
    if unseen > 1 and not pids[1]:
        why = f"{unseen} clients are shown as 0, as their PIDs are not visible here: none can be ended alone"
        return Decision(refusal(f"{Result.ERROR_INVALID_CONTEXT}", diagnostic=f"terminate_client: {why}"))
    return Decision(None, tuple(terminations.begin(daemon, caller.session, server, pids[1])))
