"""Who gets a server, and who waits: at most one server, users in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.mind.daemon_state import Client, Daemon, Server, Waiting
from pympsd.mind.events import ClientKnocked
from pympsd.mind.instructions import (
    AdmitClient,
    Instruction,
    KillServer,
    Log,
    RefuseClient,
    SetTimer,
    SpawnServer,
    TellServerToLeave,
)
from pympsd.mind.server_lifecycle import Phase
from pympsd.vocabulary.results import Result

START_TIMER: Final = "start"
START_PATIENCE: Final = 60.0
"""Seconds a server has to become ready."""
LEAVE_TIMER: Final = "leave"
LEAVE_PATIENCE: Final = 5.0
"""Seconds a server without clients has to end when it is told to; forced: FORCED_PATIENCE."""
FORCED_PATIENCE: Final = 2.0


def knock(daemon: Daemon, event: ClientKnocked) -> Iterator[Instruction]:
    """A client wants a server."""
    refusal = _refusal(daemon, event)
    if refusal is not None:
        yield refusal
        return
    uid = daemon.serving_uid(event.peer.uid)
    ready = daemon.current is not None and _serves(daemon.current, uid)
    name = "client_server_exists" if ready else "client_pending"
    yield Log(name, {"pid": event.peer.pid, "uid": uid})
    daemon.line.append(Waiting(uid, event.client, event.peer, event.command, event.namespace))
    yield from take_turns(daemon)


def wish_for_server(daemon: Daemon, uid: int) -> Iterator[Instruction]:
    """An operator wants a server for a user; for the user who has one it changes nothing."""
    uid = daemon.serving_uid(uid)
    if daemon.current is not None and daemon.current.uid == uid and daemon.current.phase is not Phase.LEAVING:
        return
    if not any(waiting.uid == uid for waiting in daemon.line):
        daemon.line.append(Waiting(uid))
    yield from take_turns(daemon)


def leave_the_line(daemon: Daemon, client: int) -> None:
    """A waiting client is gone."""
    daemon.line = [waiting for waiting in daemon.line if waiting.client != client]


def drop_wish(daemon: Daemon, server: Server) -> None:
    """An operator stops a server that is not ready yet: the wish it was started for is over too."""
    if server.phase is Phase.INITIALIZING:
        daemon.line = [waiting for waiting in daemon.line if waiting.client or waiting.uid != server.uid]


def take_turns(daemon: Daemon) -> Iterator[Instruction]:
    """Do what the line asks for: admit to the server there is, pass the turn on, or start the next server."""
    server = daemon.current
    if server is None:
        if daemon.line and daemon.quitting is None:
            yield _spawn(daemon, daemon.line[0])
        return
    if server.phase is Phase.ACTIVE:
        yield from _admit(daemon, server)
    if server.phase in (Phase.ACTIVE, Phase.FAULT) and not server.clients and daemon.line:
        yield from tell_to_leave(server, forced=False)


def client_left(daemon: Daemon, server: Server, client: int) -> Iterator[Instruction]:
    """A client has gone from a server: it may be the last one somebody waits for."""
    server.clients.pop(client, None)
    if server.phase is Phase.LEAVING and not server.clients:
        yield SetTimer(f"{LEAVE_TIMER} {server.serial}", LEAVE_PATIENCE)
    yield from take_turns(daemon)


def overdue(daemon: Daemon, timer: str, serial: int) -> Iterator[Instruction]:
    """A server's time to start, or to leave, is over: one that has nobody to wait for is killed."""
    server = daemon.servers.get(serial)
    if server is None:
        return
    starting = timer == START_TIMER and server.phase is Phase.INITIALIZING
    leaving = timer == LEAVE_TIMER and server.phase is Phase.LEAVING and (server.forced or not server.clients)
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
    if forced or not server.clients:
        # Nothing its user does to it, such as stopping it, may keep the others waiting.
        yield SetTimer(f"{LEAVE_TIMER} {server.serial}", FORCED_PATIENCE if forced else LEAVE_PATIENCE)


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
    server = daemon.current
    if server is not None and server.phase is Phase.FAULT and server.uid == daemon.serving_uid(event.peer.uid):
        reason = "the MPS server handles a fatal fault: try again when the clients it hit have gone"
        return RefuseClient(event.client, Result.ERROR_MPS_SERVER_NOT_READY, reason)
    return None


def _serves(server: Server, uid: int) -> bool:
    return server.uid == uid and server.phase is Phase.ACTIVE


def _spawn(daemon: Daemon, head: Waiting) -> Instruction:
    server = Server(daemon.server_serials.take(), head.uid, daemon.thread_percentage, dict(daemon.memory_limits))
    daemon.servers[server.serial] = server
    return SpawnServer(server.serial, head.uid, None if daemon.multiuser else head.peer)


def _admit(daemon: Daemon, server: Server) -> Iterator[Instruction]:
    served = [waiting for waiting in daemon.line if waiting.uid == server.uid]
    daemon.line = [waiting for waiting in daemon.line if waiting.uid != server.uid]
    for waiting in served:
        if waiting.client and waiting.peer is not None:
            server.clients[waiting.client] = Client(
                waiting.client, waiting.peer.pid, waiting.uid, waiting.command, waiting.namespace
            )
            yield AdmitClient(waiting.client, server.serial, server.pid, daemon.client_priority.level)
