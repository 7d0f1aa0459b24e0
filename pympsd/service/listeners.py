"""The listening sockets: accept connections, check and limit them, and run their conversations."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.fd_quota import fd_quota
from pympsd.service.inheritance import Noted, connection_name
from pympsd.service.sessions.peers import credentials, user_of
from pympsd.vocabulary.identities import Peer

CONNECTIONS_PER_USER: Final = 4096
"""A user's further connections are closed at once, so that no user can take them all."""
CONNECTIONS_DIVISOR: Final = 4
"""Of the quota of descriptors for one user's connections; each takes up to two."""
OUT_OF_FDS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@define
class Listener:
    """Accepts connections on one socket; ``converse`` runs each to its end."""

    dispatcher: Dispatcher
    listening: trio.socket.SocketType
    converse: Callable[[trio.socket.SocketType, Peer, Noted[bytes] | None], Awaitable[None]]
    """Called with the keeper's entry of a connection, None for a new one that ``holds`` leaves to it."""
    inherited: Sequence[Noted[bytes]] = ()
    """Connections that an earlier daemon accepted."""
    greeting: bytes = b""
    """The packet that every connection begins with, if this daemon speaks first; peers then pass credentials."""
    _reserve: int = field(factory=lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), init=False)
    _open: Counter[int] = field(factory=Counter, init=False)
    _plain: socket.socket = field(init=False)
    """The listening socket again, to accept without a turn for other tasks; it is detached, not closed."""

    def __attrs_post_init__(self) -> None:
        self._plain = socket.socket(fileno=self.listening.fileno())
        if self.greeting:
            # Accepted sockets are born with it: an answer may come before it could be set.
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    async def run(self) -> None:
        """Accept connections for ever."""
        try:
            async with trio.open_nursery() as nursery:
                for each in self.inherited:
                    nursery.start_soon(self._go_on, each)
                while True:
                    sock = await self._accept()
                    if sock is not None:
                        nursery.start_soon(self._serve, sock, self._held(sock), True)
        finally:
            self._close_reserve()
            self._plain.detach()
            self.listening.close()

    async def _accept(self) -> trio.socket.SocketType | None:
        if self.dispatcher.keeper is not None:
            # A connection that the keeper does not hold yet would be lost with this daemon; in the backlog it is not.
            await self.dispatcher.keeper.caught_up()
        await trio.lowlevel.wait_readable(self.listening)
        try:
            # trio's accept() lets other tasks run after it, and in that time this daemon may be killed.
            sock, _ = self._plain.accept()
        except OSError as error:
            if error.errno in OUT_OF_FDS:
                await self._reject_one(error)
            return None
        if self.greeting:
            # Before it is held: the next daemon has to know that the peer has had it.
            with contextlib.suppress(OSError):
                sock.send(self.greeting, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return trio.socket.from_stdlib_socket(sock)

    def _held(self, sock: trio.socket.SocketType) -> Noted[bytes]:
        """Have a new connection held, and return its entry."""
        name = connection_name(self.dispatcher.connections.take())
        self.dispatcher.hold(name, sock.fileno())
        return Noted(name, sock.fileno(), b"", is_new=True)

    async def _go_on(self, each: Noted[bytes]) -> None:
        """Serve a connection that an earlier daemon accepted."""
        await self._serve(trio.socket.from_stdlib_socket(socket.socket(fileno=each.fd)), each, False)

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

    async def _serve(self, sock: trio.socket.SocketType, entry: Noted[bytes] | None, is_new: bool) -> None:
        uid: int | None = None
        try:
            peer = self._peer(sock)
            if peer is not None:
                uid = peer.uid
                if is_new and self.dispatcher.may_log(peer.uid):
                    self.dispatcher.log.info("connection_accepted")
                await self._admit(sock, peer, entry)
            else:
                self._drop(entry)
        except OSError as error:
            # Out of descriptors: this connection is lost, the listener goes on.
            self._drop(entry)
            self._log_refusal(error, uid)
        except Exception as error:
            # An internal error in one connection must not end the daemon.
            self._drop(entry)
            self.dispatcher.log.error("daemon_defect", reason=repr(error))
        finally:
            sock.close()

    def _drop(self, entry: Noted[bytes] | None) -> None:
        """Have a connection that is not served dropped: its peer sees no end while the keeper has a copy."""
        if entry is not None:
            self.dispatcher.drop(entry.name)

    def _log_refusal(self, error: OSError, uid: int | None) -> None:
        reason = explain(error)
        if uid is None or self.dispatcher.may_log(uid, reason):
            self.dispatcher.log.error("connection_refused", reason=reason)

    def _peer(self, sock: trio.socket.SocketType) -> Peer | None:
        try:
            return credentials(sock)
        except OSError:
            self.dispatcher.log.info("connection_accepted")
            self.dispatcher.log.error("credentials_invalid")
            return None

    async def _admit(self, sock: trio.socket.SocketType, peer: Peer, entry: Noted[bytes] | None) -> None:
        if self._open[peer.uid] >= connection_limit():
            reason = f"user {peer.uid} has {self._open[peer.uid]} connections open"
            if self.dispatcher.may_log(peer.uid):
                self.dispatcher.log.error("connection_refused", reason=reason)
            self._drop(entry)
            return
        self._open[peer.uid] += 1
        try:
            await self.converse(sock, peer, entry)
        finally:
            self._open[peer.uid] -= 1
            if not self._open[peer.uid]:
                del self._open[peer.uid]


def connection_limit() -> int:
    """Return the number of connections one user may have open at a listener."""
    return min(CONNECTIONS_PER_USER, fd_quota(CONNECTIONS_DIVISOR))
