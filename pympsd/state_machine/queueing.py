"""Waiting in turn: what is logged, timed and chosen when entries join the queue and get their turn.

The queue itself, with the theory, is `pympsd.state_machine.state.queue`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from pympsd.state_machine import holding
from pympsd.state_machine.instructions import CancelTimer, Instruction, Log, RefuseClient, SetTimer, Timer, TimerKind
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.queue import QueueEntry
from pympsd.state_machine.state.server import Server
from pympsd.state_machine.state.turns import WaitingUser
from pympsd.vocabulary.identities import server_of_user


def join(daemon: Daemon, entry: QueueEntry) -> Iterator[Instruction]:
    """Insert an entry that cannot be served immediately into the queue, unless a drain holds it.

    If other users are before it, that is logged; and if users take turns, the time begins in which new clients of the
    active user may overtake it (`Turns.overtaking_seconds`).
    """
    if (drain := holding.find_drain(daemon, entry)) is not None:
        yield from holding.hold(daemon, drain, entry)
        return
    uids = {server.uid for server in daemon.servers.values()} | {other.uid for other in daemon.queue}
    before = _describe_before(daemon, entry)
    daemon.queue.insert(entry)
    if before and entry.process is None:
        yield Log("turn_requested", {"uid": entry.uid, "before": before})
    elif before and entry.process is not None:
        yield Log("turn_pending", {"pid": entry.process.peer.pid, "uid": entry.uid, "before": before})
    # Without other users the next server is this user's own, so nobody can overtake.
    if uids - {entry.uid}:
        yield from _limit_overtaking(daemon, entry)


def refuse(
    daemon: Daemon, server: str, code: int, reason: str, namespace: str | None = None
) -> Iterator[Instruction]:
    """Refuse the clients that wait for a server, by name, or for one of its namespaces; drop its start requests.

    ``code`` is a CUresult number. ``namespace`` limits it to clients of that namespace; start requests belong to
    none. The caller answers the operators who requested the start.
    """

    def is_refused(entry: QueueEntry) -> bool:
        own = entry.process.namespace if entry.process is not None else ""
        return entry.server == server and namespace in (None, own)

    for entry in daemon.queue.take(is_refused):
        if entry.client:
            yield RefuseClient(entry.client, code, reason)


def restore(
    daemon: Daemon, start_requests: Sequence[int], order: Sequence[int], connections: Set[int]
) -> Iterator[Instruction]:
    """Restore the previous daemon's queue.

    ``start_requests``: their users; ``order``: for each entry the id of the client's connection, or 0 for the next
    start request; ``connections``: the ids of those that still exist. Their clients return as soon as their
    connections are served, in any order, and have reserved tickets until then.
    """
    requests = list(start_requests)
    for connection in order or [0] * len(requests):
        if connection in connections:
            daemon.queue.reserve(connection)
        elif not connection and requests:
            yield from join(daemon, _start_request(daemon, requests.pop(0)))
    for uid in requests:
        yield from join(daemon, _start_request(daemon, uid))


def _start_request(daemon: Daemon, uid: int) -> QueueEntry:
    return QueueEntry(daemon.queue.tickets.take(), daemon.options.find_serving_uid(uid))


def _limit_overtaking(daemon: Daemon, entry: QueueEntry) -> Iterator[Instruction]:
    """Begin the time for which new clients may overtake an entry, if it has not begun yet."""
    if (
        daemon.options.serves_users_together
        or entry.last_to_overtake is not None
        or entry.ticket in daemon.queue.timed
    ):
        return
    if daemon.turns.overtaking_seconds <= 0:
        entry.last_to_overtake = entry.ticket
        return
    daemon.queue.timed.add(entry.ticket)
    yield SetTimer(Timer(TimerKind.TURN, entry.ticket), daemon.turns.overtaking_seconds)


def next_in_turn(daemon: Daemon, first: Sequence[QueueEntry]) -> QueueEntry:
    """Choose whose server starts next: return one of the first entries of the waiting users.

    ``first`` has one entry for each server and at least one. The turn policy chooses; if it returns a user who does
    not wait, the first entry is next.
    """
    waiting = Counter(entry.server for entry in daemon.queue)
    turns = daemon.turns
    users = {WaitingUser(entry.uid, waiting[entry.server], turns.counts[entry.server]): entry for entry in first}
    return users.get(turns.policy(tuple(users)), first[0])


def begin_turn(daemon: Daemon, entry: QueueEntry) -> Iterator[Instruction]:
    """Note that an entry's server is starting, so the entry is admitted before all others.

    For earlier entries of other users, the time in which they may be overtaken begins now, if it has not begun yet.
    """
    entry.has_turn = True
    daemon.turns.counts[entry.server] += 1
    for passed_over in daemon.queue:
        if (
            passed_over.server != entry.server
        ):  # with a policy other than first come, first served, the entry may have been first in the queue
            yield from _limit_overtaking(daemon, passed_over)


def cancel_stale_timers(daemon: Daemon) -> Iterator[Instruction]:
    """Cancel the timers of entries that are not in the queue any more."""
    for ticket in daemon.queue.take_stale_timers():
        yield CancelTimer(Timer(TimerKind.TURN, ticket))


def log_closing(daemon: Daemon, server: Server) -> Iterator[Instruction]:
    """Log once that a server no longer admits new clients of its user, and the waiting user who is the reason.

    It may be called after every event; a line is logged only when ``server.closed`` changes to True.
    """
    first = daemon.queue.barrier_for(server.uid)
    if first is not None and not server.closed:
        seconds = daemon.turns.overtaking_seconds
        fields: dict[str, str | int | float] = {
            "uid": first.uid,
            "seconds": seconds,
            "server": server.pid,
            "active": server.uid,
        }
        yield Log("turn_closed", fields)
    server.closed = first is not None


def _describe_before(daemon: Daemon, entry: QueueEntry) -> str:
    """Return a text of the other users before an entry that joins the queue, in order."""
    uid = entry.uid
    if daemon.options.serves_users_together:
        waits = daemon.is_full and daemon.server_named(server_of_user(uid)) is None
        return f"one of {len(daemon.servers)} users" if waits else ""
    users = [server.uid for server in daemon.servers.values()]
    ahead = [other.uid for other in daemon.queue if other.ticket < entry.ticket]
    if uid in ahead and daemon.queue.barrier_for(uid) is None:
        # These are served together with the user's entries that are waiting already.
        ahead = ahead[: ahead.index(uid)]
    return ", ".join(f"user {other}" for other in dict.fromkeys(users + ahead) if other != uid)
