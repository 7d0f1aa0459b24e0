"""Let a client, of pympsd or of the driver, wait until it is admitted, is refused or has gone."""

import time
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from attrs import define, field

from pympsd.channel.send_queue import SendQueue
from pympsd.errors import ProtocolError
from pympsd.service.dispatcher import Dispatcher, RunningServer, WaitingClient
from pympsd.service.processes.peers import KnownPeer
from pympsd.service.processes.status import process_end
from pympsd.state_machine.events import ClientConnected, WaitingClientLeft
from pympsd.vocabulary.identities import Peer


@define(eq=False)
class WaitingConversation:
    """A client between its hello and its session with a server."""

    client: int
    known_peer: KnownPeer
    since: float = field(factory=time.time, init=False)
    resolved: trio.Event = field(factory=trio.Event, init=False)
    server: RunningServer | None = field(default=None, init=False)
    """The server to which the client was admitted."""
    run_id: str = field(default="", init=False)
    """The id of the run by pympsd-run to which the process belongs; empty outside of a run, or if the client's
    library explains refusals itself.
    """

    @property
    def peer(self) -> Peer:
        """The process that connected."""
        return self.known_peer.peer

    async def queue(
        self,
        dispatcher: Dispatcher,
        session: WaitingClient,
        connected: ClientConnected,
        hung_up: Callable[[], Awaitable[None]],
    ) -> None:
        """Feed the event of the client's connection; wait until the client is admitted, is refused,
        hangs up or ends.
        """
        dispatcher.sessions.clients[self.client] = session
        try:
            dispatcher.feed(connected)
            if not self.resolved.is_set():
                await wait_first(self.resolved.wait, hung_up, self._wait_for_end)
            if not self.resolved.is_set():
                dispatcher.feed(WaitingClientLeft(self.client))
            if self.server is not None:
                pidfd, self.known_peer.pidfd = self.known_peer.pidfd, -1
                self.server.watch(dispatcher, self.client, pidfd)
        finally:
            del dispatcher.sessions.clients[self.client]

    async def _wait_for_end(self) -> None:
        if self.known_peer.pidfd < 0:
            await trio.sleep_forever()
        await process_end(self.known_peer.pidfd)


async def wait_first(*waits: Callable[[], Awaitable[None]]) -> None:
    """Return when the first of several waits returns, and cancel the other waits."""
    async with trio.open_nursery() as nursery:

        async def wait_one(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(wait_one, wait)


LAST_SECONDS: Final = 10.0
"""The time in seconds to send the rest of the queue when a session ends."""


async def run_with_sender(
    channel: SendQueue, session: Callable[[Dispatcher], Awaitable[None]], dispatcher: Dispatcher
) -> None:
    """Run a session and the task that sends its queue; at the end, send the rest of the queue within LAST_SECONDS.

    Raise the error that ended the session: a violation of the protocol, or the limit that the peer has exceeded.
    """
    broken: ProtocolError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        try:
            await session(dispatcher)
        except ProtocolError as error:
            broken = error
        channel.finish()
        nursery.cancel_scope.deadline = trio.current_time() + LAST_SECONDS
    # Raised here, because the nursery would wrap it in a group.
    if channel.failure is not None:
        raise channel.failure
    if broken is not None:
        raise broken
