"""Clients under a debugger: each waits until the clients before it have left, then runs without MPS.

Source: MPS documents, 2.3.6.1.

Such clients take no turn: no server is started, kept or shut down for them.
"""

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine.events import ClientConnected
from pympsd.state_machine.instructions import ContinueWithoutMps, Instruction, Log
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.queue import Debugged
from pympsd.state_machine.state.server import Server

REASON: Final = "this process is being debugged, and the other MPS clients have left"


def wait_for_others(daemon: Daemon, event: ClientConnected) -> Iterator[Instruction]:
    """Make a client under a debugger wait for the clients that are admitted or queued now, not for later ones."""
    peer = event.process.peer
    running_clients = _list_clients(daemon, peer.uid if daemon.options.serves_users_together else None)
    daemon.queue.debugged[event.client] = Debugged(event.client, peer.pid, peer.uid, running_clients)
    if running_clients:
        yield Log("debugged_pending", {"pid": peer.pid, "uid": peer.uid, "count": len(running_clients)})


def release(daemon: Daemon) -> Iterator[Instruction]:
    """Let each debugged client run without MPS once all clients that it waits for have left."""
    # Without MPS it would use the driver, which is being released.
    if not daemon.queue.debugged or daemon.drains.releasing is not None:
        return
    present = _list_clients(daemon)
    for debugged in tuple(daemon.queue.debugged.values()):
        debugged.others &= present
        if not debugged.others:
            del daemon.queue.debugged[debugged.client]
            yield Log("debugged_without_mps", {"pid": debugged.pid, "uid": debugged.uid})
            yield ContinueWithoutMps(debugged.client, REASON)


def server_returned(daemon: Daemon, server: Server) -> None:
    """Make debugged clients that waited for a returning server wait for the clients that it has reported."""
    for debugged in daemon.queue.debugged.values():
        if -server.id in debugged.others:
            debugged.others |= set(server.clients)


def _list_clients(daemon: Daemon, uid: int | None = None) -> set[int]:
    """Return the clients that are admitted or queued: all, or one user's."""
    servers = [server for server in daemon.servers.values() if uid in (None, server.uid)]
    admitted = {client for server in servers for client in server.clients}
    # A server that has not reported yet stands for its clients.
    unknown = {-server.id for server in servers if server.pending}
    return admitted | unknown | daemon.queue.clients(uid)
