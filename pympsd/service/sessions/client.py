"""One client at the door: it waits for its turn and leaves with a session, with a refusal, or without MPS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import trio
from attrs import define, field

from pympsd.channel.awaited import MessageChannel
from pympsd.service.dispatcher import Hub
from pympsd.service.sessions.peers import KnownPeer, command_of, namespace_of
from pympsd.service.sessions.server import ServerSession
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
    _server: ServerSession | None = field(default=None, init=False)
    """Whose client it has become."""

    @property
    def peer(self) -> Peer:
        """Who it is."""
        return self.known.peer

    async def run(self, hub: Hub) -> None:
        """Wait for the turn; notice when the client is gone meanwhile."""
        self.command = command_of(self.peer.pid, self.hello.command)
        if agree(Versions(), self.hello.versions) is None:
            theirs = self.hello.versions
            reason = (
                f"this client speaks versions {theirs.oldest} to {theirs.newest}, the daemon {OLDEST} to {NEWEST}"
            )
            self.refuse(Result.ERROR_MPS_CONNECTION_FAILED, reason)
            return
        hub.clients[self.client] = self
        try:
            namespace = namespace_of(self.peer.pid, self.hello.pid_namespace)
            environment, traced = self.hello.environment, self.hello.traced
            hub.feed(ClientConnected(self.client, self.peer, self.command, namespace, environment, traced))
            if not self._settled.is_set():
                await self._wait_in_line()
            if not self._settled.is_set():
                hub.feed(WaitingClientLeft(self.client))
            if self._server is not None:
                self._server.watch(hub, self.client, self._take_pidfd())
        finally:
            del hub.clients[self.client]

    def grant(self, server: ServerSession, priority: int) -> None:
        """Give the client one end of a new session and the server the other.

        Raise OSError without descriptors, and when too many of them wait for a server that does not take them.
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

    def refuse(self, code: int, reason: str) -> None:
        """Tell the client no."""
        self.channel.send(Refused(code, reason))
        self._settled.set()

    def let_go(self, reason: str) -> None:
        """Tell the client to go on without MPS."""
        self.channel.send(GoWithoutMps(reason))
        self._settled.set()

    def _take_pidfd(self) -> int:
        """Return the pidfd, which is the caller's from now on; -1 where there is none."""
        pidfd, self.known.pidfd = self.known.pidfd, -1
        return pidfd

    async def _wait_in_line(self) -> None:
        async with trio.open_nursery() as nursery:
            for wait in (self._settled.wait, self._hung_up, self._died):
                nursery.start_soon(self._first, wait, nursery.cancel_scope)

    async def _first(self, wait: object, scope: trio.CancelScope) -> None:
        await wait()  # type: ignore[operator]  # one of the three below, all without arguments
        scope.cancel()

    async def _hung_up(self) -> None:
        # Nothing is expected of a waiting client: an end of file, or any word, ends the waiting.
        with contextlib.suppress(RemoteError):
            await self.channel.receive()

    async def _died(self) -> None:
        if self.known.pidfd < 0:
            await trio.sleep_forever()
        await trio.lowlevel.wait_readable(self.known.pidfd)
