"""The queue of waiting users: their order, and how long newcomers of the active user may overtake.

Ticket numbers are the only clock: when an entry's time is over it draws one more, and later tickets stay behind it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence, Set

from pympsd.state_machine.daemon_state import Daemon, QueueEntry, Server
from pympsd.state_machine.instructions import CancelTimer, Instruction, Log, SetTimer
from pympsd.state_machine.timers import Timer, TimerKind
from pympsd.state_machine.turns.policies import WaitingUser
from pympsd.vocabulary.namespaces import server_of_user


def join(daemon: Daemon, entry: QueueEntry) -> Iterator[Instruction]:
    """Insert an entry that cannot be served immediately into the queue."""
    uids = {server.uid for server in daemon.servers.values()} | {one.uid for one in daemon.queue}
    before = _before(daemon, entry)
    insert(daemon, entry)
    if before:
        yield _wait_line(entry, before)
    # Without others the next server is this user's own: no user can overtake.
    if uids - {entry.uid}:
        yield from _limit_overtaking(daemon, entry)


def insert(daemon: Daemon, entry: QueueEntry) -> None:
    """Insert an entry into the queue: as the last one, unless it waited when the previous daemon died."""
    insort(daemon.queue, entry, key=lambda one: one.ticket)


def restore(
    daemon: Daemon, wishes: Sequence[int], order: Sequence[int], connections: Set[int]
) -> Iterator[Instruction]:
    """Restore the queue that the previous daemon had.

    ``wishes``: the users of the start requests; ``order``: for each entry the serial of the client's connection, or 0
    for the next start request; ``connections``: those that still exist. Their clients return as soon as their
    connections are served, in any order, and have reserved tickets until then.
    """
    requests = list(wishes)
    for connection in order or [0] * len(requests):
        if connection in connections:
            daemon.places[connection] = daemon.tickets.take()
        elif not connection and requests:
            yield from join(daemon, _start_request(daemon, requests.pop(0)))
    for uid in requests:
        yield from join(daemon, _start_request(daemon, uid))


def _start_request(daemon: Daemon, uid: int) -> QueueEntry:
    return QueueEntry(daemon.tickets.take(), daemon.serving_uid(uid))


def is_behind_a_place(daemon: Daemon, entry: QueueEntry) -> bool:
    """Whether a client that waited before an entry has not returned yet."""
    return any(ticket < entry.ticket for ticket in daemon.places.values())


def _limit_overtaking(daemon: Daemon, entry: QueueEntry) -> Iterator[Instruction]:
    """Begin the time for which newcomers may overtake an entry, if it has not begun yet."""
    if daemon.together or entry.last_to_overtake is not None or entry.ticket in daemon.turn_timers:
        return
    if daemon.turn_patience <= 0:
        entry.last_to_overtake = entry.ticket
        return
    daemon.turn_timers.add(entry.ticket)
    yield SetTimer(Timer(TimerKind.TURN, entry.ticket), daemon.turn_patience)


def next_in_turn(daemon: Daemon, first: Sequence[QueueEntry]) -> QueueEntry:
    """Return whose server is to start next, of the first entries of the users that wait."""
    waiting = Counter(entry.server for entry in daemon.queue)
    users = {WaitingUser(entry.uid, waiting[entry.server], daemon.turns_had[entry.server]): entry for entry in first}
    return users.get(daemon.turn_policy(tuple(users)), first[0])


def begin(daemon: Daemon, entry: QueueEntry) -> Iterator[Instruction]:
    """Note that the server which an entry waits for starts: the entry is admitted before all others."""
    entry.has_turn = True
    daemon.turns_had[entry.server] += 1
    for other in daemon.queue:
        if other.server != entry.server:  # by another policy than first come, first served it may have come first
            yield from _limit_overtaking(daemon, other)


def close_to_newcomers(daemon: Daemon, ticket: int) -> None:
    """End the time for which newcomers may overtake an entry: tickets drawn from now on stay behind it."""
    daemon.turn_timers.discard(ticket)
    for entry in daemon.queue:
        if entry.ticket == ticket:
            entry.last_to_overtake = daemon.tickets.take()


def cancel_stale_timers(daemon: Daemon) -> Iterator[Instruction]:
    """Cancel the timers of entries that have left the queue: thousands may come and go before one ends."""
    if daemon.turn_timers:
        gone = daemon.turn_timers - {entry.ticket for entry in daemon.queue}
        daemon.turn_timers -= gone
        for ticket in sorted(gone):
            yield CancelTimer(Timer(TimerKind.TURN, ticket))


def is_closed_to_newcomers(daemon: Daemon, uid: int) -> bool:
    """Whether an entry of another user waits that a newcomer of this user may not overtake."""
    return any(entry.uid != uid and entry.last_to_overtake is not None for entry in daemon.queue)


def take_admissible(daemon: Daemon, server: str) -> list[QueueEntry]:
    """Take the entries for a server out of the queue, except those that came after another user's time was over."""
    taken, kept = [], []
    barrier: float = float("inf")
    for entry in daemon.queue:
        if entry.server == server and (not entry.client or entry.has_turn or entry.ticket < barrier):
            taken.append(entry)
            continue
        if entry.server != server and entry.last_to_overtake is not None:
            barrier = min(barrier, entry.last_to_overtake)
        kept.append(entry)
    daemon.queue = kept
    return taken


def log_closing(daemon: Daemon, server: Server) -> Iterator[Instruction]:
    """Log, once, that a server admits no more newcomers of its user, and for which waiting user."""
    closed = is_closed_to_newcomers(daemon, server.uid)
    if closed and not server.closed:
        first = next(one for one in daemon.queue if one.uid != server.uid and one.last_to_overtake is not None)
        yield Log(
            "turn_closed",
            {"uid": first.uid, "seconds": daemon.turn_patience, "server": server.pid, "active": server.uid},
        )
    server.closed = closed


def _wait_line(entry: QueueEntry, before: str) -> Log:
    if entry.peer is None:
        return Log("turn_requested", {"uid": entry.uid, "before": before})
    return Log("turn_awaited", {"pid": entry.peer.pid, "uid": entry.uid, "before": before})


def _before(daemon: Daemon, entry: QueueEntry) -> str:
    """Return what an entry that joins the queue waits for: the other users before it, in order."""
    uid = entry.uid
    if daemon.together:
        waits = daemon.is_full and daemon.server_named(server_of_user(uid)) is None
        return f"one of {len(daemon.servers)} users" if waits else ""
    users = [server.uid for server in daemon.servers.values()]
    ahead = [one.uid for one in daemon.queue if one.ticket < entry.ticket]
    if uid in ahead and not is_closed_to_newcomers(daemon, uid):
        # Served together with the entries of its user that wait already.
        ahead = ahead[: ahead.index(uid)]
    return ", ".join(f"user {other}" for other in dict.fromkeys(users + ahead) if other != uid)
