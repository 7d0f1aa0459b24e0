"""Servers that end before they are ready: tried again for those who wait, with a growing pause, and only so often.

A server that states why it cannot start would say it again: those who wait for it are told at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen

from pympsd.mind.daemon_state import Daemon, FailedStarts, Server
from pympsd.mind.instructions import Instruction, Log, RefuseClient, SetTimer
from pympsd.vocabulary.results import Result

RETRY_TIMER: Final = "retry"
PAUSES: Final = (0.1, 0.5, 2.0)
"""Seconds before the second, third and fourth try; there is no fifth."""


@frozen
class Death:
    """How a server's process ended, and the last line it wrote to its standard error."""

    status: int | None
    last_words: str = ""


def died(daemon: Daemon, server: Server, death: Death) -> Iterator[Instruction]:
    """A server, none of the daemon's any more, has ended before it was ready."""
    before = daemon.failed_starts.pop(server.uid, None)
    count = 1 if before is None else before.count + 1
    reason = _reason(server, death)
    if server.start_refusal:
        yield from refuse_user(daemon, server.uid, f"{reason}; server.log says why")
        return
    if not any(waiting.uid == server.uid for waiting in daemon.line):
        return
    if count > len(PAUSES):
        yield Log("server_start_given_up", {"uid": server.uid, "count": count, "reason": reason})
        yield from refuse_user(daemon, server.uid, f"{reason}; server.log says why; it was tried {count} times")
        return
    pause = PAUSES[count - 1]
    daemon.failed_starts[server.uid] = FailedStarts(count, server.serial)
    yield Log("server_start_failed", {"reason": reason, "seconds": pause})
    yield SetTimer(f"{RETRY_TIMER} {server.serial}", pause)


def is_pausing(daemon: Daemon, uid: int) -> bool:
    """Whether a user's next server is not to be started yet."""
    failed = daemon.failed_starts.get(uid)
    return failed is not None and failed.pausing_after != 0


def pause_ended(daemon: Daemon, serial: int) -> None:
    """The pause after the death of a server is over."""
    for uid, failed in tuple(daemon.failed_starts.items()):
        if failed.pausing_after != serial:
            continue
        if any(waiting.uid == uid for waiting in daemon.line):
            daemon.failed_starts[uid] = FailedStarts(failed.count, 0)
        else:
            del daemon.failed_starts[uid]


def forget(daemon: Daemon, server: Server) -> None:
    """A server has started, or was told to leave: what failed before it counts no more."""
    daemon.failed_starts.pop(server.uid, None)


def refuse_user(daemon: Daemon, uid: int, reason: str) -> Iterator[Instruction]:
    """Refuse everybody who waits for a user's server; wishes for it are void."""
    daemon.failed_starts.pop(uid, None)
    refused = [waiting for waiting in daemon.line if waiting.uid == uid]
    daemon.line = [waiting for waiting in daemon.line if waiting.uid != uid]
    for waiting in refused:
        if waiting.client:
            yield RefuseClient(waiting.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)


def _reason(server: Server, death: Death) -> str:
    ended = f"ended with status {death.status} before it was ready"
    if server.start_refusal:
        return f"the MPS server of user {server.uid} cannot start: {server.start_refusal}; it {ended}"
    words = f": {death.last_words}" if death.last_words else ""
    return f"the MPS server of user {server.uid} {ended}{words}"
