"""Serve one conversation of libcuda, which begins one in cuInit and one for each context that it creates.

The client waits until it gets its connection to a server. A refusal closes the conversation, because the protocol has
no place for a reason; the program gets CUDA_ERROR_MPS_CONNECTION_FAILED. The client itself sends the limits in its
environment to its server.
"""

import os
from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.packet_channel import PacketChannel
from pympsd.service.dispatcher import Dispatcher, RunningServer
from pympsd.service.processes import peers
from pympsd.service.sessions.driver.handoffs import Offer
from pympsd.service.sessions.driver.server import DriverServerSession
from pympsd.service.sessions.origins import origin_of
from pympsd.service.sessions.waiting import WaitingConversation
from pympsd.state_machine.events import ClientConnected, ClientGonePushed
from pympsd.state_machine.state.client import ClientProcess
from pympsd.vocabulary.limit_table import ClientLimits
from pympsd.vocabulary.variables import RUN, Reader, problems
from pympsd.wire.driver.handshake import DESCRIPTOR, PACKET_BYTES

HANG_UP_SECONDS: Final = 10.0
"""The time in seconds that the client has to report that it is connected to its server."""
MAX_RUN_ID: Final = 64
"""The maximum number of characters of a run's id that are kept."""
SECOND_END_SECONDS: Final = 0.2
"""The time in which a client must receive its end of a connection if this daemon sends the end a second time.

A client that does not receive it within this time already has the end that an earlier daemon sent.
"""


@define(eq=False)
class DriverClientSession(WaitingConversation):
    """A conversation, from when its role is known until the client is connected to a server."""

    channel: PacketChannel
    dispatcher: Dispatcher
    key: int
    """The id of the client's connection to this daemon."""
    to_server: str = ""
    """The server and the namespace of the socket to which the client connected."""
    to_namespace: str = ""
    is_ready: bool = field(default=False, init=False)
    offer: Offer | None = None
    """The client's connection to a server, until a server has it."""
    offered_at: float = field(default=0.0, init=False)
    _offered: trio.Event = field(factory=trio.Event, init=False)
    _admitted: DriverServerSession | None = field(default=None, init=False)
    """The server to which the client was admitted.

    Until the client is handed over to it, another server may get the client.
    """

    async def run(self, dispatcher: Dispatcher) -> None:
        """Wait until the client is handed over to a server, is refused or has gone."""
        variables = peers.cuda_variables_of(self.known_peer)
        self.run_id = variables.get(RUN, "")[:MAX_RUN_ID]
        self._report_settings(variables)
        try:
            await self.queue(dispatcher, self, self._connection_event(), self._wait_until_left)
            if self.offer is not None:
                self.offer.drop(dispatcher)
        finally:
            if self.offer is not None:
                self.offer.close()
        if self.server is not None:
            with trio.move_on_after(HANG_UP_SECONDS):
                await self.channel.receive(PACKET_BYTES)
        elif self._admitted is not None:
            self._admitted.handoffs.remove(self)
            dispatcher.feed(ClientGonePushed(self._admitted.id, self.client))

    def _report_settings(self, variables: dict[str, str]) -> None:
        """Log the wrong settings of a new client process, because the driver ignores them silently."""
        pid, uid = self.peer.pid, self.peer.uid
        servers = self.dispatcher.state.list_running_servers()
        if not pid or any(client.pid == pid for server in servers for client in server.clients.values()):
            return
        for problem in problems(variables, Reader.CLIENT).values():
            if self.dispatcher.budgets.may_log(uid, problem):
                self.dispatcher.log.warning("client_setting_wrong", pid=pid, uid=uid, problem=problem)

    def _connection_event(self) -> ClientConnected:
        return ClientConnected(self.client, self._process(), joins=True, server=self.to_server, connection=self.key)

    def _process(self) -> ClientProcess:
        return ClientProcess(
            self.peer,
            peers.command_of(self.peer.pid, "") if self.peer.pid else peers.command_of_hidden(self.known_peer),
            peers.namespace_of(self.known_peer, 0),
            self.to_namespace,
            number=peers.process_of(self.known_peer.pidfd) if not self.peer.pid else 0,
            container_pid=peers.container_pid_of(self.peer.pid),
            since=self.since,
            origin=origin_of(self.known_peer) if self.dispatcher.state.needs_origins else None,
        )

    def grant(self, server: RunningServer, priority: int, limits: ClientLimits | None) -> None:
        """Send the client its end of a connection, and queue the client for the server. Raise OSError."""
        assert isinstance(server, DriverServerSession)
        if self.offer is None:
            self.offer = Offer.make(self.dispatcher, self.key)
            self._send_end()
        self._admitted = server
        self.offered_at = trio.current_time()
        self._offered.set()
        server.handoffs.add(self, priority, limits)

    def _send_end(self) -> None:
        if self.offer is not None:
            self.channel.send_raw(DESCRIPTOR, (os.dup(self.offer.clients),))

    def take(self) -> Offer:
        """Return the connection, which the caller then owns, to send it to the server."""
        assert self.offer is not None
        offer, self.offer = self.offer, None
        self.server = self._admitted
        self.resolved.set()
        return offer

    def wait_again(self) -> None:
        """Wait for another server, because the client's server has ended or is ending."""
        self._admitted = None
        self.dispatcher.feed(self._connection_event())

    def refuse(self, code: int, reason: str) -> None:
        """Close the conversation."""
        self.resolved.set()

    def go_without_mps(self, reason: str) -> None:
        """Close the conversation: its protocol has no message that lets a client continue without MPS."""
        self.resolved.set()

    async def _wait_until_left(self) -> None:
        """Wait until the client hangs up; note when it receives its end of a connection."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_taken)
            # The packet stays in the socket: from it, the next daemon can tell that the client has its end.
            if await self.channel.peek(PACKET_BYTES) and self.offer is not None:
                self._note_ready()
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    async def _note_taken(self) -> None:
        await self._offered.wait()
        with suppress(OSError):  # if descriptors run out, it stays unknown whether the client has its end
            if self.offer is not None and self.offer.is_inherited and not self.channel.has_unaccepted():
                self._send_end()
                with trio.move_on_after(SECOND_END_SECONDS):
                    await self.channel.wait_until_taken()
            else:
                await self.channel.wait_until_taken()
        self._note_ready()

    def _note_ready(self) -> None:
        self.is_ready = True
        if self._admitted is not None:
            self._admitted.handoffs.look()
