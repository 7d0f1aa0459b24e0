"""End servers and the daemon: quit with and without a time limit, on a signal, and by force."""

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine import instructions as do
from pympsd.state_machine.events import ServerUnknown
from pympsd.state_machine.state.daemon import Daemon, Quit
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.results import Result

SIGNAL_TIMEOUT: Final = 2.0
"""The seconds between SIGTERM and force: supervisors wait at least 10 s before they kill."""
QUITTING: Final = "the MPS control daemon is quitting: no new clients"
LEAVE_TIMEOUT: Final = 5.0
"""The seconds in which a server without clients has to end after a shutdown request; a forced one has
FORCED_TIMEOUT seconds."""
FORCED_TIMEOUT: Final = 2.0
SILENCE_TIMEOUT: Final = 10.0
"""Seconds a server has to report that clients whose processes have ended are gone, while another client or user waits
for that. A healthy server reports it immediately, or within 5 s if one of its executors is stopped."""
_FORCE: Final = do.Timer(do.TimerKind.FORCE)


def begin_quit(daemon: Daemon, session: int, timeout: float | None) -> Iterator[do.Instruction]:
    """Begin an operator's ``quit``. A second one joins the first.

    Args:
        timeout: Seconds after which clients are ended; None means without a limit.
    """
    yield do.Working(session)
    if timeout is not None:
        yield do.Log("quit_timeout", {"seconds": int(timeout)})
        yield do.SetTimer(_FORCE, max(0.0, timeout))
    quitting = daemon.quitting = daemon.quitting or Quit()
    quitting.by_operator, quitting.changes_backend = True, False
    if timeout is not None:
        quitting.timeout = min(max(0.0, timeout), timeout if quitting.timeout is None else quitting.timeout)
    yield from _empty_queue(daemon)
    yield from advance(daemon)


def resume_quit(daemon: Daemon, timeout: float | None) -> Iterator[do.Instruction]:
    """Continue an operator's quit of an earlier daemon; its time limit begins again.

    ``timeout`` is in seconds; None if it waits for the clients. The operators who asked for it were connected to the
    earlier daemon and get no answer.
    """
    daemon.quitting = Quit(by_operator=True, timeout=timeout)
    yield do.Log("quit_resumed")
    if timeout is not None:
        yield do.SetTimer(_FORCE, timeout)


def stop_by_signal(daemon: Daemon) -> Iterator[do.Instruction]:
    """Quit within a short time limit, on SIGTERM or SIGINT.

    Clients that wait are refused; servers have SIGNAL_TIMEOUT seconds before force. This also shortens an operator's
    pending quit.
    """
    if daemon.quitting is None:
        daemon.quitting = Quit()
        yield from _empty_queue(daemon)
    daemon.quitting.changes_backend = False
    yield do.SetTimer(_FORCE, SIGNAL_TIMEOUT)
    yield from advance(daemon)


def server_unknown(daemon: Daemon, event: ServerUnknown) -> Iterator[do.Instruction]:
    """Change to the other backend, if there is one and no server of this one has served a client.

    Clients that wait are refused, with the event's reason; they have to be started again.
    """
    server = daemon.servers.get(event.server)
    if server is not None:
        server.violation = event.reason
    if not daemon.options.has_other_backend or daemon.lifetime.backend_works or daemon.quitting is not None:
        return
    yield do.Log("backend_changes")
    daemon.quitting = Quit(forced=True, changes_backend=True)
    yield from _empty_queue(daemon, f"{event.reason}; the daemon takes another backend: start the program again")
    yield from advance(daemon)


def force(daemon: Daemon) -> Iterator[do.Instruction]:
    """Use force: the time limit of a quit is over.

    Servers are asked once more, and those that have not ended FORCED_TIMEOUT seconds later are killed.
    """
    if daemon.quitting is None:
        return
    daemon.quitting.forced = True
    yield from advance(daemon)


def advance(daemon: Daemon) -> Iterator[do.Instruction]:
    """Continue a pending quit: shut servers down, or exit when none is left.

    Call it after every event that may have ended a server. It does nothing if no quit is pending, or the daemon's
    Exit was yielded already.
    """
    if daemon.quitting is None or daemon.quitting.over:
        return
    for server in daemon.servers.values():
        yield from shut_down_server(server, forced=daemon.quitting.forced)
    if not daemon.servers:
        daemon.quitting.over = True
        if daemon.quitting.changes_backend:
            yield do.ChangeBackend()
            return
        yield do.Log("daemon_exiting", {"status": 0})
        yield do.Exit(0)


def shut_down_server(server: Server, *, forced: bool, is_deletion: bool = False) -> Iterator[do.Instruction]:
    """Ask a server to end: once, and once more if force is used now but was not before.

    ``is_deletion``: the server sends its clients the reason; otherwise it sends nothing, as recorded.
    """
    if server.phase is Phase.SPAWNING:
        return
    if server.phase is Phase.LEAVING and (server.forced or not forced):
        return
    if server.phase is not Phase.LEAVING:
        server.become(Phase.LEAVING)
    # Logged once more before the force, as recorded.
    yield do.Log("server_shutdown_tried", {"server": server.pid})
    if server.clients:
        yield do.Log("server_busy", {"server": server.pid, "workers": server.workers})
    if forced:
        server.forced = True
        yield do.Log("server_forced", {"server": server.pid})
    yield do.ShutDownServer(server.id, forced, is_deletion)
    # No user may keep other users waiting by acting on the server, for example by stopping it.
    if forced:
        yield from _time_leaving(server, FORCED_TIMEOUT)
    else:
        yield from time_silence(server) if server.clients else time_leaving(server)


def time_leaving(server: Server) -> Iterator[do.Instruction]:
    """Limit the time that a leaving server without clients has to end; a forced one has a shorter limit already.

    After LEAVE_TIMEOUT seconds the server is killed; the time begins again with each call.
    """
    if not server.forced:
        yield from _time_leaving(server, LEAVE_TIMEOUT)


def _time_leaving(server: Server, seconds: float) -> Iterator[do.Instruction]:
    timer = do.Timer(do.TimerKind.LEAVE, server.id)
    if server.leave_timed:
        # The rest of the earlier timer would end the server too early.
        yield do.CancelTimer(timer)
    server.leave_timed = True
    yield do.SetTimer(timer, seconds)


def time_silence(server: Server) -> Iterator[do.Instruction]:
    """Limit the time that a server has to report its clients as gone after all of them have ended.

    After SILENCE_TIMEOUT seconds force is used. Do nothing while one of its clients is alive.
    """
    if server.is_abandoned and not (server.silence_timed or server.forced):
        server.silence_timed = True
        yield do.SetTimer(do.Timer(do.TimerKind.SILENCE, server.id), SILENCE_TIMEOUT)


def _empty_queue(daemon: Daemon, reason: str = QUITTING) -> Iterator[do.Instruction]:
    for client in daemon.queue.take_all():
        yield do.RefuseClient(client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
