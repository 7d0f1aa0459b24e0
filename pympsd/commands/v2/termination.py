"""terminate_client: end the GPU work of one client process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pympsd.commands.answers import refusal
from pympsd.commands.numbers import atoi
from pympsd.commands.privileges import may_change_settings
from pympsd.commands.registry import Asker, Decision, command
from pympsd.state_machine.daemon_state import Daemon, Termination
from pympsd.state_machine.instructions import SetTimer, TerminateClient, Working

TERMINATION_TIMER: Final = "termination"
TERMINATION_PATIENCE: Final = 15.0
"""Seconds a server has to answer: it gives up by itself after 10, unless it is stopped."""
RESET_PATIENCE: Final = 30.0
"""The same where it does not give up then, but ends processes that have kernels on a device."""


def _two_pids(words: Sequence[str]) -> tuple[int, int]:
    return atoi(words[0] if words else None), atoi(words[1] if len(words) > 1 else None)


@command("terminate_client", pids=_two_pids)
def terminate_client(daemon: Daemon, asker: Asker, pids: tuple[int, int]) -> Decision:
    """End all contexts of the client process CLIENT-PID on the server SERVER-PID; prints 0, or an error number:
    702 when a kernel still runs after 10 s, and its device cannot stop it (see --terminate-by-reset).
    """
    if (denied := may_change_settings(daemon, asker)) is not None:
        return Decision(denied)
    server = daemon.server_by_pid(pids[0])
    if server is None:
        return Decision(refusal(f"Server {pids[0]} not found", f"Server {pids[0]} not found!", "1"))
    token = daemon.termination_serials.take()
    patience = RESET_PATIENCE if daemon.terminate_by_reset else TERMINATION_PATIENCE
    daemon.terminations[token] = Termination(asker.session, server.serial, patience)
    told = TerminateClient(server.serial, token, pids[1], daemon.terminate_by_reset)
    return Decision(None, (Working(asker.session), told, SetTimer(f"{TERMINATION_TIMER} {token}", patience)))
