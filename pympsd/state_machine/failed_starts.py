"""Servers that end before they have served a client: tried again after growing pauses, a limited number of times.

The problem: a server may end during its start (its GPU is broken, a library is missing), or soon after it together
with its clients, which then connect again and start the next one. Without a limit that is an endless loop of
processes; with a limit of one, a short disturbance refuses programs that could have run.

The idea: failures are counted by the name of the server. `PAUSES` are the seconds before the second, third and fourth
try; after the fourth failure the clients that wait are refused, and if it was a server that ended *with* its clients,
new clients are refused for `REFUSED_FOR` seconds too, because programs connect again by themselves.

::

    start --ends--> pause 0.1 s --> start --ends--> pause 0.5 s --> ...
      |
      +--> ready --> a context, a clean end of a client, or TRIAL seconds: the count is 0 again

- A server counts as working (``verified``) when one of its clients has made a context or disconnected cleanly, or
  when the server has been ready for `TRIAL` seconds.
- A server that states why it cannot start (StartRefused) would do so again: its clients are refused immediately.
- A failure with clients that do not connect again expires after `FAILURE_EXPIRY` seconds.
- During a pause users that take turns wait too: the pause is short, and it may be their own server that fails.
- A server that was asked to end never counts as failed.
"""

from collections.abc import Iterator
from typing import Final

from attrs import frozen

from pympsd.state_machine import queueing, registration
from pympsd.state_machine.instructions import Instruction, Log, SetTimer, Timer, TimerKind
from pympsd.state_machine.state.daemon import Daemon, FailedStarts
from pympsd.state_machine.state.server import Phase, Server

PAUSES: Final = (0.1, 0.5, 2.0)
"""The seconds before the second, third and fourth try to start a server; a fifth try does not follow."""
TRIAL: Final = 10.0
"""The seconds after which a ready server counts as working, whether or not its clients made a context."""
FAILURE_EXPIRY: Final = 10.0
"""The seconds for which the failure counts if a server ended with its clients, and no client connects again."""
REFUSED_FOR: Final = 5.0
"""The seconds for which a user's clients are refused after the fourth server that ended with its clients."""


@frozen
class Death:
    """How a server's process ended, and the last line it wrote to its standard error.

    ``status`` is the exit status, negative for a signal as in subprocess; None if the process was not this daemon's
    child, so its status is unknown.
    """

    status: int | None
    last_stderr_line: str = ""


def handle_death_in_start(daemon: Daemon, server: Server, death: Death) -> Iterator[Instruction]:
    """Pause before the next try, or give up, after a server ended before it was ready.

    If the server stated a reason (StartRefused), its clients are refused immediately: the next try would end the same
    way. If nobody waits for it any more, nothing happens.
    """
    count = _take_count(daemon, server)
    reason = _reason(server, death)
    if server.start_refusal:
        yield from refuse_waiting(daemon, server.name, f"{reason}; see server.log")
        return
    if not daemon.queue.waits_for(server.name):
        return
    if count > len(PAUSES):
        yield from _give_up(daemon, server, count, reason)
        return
    yield from _pause(daemon, server, FailedStarts(count, server.id), reason)


def begin_trial(server: Server) -> Iterator[Instruction]:
    """Start the time after which a server that is ready counts as working.

    `end_trial` is called after TRIAL seconds, unless the server has ended.
    """
    yield SetTimer(Timer(TimerKind.TRIAL, server.id), TRIAL)


def end_trial(daemon: Daemon, server: Server) -> None:
    """Count a server as working after its trial period."""
    if server.phase in (Phase.ACTIVE, Phase.FAULT):
        note_served(daemon, server)


def note_served(daemon: Daemon, server: Server) -> None:
    """Count a server as working, and forget its earlier failures.

    Called when a client has made a context or disconnected cleanly. From then on no server unknown to pympsd makes
    the daemon change its backend (`shutdown.server_unknown`).
    """
    server.verified = daemon.lifetime.backend_works = True
    daemon.failed_starts.pop(server.name, None)


def handle_death_unserved(daemon: Daemon, server: Server, death: Death) -> Iterator[Instruction]:
    """Pause before the next try, or give up, after a server ended soon after it was ready, with unserved clients.

    Its clients got an error when it died, and usually connect again by themselves. Therefore the fourth
    such death also refuses new clients, for REFUSED_FOR seconds.
    """
    if server.verified or not server.clients or server.phase not in (Phase.ACTIVE, Phase.FAULT):
        daemon.failed_starts.pop(server.name, None)
        return
    count = _take_count(daemon, server)
    reason = _reason(server, death, "was ready but before it served anybody")
    if count > len(PAUSES):
        yield from _give_up(daemon, server, count, reason)
        refusal = f"{reason}; see server.log; the start was tried {count} times; try again in {REFUSED_FOR:g} s"
        daemon.failed_starts[server.name] = FailedStarts(count, server.id, server.id, refusal)
        yield SetTimer(Timer(TimerKind.RETRY, server.id), REFUSED_FOR)
        return
    yield from _pause(daemon, server, FailedStarts(count, server.id, server.id), reason)
    yield SetTimer(Timer(TimerKind.FAILURE_EXPIRY, server.id), FAILURE_EXPIRY)


def refusal_of(daemon: Daemon, server: str) -> str:
    """Return why clients of a server, by name, are refused at the moment; empty if they are not.

    The text names the last death, and the seconds after which a client may try again.
    """
    failed = daemon.failed_starts.get(server)
    return failed.refusal if failed is not None else ""


def is_pausing(daemon: Daemon, server: str) -> bool:
    """Return whether a server, by name, is in the pause before its next start."""
    failed = daemon.failed_starts.get(server)
    return failed is not None and failed.pausing_after != 0


def end_pause(daemon: Daemon, server_id: int) -> None:
    """End the pause after the death of a server.

    ``server_id`` is the id of the process that died, which is the key of the RETRY timer. Afterwards the caller
    serves the queue. The count of failures stays if somebody waits for the server, or if its clients may connect
    again.
    """
    for name, failed in tuple(daemon.failed_starts.items()):
        if failed.pausing_after != server_id:
            continue
        waited_for = daemon.queue.waits_for(name)
        if not failed.refusal and (failed.unserved or waited_for):
            daemon.failed_starts[name] = FailedStarts(failed.count, 0, failed.unserved)
        else:
            del daemon.failed_starts[name]


def expire_failure(daemon: Daemon, server_id: int) -> None:
    """Drop the failure of a server that ended with its clients, because none has failed for a while.

    ``server_id`` is the id of the process that died, by which the FAILURE_EXPIRY timer is known.
    """
    for name, failed in tuple(daemon.failed_starts.items()):
        if failed.unserved != server_id or failed.refusal:
            continue
        if failed.pausing_after:
            daemon.failed_starts[name] = FailedStarts(failed.count, failed.pausing_after)
        else:
            del daemon.failed_starts[name]


def refuse_waiting(daemon: Daemon, server: str, reason: str, cause: str = "") -> Iterator[Instruction]:
    """Refuse all clients that wait for a server, by name, and drop requests to start it.

    Args:
        daemon: The state, which it changes.
        server: The name of the server.
        reason: For the clients, and for ``server list``.
        cause: The reason as the end of "Server 'a' could not be started: ", if it differs from ``reason``.
    """
    daemon.failed_starts.pop(server, None)
    yield from queueing.refuse(daemon, server, daemon.options.policy.failed_start_code, reason)
    yield from registration.could_not_start(daemon, server, reason, cause)


def _take_count(daemon: Daemon, server: Server) -> int:
    """Remove a server's failures; return their number, including this one."""
    before = daemon.failed_starts.pop(server.name, None)
    return 1 if before is None else before.count + 1


def _pause(daemon: Daemon, server: Server, failed: FailedStarts, reason: str) -> Iterator[Instruction]:
    pause = PAUSES[failed.count - 1]
    daemon.failed_starts[server.name] = failed
    yield Log("server_start_failed", {"reason": reason, "seconds": pause})
    yield SetTimer(Timer(TimerKind.RETRY, server.id), pause)


def _give_up(daemon: Daemon, server: Server, count: int, reason: str) -> Iterator[Instruction]:
    where = daemon.place_of(server.name)
    yield Log("server_start_given_up", {"uid": server.uid, "count": count, "reason": reason, **where})
    yield from refuse_waiting(daemon, server.name, f"{reason}; see server.log; the start was tried {count} times")


def _reason(server: Server, death: Death, when: str = "") -> str:
    ended = f"ended with status {death.status} " + (f"after it {when}" if when else "before it was ready")
    if server.start_refusal:
        return f"{server.title} cannot start: {server.start_refusal}; it {ended}"
    last = server.violation or death.last_stderr_line
    words = f": {last}" if last else ""
    return f"{server.title} {ended}{words}"
