"""A connection of pympsd's own protocol: await its hello within a deadline, and run its session."""

import socket
from typing import Final

import trio
from attrs import define

from pympsd.channel.message_channel import MessageChannel
from pympsd.errors import LimitExceeded, ProtocolError, RemoteError
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.peers import open_pidfd, operator_uid, send_credentials
from pympsd.service.sessions.client import ClientSession
from pympsd.service.sessions.operator import MachineSession, OperatorSession, RefusedOperator
from pympsd.service.sessions.waiting import run_with_sender
from pympsd.state_machine import registration
from pympsd.takeover.keeper.packets import NOTE_BYTES
from pympsd.takeover.state.entries import KeptFd, id_of
from pympsd.vocabulary.identities import Peer
from pympsd.wire import frames, messages
from pympsd.wire.framing import Frame, FrameReader

HELLO_SECONDS: Final = 10.0
"""A connection that sends no hello within this time is closed."""

HELLO_COPIES: Final = 6
"""While a client waits, its hello is kept as bytes, here and at the keeper, and as text: 4 bytes a character."""


@define
class Conversation:
    """Speaks with operators, and with ``accepts_clients`` with clients."""

    dispatcher: Dispatcher
    accepts_clients: bool
    server: str = ""
    """The server whose socket this is, in protocol 3; empty: the daemon's own."""
    namespace: str = ""

    async def run(self, sock: trio.socket.SocketType, peer: Peer, entry: KeptFd[bytes]) -> None:
        """Run a connection to its end; ``entry``: the keeper's; noted is the hello, if one was received."""
        channel = MessageChannel(sock, allowance=self.dispatcher.buffers.allowance(peer.uid))
        try:
            await self._greet(channel, sock, peer, entry)
        finally:
            channel.close()

    async def _greet(
        self, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer, entry: KeptFd[bytes]
    ) -> None:
        try:
            greeting = entry.note
            first = next(FrameReader().feed(greeting), None)
            if first is None:
                with trio.fail_after(HELLO_SECONDS):
                    greeting, first = await self._receive_hello(entry.name, channel, sock)
                    if first is not None and first.kind == frames.CREDENTIALS_REQUEST:
                        send_credentials(sock, peer)
                        greeting, first = await self._receive_hello(entry.name, channel, sock)
            else:
                _discard(sock, greeting)
            if first is None:
                self._log_foreign_user(peer)
            else:
                await self._run_session(KeptFd(entry.name, sock.fileno(), greeting), first, channel, sock, peer)
        except LimitExceeded as error:
            self.dispatcher.log_closed(peer.uid, error)
        except (ProtocolError, trio.TooSlowError):
            if self.dispatcher.may_log(peer.uid):
                self.dispatcher.log.error("connection_type_unreadable")

    async def _receive_hello(
        self, name: str, channel: MessageChannel, sock: trio.socket.SocketType
    ) -> tuple[bytes, Frame | None]:
        """Return the note of the first frame that the keeper has, and the frame; None if there is none."""
        await trio.lowlevel.wait_readable(sock)
        return self._note_hello(name, sock), await channel.receive()

    def _log_foreign_user(self, peer: Peer) -> None:
        """Log a program of another user that left as soon as it saw whose daemon this is."""
        owner = self.dispatcher.state.options.uid
        if self.accepts_clients and owner not in (0, peer.uid):
            reason = (
                f"it left without a hello: programs trust root's daemon and their own, and user {owner} runs this"
            )
            self.dispatcher.log_refused(peer, reason)

    def _note_hello(self, name: str, sock: trio.socket.SocketType) -> bytes:
        """Note a client's hello at the keeper while it still is in the socket: a daemon that is killed loses none.

        Return the hello; nothing if it is not a client's, or not complete.
        """
        try:
            frame = next(FrameReader().feed(_receive_now(sock, NOTE_BYTES, socket.MSG_PEEK)), None)
        except RemoteError:
            return b""  # the receive that follows takes it from the socket, and raises
        if frame is None or frame.kind < frames.FIRST_MESSAGE_KIND:
            return b""
        hello = frames.encode(frame.kind, frame.body)
        self.dispatcher.hold(name, sock.fileno(), hello)
        return hello

    async def _run_session(
        self,
        entry: KeptFd[bytes],
        first: Frame,
        channel: MessageChannel,
        sock: trio.socket.SocketType,
        peer: Peer,
    ) -> None:
        if first.kind == frames.OPERATOR_HELLO:
            self.dispatcher.drop(entry.name)
            if first.body == frames.ASKS_MACHINE:
                await run_with_sender(channel, MachineSession(channel).run, self.dispatcher)
                return
            if self.accepts_clients and registration.is_for_clients(
                self.dispatcher.state, self.server, self.namespace
            ):
                await run_with_sender(channel, RefusedOperator(peer, channel, self.server).run, self.dispatcher)
                return
            place = (self.server, self.namespace)
            session = OperatorSession(
                self.dispatcher.ids.take(), operator_uid(sock, peer, self.dispatcher.state), channel, place
            )
            if first.body == frames.ASKS_PROTOCOL:
                session.send_protocol(self.dispatcher.state.options.protocol)
            await run_with_sender(channel, session.run, self.dispatcher)
            return
        hello = messages.decode(first)
        if not isinstance(hello, messages.ClientHello) or not self.accepts_clients:
            raise RemoteError(f"{type(hello).__name__} opens no conversation here")
        if not entry.note:  # it came in pieces
            self.dispatcher.hold(entry.name, sock.fileno(), frames.encode(first.kind, first.body))
        known_peer = open_pidfd(sock, peer)
        try:
            came_by = self.server, self.namespace, id_of(entry.name)
            client = ClientSession(self.dispatcher.ids.take(), known_peer, channel, hello, *came_by)
            with channel.allowance.keep(HELLO_COPIES * len(first.body)):
                await run_with_sender(channel, client.run, self.dispatcher)
        finally:
            known_peer.close()


def _receive_now(sock: trio.socket.SocketType, most: int, flags: int = 0) -> bytes:
    """Return the bytes that can be received now, without a checkpoint of trio."""
    plain = socket.socket(fileno=sock.fileno())
    try:
        return plain.recv(most, flags | socket.MSG_DONTWAIT)
    except OSError:  # nothing, or an end that the next receive meets
        return b""
    finally:
        plain.detach()


def _discard(sock: trio.socket.SocketType, hello: bytes) -> None:
    """Take a hello that was noted from the socket, if the earlier daemon had no time to do so."""
    if _receive_now(sock, len(hello), socket.MSG_PEEK) == hello:
        _receive_now(sock, len(hello))
