"""Clients under a debugger: each waits until the others have left, then runs without MPS (MPS documents, 2.3.6.1).

They are nobody's turn: no server is started, kept or told to leave for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine.daemon_state import Daemon, Debugged, Server
from pympsd.state_machine.events import ClientKnocked
from pympsd.state_machine.instructions import Instruction, LetGoWithoutMps, Log

REASON: Final = "this process runs under a debugger, and the other MPS clients have left"


def wait_for_others(daemon: Daemon, event: ClientKnocked) -> Iterator[Instruction]:
    """A client under a debugger waits for those who are admitted or in line now; not for those who come later."""
    others = _present(daemon)
    daemon.debugged[event.client] = Debugged(event.client, event.peer.pid, event.peer.uid, others)
    if others:
        yield Log("debugger_waits", {"pid": event.peer.pid, "uid": event.peer.uid, "count": len(others)})


def let_go(daemon: Daemon) -> Iterator[Instruction]:
    """Send those on their way whose others have all left."""
    if not daemon.debugged:
        return
    present = _present(daemon)
    for debugged in tuple(daemon.debugged.values()):
        debugged.others &= present
        if not debugged.others:
            del daemon.debugged[debugged.client]
            yield Log("debugger_let_go", {"pid": debugged.pid, "uid": debugged.uid})
            yield LetGoWithoutMps(debugged.client, REASON)


def now_known(daemon: Daemon, server: Server) -> None:
    """A server has returned: who waited for it waits for its clients."""
    for debugged in daemon.debugged.values():
        if -server.serial in debugged.others:
            debugged.others |= set(server.clients)


def _present(daemon: Daemon) -> set[int]:
    admitted = {client for server in daemon.servers.values() for client in server.clients}
    # A server that is to return stands for its clients, who are not known yet.
    unknown = {-server.serial for server in daemon.servers.values() if server.awaited}
    return admitted | unknown | {waiting.client for waiting in daemon.line if waiting.client}
