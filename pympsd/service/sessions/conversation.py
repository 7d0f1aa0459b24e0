"""A connection of pympsd's own protocol: await its hello within a deadline, and run its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.sessions.adoption import AwaitedServer, receive_return
from pympsd.service.sessions.client import ClientSession
from pympsd.service.sessions.operator import OperatorSession
from pympsd.service.sessions.peers import with_pidfd
from pympsd.service.sessions.running import run_with_sender
from pympsd.vocabulary.identities import Peer
from pympsd.wire import frames, messages
from pympsd.wire.errors import ProtocolError, RemoteError
from pympsd.wire.framing import Frame
from pympsd.wire.link_messages import ServerReturn

HELLO_SECONDS: Final = 10.0
"""A connection that sends no hello within this time is closed."""


@define
class Conversation:
    """Speaks with operators, and with ``accepts_clients`` with clients and servers.

    ``awaited``: the servers of an earlier daemon that may return, by PID.
    """

    dispatcher: Dispatcher
    accepts_clients: bool
    awaited: Mapping[int, AwaitedServer] = field(factory=dict)

    async def run(self, sock: trio.socket.SocketType, peer: Peer) -> None:
        """Run a connection to its end."""
        channel = MessageChannel(sock)
        try:
            await self._greet(channel, sock, peer)
        finally:
            channel.close()

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
            await run_with_sender(channel, session.run, self.dispatcher)
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
        known = with_pidfd(sock, peer)
        try:
            client = ClientSession(self.dispatcher.serials.take(), known, channel, hello)
            await run_with_sender(channel, client.run, self.dispatcher)
        finally:
            known.close()
