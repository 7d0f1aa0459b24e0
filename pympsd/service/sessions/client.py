"""One connecting client: it waits until it gets a session, is refused, or goes on without MPS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.service.dispatcher import Dispatcher, RunningServer
from pympsd.service.sessions.peers import KnownPeer, command_of, namespace_of
from pympsd.state_machine.events import ClientConnected, WaitingClientLeft
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.results import Result
from pympsd.wire.errors import RemoteError
from pympsd.wire.link_messages import AdmitClient
from pympsd.wire.messages import ClientHello, GoWithoutMps, Refused, SessionGranted
from pympsd.wire.versions import NEWEST, OLDEST, Versions, agree


@define
class ClientSession:
    """A client between its hello and its session with a server."""

    client: int
    known: KnownPeer
    channel: MessageChannel
    hello: ClientHello
    command: str = ""
    _settled: trio.Event = field(factory=trio.Event, init=False)
    _server: RunningServer | None = field(default=None, init=False)
    """The server it was admitted to."""

    @property
    def peer(self) -> Peer:
        """The process that connected."""
        return self.known.peer

    async def run(self, dispatcher: Dispatcher) -> None:
        """Wait until the client is admitted or refused, or is gone."""
        self.command = command_of(self.peer.pid, self.hello.command)
        if agree(Versions(), self.hello.versions) is None:
            theirs = self.hello.versions
            reason = (
                f"this client speaks versions {theirs.oldest} to {theirs.newest}, the daemon {OLDEST} to {NEWEST}"
            )
            self.dismiss(Refused(Result.ERROR_MPS_CONNECTION_FAILED, reason))
            return
        dispatcher.clients[self.client] = self
        try:
            namespace = namespace_of(self.peer.pid, self.hello.pid_namespace)
            environment, traced = self.hello.environment, self.hello.traced
            dispatcher.feed(ClientConnected(self.client, self.peer, self.command, namespace, environment, traced))
            if not self._settled.is_set():
                await self._wait_in_queue()
            if not self._settled.is_set():
                dispatcher.feed(WaitingClientLeft(self.client))
            if self._server is not None:
                self._server.watch(dispatcher, self.client, self._take_pidfd())
        finally:
            del dispatcher.clients[self.client]

    def grant(self, server: RunningServer, priority: int) -> None:
        """Give the client one end of a new session and the server the other.

        Raise OSError if descriptors run out, or if too many are queued for a server that does not take them.
        """
        if not server.takes_clients:
            raise OSError(errno.EBUSY, f"the server of user {server.uid} takes no clients: it is stopped or stuck")
        pidfds = () if self.known.pidfd < 0 else (os.dup(self.known.pidfd),)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            for fd in pidfds:
                os.close(fd)
            raise
        fds = (theirs.detach(), *pidfds)
        admit = AdmitClient(
            self.client,
            self.peer.pid,
            self.peer.uid,
            self.peer.gid,
            self.command,
            priority,
            self.hello.environment,
            namespace_of(self.peer.pid, self.hello.pid_namespace),
        )
        server.channel.send(admit, fds)
        self.channel.send(SessionGranted(NEWEST, self.client, server.pid), (ours.detach(),))
        self._server = server
        self._settled.set()

    def dismiss(self, message: Refused | GoWithoutMps) -> None:
        """Send the client an answer other than a session."""
        self.channel.send(message)
        self._settled.set()

    def _take_pidfd(self) -> int:
        """Return the pidfd, which the caller now owns; -1 if there is none."""
        pidfd, self.known.pidfd = self.known.pidfd, -1
        return pidfd

    async def _wait_in_queue(self) -> None:
        async with trio.open_nursery() as nursery:
            for wait in (self._settled.wait, self._hung_up, self._died):
                nursery.start_soon(self._first, wait, nursery.cancel_scope)

    async def _first(self, wait: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        await wait()
        scope.cancel()

    async def _hung_up(self) -> None:
        # A waiting client has nothing to send: an end of file, or any data, ends the wait.
        with contextlib.suppress(RemoteError):
            await self.channel.receive()

    async def _died(self) -> None:
        if self.known.pidfd < 0:
            await trio.sleep_forever()
        await trio.lowlevel.wait_readable(self.known.pidfd)
