"""The listening sockets: every connection is vetted, greeted within a deadline, and sent to its conversation."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import Counter
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.awaited import MessageChannel
from pympsd.channel.descriptors import explain
from pympsd.service.descriptor_shares import share_of_descriptors
from pympsd.service.dispatcher import Hub
from pympsd.service.sessions import adoption
from pympsd.service.sessions.client import ClientSession
from pympsd.service.sessions.operator import OperatorSession
from pympsd.service.sessions.peers import credentials, user_of, with_pidfd
from pympsd.vocabulary.identities import Peer
from pympsd.wire import frames, messages
from pympsd.wire.errors import ProtocolError, RemoteError
from pympsd.wire.framing import Frame
from pympsd.wire.link_messages import ServerReturn

HELLO_SECONDS: Final = 10.0
"""A connection that says nothing for so long is closed."""
CONNECTIONS_PER_USER: Final = 4096
"""More from one user at once are closed at the door, so that no user can take them all."""
SHARE_OF_DESCRIPTORS: Final = 4
"""Nor may one user's be more than one in so many of the descriptors: each costs up to two."""
OUT_OF_FDS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@define
class FrontDoor:
    """Accepts on one listening socket; ``clients_too``: whether clients may knock here, or operators only."""

    hub: Hub
    listener: trio.socket.SocketType
    clients_too: bool
    _reserve: int = field(factory=lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), init=False)
    _open: Counter[int] = field(factory=Counter, init=False)

    async def run(self) -> None:
        """Accept for ever."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    sock = await self._accept()
                    if sock is not None:
                        nursery.start_soon(self._serve, sock)
        finally:
            self._give_up_reserve()

    async def _accept(self) -> trio.socket.SocketType | None:
        try:
            sock, _ = await self.listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_FDS:
                await self._turn_one_away(error)
            return None
        return sock

    async def _turn_one_away(self, error: OSError) -> None:
        # Without a descriptor to accept with, the connection would stay and be reported for ever.
        self._give_up_reserve()
        uid: int | None = None
        try:
            with trio.move_on_after(1):
                sock, _ = await self.listener.accept()
                with sock:
                    uid = user_of(sock)
        except OSError:
            await trio.sleep(0.01)
        # Another task may have taken the descriptor: then there is none to give up the next time.
        with contextlib.suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._log_refusal(error, uid)

    def _give_up_reserve(self) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    async def _serve(self, sock: trio.socket.SocketType) -> None:
        channel = MessageChannel(sock)
        try:
            with _plain(sock) as plain:
                peer = self._vetted(plain)
            if peer is not None:
                if self.hub.may_log(peer.uid):
                    self.hub.log.info("connection_accepted")
                await self._admit(channel, sock, peer)
        except OSError as error:
            # Out of descriptors: this connection is lost, the door stays open.
            self._log_refusal(error, user_of(sock))
        except Exception as error:
            # A defect of ours that one connection met must not end the daemon.
            self.hub.log.error("daemon_defect", reason=repr(error))
        finally:
            channel.close()

    def _log_refusal(self, error: OSError, uid: int | None) -> None:
        reason = explain(error)
        if uid is None or self.hub.may_log(uid, reason):
            self.hub.log.error("connection_refused", reason=reason)

    def _vetted(self, plain: socket.socket) -> Peer | None:
        try:
            return credentials(plain)
        except OSError:
            self.hub.log.info("connection_accepted")
            self.hub.log.error("credentials_invalid")
            return None

    async def _admit(self, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer) -> None:
        if self._open[peer.uid] >= most_connections():
            reason = f"user {peer.uid} has {self._open[peer.uid]} connections open"
            if self.hub.may_log(peer.uid):
                self.hub.log.error("connection_refused", reason=reason)
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
                await self._converse(first, channel, sock, peer)
        except (ProtocolError, trio.TooSlowError):
            if self.hub.may_log(peer.uid):
                self.hub.log.error("connection_type_unreadable")

    async def _converse(
        self, first: Frame, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer
    ) -> None:
        if first.kind == frames.OPERATOR_HELLO:
            session = OperatorSession(self.hub.serials.take(), peer.uid, channel)
            await _beside_sender(channel, session.run, self.hub)
            return
        hello = messages.decode(first)
        if isinstance(hello, ServerReturn) and self.clients_too:
            with trio.fail_after(HELLO_SECONDS):
                server = await adoption.hear(self.hub, hello, channel, peer)
            if server is not None:
                await server.serve(self.hub, channel)
            return
        if not isinstance(hello, messages.ClientHello) or not self.clients_too:
            raise RemoteError(f"{type(hello).__name__} opens no conversation here")
        with _plain(sock) as plain:
            known = with_pidfd(plain, peer)
        try:
            client = ClientSession(self.hub.serials.take(), known, channel, hello)
            await _beside_sender(channel, client.run, self.hub)
        finally:
            known.close()


def most_connections() -> int:
    """Return how many connections one user may have at a door."""
    return min(CONNECTIONS_PER_USER, share_of_descriptors(SHARE_OF_DESCRIPTORS))


def _plain(sock: trio.socket.SocketType) -> socket.socket:
    """Return a copy of a socket to ask the kernel with; it is closed at once, for it is one descriptor more."""
    return socket.socket(fileno=os.dup(sock.fileno()))


async def _beside_sender(channel: MessageChannel, conversation: object, hub: Hub) -> None:
    """Run a conversation with its sender; at its end what is queued is sent, within the deadline of a hello."""
    broken: ProtocolError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        try:
            await conversation(hub)  # type: ignore[operator]  # the run of one of the two sessions
        except ProtocolError as error:
            broken = error
        channel.finish()
        nursery.cancel_scope.deadline = trio.current_time() + HELLO_SECONDS
    if broken is not None:
        # Here, for a nursery would wrap it in a group.
        raise broken
