"""Adoption of the servers of an earlier daemon: awaited, believed only if the state file names them.

They are not children of this daemon: a pidfd shows their end and kills them, and their exit status is unknown.
There is nothing to adopt after a daemon that was PID 1 of a container: nothing survives it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

from pympsd.channel import descriptors
from pympsd.channel.message_channel import MessageChannel
from pympsd.journal.line_format import sanitised
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.files.state_file import SavedState, StateRefused, device_keys, read
from pympsd.service.processes.process_sessions import kill_session
from pympsd.service.processes.status import has_ended, started_at
from pympsd.service.sessions.server import MOST_CONTEXTS, ServerSession
from pympsd.state_machine import events
from pympsd.state_machine.adoption import first_serial
from pympsd.state_machine.persistent_state import PersistentServer, PersistentState
from pympsd.vocabulary import files
from pympsd.vocabulary.identities import Peer, Serials
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.errors import RemoteError
from pympsd.wire.versions import Versions, agree

LEAVE_SECONDS: Final = 5.0
"""Time for a server to end after it has closed its link."""
LAST_MESSAGES_SECONDS: Final = 1.0
"""Time to read the last messages of a server that has ended."""
MOST_CLIENTS: Final = 1 << 14
READY_SECONDS: Final = 2.0
"""Time that a start waits for the servers, so that answers to the first commands include them."""


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
        """Whether the process has ended."""
        return self.gone.is_set() or has_ended(self.pidfd)

    async def watch(self) -> None:
        """Wait for the end of the process, set ``gone``, and close the pidfd."""
        try:
            await trio.lowlevel.wait_readable(self.pidfd)
        finally:
            self.gone.set()
            os.close(self.pidfd)


@define
class AwaitedServer:
    """A server of the earlier daemon; ``obstacle``: why it cannot be adopted, or empty."""

    session: ServerSession
    process: KnownProcess
    obstacle: str
    started: int
    """When its process started, in clock ticks since boot."""
    settled: trio.Event = field(factory=trio.Event, init=False)
    """It has returned, or will not."""
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

    def adopt(
        self, dispatcher: Dispatcher, hello: link.ServerReturn, channel: MessageChannel, reports: Sequence[object]
    ) -> None:
        """Adopt it with the clients it reports; raise RemoteError for an impossible report."""
        clients = tuple(_checked(dispatcher, self.session.uid, client) for client in reports)
        contexts = sum(len(client.contexts) for client in clients)
        if contexts > MOST_CONTEXTS or len({client.client for client in clients}) < len(clients):
            raise RemoteError(f"it reports {contexts} contexts of {len(clients)} clients")
        if hello.status not in set(ServerStatus):
            raise RemoteError(f"{hello.status!r} is no server status")
        self.settled.set()
        self._serving = trio.Event()
        self.session.adopt(channel, contexts)
        dispatcher.feed(events.ServerReturned(self.session.serial, hello.status, hello.leaving, clients))

    def abandon(self, dispatcher: Dispatcher, reason: str) -> None:
        """Leave it to go on without a daemon."""
        self.settled.set()
        dispatcher.servers.pop(self.session.serial, None)
        dispatcher.feed(events.ServerNotAdopted(self.session.serial, reason))

    async def serve(self, dispatcher: Dispatcher, channel: MessageChannel) -> None:
        """Handle its messages until it ends; kill it if it closes its link and stays."""
        assert self._serving is not None  # it was adopted
        try:
            await self.session.run(dispatcher)
        finally:
            self._serving.set()
        with trio.move_on_after(LEAVE_SECONDS):
            await self.process.gone.wait()
        self.session.kill()


def inherit(dispatcher: Dispatcher, folder: str) -> dict[int, AwaitedServer]:
    """Restore the state of a daemon that did not end in order, if there is one; return its servers by PID."""
    try:
        saved = read(folder)
    except StateRefused as error:
        dispatcher.log.warning("state_refused", path=os.path.join(folder, files.STATE), reason=str(error))
        return {}
    if saved is None:
        return {}
    obstacle = (
        "" if saved.devices == device_keys(dispatcher.state.devices) else "the devices of this daemon are others"
    )
    awaited = [server for each in saved.remembered.servers if (server := _awaited(dispatcher, saved, each, obstacle))]
    dispatcher.feed(events.PredecessorDied(_still_valid(saved, awaited, obstacle)))
    if awaited:
        dispatcher.serials = Serials(first_serial(dispatcher.state.generation))
    for server in awaited:
        dispatcher.servers[server.session.serial] = server.session
        dispatcher.nursery.start_soon(server.watch, dispatcher)
    return {server.session.pid: server for server in awaited}


async def all_settled(awaited: Iterable[AwaitedServer]) -> None:
    """Wait up to READY_SECONDS for the awaited servers."""
    with trio.move_on_after(READY_SECONDS):
        for server in awaited:
            await server.settled.wait()


def _awaited(
    dispatcher: Dispatcher, saved: SavedState, server: PersistentServer, obstacle: str
) -> AwaitedServer | None:
    """Return a server that is still the same process; None if it is not, or cannot be watched."""
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
    session = ServerSession(server.serial, server.uid, server.pid, process.kill)
    return AwaitedServer(session, process, obstacle, saved.started[server.pid])


def _still_valid(saved: SavedState, awaited: Sequence[AwaitedServer], obstacle: str) -> PersistentState:
    serials = {server.session.serial for server in awaited}
    state = saved.remembered
    return PersistentState(
        generation=state.generation,
        thread_percentage=state.thread_percentage,
        client_priority=state.client_priority,
        # By ordinal: meaningless for other devices.
        memory_limits=None if obstacle else state.memory_limits,
        wishes=state.wishes,
        servers=tuple(server for server in state.servers if server.serial in serials),
    )


async def receive_return(
    dispatcher: Dispatcher,
    awaited: Mapping[int, AwaitedServer],
    hello: link.ServerReturn,
    channel: MessageChannel,
    peer: Peer,
) -> AwaitedServer | None:
    """Receive the report of a process that says it is a server; return the server if it is adopted."""
    server = awaited.get(peer.pid)
    reason = _refusal(server, hello, peer)
    if server is None or reason:
        if dispatcher.may_log(peer.uid, reason):
            dispatcher.log.warning("server_return_refused", pid=peer.pid, uid=peer.uid, reason=reason)
        channel.send(link.ServerDismissed(reason))
        return None
    if agree(Versions(), hello.versions) is None:
        theirs = hello.versions
        server.obstacle = f"it speaks versions {theirs.oldest} to {theirs.newest}"
    if server.obstacle:
        channel.send(link.ServerDismissed(server.obstacle))
        server.abandon(dispatcher, server.obstacle)
        return None
    try:
        reports = await _receive_clients(channel, hello.clients)
        server.adopt(dispatcher, hello, channel, reports)
    except RemoteError as error:
        dispatcher.log.error("server_misbehaved", server=peer.pid, reason=str(error))
        server.session.kill()
        return None
    return server


def _refusal(server: AwaitedServer | None, hello: link.ServerReturn, peer: Peer) -> str:
    """Return why this process is not an awaited server; empty if it is."""
    if server is None or server.settled.is_set():
        return "the last daemon of this directory had no such server"
    if peer.uid != server.session.uid:
        return f"the server of that process was user {server.session.uid}'s"
    if hello.pid != peer.pid or server.process.ended:
        return "it is not the process it says it is"
    return ""


async def _receive_clients(channel: MessageChannel, count: int) -> list[object]:
    if not 0 <= count <= MOST_CLIENTS:
        raise RemoteError(f"it reports {count} clients")
    reports: list[object] = []
    while len(reports) < count:
        received = await channel.receive_message()
        if received is None:
            raise RemoteError("it ended its report in the middle")
        reports.append(received[0])
    return reports


def _checked(dispatcher: Dispatcher, uid: int, report: object) -> events.ReturnedClient:
    if not isinstance(report, link.ReturningClient):
        raise RemoteError(f"{type(report).__name__} where its clients were due")
    # This daemon's serials begin above all earlier ones.
    if not 0 < report.client < first_serial(dispatcher.state.generation) or report.pid < 0:
        raise RemoteError(f"it cannot have a client {report.client} with PID {report.pid}")
    if uid not in (0, report.uid):
        raise RemoteError(f"a server of user {uid} cannot have a client of user {report.uid}")
    for serial, number, device in report.contexts:
        if serial < 1 or number < 1 or not 0 <= device < len(dispatcher.state.devices):
            raise RemoteError(f"it cannot have a context {number} on device {device}")
    contexts = tuple(events.ReturnedContext(*context) for context in report.contexts)
    command = sanitised(report.command.encode())
    return events.ReturnedClient(report.client, report.pid, command, report.namespace, contexts)
