"""Servers that end before they have served: tried again with a growing pause, and only so often.

That is before they are ready, while their clients wait, or soon after it with their clients, who come again by
themselves. A server that states why it cannot start would say it again: those who wait for it are told at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen

from pympsd.state_machine.daemon_state import Daemon, FailedStarts, Server
from pympsd.state_machine.instructions import Instruction, Log, RefuseClient, SetTimer
from pympsd.state_machine.server_lifecycle import Phase
from pympsd.vocabulary.results import Result

RETRY_TIMER: Final = "retry"
PAUSES: Final = (0.1, 0.5, 2.0)
"""Seconds before the second, third and fourth try; there is no fifth."""
PROBATION_TIMER: Final = "probation"
PROBATION: Final = 10.0
"""Seconds after which a ready server has proven that it lives, whether or not its clients made a context."""
MEMORY_TIMER: Final = "memory"
MEMORY: Final = 10.0
"""Seconds a server that ended with its clients is remembered for, while nobody comes again."""
REFUSED_FOR: Final = 5.0
"""Seconds in which a user's clients are refused after the fourth of such servers."""


@frozen
class Death:
    """How a server's process ended, and the last line it wrote to its standard error."""

    status: int | None
    last_words: str = ""


def died(daemon: Daemon, server: Server, death: Death) -> Iterator[Instruction]:
    """A server, none of the daemon's any more, has ended before it was ready."""
    count = _one_more(daemon, server)
    reason = _reason(server, death)
    if server.start_refusal:
        yield from refuse_user(daemon, server.uid, f"{reason}; server.log says why")
        return
    if not any(waiting.uid == server.uid for waiting in daemon.line):
        return
    if count > len(PAUSES):
        yield from _give_up(daemon, server, count, reason)
        return
    yield from _pause(daemon, server, FailedStarts(count, server.serial), reason)


def begin_probation(server: Server) -> Iterator[Instruction]:
    """A server is ready: it has yet to prove that it serves."""
    yield SetTimer(f"{PROBATION_TIMER} {server.serial}", PROBATION)


def probation_ended(daemon: Daemon, serial: int) -> None:
    """A server has lived for a while."""
    server = daemon.servers.get(serial)
    if server is not None and server.phase in (Phase.ACTIVE, Phase.FAULT):
        has_served(daemon, server)


def has_served(daemon: Daemon, server: Server) -> None:
    """A server does its work: what failed before it counts no more."""
    server.proven = True
    forget(daemon, server)


def died_unserving(daemon: Daemon, server: Server, death: Death) -> Iterator[Instruction]:
    """A server has ended, by itself, soon after it was ready; what clients it had never got anything of it."""
    if server.proven or not server.clients or server.phase not in (Phase.ACTIVE, Phase.FAULT):
        forget(daemon, server)
        return
    count = _one_more(daemon, server)
    reason = _reason(server, death, "was ready but before it served anybody")
    if count > len(PAUSES):
        yield from _give_up(daemon, server, count, reason)
        refusal = f"{reason}; server.log says why; it was tried {count} times; try again in {REFUSED_FOR:g} s"
        daemon.failed_starts[server.uid] = FailedStarts(count, server.serial, server.serial, refusal)
        yield SetTimer(f"{RETRY_TIMER} {server.serial}", REFUSED_FOR)
        return
    yield from _pause(daemon, server, FailedStarts(count, server.serial, server.serial), reason)
    yield SetTimer(f"{MEMORY_TIMER} {server.serial}", MEMORY)


def refusal_of(daemon: Daemon, uid: int) -> str:
    """Return why a user's clients are refused at the moment; nothing: they are not."""
    failed = daemon.failed_starts.get(uid)
    return failed.refusal if failed is not None else ""


def is_pausing(daemon: Daemon, uid: int) -> bool:
    """Whether a user's next server is not to be started yet."""
    failed = daemon.failed_starts.get(uid)
    return failed is not None and failed.pausing_after != 0


def pause_ended(daemon: Daemon, serial: int) -> None:
    """The pause after the death of a server is over."""
    for uid, failed in tuple(daemon.failed_starts.items()):
        if failed.pausing_after != serial:
            continue
        waited_for = any(waiting.uid == uid for waiting in daemon.line)
        if not failed.refusal and (failed.unserved or waited_for):
            daemon.failed_starts[uid] = FailedStarts(failed.count, 0, failed.unserved)
        else:
            del daemon.failed_starts[uid]


def memory_ended(daemon: Daemon, serial: int) -> None:
    """Nothing has failed since a server ended with its clients: that was long ago."""
    for uid, failed in tuple(daemon.failed_starts.items()):
        if failed.unserved != serial or failed.refusal:
            continue
        if failed.pausing_after:
            daemon.failed_starts[uid] = FailedStarts(failed.count, failed.pausing_after)
        else:
            del daemon.failed_starts[uid]


def forget(daemon: Daemon, server: Server) -> None:
    """A server has served, or was told to leave: what failed before it counts no more."""
    daemon.failed_starts.pop(server.uid, None)


def refuse_user(daemon: Daemon, uid: int, reason: str) -> Iterator[Instruction]:
    """Refuse everybody who waits for a user's server; wishes for it are void."""
    daemon.failed_starts.pop(uid, None)
    refused = [waiting for waiting in daemon.line if waiting.uid == uid]
    daemon.line = [waiting for waiting in daemon.line if waiting.uid != uid]
    for waiting in refused:
        if waiting.client:
            yield RefuseClient(waiting.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)


def _one_more(daemon: Daemon, server: Server) -> int:
    """Return how many there were now, this one included; the account is closed."""
    before = daemon.failed_starts.pop(server.uid, None)
    return 1 if before is None else before.count + 1


def _pause(daemon: Daemon, server: Server, failed: FailedStarts, reason: str) -> Iterator[Instruction]:
    pause = PAUSES[failed.count - 1]
    daemon.failed_starts[server.uid] = failed
    yield Log("server_start_failed", {"reason": reason, "seconds": pause})
    yield SetTimer(f"{RETRY_TIMER} {server.serial}", pause)


def _give_up(daemon: Daemon, server: Server, count: int, reason: str) -> Iterator[Instruction]:
    yield Log("server_start_given_up", {"uid": server.uid, "count": count, "reason": reason})
    yield from refuse_user(daemon, server.uid, f"{reason}; server.log says why; it was tried {count} times")


def _reason(server: Server, death: Death, when: str = "") -> str:
    ended = f"ended with status {death.status} " + (f"after it {when}" if when else "before it was ready")
    if server.start_refusal:
        return f"the MPS server of user {server.uid} cannot start: {server.start_refusal}; it {ended}"
    words = f": {death.last_words}" if death.last_words else ""
    return f"the MPS server of user {server.uid} {ended}{words}"
