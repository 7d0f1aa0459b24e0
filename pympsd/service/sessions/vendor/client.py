"""One conversation of libcuda: it has one in cuInit, and one for each context that it makes.

It waits until it gets its connection to a server; a refusal closes it (CUDA_ERROR_MPS_CONNECTION_FAILED there), as
its protocol has no place for a reason. Limits of the client's own environment go from it to its server.
"""

from __future__ import annotations

from typing import Final

import trio
from attrs import define, field

from pympsd.channel.packet_channel import PacketChannel
from pympsd.service.dispatcher import Dispatcher, RunningServer
from pympsd.service.sessions.origins import origin_of
from pympsd.service.sessions.peers import command_of, namespace_of, process_of, shown_unseen
from pympsd.service.sessions.vendor.server import VendorServerSession
from pympsd.service.sessions.waiting import Waiting
from pympsd.state_machine.events import ClientConnected, ClientGonePushed
from pympsd.state_machine.instructions import ClientLimits
from pympsd.wire.vendor.handshake import DESCRIPTOR, PACKET_BYTES

HANG_UP_SECONDS: Final = 10.0
"""Time for the client to say that it has its descriptor."""


@define(eq=False)
class VendorClientSession(Waiting):
    """A conversation between its role and its connection to a server."""

    channel: PacketChannel
    dispatcher: Dispatcher
    to_server: str = ""
    """The server and the namespace whose socket it came by."""
    to_namespace: str = ""
    _admitted: VendorServerSession | None = field(default=None, init=False)
    """The server that it was admitted to; until that takes it, it may be another's."""

    async def run(self, dispatcher: Dispatcher) -> None:
        """Wait until the client is admitted or refused, or is gone."""
        await self.queue(dispatcher, self, self._connected(), self._hung_up)
        if self.server is not None:
            with trio.move_on_after(HANG_UP_SECONDS):
                await self._hung_up()
        elif self._admitted is not None:
            self._admitted.handoffs.remove(self)
            dispatcher.feed(ClientGonePushed(self._admitted.serial, self.client))

    def _connected(self) -> ClientConnected:
        return ClientConnected(
            self.client,
            self.peer,
            command_of(self.peer.pid, "") if self.peer.pid else shown_unseen(self.known),
            namespace_of(self.known, 0),
            joins=True,
            process=process_of(self.known.pidfd) if not self.peer.pid else 0,
            server=self.to_server,
            mps_namespace=self.to_namespace,
            origin=None if self.dispatcher.state.rules is None else origin_of(self.known),
        )

    def grant(self, server: RunningServer, priority: int, limits: ClientLimits | None) -> None:
        """Wait for the server, which takes one new client at a time."""
        assert isinstance(server, VendorServerSession)
        self._admitted = server
        server.handoffs.add(self, priority, limits)

    def take(self, connection: int) -> None:
        """Give the client its end of the connection to its server."""
        self.channel.send_raw(DESCRIPTOR, (connection,))
        self.server = self._admitted
        self.settled.set()

    def fail(self, error: OSError) -> None:
        """Refuse the client: it can have no connection."""
        server, self._admitted = self._admitted, None
        if server is not None:
            self.dispatcher.not_admitted(self.client, server.serial, error)

    def wait_again(self) -> None:
        """Wait for another server: the one that the client was admitted to has ended, or does."""
        self._admitted = None
        self.dispatcher.feed(self._connected())

    def refuse(self, code: int, reason: str) -> None:
        """Close the conversation."""
        self.settled.set()

    def go_without_mps(self, reason: str) -> None:
        """Close the conversation: its protocol cannot say that a client is to go on without MPS."""
        self.settled.set()

    async def _hung_up(self) -> None:
        await self.channel.receive(PACKET_BYTES)
