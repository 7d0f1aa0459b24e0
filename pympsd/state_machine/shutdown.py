"""The end: quit with and without a bound, signals, and what a forced server gets that does not leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine.admission import tell_to_leave
from pympsd.state_machine.daemon_state import Daemon, Quit
from pympsd.state_machine.instructions import Exit, Instruction, Log, RefuseClient, SetTimer, Working
from pympsd.vocabulary.results import Result

FORCE_TIMER: Final = "force"
SIGNAL_PATIENCE: Final = 2.0
"""Seconds between SIGTERM and force: supervisors wait at least 10 s before they kill."""


def begin_quit(daemon: Daemon, session: int, timeout: float | None) -> Iterator[Instruction]:
    """An operator's quit (``timeout`` in seconds, None: wait for the clients); a second one joins the first."""
    yield Working(session)
    if timeout is not None:
        yield Log("quit_timeout", {"seconds": int(timeout)})
        yield SetTimer(FORCE_TIMER, max(0.0, timeout))
    if daemon.quitting is None:
        daemon.quitting = Quit()
    yield from _empty_the_line(daemon)
    yield from advance(daemon)


def stop_by_signal(daemon: Daemon) -> Iterator[Instruction]:
    """SIGTERM or SIGINT: quit within a bound."""
    if daemon.quitting is None:
        daemon.quitting = Quit()
        yield from _empty_the_line(daemon)
    yield SetTimer(FORCE_TIMER, SIGNAL_PATIENCE)
    yield from advance(daemon)


def force(daemon: Daemon) -> Iterator[Instruction]:
    """The bound of a quit is over."""
    if daemon.quitting is None:
        return
    daemon.quitting.forced = True
    yield from advance(daemon)


def advance(daemon: Daemon) -> Iterator[Instruction]:
    """Go on with a pending quit: tell servers to leave, or exit when none is left."""
    if daemon.quitting is None or daemon.quitting.over:
        return
    for server in daemon.servers.values():
        yield from tell_to_leave(server, forced=daemon.quitting.forced)
    if not daemon.servers:
        daemon.quitting.over = True
        yield Log("daemon_exiting", {"status": 0})
        yield Exit(0)


def _empty_the_line(daemon: Daemon) -> Iterator[Instruction]:
    reason = "the MPS control daemon is quitting: no new clients"
    for client in (*(waiting.client for waiting in daemon.line if waiting.client), *daemon.debugged):
        yield RefuseClient(client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
    daemon.line.clear()
    daemon.debugged.clear()
