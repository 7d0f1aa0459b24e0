"""A connection of pympsd's own protocol: await its hello within a deadline, and run its session."""

from __future__ import annotations

from typing import Final

import trio
from attrs import define

from pympsd.channel.message_channel import MessageChannel
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.inheritance import Noted, connection_name
from pympsd.service.sessions.client import ClientSession
from pympsd.service.sessions.operator import OperatorSession
from pympsd.service.sessions.peers import with_pidfd
from pympsd.service.sessions.running import run_with_sender
from pympsd.vocabulary.identities import Peer
from pympsd.wire import frames, messages
from pympsd.wire.errors import ProtocolError, RemoteError
from pympsd.wire.framing import Frame, FrameReader

HELLO_SECONDS: Final = 10.0
"""A connection that sends no hello within this time is closed."""


@define
class Conversation:
    """Speaks with operators, and with ``accepts_clients`` with clients."""

    dispatcher: Dispatcher
    accepts_clients: bool

    async def run(self, sock: trio.socket.SocketType, peer: Peer, earlier: Noted[bytes] | None = None) -> None:
        """Run a connection to its end; ``earlier``: an earlier daemon accepted it; noted is the hello it received."""
        channel = MessageChannel(sock)
        entry = earlier or Noted(connection_name(self.dispatcher.connections.take()), sock.fileno(), b"")
        try:
            await self._greet(channel, sock, peer, entry)
        finally:
            channel.close()

    async def _greet(
        self, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer, entry: Noted[bytes]
    ) -> None:
        try:
            with self.dispatcher.held(entry.name, sock.fileno(), entry.note):
                first = next(FrameReader().feed(entry.note), None)
                if first is None:
                    with trio.fail_after(HELLO_SECONDS):
                        first = await channel.receive()
                if first is not None:
                    await self._run_session(entry.name, first, channel, sock, peer)
        except (ProtocolError, trio.TooSlowError):
            if self.dispatcher.may_log(peer.uid):
                self.dispatcher.log.error("connection_type_unreadable")

    async def _run_session(
        self, name: str, first: Frame, channel: MessageChannel, sock: trio.socket.SocketType, peer: Peer
    ) -> None:
        if first.kind == frames.OPERATOR_HELLO:
            self.dispatcher.drop(name)
            session = OperatorSession(self.dispatcher.serials.take(), peer.uid, channel)
            await run_with_sender(channel, session.run, self.dispatcher)
            return
        hello = messages.decode(first)
        if not isinstance(hello, messages.ClientHello) or not self.accepts_clients:
            raise RemoteError(f"{type(hello).__name__} opens no conversation here")
        self.dispatcher.hold(name, sock.fileno(), frames.encode(first.kind, first.body))
        known = with_pidfd(sock, peer)
        try:
            client = ClientSession(self.dispatcher.serials.take(), known, channel, hello)
            await run_with_sender(channel, client.run, self.dispatcher)
        finally:
            known.close()
