"""Which clients get a server, and which wait: users in turn (see `turns`), or each with a server at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from pympsd.state_machine import debuggers, failed_starts, queueing
from pympsd.state_machine.events import ClientConnected, ServerReported
from pympsd.state_machine.instructions import (
    CancelTimer,
    Instruction,
    KillServer,
    Log,
    RefuseClient,
    SpawnServer,
)
from pympsd.state_machine.limit_resolution import check_cgroups, client_limits, grant, in_force, limits_by_rule
from pympsd.state_machine.shutdown import SILENCE_TIMEOUT, shut_down_server, time_leaving, time_silence
from pympsd.state_machine.state.client import Client, Context
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.queue import QueueEntry
from pympsd.state_machine.state.server import Phase, Server
from pympsd.state_machine.timers import Timer, TimerKind
from pympsd.state_machine.v3 import log_names, routing
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.namespaces import server_of_user
from pympsd.vocabulary.partitions import VARIABLE
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.rules import Unknown

START_TIMEOUT: Final = 60.0
"""Seconds a server has to become ready."""
STARTS_AT_ONCE: Final = 4
"""Servers of a user that commands of protocol 3 start at the same time; one that a client waits for is started
immediately. Nobody waits for the servers of other users, which may be stopped while they start.
"""
OPEN: Final = (Phase.ACTIVE, Phase.FAULT)
"""The phases in which a server is given clients. During a fault it refuses them itself, as recorded."""


def connect(daemon: Daemon, event: ClientConnected) -> Iterator[Instruction]:
    """Admit a new client, queue it or refuse it."""
    ticket = daemon.queue.reserved.pop(event.connection, 0)
    yield from _connect(daemon, event, ticket)
    if ticket:
        yield from serve_queue(daemon)  # others may have waited for its return only


def forget_places(daemon: Daemon) -> Iterator[Instruction]:
    """Give up clients that waited when the previous daemon died and have not returned in time."""
    daemon.queue.reserved.clear()
    yield from serve_queue(daemon)


def _connect(daemon: Daemon, event: ClientConnected, ticket: int) -> Iterator[Instruction]:
    """Admit a client, queue it or refuse it; ``ticket``: the one that was reserved for it, or 0."""
    try:
        rule = limits_by_rule(daemon, event)
        check_cgroups(daemon, event)
    except Unknown as error:
        yield RefuseClient(event.client, Result.ERROR_NOT_PERMITTED, f"this process cannot be let in: {error}")
        return
    if event.joins and (server := _joined_server(daemon, event)) is not None:
        where = log_names.name_field(daemon, server.name, event.mps_namespace)
        uid = daemon.options.serving_uid(event.peer.uid)
        yield Log("client_server_exists", {"pid": event.peer.pid, "uid": uid, **where})
        failed_starts.has_served(daemon, server)
        limits = client_limits(daemon, server, event.mps_namespace, rule)
        yield grant(daemon, server, event.client, event.mps_namespace, limits)
        return
    refusal = _refusal(daemon, event)
    if refusal is not None:
        yield refusal
        return
    if event.traced:
        yield from debuggers.wait_for_others(daemon, event)
        return
    name = routing.server_for(daemon, event)
    if daemon.options.protocol == 3:
        yield from routing.make_missing(daemon, event)
    named = daemon.named_servers.get(name)
    uid = daemon.options.serving_uid(event.peer.uid) if named is None else named.uid
    entry = QueueEntry(
        ticket or daemon.queue.tickets.take(),
        uid,
        event.client,
        event.peer,
        event.command,
        event.namespace,
        event.process,
        event.joins,
        server=name,
        mps_namespace=event.mps_namespace,
        rule=rule,
        cgroups=(event.origin.cgroups if event.origin is not None else None) or (),
        sm_partition=event.environment.get(VARIABLE, ""),
        since=event.at,
        container_pid=event.container_pid,
        kernel_limits=event.kernel_limits,
        connection=event.connection,
    )
    server = daemon.server_named(name)
    ready = server is not None and server.phase in OPEN and daemon.queue.barrier_for(uid) is None
    where = log_names.name_field(daemon, name, event.mps_namespace)
    yield Log("client_server_exists" if ready else "client_pending", {"pid": event.peer.pid, "uid": uid, **where})
    if ready:
        daemon.queue.insert(entry)
    else:
        yield from queueing.join(daemon, entry)
    yield from serve_queue(daemon)


def request_server(daemon: Daemon, uid: int, name: str = "") -> Iterator[Instruction]:
    """Start a user's server (the one with a name), or queue the request; do nothing if it runs."""
    uid = daemon.options.serving_uid(uid)
    name = name or server_of_user(uid)
    server = daemon.server_named(name)
    # A server that is expected back may not come back.
    if server is not None and server.phase not in (Phase.LEAVING, Phase.RETURNING):
        return
    if not any(entry.server == name and not entry.client for entry in daemon.queue):
        yield from queueing.join(daemon, QueueEntry(daemon.queue.tickets.take(), uid, server=name))
    yield from serve_queue(daemon)


def leave_queue(daemon: Daemon, client: int) -> None:
    """Remove a client that disconnected before it was admitted."""
    daemon.queue.remove(client)


def drop_start_request(daemon: Daemon, server: Server) -> None:
    """Drop the start request of a server that an operator shuts down before it is ready."""
    if server.phase is Phase.INITIALIZING:
        daemon.queue.take(lambda entry: not entry.client and entry.server == server.name)


def serve_queue(daemon: Daemon) -> Iterator[Instruction]:
    """Serve the queue: admit clients to their users' servers, start servers, or end others to make room for them."""
    for server in _open_servers(daemon):
        yield from _admit(daemon, server)
    yield from _start_servers(daemon)
    if daemon.is_full:
        yield from _make_room(daemon)
    for server in _open_servers(daemon):
        yield from queueing.log_closing(daemon, server)
        if _is_waited_for(daemon, server):
            yield from time_silence(server)


def _start_servers(daemon: Daemon) -> Iterator[Instruction]:
    waited_for = {entry.server for entry in daemon.queue if entry.client}
    starting = Counter(
        server.uid for server in daemon.servers.values() if server.phase in (Phase.SPAWNING, Phase.INITIALIZING)
    )
    for entry in _without_server(daemon):
        # In protocol 2 no user waits for another's start while there is room, and start_server begins one at once.
        is_next = daemon.options.protocol == 2 or starting[entry.uid] < STARTS_AT_ONCE or entry.server in waited_for
        if (
            not is_next
            or daemon.is_full
            or daemon.quitting is not None
            or daemon.queue.is_behind_a_reservation(entry)
        ):
            continue
        # In a pause users that take turns wait too: it is short, and it may be their own server that fails.
        if not failed_starts.is_pausing(daemon, entry.server):
            starting[entry.uid] += 1
            yield from queueing.begin_turn(daemon, entry)
            yield _spawn(daemon, entry)


def _open_servers(daemon: Daemon) -> list[Server]:
    return [server for server in daemon.servers.values() if server.phase in OPEN]


def _without_server(daemon: Daemon) -> list[QueueEntry]:
    """Return the first entry for each server without a process; of the next user only, if they take turns."""
    if not daemon.queue:
        return []
    excluded = {server.name for server in daemon.servers.values()}
    excluded |= {named.name for named in daemon.named_servers.values() if named.opening}
    first: dict[str, QueueEntry] = {}
    for entry in daemon.queue:
        if entry.server not in excluded:
            first.setdefault(entry.server, entry)
    waiting = list(first.values())
    return waiting if daemon.options.together or not waiting else [queueing.next_in_turn(daemon, waiting)]


def _make_room(daemon: Daemon) -> Iterator[Instruction]:
    """End as many servers without clients as users wait for, the oldest first."""
    wanted = len(_without_server(daemon))
    ending = sum(server.phase is Phase.LEAVING and server.is_empty for server in daemon.servers.values())
    for server in _open_servers(daemon):
        if not server.clients and ending < wanted:
            ending += 1
            yield from shut_down_server(server, forced=False)


def _is_waited_for(daemon: Daemon, server: Server) -> bool:
    """Whether a client or command waits for a server's end, or for that of its clients."""
    return server.phase is Phase.LEAVING or (daemon.is_full and bool(_without_server(daemon)))


def close_to_newcomers(daemon: Daemon, ticket: int) -> Iterator[Instruction]:
    """End the time for which newcomers of the active user may overtake a queue entry."""
    daemon.queue.raise_barrier(ticket)
    yield from serve_queue(daemon)


def client_left(daemon: Daemon, server: Server, client: int) -> Iterator[Instruction]:
    """Remove a client from its server, and serve the queue: it may have been the last one."""
    daemon.named_servers.occupied.pop(client, None)
    if server.clients.pop(client, None) is not None:
        failed_starts.has_served(daemon, server)
        if server.silence_timed:
            # The server responds, so its time to report the other ended clients begins anew.
            server.silence_timed = False
            yield CancelTimer(Timer(TimerKind.SILENCE, server.serial))
        if server.phase is Phase.LEAVING:
            yield from time_silence(server) if server.clients else time_leaving(server)
    yield from serve_queue(daemon)


def reported(daemon: Daemon, server: Server, event: ServerReported) -> None:
    """Note which contexts a server's clients have; clients are in its order, those it does not list come last."""
    order = {pid: place for place, pid in enumerate(event.contexts)}
    server.clients = dict(sorted(server.clients.items(), key=lambda item: order.get(item[1].pid, len(order))))
    left = dict(event.contexts)
    for client in server.clients.values():
        # The server knows those with PID 0 as one process: its contexts are listed under the first.
        reported = left.pop(client.pid, ())
        client.contexts = {each.serial: Context(each.serial, each.number, each.device) for each in reported}
        if client.contexts:
            failed_starts.has_served(daemon, server)


def ends(daemon: Daemon, server: Server, untaken: Sequence[int]) -> Iterator[Instruction]:
    """Give an idle server that ends no more clients; those that it had have left, ``untaken`` were never its own."""
    for client in untaken:
        server.clients.pop(client, None)
    if server.clients:
        failed_starts.has_served(daemon, server)
        server.clients.clear()
    if server.phase in OPEN:
        server.become(Phase.LEAVING)
    yield from time_leaving(server)
    yield from serve_queue(daemon)


def client_ended(daemon: Daemon, server: Server, client: int) -> Iterator[Instruction]:
    """Note that a client's process has ended: its server reports that too, unless it is stopped or stuck."""
    known = server.clients.get(client)
    if known is None:
        return
    known.ended = True
    if _is_waited_for(daemon, server):
        yield from time_silence(server)


def silence_timed_out(daemon: Daemon, serial: int) -> Iterator[Instruction]:
    """Force a server to end that did not report its clients' ends: none of them lives, so no work is lost."""
    server = daemon.servers.get(serial)
    if server is None:
        return
    server.silence_timed = False
    if server.is_abandoned and _is_waited_for(daemon, server) and not server.forced:
        yield Log("server_silent", {"server": server.pid, "seconds": SILENCE_TIMEOUT})
        yield from shut_down_server(server, forced=True)


def start_timed_out(daemon: Daemon, serial: int) -> Iterator[Instruction]:
    """Kill a server that is not ready in time."""
    server = daemon.servers.get(serial)
    if server is not None and server.phase is Phase.INITIALIZING:
        server.start_refusal = f"it was not ready within {START_TIMEOUT:.0f} s"
        yield from _kill_overdue(server)


def leave_timed_out(daemon: Daemon, serial: int) -> Iterator[Instruction]:
    """Kill a leaving server that has no clients to wait for, or is forced."""
    server = daemon.servers.get(serial)
    if server is None:
        return
    server.leave_timed = False
    if server.phase is Phase.LEAVING and (server.forced or server.is_empty):
        yield from _kill_overdue(server)


def _kill_overdue(server: Server) -> Iterator[Instruction]:
    yield Log("server_overdue", {"server": server.pid})
    yield KillServer(server.serial)


def _refusal(daemon: Daemon, event: ClientConnected) -> RefuseClient | None:
    if daemon.quitting is not None:
        return RefuseClient(
            event.client, Result.ERROR_MPS_CONNECTION_FAILED, "the MPS control daemon is quitting: no new clients"
        )
    if daemon.options.protocol == 3:
        refused = routing.refusal(daemon, event)
        if refused is not None:
            return refused
    elif daemon.options.uid not in (0, event.peer.uid):
        reason = daemon.options.refusal_of_other_user(event.peer.uid)
        return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
    if event.peer.foreign and not daemon.options.serves_unmapped:
        reason = (
            "your user has no number in the daemon's user namespace; run the daemon in the same one, or with "
            "PYMPSD_UNMAPPED_USERS=nobody, which serves all such users as one"
        )
        return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
    given_up = failed_starts.refusal_of(daemon, routing.server_for(daemon, event))
    if given_up:
        return RefuseClient(event.client, failed_starts.code(daemon), given_up)
    return None


def _joined_server(daemon: Daemon, event: ClientConnected) -> Server | None:
    """Return the server of its user that the process is a client of, unless it is to end at once."""
    name = routing.server_for(daemon, event)
    for server in daemon.servers.values():
        # Of another user's client with this PID the end has not been seen yet.
        is_there = server.name == name and server.phase in (*OPEN, Phase.LEAVING) and not server.forced
        if is_there and _is_client(server, event.peer.pid, event.process):
            return server
    return None


def _is_client(server: Server, pid: int, process: int) -> bool:
    return any(client.is_process(pid, process) for client in server.clients.values())


def _spawn(daemon: Daemon, head: QueueEntry) -> Instruction:
    percentage, memory = daemon.defaults.thread_percentage, dict(daemon.defaults.memory_limits)
    if daemon.options.protocol == 3:  # clients have those of their namespaces
        percentage, memory = ThreadPercentage(), {}
    server = Server(daemon.lifetime.server_ids.take(), head.uid, percentage, memory, name=head.server)
    daemon.servers[server.serial] = server
    name = head.server if daemon.options.protocol == 3 else ""
    return SpawnServer(server.serial, head.uid, None if daemon.options.multiuser else head.peer, name)


def _admit(daemon: Daemon, server: Server) -> Iterator[Instruction]:
    for entry in daemon.queue.take_admissible(server.name):
        if entry.client and entry.peer is not None:
            known = entry.mps_namespace, entry.rule, entry.cgroups, entry.kernel_limits, entry.sm_partition
            limits = client_limits(daemon, server, *known)
            if not (entry.joins and _is_client(server, entry.peer.pid, entry.process)):
                server.clients[entry.client] = Client(
                    entry.client,
                    entry.peer.pid,
                    entry.uid,
                    entry.command,
                    entry.namespace,
                    process=entry.process,
                    mps_namespace=entry.mps_namespace,
                    cgroups=entry.cgroups,
                    partitions={device: one.name for device, one in limits.partitions.items()} if limits else {},
                    groups=limits.groups if limits else {},
                    since=entry.since,
                    container_pid=entry.container_pid,
                )
            granted = grant(daemon, server, entry.client, entry.mps_namespace, limits)
            if not daemon.options.has_own_servers and entry.client in server.clients:
                server.clients[entry.client].limits = in_force(daemon, server, granted)
            yield granted
