"""Adoption of the servers of an earlier daemon: believed only if the state file names them, and reached by the links
that the keeper held.

They are not children of this daemon: a pidfd shows their end and kills them, and their exit status is unknown.
There is nothing to adopt after a daemon that was PID 1 of a container: nothing survives it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Final

import trio
from attrs import define, evolve, field

from pympsd.channel import descriptors
from pympsd.channel.message_channel import MessageChannel
from pympsd.channel.packet_channel import PacketChannel
from pympsd.journal.line_format import sanitised
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.children import LEAVE_SECONDS
from pympsd.service.processes.known_process import KnownProcess
from pympsd.service.processes.process_sessions import kill_session
from pympsd.service.processes.status import started_at
from pympsd.service.sessions.driver.server import VendorServerSession
from pympsd.service.sessions.peers import container_pid_of, process_of
from pympsd.service.sessions.running import LAST_SECONDS
from pympsd.service.sessions.server import MOST_CONTEXTS, ServerSession
from pympsd.state_machine import events
from pympsd.state_machine.takeover import first_serial
from pympsd.takeover.kept_entries import Inherited, link_name, serial_of
from pympsd.takeover.state.other_devices import OtherDevices
from pympsd.takeover.state.records import PersistentServer, PersistentState
from pympsd.takeover.state_file import SavedState, StateRefused, device_keys, read
from pympsd.vocabulary import files
from pympsd.vocabulary.identities import Serials
from pympsd.vocabulary.namespaces import name_problem
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.errors import RemoteError
from pympsd.wire.versions import Versions, agree

LAST_MESSAGES_SECONDS: Final = 1.0
"""Time to read the last messages of a server that has ended."""
MOST_CLIENTS: Final = 1 << 14
CLOCK_SECONDS: Final = 60.0
"""How far the clock may have been set back since a client connected."""
READY_SECONDS: Final = 2.0
"""Time that a start waits for the servers, so that answers to the first commands include them."""


class Ended(Exception):
    """A server ended before it had reported."""


@define
class AwaitedServer:
    """A server of the earlier daemon; ``obstacle``: why it cannot be adopted, or empty."""

    session: ServerSession | VendorServerSession
    process: KnownProcess
    obstacle: str
    started: int
    """When its process started, in clock ticks since boot."""
    settled: trio.Event = field(factory=trio.Event, init=False)
    """It has reported, or will not."""
    _serving: trio.Event | None = field(default=None, init=False)
    """Set at the end of its session."""

    async def watch(self, dispatcher: Dispatcher) -> None:
        """Wait for its end and clean up after it."""
        await self.process.watch()
        # Init may have reaped it: its process group ID may be in use again.
        kill_session(self.session.pid, self.session.uid, self.started)
        if self._serving is not None:
            with trio.move_on_after(LAST_MESSAGES_SECONDS):
                await self._serving.wait()
        self.settled.set()
        dispatcher.servers.pop(self.session.serial, None)
        dispatcher.feed(events.ServerExited(self.session.serial, None))
        if isinstance(self.session, VendorServerSession):
            self.session.handoffs.close()

    async def serve(self, dispatcher: Dispatcher, fd: int) -> None:
        """Handle what comes over its link until that ends; kill it if it stays then."""
        self._serving = trio.Event()
        sock = trio.socket.from_stdlib_socket(socket.socket(fileno=fd))
        allowance = dispatcher.buffers.link(self.session.uid)
        try:
            with dispatcher.dropped_after(link_name(self.session.serial)):
                if isinstance(self.session, VendorServerSession):
                    self.settled.set()
                    await _resume(self.session, PacketChannel(sock, allowance))
                else:
                    await self._serve_own(dispatcher, self.session, MessageChannel(sock, allowance=allowance))
        finally:
            self._serving.set()
        if self.session.serial in dispatcher.servers:
            with trio.move_on_after(LEAVE_SECONDS):
                await self.process.gone.wait()
            self.session.kill()

    async def _serve_own(self, dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel) -> None:
        try:
            if await self._with_sender(dispatcher, session, channel):
                await session.run(dispatcher)
        except RemoteError as error:
            dispatcher.log.error("server_misbehaved", server=session.pid, reason=str(error))
            session.kill()
        except Ended:
            return
        finally:
            channel.close()

    async def _with_sender(self, dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel) -> bool:
        """Run ``_is_adopted`` while what it sends is sent: the link may be full of what the earlier daemon sent."""
        is_adopted, failure = False, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run_sender)
            try:
                is_adopted = await self._is_adopted(dispatcher, session, channel)
                if not is_adopted:
                    with trio.move_on_after(LAST_SECONDS):
                        await channel.drain()
            except (RemoteError, Ended) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            # Raised here: the nursery would wrap it in a group.
            raise failure
        return is_adopted

    async def _is_adopted(self, dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel) -> bool:
        """Adopt it with the clients that it reports, or dismiss it; raise RemoteError for an impossible report."""
        if not self.obstacle:
            token = int.from_bytes(os.urandom(7), "big")
            channel.send(link.ReportRequest(Versions(), token))
            hello, reports = await _receive_report(dispatcher, session, channel, token)
            if agree(Versions(), hello.versions) is None:
                self.obstacle = f"it speaks versions {hello.versions.oldest} to {hello.versions.newest}"
        if self.obstacle:
            channel.send(link.ServerDismissed(self.obstacle))
            self.settled.set()
            dispatcher.servers.pop(session.serial, None)
            dispatcher.feed(events.ServerNotAdopted(session.serial, self.obstacle))
            return False
        clients = tuple(_checked(dispatcher, session.uid, client) for client in reports)
        contexts = sum(len(client.contexts) for client in clients)
        if contexts > MOST_CONTEXTS or len({client.client for client in clients}) < len(clients):
            raise RemoteError(f"it reports {contexts} contexts of {len(clients)} clients")
        if hello.status not in set(ServerStatus):
            raise RemoteError(f"{hello.status!r} is no server status")
        session.adopt(channel, contexts)
        dispatcher.feed(events.ServerReturned(session.serial, hello.status, hello.leaving, clients))
        self.settled.set()
        return True


async def _resume(session: VendorServerSession, channel: PacketChannel) -> None:
    try:
        await session.resume(channel)
    finally:
        channel.close()


def inherit(dispatcher: Dispatcher, folder: str, left: Inherited) -> list[AwaitedServer]:
    """Restore the state of a daemon that did not end in order, if there is one; return its servers."""
    try:
        saved = read(folder)
    except StateRefused as error:
        dispatcher.log.warning("state_refused", path=os.path.join(folder, files.STATE), reason=str(error))
        return []
    if saved is None:
        return []
    awaited = [
        server
        for each in saved.remembered.servers
        if (server := _awaited(dispatcher, saved, each, left, _obstacle(dispatcher, saved)))
    ]
    connections = frozenset(serial_of(one.name) for one in left.connections)
    other_devices = _other_devices(dispatcher, saved)
    dispatcher.feed(events.PredecessorDied(_still_valid(saved, awaited), other_devices, connections))
    if awaited:
        dispatcher.serials = Serials(first_serial(dispatcher.state.lifetime.generation))
    for server in awaited:
        dispatcher.servers[server.session.serial] = server.session
        dispatcher.nursery.start_soon(server.watch, dispatcher)
        fd = left.links.pop(server.session.serial, -1)
        if fd >= 0:
            dispatcher.nursery.start_soon(server.serve, dispatcher, fd)
    return awaited


async def all_settled(awaited: Iterable[AwaitedServer]) -> None:
    """Wait up to READY_SECONDS for the awaited servers."""
    with trio.move_on_after(READY_SECONDS):
        for server in awaited:
            await server.settled.wait()


def _other_devices(dispatcher: Dispatcher, saved: SavedState) -> OtherDevices | None:
    known = device_keys(dispatcher.state.devices)
    is_known = bool(known and saved.devices)
    return OtherDevices(saved.devices, known) if is_known and saved.devices != known else None


def _obstacle(dispatcher: Dispatcher, saved: SavedState) -> str:
    """Return why this daemon cannot adopt the servers of the earlier one, or nothing."""
    if saved.backend != dispatcher.settings.backend:
        return f"the backend of this daemon is {dispatcher.settings.backend}, not {saved.backend}"
    is_other = _other_devices(dispatcher, saved) is not None and saved.backend != "vendor"
    return "the devices of this daemon are others" if is_other else ""


def _awaited(
    dispatcher: Dispatcher, saved: SavedState, server: PersistentServer, left: Inherited, obstacle: str
) -> AwaitedServer | None:
    """Return a server that is still the same process; None if it is not, or cannot be watched."""
    if saved.backend == "vendor" and obstacle:
        return None  # it ends when its link is closed
    try:
        process = KnownProcess(os.pidfd_open(server.pid))
    except ProcessLookupError:
        return None
    except OSError as error:
        if started_at(server.pid) == saved.started.get(server.pid):
            dispatcher.log.warning("server_left_alone", server=server.pid, reason=descriptors.explain(error))
        return None
    # Checked with the pidfd open: no later process of this PID can be mistaken for it.
    if process.ended or started_at(server.pid) != saved.started.get(server.pid):
        os.close(process.pidfd)
        return None
    session: ServerSession | VendorServerSession = ServerSession(server.serial, server.uid, server.pid, process.kill)
    if saved.backend == "vendor":
        session = _vendor_session(dispatcher, server, process, left)
    return AwaitedServer(session, process, obstacle, saved.started[server.pid])


def _vendor_session(
    dispatcher: Dispatcher, server: PersistentServer, process: KnownProcess, left: Inherited
) -> VendorServerSession:
    """Return the session of a driver's server with what the keeper knows of its clients."""
    session = VendorServerSession(
        dispatcher, server.serial, server.uid, server.pid, process.kill, is_leaving=server.leaving
    )
    own = {serial: entry for serial, entry in left.clients.items() if entry.note.server == server.serial}
    for serial in own:
        del left.clients[serial]
    session.handoffs.earlier = left.take_newcomers(server.serial)
    session.pidfds = {serial: entry.fd for serial, entry in own.items()}
    for entry in own.values():
        session.clients.terminations.restore(entry.note.pid, frozenset(entry.note.terminated))
    session.inherited = {
        serial: events.ReturnedClient(
            serial,
            entry.note.pid,
            entry.note.command,
            entry.note.namespace,
            process=0 if entry.note.pid else process_of(entry.fd),
            mps_namespace=entry.note.mps_namespace,
            cgroups=_cgroups_of(dispatcher, entry.note.pid),
            since=entry.note.since,
            container_pid=container_pid_of(entry.note.pid),
            limits=entry.note.limits,
        )
        for serial, entry in own.items()
    }
    return session


def _still_valid(saved: SavedState, awaited: Sequence[AwaitedServer]) -> PersistentState:
    serials = {server.session.serial for server in awaited}
    servers = tuple(server for server in saved.remembered.servers if server.serial in serials)
    return evolve(saved.remembered, servers=servers)


async def _receive_report(
    dispatcher: Dispatcher, session: ServerSession, channel: MessageChannel, token: int
) -> tuple[link.ServerReturn, list[object]]:
    """Receive a server's report, the one with the token; of what it sent before only its log lines count.

    Raise RemoteError, or Ended.
    """
    while True:
        message = await _next(channel)
        if isinstance(message, link.ServerReturn) and message.token == token:
            break
        if isinstance(message, link.LogRecord | link.LogDropped):
            session.handle(dispatcher, message)
    if not 0 <= message.clients <= MOST_CLIENTS:
        raise RemoteError(f"it reports {message.clients} clients")
    return message, [await _next(channel) for _ in range(message.clients)]


async def _next(channel: MessageChannel) -> object:
    received = await channel.receive_message()
    if received is None:
        raise Ended
    return received[0]


def _checked(dispatcher: Dispatcher, uid: int, report: object) -> events.ReturnedClient:
    if not isinstance(report, link.ReturningClient):
        raise RemoteError(f"{type(report).__name__} where its clients were due")
    # This daemon's serials begin above all earlier ones.
    if not 0 < report.client < first_serial(dispatcher.state.lifetime.generation) or report.pid < 0:
        raise RemoteError(f"it cannot have a client {report.client} with PID {report.pid}")
    if uid not in (0, report.uid):
        raise RemoteError(f"a server of user {uid} cannot have a client of user {report.uid}")
    for serial, number, device in report.contexts:
        if serial < 1 or number < 1 or not 0 <= device < len(dispatcher.state.devices):
            raise RemoteError(f"it cannot have a context {number} on device {device}")
    devices = range(len(dispatcher.state.devices))
    if any(device not in devices or (name and name_problem(name)) for device, name in report.partitions.items()):
        raise RemoteError("it cannot have such SM partitions")
    in_force = report.limits.multiprocessors if report.limits is not None else {}
    if not {*report.groups, *in_force} <= {*devices} or not 0 <= report.since <= time.time() + CLOCK_SECONDS:
        raise RemoteError(f"it cannot have such limits, or a client since {report.since:g}")
    contexts = tuple(events.ReturnedContext(*context) for context in report.contexts)
    command = sanitised(report.command.encode())
    mps_namespace = report.mps_namespace if not name_problem(report.mps_namespace) else ""
    known = report.client, report.pid, command, report.namespace, contexts
    return events.ReturnedClient(
        *known,
        mps_namespace=mps_namespace,
        partitions=report.partitions,
        cgroups=_cgroups_of(dispatcher, report.pid),
        groups=report.groups,
        since=report.since,
        container_pid=container_pid_of(report.pid),
        limits=report.limits,
    )


def _cgroups_of(dispatcher: Dispatcher, pid: int) -> tuple[str, ...]:
    """Return the cgroups of a client that returns, as far as protocol 3 asks for them and they can be seen."""
    origin = dispatcher.origin_of_pid(pid) if dispatcher.state.options.protocol == 3 else None
    return (origin.cgroups if origin is not None else None) or ()
