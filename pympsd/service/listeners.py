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
from pympsd.service.inheritance import Noted
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
    """Called with the entry of a connection that an earlier daemon accepted, None for a new one."""
    inherited: Sequence[Noted[bytes]] = ()
    """Connections that an earlier daemon accepted."""
    _reserve: int = field(factory=lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), init=False)
    _open: Counter[int] = field(factory=Counter, init=False)

    async def run(self) -> None:
        """Accept connections for ever."""
        try:
            async with trio.open_nursery() as nursery:
                for each in self.inherited:
                    nursery.start_soon(self._go_on, each)
                while True:
                    sock = await self._accept()
                    if sock is not None:
                        nursery.start_soon(self._serve, sock)
        finally:
            self._close_reserve()
            self.listening.close()

    async def _accept(self) -> trio.socket.SocketType | None:
        if self.dispatcher.keeper is not None:
            # A connection that the keeper does not hold yet would be lost with this daemon; in the backlog it is not.
            await self.dispatcher.keeper.caught_up()
        try:
            # Out of descriptors, accept(2) fails even if nobody connects: then the next one would be rejected.
            await trio.lowlevel.wait_readable(self.listening)
            sock, _ = await self.listening.accept()
        except OSError as error:
            if error.errno in OUT_OF_FDS:
                await self._reject_one(error)
            return None
        return sock

    async def _go_on(self, each: Noted[bytes]) -> None:
        """Serve a connection that an earlier daemon accepted."""
        await self._serve(trio.socket.from_stdlib_socket(socket.socket(fileno=each.fd)), each)
        # A conversation has done so, but one that was refused has not begun.
        self.dispatcher.drop(each.name)

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

    async def _serve(self, sock: trio.socket.SocketType, earlier: Noted[bytes] | None = None) -> None:
        uid: int | None = None
        try:
            peer = self._peer(sock)
            if peer is not None:
                uid = peer.uid
                if earlier is None and self.dispatcher.may_log(peer.uid):
                    self.dispatcher.log.info("connection_accepted")
                await self._admit(sock, peer, earlier)
        except OSError as error:
            # Out of descriptors: this connection is lost, the listener goes on.
            self._log_refusal(error, uid)
        except Exception as error:
            # An internal error in one connection must not end the daemon.
            self.dispatcher.log.error("daemon_defect", reason=repr(error))
        finally:
            sock.close()

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

    async def _admit(self, sock: trio.socket.SocketType, peer: Peer, earlier: Noted[bytes] | None) -> None:
        if self._open[peer.uid] >= connection_limit():
            reason = f"user {peer.uid} has {self._open[peer.uid]} connections open"
            if self.dispatcher.may_log(peer.uid):
                self.dispatcher.log.error("connection_refused", reason=reason)
            return
        self._open[peer.uid] += 1
        try:
            await self.converse(sock, peer, earlier)
        finally:
            self._open[peer.uid] -= 1
            if not self._open[peer.uid]:
                del self._open[peer.uid]


def connection_limit() -> int:
    """Return the number of connections one user may have open at a listener."""
    return min(CONNECTIONS_PER_USER, fd_quota(CONNECTIONS_DIVISOR))
