"""The line of waiting users: who stands before whom, and how long newcomers of the active user may overtake.

Ticket numbers are the only clock: a waiter whose patience is over draws one more, and later tickets stay behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine.daemon_state import Daemon, Server, Waiting
from pympsd.state_machine.instructions import CancelTimer, Instruction, Log, SetTimer

TURN_TIMER: Final = "turn"


def join(daemon: Daemon, waiting: Waiting) -> Iterator[Instruction]:
    """Somebody who is not admitted at once takes the last place of the line."""
    others = daemon.current is not None and daemon.current.uid != waiting.uid
    others = others or any(one.uid != waiting.uid for one in daemon.line)
    before = _users_before(daemon, waiting.uid)
    daemon.line.append(waiting)
    if before:
        yield _said(waiting, ", ".join(f"user {uid}" for uid in before))
    if not others:
        # The next server is this user's own: nobody can overtake.
        return
    if daemon.turn_patience <= 0:
        waiting.patient_until = waiting.ticket
        return
    daemon.patience_timers.add(waiting.ticket)
    yield SetTimer(f"{TURN_TIMER} {waiting.ticket}", daemon.turn_patience)


def lose_patience(daemon: Daemon, ticket: int) -> None:
    """A waiter has waited long enough: whoever comes from now on does not overtake it."""
    daemon.patience_timers.discard(ticket)
    for waiting in daemon.line:
        if waiting.ticket == ticket:
            waiting.patient_until = daemon.tickets.take()


def forget_timers(daemon: Daemon) -> Iterator[Instruction]:
    """Cancel the timers of those who have left the line since: thousands may come and go before one ends."""
    if daemon.patience_timers:
        gone = daemon.patience_timers - {waiting.ticket for waiting in daemon.line}
        daemon.patience_timers -= gone
        for ticket in sorted(gone):
            yield CancelTimer(f"{TURN_TIMER} {ticket}")


def is_closed_to_newcomers(daemon: Daemon, uid: int) -> bool:
    """Whether somebody of another user waits whom a newcomer of this user may not overtake."""
    return any(waiting.uid != uid and waiting.patient_until is not None for waiting in daemon.line)


def take_admissible(daemon: Daemon, uid: int) -> list[Waiting]:
    """Take out of the line everybody of a user who overtakes nobody that has lost patience before they came."""
    taken, kept = [], []
    barrier: float = float("inf")
    for waiting in daemon.line:
        if waiting.uid == uid and (not waiting.client or waiting.ticket < barrier):
            taken.append(waiting)
            continue
        if waiting.uid != uid and waiting.patient_until is not None:
            barrier = min(barrier, waiting.patient_until)
        kept.append(waiting)
    daemon.line = kept
    return taken


def tell_of_closing(daemon: Daemon, server: Server) -> Iterator[Instruction]:
    """Log, once, that a server takes no newcomers of its user any more, and for whose sake."""
    closed = is_closed_to_newcomers(daemon, server.uid)
    if closed and not server.closed:
        first = next(one for one in daemon.line if one.uid != server.uid and one.patient_until is not None)
        yield Log(
            "turn_closed",
            {"uid": first.uid, "seconds": daemon.turn_patience, "server": server.pid, "active": server.uid},
        )
    server.closed = closed


def _said(waiting: Waiting, before: str) -> Log:
    if waiting.peer is None:
        return Log("turn_wished", {"uid": waiting.uid, "before": before})
    return Log("turn_awaited", {"pid": waiting.peer.pid, "uid": waiting.uid, "before": before})


def _users_before(daemon: Daemon, uid: int) -> list[int]:
    """Return the other users who are served before somebody that joins the line now, in order."""
    users = [] if daemon.current is None else [daemon.current.uid]
    ahead = [waiting.uid for waiting in daemon.line]
    if uid in ahead and not is_closed_to_newcomers(daemon, uid):
        # Served together with those of its user that wait already.
        ahead = ahead[: ahead.index(uid)]
    return [other for other in dict.fromkeys(users + ahead) if other != uid]
