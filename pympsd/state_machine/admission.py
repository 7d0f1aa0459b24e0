"""Who gets a server, and who waits: at most one server, users in order of arrival (see `turns`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine import debuggers, failed_starts, turns
from pympsd.state_machine.daemon_state import Client, Daemon, Server, Waiting
from pympsd.state_machine.events import ClientKnocked
from pympsd.state_machine.instructions import (
    AdmitClient,
    CancelTimer,
    Instruction,
    KillServer,
    Log,
    RefuseClient,
    SetTimer,
    SpawnServer,
    TellServerToLeave,
)
from pympsd.state_machine.server_lifecycle import Phase
from pympsd.vocabulary.results import Result

START_TIMER: Final = "start"
START_PATIENCE: Final = 60.0
"""Seconds a server has to become ready."""
LEAVE_TIMER: Final = "leave"
LEAVE_PATIENCE: Final = 5.0
"""Seconds a server without clients has to end when it is told to; forced: FORCED_PATIENCE."""
FORCED_PATIENCE: Final = 2.0
SILENCE_TIMER: Final = "silence"
SILENCE_PATIENCE: Final = 10.0
"""Seconds a server has to say that clients whose processes have ended are gone, when somebody waits for that. One
that is well says it at once, or within 5 s where an executor of its is stopped."""


def knock(daemon: Daemon, event: ClientKnocked) -> Iterator[Instruction]:
    """A client wants a server."""
    refusal = _refusal(daemon, event)
    if refusal is not None:
        yield refusal
        return
    if event.traced:
        yield from debuggers.wait_for_others(daemon, event)
        return
    uid = daemon.serving_uid(event.peer.uid)
    waiting = Waiting(daemon.tickets.take(), uid, event.client, event.peer, event.command, event.namespace)
    ready = (
        daemon.current is not None and _serves(daemon.current, uid) and not turns.is_closed_to_newcomers(daemon, uid)
    )
    name = "client_server_exists" if ready else "client_pending"
    yield Log(name, {"pid": event.peer.pid, "uid": uid})
    if ready:
        daemon.line.append(waiting)
    else:
        yield from turns.join(daemon, waiting)
    yield from take_turns(daemon)


def wish_for_server(daemon: Daemon, uid: int) -> Iterator[Instruction]:
    """An operator wants a server for a user; for the user who has one it changes nothing."""
    uid = daemon.serving_uid(uid)
    server = daemon.current
    # Of one that is to return it is not sure that it does.
    if server is not None and server.uid == uid and server.phase not in (Phase.LEAVING, Phase.RETURNING):
        return
    if not any(waiting.uid == uid and not waiting.client for waiting in daemon.line):
        yield from turns.join(daemon, Waiting(daemon.tickets.take(), uid))
    yield from take_turns(daemon)


def leave_the_line(daemon: Daemon, client: int) -> None:
    """A waiting client is gone."""
    daemon.debugged.pop(client, None)
    daemon.line = [waiting for waiting in daemon.line if waiting.client != client]


def drop_wish(daemon: Daemon, server: Server) -> None:
    """An operator stops a server that is not ready yet: the wish it was started for is over too."""
    if server.phase is Phase.INITIALIZING:
        daemon.line = [waiting for waiting in daemon.line if waiting.client or waiting.uid != server.uid]


def take_turns(daemon: Daemon) -> Iterator[Instruction]:
    """Do what the line asks for: admit to the server there is, pass the turn on, or start the next server."""
    server = daemon.current
    if server is None:
        # While a pause lasts the others wait too: it is short, and it may be their own server that fails.
        if daemon.line and daemon.quitting is None and not failed_starts.is_pausing(daemon, daemon.line[0].uid):
            yield _spawn(daemon, daemon.line[0])
        return
    if server.phase not in (Phase.ACTIVE, Phase.FAULT):
        return
    # During a fault the server itself refuses who is new, as recorded.
    yield from _admit(daemon, server)
    if not server.clients and daemon.line:
        yield from tell_to_leave(server, forced=False)
    else:
        yield from turns.tell_of_closing(daemon, server)
        if daemon.line:
            yield from _time_silence(server)


def lose_patience(daemon: Daemon, ticket: int) -> Iterator[Instruction]:
    """A waiter's patience with newcomers of the active user is over."""
    turns.lose_patience(daemon, ticket)
    yield from take_turns(daemon)


def client_left(daemon: Daemon, server: Server, client: int) -> Iterator[Instruction]:
    """A client has gone from a server: it may be the last one somebody waits for."""
    if server.clients.pop(client, None) is not None:
        failed_starts.has_served(daemon, server)
        if server.silence_timed:
            # It speaks: for the others that have ended it has its time anew.
            server.silence_timed = False
            yield CancelTimer(f"{SILENCE_TIMER} {server.serial}")
        if server.phase is Phase.LEAVING:
            yield from _time_silence(server) if server.clients else time_leaving(server)
    yield from take_turns(daemon)


def client_ended(daemon: Daemon, server: Server, client: int) -> Iterator[Instruction]:
    """A client's process has ended: its server says that it is gone, unless it is stopped or stuck."""
    known = server.clients.get(client)
    if known is None:
        return
    known.ended = True
    if daemon.line or server.phase is Phase.LEAVING:
        yield from _time_silence(server)


def silent_too_long(daemon: Daemon, serial: int) -> Iterator[Instruction]:
    """A server's time to say that its clients are gone is over: none of them lives, so force harms nobody."""
    server = daemon.servers.get(serial)
    if server is None:
        return
    server.silence_timed = False
    waited_for = bool(daemon.line) or server.phase is Phase.LEAVING
    if server.is_forsaken and waited_for and not server.forced:
        yield Log("server_silent", {"server": server.pid, "seconds": SILENCE_PATIENCE})
        yield from tell_to_leave(server, forced=True)


def overdue(daemon: Daemon, timer: str, serial: int) -> Iterator[Instruction]:
    """A server's time to start, or to leave, is over: one that has nobody to wait for is killed."""
    server = daemon.servers.get(serial)
    if server is None:
        return
    if timer == LEAVE_TIMER:
        server.leave_timed = False
    starting = timer == START_TIMER and server.phase is Phase.INITIALIZING
    alone = not server.clients and not server.awaited
    leaving = timer == LEAVE_TIMER and server.phase is Phase.LEAVING and (server.forced or alone)
    if starting:
        server.start_refusal = f"it was not ready within {START_PATIENCE:.0f} s"
    if starting or leaving:
        yield Log("server_overdue", {"server": server.pid})
        yield KillServer(serial)


def tell_to_leave(server: Server, *, forced: bool) -> Iterator[Instruction]:
    """Tell a server to go, once, or once more when now it is forced."""
    if server.phase is Phase.SPAWNING:
        return
    if server.phase is Phase.LEAVING and (server.forced or not forced):
        return
    if server.phase is not Phase.LEAVING:
        server.become(Phase.LEAVING)
    # Said once more before the force, as recorded.
    yield Log("server_shutdown_tried", {"server": server.pid})
    if server.clients:
        yield Log("server_busy", {"server": server.pid, "workers": server.workers})
    if forced:
        server.forced = True
        yield Log("server_forced", {"server": server.pid})
    yield TellServerToLeave(server.serial, forced)
    # Nothing its user does to it, such as stopping it, may keep the others waiting.
    if forced:
        yield from _time_leaving(server, FORCED_PATIENCE)
    else:
        yield from _time_silence(server) if server.clients else time_leaving(server)


def time_leaving(server: Server) -> Iterator[Instruction]:
    """Give a leaving server without clients its time to end; one that is forced has less already."""
    if not server.forced:
        yield from _time_leaving(server, LEAVE_PATIENCE)


def _time_leaving(server: Server, seconds: float) -> Iterator[Instruction]:
    token = f"{LEAVE_TIMER} {server.serial}"
    if server.leave_timed:
        # What was left of its time before would end it sooner than it is told.
        yield CancelTimer(token)
    server.leave_timed = True
    yield SetTimer(token, seconds)


def _time_silence(server: Server) -> Iterator[Instruction]:
    """Give a server that somebody waits for its time to say that its clients, who have ended, are gone."""
    if server.is_forsaken and not (server.silence_timed or server.forced):
        server.silence_timed = True
        yield SetTimer(f"{SILENCE_TIMER} {server.serial}", SILENCE_PATIENCE)


def _refusal(daemon: Daemon, event: ClientKnocked) -> RefuseClient | None:
    if daemon.quitting is not None:
        return RefuseClient(
            event.client, Result.ERROR_MPS_CONNECTION_FAILED, "the MPS control daemon is quitting: no new clients"
        )
    if event.peer.foreign:
        reason = "your user is unknown in the daemon's user namespace; run the daemon in the same one"
        return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
    if daemon.uid not in (0, event.peer.uid):
        reason = (
            f"this MPS control daemon is run by user {daemon.uid} and serves that user only, not {event.peer.uid}; "
            "start one as that user with its own CUDA_MPS_PIPE_DIRECTORY, or one as root"
        )
        return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
    given_up = failed_starts.refusal_of(daemon, daemon.serving_uid(event.peer.uid))
    if given_up:
        return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, given_up)
    return None


def _serves(server: Server, uid: int) -> bool:
    return server.uid == uid and server.phase in (Phase.ACTIVE, Phase.FAULT)


def _spawn(daemon: Daemon, head: Waiting) -> Instruction:
    server = Server(daemon.server_serials.take(), head.uid, daemon.thread_percentage, dict(daemon.memory_limits))
    daemon.servers[server.serial] = server
    return SpawnServer(server.serial, head.uid, None if daemon.multiuser else head.peer)


def _admit(daemon: Daemon, server: Server) -> Iterator[Instruction]:
    for waiting in turns.take_admissible(daemon, server.uid):
        if waiting.client and waiting.peer is not None:
            server.clients[waiting.client] = Client(
                waiting.client, waiting.peer.pid, waiting.uid, waiting.command, waiting.namespace
            )
            yield AdmitClient(waiting.client, server.serial, server.pid, daemon.client_priority.level)
