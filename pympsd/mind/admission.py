"""Who gets a server, and who waits: at most one server, users in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator

from pympsd.mind.daemon_state import Client, Daemon, Server, Waiting
from pympsd.mind.events import ClientKnocked
from pympsd.mind.instructions import AdmitClient, Instruction, Log, RefuseClient, SpawnServer, TellServerToLeave
from pympsd.mind.server_lifecycle import Phase
from pympsd.vocabulary.results import Result


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


def take_turns(daemon: Daemon) -> Iterator[Instruction]:
    """Do what the line asks for: admit to the server there is, pass the turn on, or start the next server."""
    server = daemon.current
    if server is None:
        if daemon.line and daemon.quitting is None:
            yield _spawn(daemon, daemon.line[0])
        return
    if server.phase is Phase.ACTIVE:
        yield from _admit(daemon, server)
        if not server.clients and daemon.line:
            yield from tell_to_leave(server, forced=False)


def tell_to_leave(server: Server, *, forced: bool) -> Iterator[Instruction]:
    """Tell a server to go, once, or once more when now it is forced."""
    if server.phase is Phase.SPAWNING:
        return
    if server.phase is Phase.LEAVING and (server.forced or not forced):
        return
    if server.phase is not Phase.LEAVING:
        server.become(Phase.LEAVING)
        yield Log("server_shutdown_tried", {"server": server.pid})
        if server.clients:
            yield Log("server_busy", {"server": server.pid, "workers": server.workers})
    if forced:
        server.forced = True
        yield Log("server_forced", {"server": server.pid})
    yield TellServerToLeave(server.serial, forced)


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
