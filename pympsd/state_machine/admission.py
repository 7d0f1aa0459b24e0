"""Admission: assign clients to servers, queue them or refuse them, and start and end servers for them.

The problem: every client needs the server of its user (protocol 2) or of its namespace (protocol 3), but only so many
servers may run at the same time, in protocol 2 often only one. No user may wait forever, whatever other users do,
including stopping a server.

The idea: every handler ends with a call of `serve_queue`, which decides from the state alone what to do:

1. clients are admitted to open servers, in the order of the queue and as far as it permits;
2. servers are started for those that wait without one, the next user's only if users take turns;
3. if the maximum number of servers is reached, servers without clients are asked to end;
4. servers that somebody waits for get a time limit.

So no handler has to find out who may start after an event, and it is harmless to call `serve_queue` once too often.

A server that is asked to end has time limits: START (it becomes ready), LEAVE (it ends once it has no clients) and
SILENCE (it reports that clients whose processes have ended are gone). When one of them expires, the server is forced
to end. Only in SILENCE does it still have clients, and none of them is alive, so no work is lost.

Invariants:

- A client is answered once: it is admitted, refused, or runs without MPS.
- A client is admitted only to the server that it was queued for, and only in an `OPEN` phase. A server of a previous
  daemon must have reported first.
- No server is ended for another user while it has a client whose process is running.
- A server is started for a queue entry, which is then the first to be admitted (``has_turn``).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from pympsd.state_machine import debuggers, destination, failed_starts, holding, queueing
from pympsd.state_machine import instructions as do
from pympsd.state_machine.destination import Destination
from pympsd.state_machine.events import ClientConnected, ServerReported
from pympsd.state_machine.limit_resolution import (
    check_cgroups,
    client_limits,
    grant,
    limits_by_rule,
    resolve_in_force,
)
from pympsd.state_machine.shutdown import QUITTING, SILENCE_TIMEOUT, shut_down_server, time_leaving, time_silence
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.queue import QueueEntry
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.identities import server_of_user
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.partitions import VARIABLE
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.rules import Unknown

START_TIMEOUT: Final = 60.0
"""The seconds in which a server must become ready after its process has started."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
OPEN: Final = (Phase.ACTIVE, Phase.FAULT)
"""The phases in which clients are admitted to a server. During a fault it refuses them itself, as recorded."""


def connect(daemon: Daemon, event: ClientConnected) -> Iterator[do.Instruction]:
    """Admit a new client, queue it or refuse it; a client that is being debugged waits for other clients to exit.

    Args:
        daemon: The state, which it changes.
        event: The hello. ``joins``: the process has another connection already, so it gets the same server, and does
            not queue again.

    A process is refused with ERROR_NOT_PERMITTED if the daemon cannot see whether a rule or a cgroup limits it. The
    reasons of other refusals are in `_refusal` and `destination.refusal`.
    """
    ticket = daemon.queue.reserved.pop(event.connection, 0)
    target = destination.find(daemon, event)
    try:
        rule = limits_by_rule(daemon, event.process, target)
        check_cgroups(daemon, event.process)
    except Unknown as error:
        reason = f"this process is not allowed to connect: {error}"
        yield do.RefuseClient(event.client, Result.ERROR_NOT_PERMITTED, reason)
    else:
        server = _server_of_client(daemon, event.process, target) if event.joins else None
        entry = _queue_entry(event, target, ticket, rule)
        if server is not None:
            yield from _join(daemon, server, event, target, rule)
        elif (refusal := _refusal(daemon, event, target)) is not None:
            yield do.RefuseClient(event.client, *refusal)
        elif event.traced:
            yield from debuggers.wait_for_others(daemon, event)
        elif (drain := holding.find_drain(daemon, entry)) is not None and drain.refuses:
            yield holding.refuse(drain, event.client)
        else:
            yield from destination.make_missing(daemon, target)
            entry.ticket = ticket or daemon.queue.tickets.take()
            yield from _enqueue(daemon, entry, event.process)
    if ticket:
        yield from serve_queue(daemon)  # other clients may have waited only for this one to return


def forget_reservations(daemon: Daemon) -> Iterator[do.Instruction]:
    """Stop waiting for clients that waited when the previous daemon died and have not returned in time.

    Called when the time in which clients may connect again is over. Then the entries behind them are served.
    """
    daemon.queue.reserved.clear()
    yield from serve_queue(daemon)


def _join(
    daemon: Daemon, server: Server, event: ClientConnected, target: Destination, rule: Limits | None
) -> Iterator[do.Instruction]:
    """Admit one more connection of a client to the client's server."""
    where = daemon.place_of(target.server, target.namespace)
    yield do.Log("client_server_exists", {"pid": event.process.peer.pid, "uid": target.uid, **where})
    failed_starts.note_served(daemon, server)
    limits = client_limits(daemon, server, event.process, rule)
    yield grant(daemon, server, event.client, limits)


def _queue_entry(event: ClientConnected, target: Destination, ticket: int, rule: Limits | None) -> QueueEntry:
    return QueueEntry(
        ticket,
        target.uid,
        event.client,
        event.process,
        event.joins,
        server=target.server,
        rule=rule,
        sm_partition=event.environment.get(VARIABLE, ""),
        connection=event.connection,
        visible_devices=event.environment.get(VISIBLE),
    )


def _enqueue(daemon: Daemon, entry: QueueEntry, process: ClientProcess) -> Iterator[do.Instruction]:
    """Queue a client; if its server is ready, the client is admitted in the same event."""
    server = daemon.server_named(entry.server)
    is_open = server is not None and server.phase in OPEN and daemon.queue.barrier_for(entry.uid) is None
    is_ready = is_open and holding.find_drain(daemon, entry) is None
    where = daemon.place_of(entry.server, process.namespace)
    line = "client_server_exists" if is_ready else "client_pending"
    yield do.Log(line, {"pid": process.peer.pid, "uid": entry.uid, **where})
    if is_ready:
        daemon.queue.insert(entry)
    else:
        yield from queueing.join(daemon, entry)
    yield from serve_queue(daemon)


def request_server(daemon: Daemon, uid: int, name: str = "") -> Iterator[do.Instruction]:
    """Start a user's server, or queue the request; do nothing if the server runs.

    Args:
        daemon: The state, which it changes.
        uid: The user; in multi-user mode root takes the place of every user.
        name: The server in protocol 3; empty means that of the user.

    Used by ``start_server``, and when the sockets of a server that was created are open. A server that is leaving, or
    expected back from an earlier daemon, does not count as running.
    """
    uid = daemon.options.find_serving_uid(uid)
    name = name or server_of_user(uid)
    server = daemon.server_named(name)
    # A server that is expected back may not come back.
    if server is not None and server.phase not in (Phase.LEAVING, Phase.RETURNING):
        return
    if not any(entry.server == name and not entry.client for entry in daemon.queue.all_entries):
        yield from queueing.join(daemon, QueueEntry(daemon.queue.tickets.take(), uid, server=name))
    yield from serve_queue(daemon)


def drop_start_request(daemon: Daemon, server: Server) -> None:
    """Drop the start request of a server that an operator shuts down before it is ready.

    Otherwise `serve_queue` would start the server again as soon as it has ended.
    """
    if server.phase is Phase.INITIALIZING:
        daemon.queue.take(lambda entry: not entry.client and entry.server == server.name)


def serve_queue(daemon: Daemon) -> Iterator[do.Instruction]:
    """Serve the queue: admit clients to their users' servers, start servers, or end servers to make room for others.

    Call this function at the end of every handler that may have changed who can be served. The function depends on
    the state alone and may be called at any time; if nothing can be done, it yields no instruction.
    """
    for server in _open_servers(daemon):
        yield from _admit(daemon, server)
    yield from _start_servers(daemon)
    if daemon.is_full:
        yield from _make_room(daemon)
    for server in _open_servers(daemon):
        yield from queueing.log_closing(daemon, server)
        if _is_waited_for(daemon, server):
            yield from time_silence(server)


def _start_servers(daemon: Daemon) -> Iterator[do.Instruction]:
    """Start servers for queue entries without one, within the maximum, unless a quit or a pause prevents it."""
    waited_for = {entry.server for entry in daemon.queue if entry.client}
    starting = Counter(
        server.uid for server in daemon.servers.values() if server.phase in (Phase.SPAWNING, Phase.INITIALIZING)
    )
    for entry in _find_unserved(daemon):
        # In protocol 2 no user waits for another's start while fewer servers run than are allowed.
        is_next = starting[entry.uid] < daemon.options.policy.max_starts or entry.server in waited_for
        if (
            not is_next
            or daemon.is_full
            or daemon.quitting is not None
            or daemon.queue.is_behind_a_reservation(entry)
        ):
            continue
        # During a pause, users that take turns wait too: the pause is short, and it may be their own server that
        # fails.
        if not failed_starts.is_pausing(daemon, entry.server):
            starting[entry.uid] += 1
            yield from queueing.begin_turn(daemon, entry)
            yield _spawn(daemon, entry)


def _open_servers(daemon: Daemon) -> list[Server]:
    return [server for server in daemon.servers.values() if server.phase in OPEN]


def _find_unserved(daemon: Daemon) -> list[QueueEntry]:
    """Return the first queue entry for each server without a process; if users take turns, only the next user's."""
    if not daemon.queue:
        return []
    excluded = {server.name for server in daemon.servers.values()}
    excluded |= {named_server.name for named_server in daemon.named_servers.values() if named_server.opening}
    first: dict[str, QueueEntry] = {}
    for entry in daemon.queue:
        if entry.server not in excluded:
            first.setdefault(entry.server, entry)
    waiting = list(first.values())
    return (
        waiting if daemon.options.serves_users_together or not waiting else [queueing.next_in_turn(daemon, waiting)]
    )


def _make_room(daemon: Daemon) -> Iterator[do.Instruction]:
    """End servers without clients, the oldest first, one for each user that waits."""
    waiting_users = len(_find_unserved(daemon))
    ending = sum(server.phase is Phase.LEAVING and server.is_empty for server in daemon.servers.values())
    for server in _open_servers(daemon):
        if not server.clients and ending < waiting_users:
            ending += 1
            yield from shut_down_server(server, forced=False)


def _is_waited_for(daemon: Daemon, server: Server) -> bool:
    """Return whether somebody waits for a server to end: it is leaving, or another server must start in its place."""
    return server.phase is Phase.LEAVING or (daemon.is_full and bool(_find_unserved(daemon)))


def close_to_new_clients(daemon: Daemon, ticket: int) -> Iterator[do.Instruction]:
    """End the time for which new clients of the active user may overtake a queue entry.

    ``ticket`` is that of the entry. The TURN timer calls it after `Turns.overtaking_seconds`.
    """
    daemon.queue.raise_barrier(ticket)
    yield from serve_queue(daemon)


def remove_client(daemon: Daemon, server: Server, client: int) -> Iterator[do.Instruction]:
    """Remove a client from its server, and serve the queue: it may have been the last one.

    ``client`` is the daemon's id; unknown ids are ignored. If the server is leaving, its time limits begin again,
    because it responds.
    """
    daemon.named_servers.occupied.pop(client, None)
    if server.clients.pop(client, None) is not None:
        failed_starts.note_served(daemon, server)
        if server.silence_timed:
            # The server responds, so its time to report the other ended clients begins again.
            server.silence_timed = False
            yield do.CancelTimer(do.Timer(do.TimerKind.SILENCE, server.id))
        if server.phase is Phase.LEAVING:
            yield from time_silence(server) if server.clients else time_leaving(server)
    yield from serve_queue(daemon)


def update_contexts(daemon: Daemon, server: Server, event: ServerReported) -> None:
    """Record the contexts of a server's clients, and sort the clients as the server lists them; others come last.

    The driver's server reports contexts only on request, by PID. Clients in another PID namespace all have PID 0 in
    the report, so their contexts cannot be distinguished.
    """
    order = {pid: place for place, pid in enumerate(event.contexts)}
    server.clients = dict(sorted(server.clients.items(), key=lambda item: order.get(item[1].pid, len(order))))
    remaining = dict(event.contexts)
    for client in server.clients.values():
        # The server takes all clients with PID 0 for one process: its contexts are listed under the first.
        client.contexts = {context.id: context for context in remaining.pop(client.pid, ())}
        if client.contexts:
            failed_starts.note_served(daemon, server)


def release_server(daemon: Daemon, server: Server, unaccepted: Sequence[int]) -> Iterator[do.Instruction]:
    """Stop admitting clients to an idle server that ends.

    Args:
        daemon: The state, which it changes.
        server: The server. Its own clients have left.
        unaccepted: The ids of clients that were admitted to it and that it never accepted.
    """
    for client in unaccepted:
        server.clients.pop(client, None)
    if server.clients:
        failed_starts.note_served(daemon, server)
        server.clients.clear()
    if server.phase in OPEN:
        server.become(Phase.LEAVING)
    yield from time_leaving(server)
    yield from serve_queue(daemon)


def note_client_end(daemon: Daemon, server: Server, client: int) -> Iterator[do.Instruction]:
    """Note that a client's process has ended: its server reports that too, unless it is stopped or stuck.

    The kernel reports the end by the process's pidfd. If somebody waits for the server, it has `SILENCE_TIMEOUT`
    seconds to report the same.
    """
    record = server.clients.get(client)
    if record is None:
        return
    record.ended = True
    if _is_waited_for(daemon, server):
        yield from time_silence(server)


def silence_timed_out(daemon: Daemon, server: Server) -> Iterator[do.Instruction]:
    """Force a server that has not reported the ends of its clients to end. None of them is alive, so no work is lost.

    Do nothing if it has reported them since, if nobody waits for the server any more, or if it is already being
    forced.
    """
    server.silence_timed = False
    if server.is_abandoned and _is_waited_for(daemon, server) and not server.forced:
        yield do.Log("server_silent", {"server": server.pid, "seconds": SILENCE_TIMEOUT})
        yield from shut_down_server(server, forced=True)


def start_timed_out(_: Daemon, server: Server) -> Iterator[do.Instruction]:
    """Kill a server that is not ready in time.

    It had `START_TIMEOUT` seconds. Its clients are refused with that reason once the process has ended.
    """
    if server.phase is Phase.INITIALIZING:
        server.start_refusal = f"it was not ready within {START_TIMEOUT:.0f} s"
        yield from _kill_overdue(server)


def leave_timed_out(_: Daemon, server: Server) -> Iterator[do.Instruction]:
    """Kill a server that has not exited in time, if it has no clients to wait for or is being forced.

    Called at the end of LEAVE, some seconds after it was asked to exit.
    """
    server.leave_timed = False
    if server.phase is Phase.LEAVING and (server.forced or server.is_empty):
        yield from _kill_overdue(server)


def _kill_overdue(server: Server) -> Iterator[do.Instruction]:
    yield do.Log("server_overdue", {"server": server.pid})
    yield do.KillServer(server.id)


def _refusal(daemon: Daemon, event: ClientConnected, target: Destination) -> tuple[int, str] | None:
    """Return why a client is refused, as a CUresult number and a reason; None if it is not refused."""
    if daemon.quitting is not None:
        return Result.ERROR_MPS_CONNECTION_FAILED, QUITTING
    refusal = destination.refusal(daemon, event, target)
    if refusal is not None:
        return refusal
    if event.process.peer.foreign and not daemon.options.serves_unmapped:
        reason = (
            "your user ID is not mapped in the daemon's user namespace; run the daemon in the same one, or with "
            "PYMPSD_UNMAPPED_USERS=nobody, which serves all such users as one"
        )
        return Result.ERROR_MPS_CONNECTION_FAILED, reason
    given_up = failed_starts.refusal_of(daemon, target.server)
    return (daemon.options.policy.failed_start_code, given_up) if given_up else None


def _server_of_client(daemon: Daemon, process: ClientProcess, target: Destination) -> Server | None:
    """Return the server that the process is already a client of, unless that server is being forced to end."""
    for server in daemon.servers.values():
        # A client of another user with the same PID has ended, but its end has not been noticed yet.
        is_open = server.phase in (*OPEN, Phase.LEAVING) and not server.forced
        if server.name == target.server and is_open and _has_client(server, process):
            return None if holding.has_terminated(daemon, server, process) else server
    return None


def _has_client(server: Server, process: ClientProcess) -> bool:
    return any(client.process.is_same(process) for client in server.clients.values())


def _spawn(daemon: Daemon, head: QueueEntry) -> do.Instruction:
    """Add a server for a queue entry to the state; return the instruction that starts its process."""
    has_named_servers = daemon.options.policy.has_named_servers  # their clients have the limits of their namespaces
    percentage = ThreadPercentage() if has_named_servers else daemon.defaults.thread_percentage
    memory = {} if has_named_servers else dict(daemon.defaults.memory_limits)
    server = Server(daemon.lifetime.server_ids.take(), head.uid, percentage, memory, name=head.server)
    daemon.servers[server.id] = server
    peer = None if daemon.options.multiuser or head.process is None else head.process.peer
    return do.SpawnServer(server.id, head.uid, peer, head.server if has_named_servers else "")


def _admit(daemon: Daemon, server: Server) -> Iterator[do.Instruction]:
    """Admit to an open server the queued clients that may be admitted now, and drop its start requests."""
    for entry in daemon.queue.take_admissible(server.name):
        if entry.process is None:
            continue
        limits = client_limits(daemon, server, entry.process, entry.rule, entry.sm_partition)
        granted = grant(daemon, server, entry.client, limits)
        if not (entry.joins and _has_client(server, entry.process)):
            client = server.clients[entry.client] = Client(entry.client, entry.uid, entry.process)
            if limits is not None:
                client.partitions = {device: partition.name for device, partition in limits.partitions.items()}
                client.groups = limits.groups
            if not daemon.options.has_own_servers:
                client.limits = resolve_in_force(daemon, server, granted)
        yield granted
