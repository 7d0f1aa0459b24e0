"""One conversation of libcuda: it has one in cuInit, and one for each context that it makes.

It waits until it gets its connection to a server; a refusal closes it (CUDA_ERROR_MPS_CONNECTION_FAILED there), as
its protocol has no place for a reason. Limits of the client's own environment go from it to its server.
"""

from __future__ import annotations

import socket
from typing import Final

import trio
from attrs import define

from pympsd.channel.packet_channel import PacketChannel
from pympsd.service.dispatcher import Admission, Dispatcher, RunningServer
from pympsd.service.sessions.peers import command_of, namespace_of, process_of
from pympsd.service.sessions.waiting import Waiting
from pympsd.state_machine.events import ClientConnected
from pympsd.wire.vendor.handshake import DESCRIPTOR, PACKET_BYTES

HANG_UP_SECONDS: Final = 10.0
"""Time for the client to say that it has its descriptor."""


@define(eq=False)
class VendorClientSession(Waiting):
    """A conversation between its role and its connection to a server."""

    channel: PacketChannel

    async def run(self, dispatcher: Dispatcher) -> None:
        """Wait until the client is admitted or refused, or is gone."""
        connected = ClientConnected(
            self.client,
            self.peer,
            command_of(self.peer.pid, ""),
            namespace_of(self.peer.pid, 0),
            joins=True,
            process=process_of(self.known.pidfd) if not self.peer.pid else 0,
        )
        await self.queue(dispatcher, self, connected, self._hung_up)
        if self.server is not None:
            with trio.move_on_after(HANG_UP_SECONDS):
                await self._hung_up()

    def grant(self, server: RunningServer, priority: int) -> None:
        """Give the server one end of a new connection and the client the other; raise OSError."""
        admission = Admission(self.client, self.peer, "", 0, priority)
        # The client last: if this daemon is killed in between, the client is still waiting for the next one.
        self.channel.send_raw(DESCRIPTOR, (self.connect(server, admission, socket.SOCK_SEQPACKET),))

    def refuse(self, code: int, reason: str) -> None:
        """Close the conversation."""
        self.settled.set()

    def go_without_mps(self, reason: str) -> None:
        """Close the conversation: its protocol cannot say that a client is to go on without MPS."""
        self.settled.set()

    async def _hung_up(self) -> None:
        await self.channel.receive(PACKET_BYTES)
