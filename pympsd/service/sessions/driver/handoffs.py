"""Handing clients over to the driver's server: one after another, as it serves one new client at a time.

A client waits in its conversation with the daemon until it has its end of the connection and it is its turn: if its
server ends before that, it gets the next one.

An `Offer` is a client's connection to its server. The client is sent its end first, and the server when the client
has taken it, so no server waits for a client that takes nothing, because it is stopped or malicious.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import trio
from attrs import define, field

from pympsd.service.dispatcher import Dispatcher
from pympsd.service.files.lock_holders import has_open
from pympsd.service.processes.status import is_asleep, is_stopped
from pympsd.service.sessions.driver.server_link import ServerLink
from pympsd.state_machine import events
from pympsd.takeover.state.entries import new_client_name, offer_name
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limit_table import ClientLimits
from pympsd.vocabulary.results import ServerStatus
from pympsd.wire.driver import server_commands as commands


@define
class Offer:
    """Both ends, each held by the keeper too: the next daemon continues with them."""

    key: int
    """The id of the client's conversation."""
    servers: int
    clients: int
    """A descriptor: a copy of the client's end."""
    is_inherited: bool = False
    """An earlier daemon may have sent either end already."""

    @classmethod
    def make(cls, dispatcher: Dispatcher, key: int) -> Offer:
        """Return a new connection; raise OSError."""
        clients, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with clients, servers:
            for end in (clients, servers):
                # The driver's server does not answer a client without it.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            offer = cls(key, servers.detach(), clients.detach())
        keeper = dispatcher.keeper
        # In the link of a keeper that is stopped an end would outlive the client, whose end the server would not see.
        if keeper is not None and not keeper.is_silent:
            dispatcher.hold(new_client_name(key), offer.clients)
            dispatcher.hold(offer_name(key), offer.servers)
        return offer

    def close(self) -> None:
        """Close both ends here."""
        os.close(self.servers)
        os.close(self.clients)

    def drop(self, dispatcher: Dispatcher) -> None:
        """Let the keeper close both ends."""
        for name in (new_client_name(self.key), offer_name(self.key)):
            dispatcher.drop(name)

    def is_taken_by(self, server: int) -> bool:
        """Return whether a process has the server's end: the earlier daemon was killed as it handed that over."""
        return has_open(server, os.fstat(self.servers))


FIRST_ANSWER_SECONDS: Final = 1.0
"""Time for a client to answer its server, which waits for nothing else until then."""
ANSWER_CHECKS: Final = 20
"""The number of times that an answer is looked for in that period."""
ASLEEP_CHECKS: Final = 4
"""After this many checks in a row a client that sleeps and has not read its server's message is unresponsive.

A client that is stopped for a moment, or gets little processor time, has FIRST_ANSWER_SECONDS."""
STATUS: Final = {commands.STATUS_ACTIVE: ServerStatus.ACTIVE, commands.STATUS_FAULT: ServerStatus.FAULT}


class NewClient(Protocol):
    """A client that was admitted to the server, and has no connection to it yet (vendor.client)."""

    client: int
    run_id: str
    """See Waiting."""
    is_ready: bool
    """It has its end of the connection."""
    offered_at: float
    """When it was sent that."""

    @property
    def peer(self) -> Peer:
        """The process at the other end of the connection, as the kernel reports it."""

    def take(self) -> Offer:
        """Return the connection that the server is given; it is then the caller's."""

    def wait_again(self) -> None:
        """Queue the client for another server, because the one that it was admitted to has ended or is ending."""


_Entry = tuple[NewClient, int, ClientLimits | None]


@define(eq=False)
class Handoffs:
    """The clients that are yet to be handed over to a server."""

    _dispatcher: Dispatcher
    _server: int
    _pid: int
    priority: int = 0
    """The priority of later clients that the server was sent last."""
    earlier: tuple[tuple[str, int], ...] = ()
    """The clients' ends, with their names at the keeper, of connections that an earlier daemon sent the server."""
    exchange: trio.Lock = field(factory=trio.Lock, init=False)
    """Held while a client is handed over."""
    set_limits: Callable[[ClientLimits], None] = lambda _: None
    """Sends the server the limits of the client that it gets next."""
    _queue: list[_Entry] = field(factory=list, init=False)
    """The waiting clients, with their priorities and limits."""
    _unresponsive: set[int] = field(factory=set, init=False)
    """The users whose last client did not answer the server."""
    last: NewClient | None = field(default=None, init=False)
    """The client that was handed over last, or is just now."""
    _current: int = field(default=0, init=False)
    """The client that is being handed over."""
    _current_name: str = field(default="", init=False)
    _has_ended: bool = field(default=False, init=False)
    """Its process has ended."""
    _answer_scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _added: trio.Event = field(factory=trio.Event, init=False)

    @property
    def may_be_delayed(self) -> bool:
        """Whether all that wait are clients that take no connection, or of users whose last client did not answer."""
        late = trio.current_time() - FIRST_ANSWER_SECONDS
        return all(
            client.peer.uid in self._unresponsive or (not client.is_ready and client.offered_at < late)
            for client, *_ in self._queue
        )

    def add(self, client: NewClient, priority: int, limits: ClientLimits | None = None) -> None:
        """Hand over a client when it is its turn."""
        self._queue.append((client, priority, limits))
        self._added.set()

    def look(self) -> None:
        """Note that a client has its end of its connection."""
        self._added.set()

    def remove(self, client: NewClient) -> None:
        """Remove a client that has left."""
        self._queue = [entry for entry in self._queue if entry[0] is not client]

    def note_end(self, client: int) -> None:
        """Note that a client's process has ended: the server need not wait for its answer."""
        if client == self._current:
            self._has_ended = True
            self._answer_scope.cancel()

    def clients(self) -> tuple[int, ...]:
        """Return the clients that are yet to be handed over."""
        return tuple(entry[0].client for entry in self._queue)

    def give_back(self) -> None:
        """Let the clients that are yet to be handed over wait for the next server: this one ends."""
        queue, self._queue = self._queue, []
        for entry in queue:
            entry[0].wait_again()

    async def run(self, link: ServerLink, is_adopted: bool) -> None:
        """Hand over one client after another: the server takes the next client when the one before has answered."""
        if is_adopted:
            async with self.exchange:
                # Answered when the server has carried out an earlier daemon's commands.
                await self._await_answer(link, [end for _, end in self.earlier])
                self._release(self.earlier)
        while True:
            while self._next() is None:
                self._added = trio.Event()
                await self._added.wait()
            async with self.exchange:
                if (entry := self._next()) is not None:
                    self._queue.remove(entry)
                    await self._hand_over(link, *entry)

    def _next(self) -> _Entry | None:
        """Return the first client that is ready, of users whose last client answered if there is one."""
        ready = [entry for entry in self._queue if entry[0].is_ready]
        # Of those the last: a user's many unresponsive clients do not delay the one that comes after them.
        return next(
            (entry for entry in ready if entry[0].peer.uid not in self._unresponsive), ready[-1] if ready else None
        )

    async def _hand_over(
        self, link: ServerLink, client: NewClient, priority: int, limits: ClientLimits | None
    ) -> None:
        offer = client.take()
        self.last = client
        self._current, self._current_name = client.client, new_client_name(offer.key)
        keeper = self._dispatcher.keeper
        # Before sending: without this end the next daemon cannot free the server from an unresponsive client.
        if keeper is not None and not keeper.is_silent:
            self._dispatcher.hold(self._current_name, offer.clients, str(self._server).encode())
        try:
            if priority != self.priority:
                self.priority = priority
                link.send(commands.set_priority(priority))
            if limits is not None:
                self.set_limits(limits)
            if offer.is_inherited and offer.is_taken_by(self._pid):
                os.close(offer.servers)
            else:
                link.send(commands.NEW_CLIENT, offer.servers)
            self._dispatcher.drop(offer_name(offer.key))
            is_unresponsive = await self._await_answer(link, [offer.clients], client.peer.pid)
        finally:
            os.close(offer.clients)
        # The server wrote lines about the client to the FIFO before it answered. The FIFO's reader must get them
        # before `last` is another client.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        (self._unresponsive.add if is_unresponsive else self._unresponsive.discard)(client.peer.uid)
        self._dispatcher.drop(self._current_name)
        self._current = 0

    async def _await_answer(self, link: ServerLink, ends: Sequence[int], pid: int = 0) -> bool:
        """Wait until the server has taken all packets; return whether a living client did not answer it.

        ``pid``: the client's, if that is known.
        """
        self._has_ended, is_unresponsive = False, False
        answered = trio.Event()
        link.ask(commands.status(), partial(self._note_answer, answered))
        while not await self._answers_in_time(answered, lambda: is_asleep(pid) and all(map(_is_unread, ends))):
            if not is_stopped(self._pid):
                is_unresponsive = bool(ends) and not self._has_ended
                self._free(ends, is_unresponsive)
                await answered.wait()
        return is_unresponsive

    async def _answers_in_time(self, answered: trio.Event, is_asleep: Callable[[], bool]) -> bool:
        """Return whether the server answers in time; time in which the server or this process is stopped does not
        count.

        A client that is asleep has less time.
        """
        remaining, asleep = ANSWER_CHECKS, 0
        with trio.CancelScope() as self._answer_scope:
            while remaining and asleep < ASLEEP_CHECKS and not answered.is_set():
                # However long this process is stopped, that is one check: its end and the answer are seen together.
                with trio.move_on_after(FIRST_ANSWER_SECONDS / ANSWER_CHECKS):
                    await answered.wait()
                remaining -= not is_stopped(self._pid)
                asleep = asleep + 1 if is_asleep() else 0
        return answered.is_set()

    def _free(self, ends: Iterable[int], is_unresponsive: bool) -> None:
        """Free the server from clients that do not answer it: other clients would wait as long.

        Driver 580's server never continues if such a client leaves without an answer; any answer lets it continue.
        """
        if is_unresponsive:
            self._dispatcher.log.warning("client_unresponsive", server=self._pid)
        for end in ends:
            with suppress(OSError), socket.socket(fileno=os.dup(end)) as sock:
                sock.send(b"\0", socket.MSG_DONTWAIT)
                sock.shutdown(socket.SHUT_RDWR)

    def _note_answer(self, answered: trio.Event, status: int) -> None:
        answered.set()
        self._dispatcher.feed(events.StatusPushed(self._server, STATUS[status]))

    def _release(self, entries: Iterable[tuple[str, int]]) -> None:
        self.earlier = ()
        for name, fd in entries:
            self._dispatcher.drop(name)
            os.close(fd)

    def close(self) -> None:
        """Clean up after the server's end."""
        self._release(self.earlier)
        if self._current:
            self._dispatcher.drop(self._current_name)
        self.give_back()


def _is_unread(end: int) -> bool:
    """Return whether something lies at a client's end of its connection that it has not read."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))
