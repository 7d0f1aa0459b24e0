"""Accept connections at the listening sockets, check and limit them, and run their conversations.

A connection costs descriptors and memory before its purpose is known. So each one is counted for its user before its
first byte is read, and a refused one is closed immediately. The keeper holds the connections that an earlier daemon
accepted; they continue here, and their peers do not notice.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.descriptors import explain
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.pacing import CONNECTION_SECONDS
from pympsd.service.processes.peers import credentials, user_of
from pympsd.state_machine import shares
from pympsd.takeover.state.entries import KeptFd, connection_name, listener_name
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.shares import CONNECTIONS
from pympsd.wire.frames import MAX_BODY

DRIVERS_WEIGHT: Final = 3
"""A connection of libcuda counts as three: it takes up to five descriptors, which include both ends of a connection
to a server. Any other connection takes up to two.
"""
MAX_AT_A_TIME: Final = 64
"""The maximum number of connections to request from the keeper together: on a busy machine each exchange with
it takes 1 ms.
"""
OUT_OF_FDS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@define
class Listener:
    """Accepts connections on one socket; ``converse`` runs each to its end."""

    dispatcher: Dispatcher
    file: str
    """The socket's name in the pipe directory."""
    listening: trio.socket.SocketType
    converse: Callable[[trio.socket.SocketType, Peer, KeptFd[bytes]], Awaitable[None]]
    """The function that runs a connection until its end.

    It gets the keeper's entry of the connection, which the keeper holds until the function returns.
    """
    inherited: Sequence[KeptFd[bytes]] = ()
    """The connections that an earlier daemon accepted, as the keeper's entries."""
    greeting: bytes = b""
    """The packet that the daemon sends first on every connection; empty if the peer speaks first. With a greeting,
    peers also pass credentials.
    """
    _reserve: int = field(factory=lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    """The nursery in which connections are served; None if no more are accepted."""
    _accepting: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _at_a_time: int = field(default=1, init=False)
    """The number of connections to request from the keeper together."""
    _plain: socket.socket = field(init=False)
    """A second object for the listening socket, which accepts without a trio checkpoint.

    It is detached, not closed.
    """

    def __attrs_post_init__(self) -> None:
        self._plain = socket.socket(fileno=self.listening.fileno())
        if self.greeting:
            # Set here, because accepted sockets inherit the option. If it were set on each of them, the peer's first
            # answer might arrive before that.
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    async def run(self) -> None:
        """Accept connections until the listener is stopped, and serve each until it ends."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for entry in self.inherited:
                    sock = trio.socket.from_stdlib_socket(socket.socket(fileno=entry.fd))
                    nursery.start_soon(self._serve, sock, entry)
                with self._accepting:
                    while True:
                        await self._accept()
                self._close()
        finally:
            self._nursery = None
            self._close()

    def stop(self) -> None:
        """Accept no more connections."""
        self._accepting.cancel()

    def _close(self) -> None:
        self._close_reserve()
        if self.listening.fileno() >= 0:
            self._plain.detach()
            self.listening.close()

    async def _accept(self) -> None:
        """Accept the waiting connections; accept more at a time as long as the queue does not become empty."""
        await trio.lowlevel.wait_readable(self.listening)
        if self._at_a_time == 1:
            is_more = await self._accept_one()
        else:
            accepted: list[bool] = []

            async def accept_one() -> None:
                accepted.append(await self._accept_one())

            async with trio.open_nursery() as nursery:
                for _ in range(self._at_a_time):
                    nursery.start_soon(accept_one)
            is_more = all(accepted)
        self._at_a_time = min(2 * self._at_a_time, MAX_AT_A_TIME) if is_more else 1

    async def _accept_one(self) -> bool:
        """Accept a connection; return whether one was waiting."""
        name = self._next_name()
        try:
            fd = await self._accept_at_the_keeper(name)
            if fd is None:
                name = self._next_name()  # the keeper may still send a connection with the first name
                fd = self._accept_directly(name)
        except OSError as error:
            if error.errno in OUT_OF_FDS:
                await self._reject_one(error)
            return False
        if fd >= 0:
            self._start(fd, name)
        return fd >= 0

    def _next_name(self) -> str:
        return connection_name(self.dispatcher.keeper.connections.take(), self.file)

    async def _accept_at_the_keeper(self, name: str) -> int | None:
        """Let the keeper accept a connection; return its descriptor, -1 if no connection waits, None if the keeper
        cannot accept.
        """
        if self._reserve < 0:
            return None
        os.close(os.dup(self._reserve))  # raises OSError if no descriptor is left for the connection
        return await self.dispatcher.keeper.accept(
            listener_name(self.file), name, self.greeting, lambda fd: self._start(fd, name)
        )

    def _accept_directly(self, name: str) -> int:
        """Accept a connection, and let the keeper hold it."""
        # Not trio's accept(): other tasks run after it, and this daemon may be killed before the keeper has the
        # connection.
        sock, _ = self._plain.accept()
        if self.greeting:
            # Before the keeper holds it: the next daemon assumes that held peers have received the greeting.
            with contextlib.suppress(OSError):
                sock.send(self.greeting, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        self.dispatcher.keeper.hold(name, sock.fileno())
        return sock.detach()

    def _start(self, fd: int, name: str) -> None:
        """Serve a connection that this daemon and the keeper hold."""
        if self._nursery is None:
            self.dispatcher.keeper.drop(name)
            os.close(fd)
            return
        sock = trio.socket.from_stdlib_socket(socket.socket(fileno=fd))
        self._nursery.start_soon(self._serve, sock, KeptFd(name, fd, b"", is_new=True))

    async def _reject_one(self, error: OSError) -> None:
        """Accept and close one waiting connection, with the descriptor that is kept in reserve; log the refusal."""
        # A connection that is not accepted for lack of descriptors keeps the socket readable, so it is accepted and
        # closed.
        self._close_reserve()
        uid: int | None = None
        try:
            with trio.move_on_after(1):
                sock, _ = await self.listening.accept()
                with sock:
                    uid = user_of(sock)
        except OSError:
            await trio.sleep(0.01)
        # Another task may have taken the descriptor; then the reserve is missing next time.
        with contextlib.suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._log_refusal(error, uid)

    def _close_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    async def _serve(self, sock: trio.socket.SocketType, entry: KeptFd[bytes]) -> None:
        """Serve one connection until it ends, and close it; errors are logged."""
        uid: int | None = None
        try:
            # The peer does not see the connection close while the keeper has a copy.
            with self.dispatcher.keeper.drop_after(entry.name):
                peer = self._peer(sock)
                if peer is not None:
                    uid = peer.uid
                    if entry.is_new and self.dispatcher.budgets.may_log(peer.uid):
                        self.dispatcher.log.info("connection_accepted")
                    await self._admit(sock, peer, entry)
        except OSError as error:
            # If descriptors run out, this connection is lost, and the listener continues.
            self._log_refusal(error, uid)
        except Exception as error:
            # An internal error in one connection must not end the daemon.
            self.dispatcher.log.error("daemon_defect", reason=repr(error))
        finally:
            sock.close()

    def _log_refusal(self, error: OSError, uid: int | None) -> None:
        reason = explain(error)
        if uid is None or self.dispatcher.budgets.may_log(uid, reason):
            self.dispatcher.log.error("connection_refused", reason=reason)

    def _peer(self, sock: trio.socket.SocketType) -> Peer | None:
        try:
            return credentials(sock)
        except OSError:
            self.dispatcher.log.info("connection_accepted")
            self.dispatcher.log.error("credentials_invalid")
            return None

    async def _admit(self, sock: trio.socket.SocketType, peer: Peer, entry: KeptFd[bytes]) -> None:
        """Count a connection in its user's share and run its conversation; refuse it if the share is used up."""
        weight = DRIVERS_WEIGHT if self.greeting else 1
        # Refuse now if no memory is left for a frame: the connection would be closed later, after work that delays
        # others.
        reason = self.dispatcher.budgets.buffers.problem(peer.uid, MAX_BODY) or shares.take(
            self.dispatcher.state, CONNECTIONS, peer.uid, weight
        )
        if reason:
            if self.dispatcher.budgets.may_log(peer.uid):
                self.dispatcher.log.error("connection_refused", reason=reason)
            return
        try:
            if entry.is_new:
                await self.dispatcher.budgets.pacing.wait(peer.uid, CONNECTION_SECONDS)
            await self.converse(sock, peer, entry)
        finally:
            shares.give_back(self.dispatcher.state, CONNECTIONS, peer.uid, weight)
