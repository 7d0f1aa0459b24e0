"""Servers of a daemon that was killed: awaited, believed only when the state file names them, and taken in.

They are no children of this daemon: a pidfd shows their end and kills them, and nobody can say their exit status.
As PID 1 of a container there is nothing to take in: nothing survives it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

from pympsd.channel import descriptors
from pympsd.channel.awaited import MessageChannel
from pympsd.journal.line_format import sanitised
from pympsd.service.dispatcher import Hub
from pympsd.service.files.state_file import Kept, NotOurs, device_keys, read
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
"""A server that has closed its link has so long to end."""
LAST_PUSHES_SECONDS: Final = 1.0
"""What a server that has ended said last is read within this."""
MOST_CLIENTS: Final = 1 << 14
READY_SECONDS: Final = 2.0
"""A start waits so long for the servers, so that what is asked after it is answered with them."""


@define
class KnownProcess:
    """A process that is no child of this one; owns the pidfd."""

    pidfd: int
    gone: trio.Event = field(factory=trio.Event, init=False)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.gone.is_set() or has_ended(self.pidfd)

    async def watch(self) -> None:
        """Wait for its end, tell who waits too, and close the pidfd."""
        try:
            await trio.lowlevel.wait_readable(self.pidfd)
        finally:
            self.gone.set()
            os.close(self.pidfd)


@define
class AwaitedServer:
    """A server of the daemon before. ``stranger``: why it cannot be taken in, if it cannot."""

    session: ServerSession
    process: KnownProcess
    stranger: str
    started: int
    """When its process started, in clock ticks since boot."""
    settled: trio.Event = field(factory=trio.Event, init=False)
    """It is back, or will not come back."""
    _serving: trio.Event | None = field(default=None, init=False)
    """Set at the end of its conversation."""

    async def watch(self, hub: Hub) -> None:
        """See to its end, from the start of this daemon on."""
        await self.process.watch()
        # Init may have reaped it: no process group of its is sure to be its own any more.
        kill_session(self.session.pid, self.session.uid, self.started)
        if self._serving is not None:
            with trio.move_on_after(LAST_PUSHES_SECONDS):
                await self._serving.wait()
        self.settle(hub)
        hub.servers.pop(self.session.serial, None)
        hub.feed(events.ServerExited(self.session.serial, None))

    def settle(self, hub: Hub) -> None:
        """It is awaited no more."""
        hub.awaited.pop(self.session.pid, None)
        self.settled.set()

    def take_in(self, hub: Hub, hello: link.ServerReturn, channel: MessageChannel, told: Sequence[object]) -> None:
        """Believe what it reports; raise RemoteError for what cannot be."""
        clients = tuple(_checked(hub, self.session.uid, client) for client in told)
        contexts = sum(len(client.contexts) for client in clients)
        if contexts > MOST_CONTEXTS or len({client.client for client in clients}) < len(clients):
            raise RemoteError(f"it reports {contexts} contexts of {len(clients)} clients")
        if hello.status not in set(ServerStatus):
            raise RemoteError(f"{hello.status!r} is no server status")
        self.settle(hub)
        self._serving = trio.Event()
        self.session.take_in(channel, contexts)
        hub.feed(events.ServerReturned(self.session.serial, hello.status, hello.leaving, clients))

    def leave_alone(self, hub: Hub, reason: str) -> None:
        """Let it go on without a daemon."""
        self.settle(hub)
        hub.servers.pop(self.session.serial, None)
        hub.feed(events.ServerNotAdopted(self.session.serial, reason))

    async def serve(self, hub: Hub, channel: MessageChannel) -> None:
        """Converse with it until its end; one that ends the conversation and stays is killed."""
        assert self._serving is not None  # it was taken in
        try:
            await self.session.run(hub)
        finally:
            self._serving.set()
        with trio.move_on_after(LEAVE_SECONDS):
            await self.process.gone.wait()
        self.session.kill()


def inherit(hub: Hub, folder: str) -> None:
    """Begin with what a daemon left that did not end in order, if one did."""
    try:
        kept = read(folder)
    except NotOurs as refused:
        hub.log.warning("state_refused", path=os.path.join(folder, files.STATE), reason=str(refused))
        return
    if kept is None:
        return
    stranger = "" if kept.devices == device_keys(hub.mind.devices) else "the devices of this daemon are others"
    awaited = [server for each in kept.remembered.servers if (server := _awaited(hub, kept, each, stranger))]
    hub.feed(events.PredecessorDied(_still_true(kept, awaited, stranger)))
    if awaited:
        hub.serials = Serials(first_serial(hub.mind.generation))
    for server in awaited:
        hub.awaited[server.session.pid] = server
        hub.servers[server.session.serial] = server.session
        hub.nursery.start_soon(server.watch, hub)


async def all_settled(hub: Hub) -> None:
    """Wait a while for the awaited servers."""
    with trio.move_on_after(READY_SECONDS):
        for server in list(hub.awaited.values()):
            await server.settled.wait()


def _awaited(hub: Hub, kept: Kept, server: PersistentServer, stranger: str) -> AwaitedServer | None:
    """Return a server that is still the process it was, None where it is not, or cannot be watched."""
    try:
        process = KnownProcess(os.pidfd_open(server.pid))
    except ProcessLookupError:
        return None
    except OSError as error:
        if started_at(server.pid) == kept.started.get(server.pid):
            hub.log.warning("server_left_alone", server=server.pid, reason=descriptors.explain(error))
        return None
    # Now that it is held: a later process of this PID cannot be taken for it.
    if process.ended or started_at(server.pid) != kept.started.get(server.pid):
        os.close(process.pidfd)
        return None
    session = ServerSession(server.serial, server.uid, server.pid, process)
    return AwaitedServer(session, process, stranger, kept.started[server.pid])


def _still_true(kept: Kept, awaited: Sequence[AwaitedServer], stranger: str) -> PersistentState:
    there = {server.session.serial for server in awaited}
    left = kept.remembered
    return PersistentState(
        generation=left.generation,
        thread_percentage=left.thread_percentage,
        client_priority=left.client_priority,
        # By ordinal: of other devices they say nothing.
        memory_limits=None if stranger else left.memory_limits,
        wishes=left.wishes,
        servers=tuple(server for server in left.servers if server.serial in there),
    )


async def hear(hub: Hub, hello: link.ServerReturn, channel: MessageChannel, peer: Peer) -> AwaitedServer | None:
    """Hear a process out that says it is a server; return it when it is one of ours and taken in."""
    server = hub.awaited.get(peer.pid)
    reason = _not_ours(server, hello, peer)
    if server is None or reason:
        if hub.may_log(peer.uid, reason):
            hub.log.warning("server_return_refused", pid=peer.pid, uid=peer.uid, reason=reason)
        channel.send(link.ServerDismissed(reason))
        return None
    if agree(Versions(), hello.versions) is None:
        theirs = hello.versions
        server.stranger = f"it speaks versions {theirs.oldest} to {theirs.newest}"
    if server.stranger:
        channel.send(link.ServerDismissed(server.stranger))
        server.leave_alone(hub, server.stranger)
        return None
    try:
        told = await _receive_clients(channel, hello.clients)
        server.take_in(hub, hello, channel, told)
    except RemoteError as error:
        hub.log.error("server_misbehaved", server=peer.pid, reason=str(error))
        server.session.kill()
        return None
    return server


def _not_ours(server: AwaitedServer | None, hello: link.ServerReturn, peer: Peer) -> str:
    """Return why this process is none of the servers awaited, or nothing."""
    if server is None:
        return "the last daemon of this directory had no such server"
    if peer.uid != server.session.uid:
        return f"the server of that process was user {server.session.uid}'s"
    if hello.pid != peer.pid or server.process.ended:
        return "it is not the process it says it is"
    return ""


async def _receive_clients(channel: MessageChannel, count: int) -> list[object]:
    if not 0 <= count <= MOST_CLIENTS:
        raise RemoteError(f"it reports {count} clients")
    told: list[object] = []
    while len(told) < count:
        received = await channel.receive_message()
        if received is None:
            raise RemoteError("it ended its report in the middle")
        told.append(received[0])
    return told


def _checked(hub: Hub, uid: int, told: object) -> events.ReturnedClient:
    if not isinstance(told, link.ReturningClient):
        raise RemoteError(f"{type(told).__name__} where its clients were due")
    # Serials of now, above all that there were before, are for others.
    if not 0 < told.client < first_serial(hub.mind.generation) or told.pid < 0:
        raise RemoteError(f"it cannot have a client {told.client} with PID {told.pid}")
    if uid not in (0, told.uid):
        raise RemoteError(f"a server of user {uid} cannot have a client of user {told.uid}")
    for serial, number, device in told.contexts:
        if serial < 1 or number < 1 or not 0 <= device < len(hub.mind.devices):
            raise RemoteError(f"it cannot have a context {number} on device {device}")
    contexts = tuple(events.ReturnedContext(*context) for context in told.contexts)
    command = sanitised(told.command.encode())
    return events.ReturnedClient(told.client, told.pid, command, told.namespace, contexts)
