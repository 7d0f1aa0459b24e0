"""Take over the servers of the previous daemon: those that the state file names, over the links that the keeper held.

The servers are not children of this daemon, so it watches and kills their processes through pidfds, and their exit
statuses are unknown. If the previous daemon was PID 1 of a container, the kernel has killed its servers with it.

A server is a `PendingServer` until it has reported. `take_over` starts two tasks for it: `watch` waits for the end of
its process, and `serve` reads the link that the keeper held. One of pympsd's own servers is asked for a report
(`link_messages.ReportRequest`), and nothing in the report is trusted, because the server runs as another user. The
driver's server cannot report: its clients are those whose pidfds the keeper held, and the notes with these pidfds
have the previous daemon's data on them.

`KnownProcess` is the process of such a server; `kill_session` kills the other processes of its session (setsid(2)).
"""

import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from attrs import define, evolve, field

from pympsd.channel import descriptors
from pympsd.channel.message_channel import MessageChannel
from pympsd.channel.packet_channel import PacketChannel
from pympsd.errors import ProcessError, RemoteError
from pympsd.journal.line_format import sanitise
from pympsd.service.children import LEAVE_SECONDS
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.peers import container_pid_of, process_of
from pympsd.service.processes.status import SESSION, STARTED, has_ended, process_end, start_time_of, stat
from pympsd.service.sessions.driver.server import DriverServerSession
from pympsd.service.sessions.origins import origin_of_pid
from pympsd.service.sessions.server import MAX_CONTEXTS, ServerSession
from pympsd.service.sessions.waiting import LAST_SECONDS
from pympsd.state_machine import events
from pympsd.state_machine.state.client import Client, ClientProcess, ReportedContext
from pympsd.state_machine.takeover import first_id
from pympsd.takeover.keeper.entries import KeptEntries
from pympsd.takeover.state.entries import ClientNote, KeptFd, id_of, link_name
from pympsd.takeover.state.other_devices import OtherDevices
from pympsd.takeover.state.records import PersistentServer
from pympsd.takeover.state_file import SavedState, StateRefused, device_keys, read
from pympsd.vocabulary import files
from pympsd.vocabulary.identities import NO_USER, Ids, Peer, name_problem
from pympsd.vocabulary.partitions import is_partition_name
from pympsd.vocabulary.results import ServerStatus
from pympsd.vocabulary.rules import Origin
from pympsd.wire import link_messages as link
from pympsd.wire.messages import Versions, agree


def kill_session(leader: int, uid: int, started: int) -> list[int]:
    """Kill the remaining processes of a user in a session whose leader has ended; return their PIDs.

    ``started``: the leader's start time. While a member lives no other session gets its ID; without members the ID
    may be in use again, by a leader with another start time.
    """
    killed = []
    for pid in _members(leader, uid, started):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Check again now that the pidfd is open, because the PID may belong to another process by now.
            if _is_member(pid, leader, uid) and not _is_reused(leader, started):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed.append(pid)
        except OSError:
            continue
        finally:
            os.close(pidfd)
    return killed


def _members(leader: int, uid: int, started: int) -> Iterator[int]:
    if _is_reused(leader, started):
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != leader and _is_member(int(name), leader, uid):
            yield int(name)


def _is_member(pid: int, leader: int, uid: int) -> bool:
    fields = stat(pid)
    return len(fields) > STARTED and int(fields[SESSION]) == leader and _uid(pid) == uid


def _is_reused(leader: int, started: int) -> bool:
    """Return whether a later process has the PID of a session's leader."""
    fields = stat(leader)
    return len(fields) > STARTED and int(fields[STARTED]) != started


def _uid(pid: int) -> int:
    """Return a process's real uid; -1 if it is gone. (/proc/PID belongs to root if the process is not dumpable.)"""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return -1


@define
class KnownProcess:
    """A process that is not a child of this one; owns its pidfd."""

    pidfd: int
    gone: trio.Event = field(factory=trio.Event, init=False)

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self.gone.is_set() or has_ended(self.pidfd)

    async def watch(self) -> None:
        """Wait for the end of the process, set ``gone``, and close the pidfd."""
        try:
            await process_end(self.pidfd)
        finally:
            self.gone.set()
            os.close(self.pidfd)


LAST_MESSAGES_SECONDS: Final = 1.0
"""The maximum number of seconds for reading the last messages of a server that has ended."""
MAX_CLIENTS: Final = 1 << 14
CLOCK_SECONDS: Final = 60.0
"""The maximum number of seconds by which the clock may have been set back since a client connected."""
READY_SECONDS: Final = 2.0
"""The maximum number of seconds that a starting daemon waits for the servers' reports, so that its first answers
include them."""


class ServerEnded(ProcessError):
    """A server ended before it had reported."""


@define
class PendingServer:
    """A server of the previous daemon. ``obstacle``: why it cannot be taken over, or empty."""

    session: ServerSession | DriverServerSession
    process: KnownProcess
    obstacle: str
    started: int
    """The start time of the server's process, in clock ticks since boot."""
    resolved: trio.Event = field(factory=trio.Event, init=False)
    """An event that is set when the server has reported, or when it cannot report any more."""
    _link: trio.socket.SocketType | None = field(default=None, init=False)
    _serving: trio.Event | None = field(default=None, init=False)
    """An event that is set at the end of the server's session; None if the session has not begun."""

    async def watch(self, dispatcher: Dispatcher) -> None:
        """Wait for the server's process to end, and clean up after it."""
        await self.process.watch()
        self._hang_up()
        # Init may have reaped it, so the start time shows whether the ID of its session is in use again.
        kill_session(self.session.pid, self.session.uid, self.started)
        if self._serving is not None:
            with trio.move_on_after(LAST_MESSAGES_SECONDS):
                await self._serving.wait()
        self.resolved.set()
        dispatcher.sessions.servers.pop(self.session.id, None)
        dispatcher.feed(events.ServerExited(self.session.id, None))
        if isinstance(self.session, DriverServerSession):
            self.session.handoffs.close()

    async def serve(self, dispatcher: Dispatcher, fd: int) -> None:
        """Handle the messages on the server's link until it closes; then kill the server if it does not exit."""
        self._serving = trio.Event()
        self._link = sock = trio.socket.from_stdlib_socket(socket.socket(fileno=fd))
        if self.process.gone.is_set():
            self._hang_up()
        allowance = dispatcher.budgets.buffers.link(self.session.uid)
        try:
            with dispatcher.keeper.drop_after(link_name(self.session.id)):
                if isinstance(self.session, DriverServerSession):
                    self.resolved.set()
                    await _resume_session(self.session, PacketChannel(sock, allowance))
                else:
                    await self._serve_own(dispatcher, self.session, MessageChannel(sock, allowance=allowance))
        finally:
            self._serving.set()
        if self.session.id in dispatcher.sessions.servers:
            with trio.move_on_after(LEAVE_SECONDS):
                await self.process.gone.wait()
            self.session.kill()

    def _hang_up(self) -> None:
        """End the link of a process that has ended: another process of the user may have a copy of the link."""
        if self._link is not None:
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)

    async def _serve_own(self, dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel) -> None:
        try:
            if await self._take_over_while_sending(dispatcher, session, channel):
                await session.run(dispatcher)
        except RemoteError as error:
            dispatcher.log.error("server_misbehaved", server=session.pid, reason=str(error))
            session.kill()
        except ServerEnded:
            return
        finally:
            channel.close()

    async def _take_over_while_sending(
        self, dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel
    ) -> bool:
        """Run ``_take_over`` and a sender at the same time, because the link may be full of earlier messages."""
        is_taken_over, failure = False, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run_sender)
            try:
                is_taken_over = await self._take_over(dispatcher, session, channel)
                if not is_taken_over:
                    with trio.move_on_after(LAST_SECONDS):
                        await channel.drain()
            except (RemoteError, ServerEnded) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            # Raise it outside the nursery, which would wrap it in a group.
            raise failure
        return is_taken_over

    async def _take_over(self, dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel) -> bool:
        """Take over the server with the clients that it reports, or dismiss it; RemoteError for a false report."""
        if not self.obstacle:
            token = int.from_bytes(os.urandom(7), "big")
            channel.send(link.ReportRequest(Versions(), token))
            hello, reports = await _receive_report(dispatcher, session, channel, token)
            if agree(Versions(), hello.versions) is None:
                self.obstacle = f"the server has protocol versions {hello.versions.oldest} to {hello.versions.newest}"
        if self.obstacle:
            channel.send(link.ServerDismissed(self.obstacle))
            self.resolved.set()
            dispatcher.sessions.servers.pop(session.id, None)
            dispatcher.feed(events.ServerNotTakenOver(session.id, self.obstacle))
            return False
        clients = tuple(_check_report(dispatcher, session.uid, client) for client in reports)
        contexts = sum(len(client.contexts) for client in clients)
        if contexts > MAX_CONTEXTS or len({client.id for client in clients}) < len(clients):
            raise RemoteError(f"the server reports {contexts} contexts of {len(clients)} clients")
        if hello.status not in set(ServerStatus):
            raise RemoteError(f"{hello.status!r} is not a server status")
        session.take_over(channel)
        dispatcher.feed(events.ServerTakenOver(session.id, hello.status, hello.leaving, clients))
        self.resolved.set()
        return True


async def _resume_session(session: DriverServerSession, channel: PacketChannel) -> None:
    try:
        await session.resume(channel)
    finally:
        channel.close()


def take_over(dispatcher: Dispatcher, folder: str, kept_entries: KeptEntries) -> list[PendingServer]:
    """Restore the state of a daemon that was killed or replaced, and take over its servers.

    ``folder``: the pipe directory. ``kept_entries``: the entries of its keeper, from which the links and clients of
    the servers are removed. Return the pending servers: none without a state file, or if it is refused (which is
    logged).
    """
    try:
        saved = read(folder)
    except StateRefused as error:
        dispatcher.log.warning("state_refused", path=os.path.join(folder, files.STATE), reason=str(error))
        return []
    if saved is None:
        return []
    pending = [
        server
        for remembered in saved.remembered.servers
        if (server := _find_server(dispatcher, saved, remembered, kept_entries, _obstacle(dispatcher, saved)))
    ]
    connections = frozenset(id_of(connection.name) for connection in kept_entries.connections)
    other_devices = _compare_devices(dispatcher, saved)
    running = {server.session.id for server in pending}
    servers = tuple(server for server in saved.remembered.servers if server.serial in running)
    dispatcher.feed(events.PredecessorDied(evolve(saved.remembered, servers=servers), other_devices, connections))
    if pending:
        dispatcher.sessions.ids = Ids(first_id(dispatcher.state.lifetime.generation))
    for server in pending:
        dispatcher.sessions.servers[server.session.id] = server.session
        dispatcher.nursery.start_soon(server.watch, dispatcher)
        fd = kept_entries.links.pop(server.session.id, -1)
        if fd >= 0:
            dispatcher.nursery.start_soon(server.serve, dispatcher, fd)
    return pending


async def wait_for_reports(pending: Iterable[PendingServer]) -> None:
    """Wait until all pending servers have reported or cannot, for READY_SECONDS at most."""
    with trio.move_on_after(READY_SECONDS):
        for server in pending:
            await server.resolved.wait()


def _compare_devices(dispatcher: Dispatcher, saved: SavedState) -> OtherDevices | None:
    present = device_keys(dispatcher.state.devices)
    is_known = bool(present and saved.devices)
    return OtherDevices(saved.devices, present) if is_known and saved.devices != present else None


def _obstacle(dispatcher: Dispatcher, saved: SavedState) -> str:
    """Return why this daemon cannot take over the servers of the previous one; empty if it can."""
    if saved.backend != dispatcher.settings.backend:
        return f"the backend of this daemon is {dispatcher.settings.backend}, not {saved.backend}"
    is_other = _compare_devices(dispatcher, saved) is not None and saved.backend != "vendor"
    return "this daemon has other devices" if is_other else ""


def _find_server(
    dispatcher: Dispatcher, saved: SavedState, server: PersistentServer, kept_entries: KeptEntries, obstacle: str
) -> PendingServer | None:
    """Return a server whose process still runs; None if it has ended, or cannot be watched."""
    if saved.backend == "vendor" and obstacle:
        return None  # it ends when its link is closed
    try:
        process = KnownProcess(os.pidfd_open(server.pid))
    except ProcessLookupError:
        return None
    except OSError as error:
        if start_time_of(server.pid) == saved.started.get(server.pid):
            dispatcher.log.warning("server_not_taken_over", server=server.pid, reason=descriptors.explain(error))
        return None
    # Check this with the pidfd open: no later process with this PID can be mistaken for the server.
    if process.ended or start_time_of(server.pid) != saved.started.get(server.pid):
        os.close(process.pidfd)
        return None
    session: ServerSession | DriverServerSession = ServerSession(server.serial, server.uid, server.pid, process.kill)
    if saved.backend == "vendor":
        session = _driver_session(dispatcher, server, process, kept_entries)
    return PendingServer(session, process, obstacle, saved.started[server.pid])


def _driver_session(
    dispatcher: Dispatcher, server: PersistentServer, process: KnownProcess, kept_entries: KeptEntries
) -> DriverServerSession:
    """Return the session of a driver's server with the keeper's data on its clients."""
    session = DriverServerSession(
        dispatcher, server.serial, server.uid, server.pid, process.kill, is_leaving=server.leaving
    )
    own = {
        client_id: entry for client_id, entry in kept_entries.clients.items() if entry.note.server == server.serial
    }
    for client_id in own:
        del kept_entries.clients[client_id]
    session.handoffs.earlier = kept_entries.take_new_clients(server.serial)
    session.pidfds = {client_id: entry.fd for client_id, entry in own.items()}
    for entry in own.values():
        session.clients.terminations.restore(entry.note.pid, frozenset(entry.note.terminated))
    session.taken_over = {
        client_id: Client(client_id, server.uid, _process_of_client(dispatcher, entry), limits=entry.note.limits)
        for client_id, entry in own.items()
    }
    return session


def _process_of_client(dispatcher: Dispatcher, entry: KeptFd[ClientNote]) -> ClientProcess:
    """Return the process of a client by the keeper's note."""
    note = entry.note
    return ClientProcess(
        Peer(note.pid, note.uid, NO_USER),
        note.command,
        note.namespace,
        note.mps_namespace,
        number=0 if note.pid else process_of(entry.fd),
        container_pid=container_pid_of(note.pid),
        since=note.since,
        origin=_origin_of(dispatcher, note.pid),
    )


async def _receive_report(
    dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel, token: int
) -> tuple[link.ServerReturn, list[object]]:
    """Receive the server's report with this token. Only log lines among earlier messages are handled.

    Raise RemoteError for an impossible number of clients, and ServerEnded.
    """
    while True:
        message = await _next(channel)
        if isinstance(message, link.ServerReturn) and message.token == token:
            break
        if isinstance(message, link.LogRecord | link.LogDropped):
            session.handle(dispatcher, message)
    if not 0 <= message.clients <= MAX_CLIENTS:
        raise RemoteError(f"the server reports {message.clients} clients; at most {MAX_CLIENTS} are possible")
    return message, [await _next(channel) for _ in range(message.clients)]


async def _next(channel: MessageChannel) -> object:
    received = await channel.receive_message()
    if received is None:
        raise ServerEnded
    return received[0]


def _check_report(dispatcher: Dispatcher, uid: int, report: object) -> Client:
    """Return the client that a server's report describes; raise RemoteError if that client is impossible."""
    if not isinstance(report, link.ReturningClient):
        raise RemoteError(f"the server sent {type(report).__name__} where the daemon expected a client")
    # This daemon's ids begin above all earlier ones.
    if not 0 < report.client < first_id(dispatcher.state.lifetime.generation) or report.pid < 0:
        raise RemoteError(f"the server cannot have a client {report.client} with PID {report.pid}")
    if uid not in (0, report.uid):
        raise RemoteError(f"a server of user {uid} cannot have a client of user {report.uid}")
    for context_id, number, device in report.contexts:
        if context_id < 1 or number < 1 or not 0 <= device < len(dispatcher.state.devices):
            raise RemoteError(f"the server cannot have a context {number} on device {device}")
    devices = range(len(dispatcher.state.devices))
    if any(
        device not in devices or (name and not is_partition_name(name)) for device, name in report.partitions.items()
    ):
        raise RemoteError("the server cannot have such SM partitions")
    has_limits = report.limits is None or report.limits.is_possible(len(devices))
    if not has_limits or not {*report.groups} <= {*devices} or not 0 <= report.since <= time.time() + CLOCK_SECONDS:
        raise RemoteError(f"the server cannot have such limits, or a client since {report.since:g}")
    process = ClientProcess(
        Peer(report.pid, report.uid, NO_USER),
        sanitise(report.command.encode()),
        report.namespace,
        report.mps_namespace if not name_problem(report.mps_namespace) else "",
        container_pid=container_pid_of(report.pid),
        since=report.since,
        origin=_origin_of(dispatcher, report.pid),
    )
    contexts = {context[0]: ReportedContext(*context) for context in report.contexts}
    groups, limits = report.groups, report.limits
    return Client(report.client, uid, process, contexts, partitions=report.partitions, groups=groups, limits=limits)


def _origin_of(dispatcher: Dispatcher, pid: int) -> Origin | None:
    """Return the origin of a client that is taken over; None in protocol 2, or if it cannot be read."""
    return origin_of_pid(pid) if dispatcher.state.options.protocol == 3 else None
