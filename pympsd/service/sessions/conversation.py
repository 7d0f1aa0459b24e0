"""Serve a connection of pympsd's own protocol: await its hello within a deadline, and run its session."""

import socket
from typing import Final

import trio
from attrs import define

from pympsd.channel.message_channel import MessageChannel
from pympsd.errors import LimitExceeded, ProtocolError, RemoteError
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.peers import open_pidfd, operator_uid, send_credentials
from pympsd.service.sessions.client import ConnectingClient
from pympsd.service.sessions.operator import MachineSession, OperatorSession, RefusedOperator
from pympsd.service.sessions.waiting import run_with_sender
from pympsd.state_machine import registration
from pympsd.takeover.keeper.packets import NOTE_BYTES
from pympsd.takeover.state.entries import KeptFd, id_of
from pympsd.vocabulary.identities import Peer
from pympsd.wire import frames, messages
from pympsd.wire.framing import Frame, FrameReader

HELLO_SECONDS: Final = 10.0
"""The time within which a connection must send its hello."""

HELLO_COPIES: Final = 6
"""The memory for the hello of a waiting client, in multiples of its length: kept as bytes here and at the keeper, and
as text with up to 4 bytes per character.
"""


@define
class OwnConversation:
    """Serves operators, and also clients if ``accepts_clients``."""

    dispatcher: Dispatcher
    accepts_clients: bool
    server: str = ""
    """The server to which the socket belongs, in protocol 3; empty for the daemon's own."""
    namespace: str = ""

    async def run(self, sock: trio.socket.SocketType, peer: Peer, entry: KeptFd[bytes]) -> None:
        """Run a connection to its end. ``entry``: the keeper's entry; its note is the hello, if one was received."""
        channel = MessageChannel(sock, allowance=self.dispatcher.budgets.buffers.allowance(peer.uid))
        try:
            await self._greet(channel, sock, peer, entry)
        finally:
            channel.close()

    async def _greet(
        self, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer, entry: KeptFd[bytes]
    ) -> None:
        """Receive the hello of a connection and run its session; log why it ends early."""
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
            self.dispatcher.budgets.log_closed(peer.uid, error)
        except (ProtocolError, trio.TooSlowError):
            if self.dispatcher.budgets.may_log(peer.uid):
                self.dispatcher.log.error("connection_type_unreadable")

    async def _receive_hello(
        self, name: str, channel: MessageChannel, sock: trio.socket.SocketType
    ) -> tuple[bytes, Frame | None]:
        """Return the first frame as noted at the keeper, and the frame itself; None if the connection ends without
        one.
        """
        await trio.lowlevel.wait_readable(sock)
        return self._note_hello(name, sock), await channel.receive()

    def _log_foreign_user(self, peer: Peer) -> None:
        """Log that a program of another user disconnected because it does not trust this daemon's user."""
        owner = self.dispatcher.state.options.uid
        if self.accepts_clients and owner not in (0, peer.uid):
            trusted = "programs trust only daemons of root and of their own user"
            reason = f"the program left without a hello: {trusted}, and this daemon is user {owner}'s"
            self.dispatcher.budgets.log_refused(peer, reason)

    def _note_hello(self, name: str, sock: trio.socket.SocketType) -> bytes:
        """Note a client's hello at the keeper while it is still in the socket, so that it is not lost if this daemon
        is killed.

        Return the hello; empty if it is not a client's, or is incomplete.
        """
        try:
            frame = next(FrameReader().feed(_receive_now(sock, NOTE_BYTES, socket.MSG_PEEK)), None)
        except RemoteError:
            return b""  # the following receive takes it from the socket, and raises
        if frame is None or frame.kind < frames.FIRST_MESSAGE_KIND:
            return b""
        hello = frames.encode(frame.kind, frame.body)
        self.dispatcher.keeper.hold(name, sock.fileno(), hello)
        return hello

    async def _run_session(
        self,
        entry: KeptFd[bytes],
        first: Frame,
        channel: MessageChannel,
        sock: trio.socket.SocketType,
        peer: Peer,
    ) -> None:
        """Run the session of an operator or a client; the kind of the first frame shows which it is."""
        if first.kind == frames.OPERATOR_HELLO:
            self.dispatcher.keeper.drop(entry.name)
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
                self.dispatcher.sessions.ids.take(), operator_uid(sock, peer, self.dispatcher.state), channel, place
            )
            if first.body == frames.ASKS_PROTOCOL:
                session.send_protocol(self.dispatcher.state.options.protocol)
            await run_with_sender(channel, session.run, self.dispatcher)
            return
        hello = messages.decode(first)
        if not isinstance(hello, messages.ClientHello) or not self.accepts_clients:
            raise RemoteError(f"{type(hello).__name__} cannot begin a conversation here")
        if not entry.note:  # the hello came in pieces
            self.dispatcher.keeper.hold(entry.name, sock.fileno(), frames.encode(first.kind, first.body))
        known_peer = open_pidfd(sock, peer)
        try:
            came_by = self.server, self.namespace, id_of(entry.name)
            client = ConnectingClient(self.dispatcher.sessions.ids.take(), known_peer, channel, hello, *came_by)
            with channel.allowance.keep(HELLO_COPIES * len(first.body)):
                await run_with_sender(channel, client.run, self.dispatcher)
        finally:
            known_peer.close()


def _receive_now(sock: trio.socket.SocketType, max_bytes: int, flags: int = 0) -> bytes:
    """Return the bytes that can be received now, without a trio checkpoint."""
    plain = socket.socket(fileno=sock.fileno())
    try:
        return plain.recv(max_bytes, flags | socket.MSG_DONTWAIT)
    except OSError:  # nothing to receive, or an end that the next receive reports
        return b""
    finally:
        plain.detach()


def _discard(sock: trio.socket.SocketType, hello: bytes) -> None:
    """Remove a noted hello from the socket, if the earlier daemon was killed before it did so."""
    if _receive_now(sock, len(hello), socket.MSG_PEEK) == hello:
        _receive_now(sock, len(hello))
