"""The listening sockets: check each connection, await its hello within a deadline, and run its session."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain
from pympsd.channel.message_channel import MessageChannel
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.fd_quota import fd_quota
from pympsd.service.sessions.adoption import AwaitedServer, receive_return
from pympsd.service.sessions.client import ClientSession
from pympsd.service.sessions.operator import OperatorSession
from pympsd.service.sessions.peers import credentials, user_of, with_pidfd
from pympsd.vocabulary.identities import Peer
from pympsd.wire import frames, messages
from pympsd.wire.errors import ProtocolError, RemoteError
from pympsd.wire.framing import Frame
from pympsd.wire.link_messages import ServerReturn

HELLO_SECONDS: Final = 10.0
"""A connection that sends no hello within this time is closed."""
CONNECTIONS_PER_USER: Final = 4096
"""A user's further connections are closed at once, so that no user can take them all."""
CONNECTIONS_DIVISOR: Final = 4
"""Of the quota of descriptors for one user's connections; each takes up to two."""
OUT_OF_FDS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@define
class Listener:
    """Accepts connections on one socket: of operators, and with ``accepts_clients`` of clients and servers.

    ``awaited``: the servers of an earlier daemon that may return, by PID.
    """

    dispatcher: Dispatcher
    listening: trio.socket.SocketType
    accepts_clients: bool
    awaited: Mapping[int, AwaitedServer]
    _reserve: int = field(factory=lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), init=False)
    _open: Counter[int] = field(factory=Counter, init=False)

    async def run(self) -> None:
        """Accept connections for ever."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    sock = await self._accept()
                    if sock is not None:
                        nursery.start_soon(self._serve, sock)
        finally:
            self._close_reserve()
            self.listening.close()

    async def _accept(self) -> trio.socket.SocketType | None:
        try:
            sock, _ = await self.listening.accept()
        except OSError as error:
            if error.errno in OUT_OF_FDS:
                await self._reject_one(error)
            return None
        return sock

    async def _reject_one(self, error: OSError) -> None:
        # A connection that cannot be accepted for lack of descriptors would be reported for ever.
        self._close_reserve()
        uid: int | None = None
        try:
            with trio.move_on_after(1):
                sock, _ = await self.listening.accept()
                with sock:
                    uid = user_of(sock)
        except OSError:
            await trio.sleep(0.01)
        # Another task may have taken the descriptor: then the next time there is no reserve.
        with contextlib.suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._log_refusal(error, uid)

    def _close_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    async def _serve(self, sock: trio.socket.SocketType) -> None:
        channel = MessageChannel(sock)
        try:
            with _duplicate(sock) as plain:
                peer = self._peer(plain)
            if peer is not None:
                if self.dispatcher.may_log(peer.uid):
                    self.dispatcher.log.info("connection_accepted")
                await self._admit(channel, sock, peer)
        except OSError as error:
            # Out of descriptors: this connection is lost, the listener goes on.
            self._log_refusal(error, user_of(sock))
        except Exception as error:
            # An internal error in one connection must not end the daemon.
            self.dispatcher.log.error("daemon_defect", reason=repr(error))
        finally:
            channel.close()

    def _log_refusal(self, error: OSError, uid: int | None) -> None:
        reason = explain(error)
        if uid is None or self.dispatcher.may_log(uid, reason):
            self.dispatcher.log.error("connection_refused", reason=reason)

    def _peer(self, plain: socket.socket) -> Peer | None:
        try:
            return credentials(plain)
        except OSError:
            self.dispatcher.log.info("connection_accepted")
            self.dispatcher.log.error("credentials_invalid")
            return None

    async def _admit(self, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer) -> None:
        if self._open[peer.uid] >= connection_limit():
            reason = f"user {peer.uid} has {self._open[peer.uid]} connections open"
            if self.dispatcher.may_log(peer.uid):
                self.dispatcher.log.error("connection_refused", reason=reason)
            return
        self._open[peer.uid] += 1
        try:
            await self._greet(channel, sock, peer)
        finally:
            self._open[peer.uid] -= 1
            if not self._open[peer.uid]:
                del self._open[peer.uid]

    async def _greet(self, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer) -> None:
        try:
            with trio.fail_after(HELLO_SECONDS):
                first = await channel.receive()
            if first is not None:
                await self._run_session(first, channel, sock, peer)
        except (ProtocolError, trio.TooSlowError):
            if self.dispatcher.may_log(peer.uid):
                self.dispatcher.log.error("connection_type_unreadable")

    async def _run_session(
        self, first: Frame, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer
    ) -> None:
        if first.kind == frames.OPERATOR_HELLO:
            session = OperatorSession(self.dispatcher.serials.take(), peer.uid, channel)
            await _run_with_sender(channel, session.run, self.dispatcher)
            return
        hello = messages.decode(first)
        if isinstance(hello, ServerReturn) and self.accepts_clients:
            with trio.fail_after(HELLO_SECONDS):
                server = await receive_return(self.dispatcher, self.awaited, hello, channel, peer)
            if server is not None:
                await server.serve(self.dispatcher, channel)
            return
        if not isinstance(hello, messages.ClientHello) or not self.accepts_clients:
            raise RemoteError(f"{type(hello).__name__} opens no conversation here")
        with _duplicate(sock) as plain:
            known = with_pidfd(plain, peer)
        try:
            client = ClientSession(self.dispatcher.serials.take(), known, channel, hello)
            await _run_with_sender(channel, client.run, self.dispatcher)
        finally:
            known.close()


def connection_limit() -> int:
    """Return the number of connections one user may have open at a listener."""
    return min(CONNECTIONS_PER_USER, fd_quota(CONNECTIONS_DIVISOR))


def _duplicate(sock: trio.socket.SocketType) -> socket.socket:
    """Return a duplicate of a socket for kernel queries; to be closed at once, as it costs a descriptor."""
    return socket.socket(fileno=os.dup(sock.fileno()))


async def _run_with_sender(
    channel: MessageChannel, session: Callable[[Dispatcher], Awaitable[None]], dispatcher: Dispatcher
) -> None:
    """Run a session with its sender; at its end send what is queued, within HELLO_SECONDS."""
    broken: ProtocolError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        try:
            await session(dispatcher)
        except ProtocolError as error:
            broken = error
        channel.finish()
        nursery.cancel_scope.deadline = trio.current_time() + HELLO_SECONDS
    if broken is not None:
        # Raised here: the nursery would wrap it in a group.
        raise broken
