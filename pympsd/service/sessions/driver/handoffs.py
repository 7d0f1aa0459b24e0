"""Hand clients over to the driver's server, one after another, because it serves one new client at a time.

A client waits in its conversation with the daemon until it has its end of the connection and its turn comes. If its
server ends before that, the client gets the next server.

An `Offer` is a client's connection to its server. First the client is sent its end. Only when the client has received
it, the server is sent the other end, so a server never waits for a client that is stopped or malicious and does not
read.
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
    """Both ends of a client's connection to its server.

    The keeper holds them too, so the next daemon can continue with them.
    """

    key: int
    """The id of the client's conversation."""
    servers: int
    clients: int
    """The descriptor of this process's copy of the client's end."""
    is_inherited: bool = False
    """Whether an earlier daemon made the connection. That daemon may have sent one end or both."""

    @classmethod
    def make(cls, dispatcher: Dispatcher, key: int) -> Offer:
        """Return a new connection, whose ends the keeper holds too. Raise OSError."""
        clients, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with clients, servers:
            for end in (clients, servers):
                # Without this option the driver's server does not answer a client.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            offer = cls(key, servers.detach(), clients.detach())
        # Do not send the ends to a keeper that is stopped: they would stay in its link, and the server would not see
        # that the client has ended.
        if not dispatcher.keeper.is_silent:
            dispatcher.keeper.hold(new_client_name(key), offer.clients)
            dispatcher.keeper.hold(offer_name(key), offer.servers)
        return offer

    def close(self) -> None:
        """Close both ends in this process."""
        os.close(self.servers)
        os.close(self.clients)

    def drop(self, dispatcher: Dispatcher) -> None:
        """Let the keeper close both ends."""
        for name in (new_client_name(self.key), offer_name(self.key)):
            dispatcher.keeper.drop(name)

    def is_taken_by(self, server: int) -> bool:
        """Return whether a server's process has the server's end, because the earlier daemon was killed just after it
        had sent the end.
        """
        return has_open(server, os.fstat(self.servers))


FIRST_ANSWER_SECONDS: Final = 1.0
"""The time that a client has to answer its server, which waits only for that."""
ANSWER_CHECKS: Final = 20
"""The number of checks for the answer within FIRST_ANSWER_SECONDS."""
ASLEEP_CHECKS: Final = 4
"""A client is unresponsive if it sleeps and has not read its server's message in this many checks in a row.

A client that is stopped for a moment, or gets little processor time, has FIRST_ANSWER_SECONDS instead.
"""
STATUS: Final = {commands.STATUS_ACTIVE: ServerStatus.ACTIVE, commands.STATUS_FAULT: ServerStatus.FAULT}


class NewClient(Protocol):
    """A client that was admitted to the server, and has no connection to it yet (sessions.driver.client)."""

    client: int
    run_id: str
    """The id of the client's run, as in WaitingConversation."""
    is_ready: bool
    """Whether the client has received its end of the connection."""
    offered_at: float
    """The time when the client was sent its end of the connection, on trio's clock."""

    @property
    def peer(self) -> Peer:
        """The process at the other end of the connection, as the kernel reports it."""

    def take(self) -> Offer:
        """Return the connection to send to the server; the caller then owns it."""

    def wait_again(self) -> None:
        """Queue the client for another server, because this one has ended or is ending."""


_Entry = tuple[NewClient, int, ClientLimits | None]


@define(eq=False)
class Handoffs:
    """The clients that wait to be handed over to a server."""

    _dispatcher: Dispatcher
    _server: int
    _pid: int
    priority: int = 0
    """The priority for new clients that was last sent to the server."""
    earlier: tuple[tuple[str, int], ...] = ()
    """Names at the keeper, and descriptors, of the clients' ends of connections that an earlier daemon sent to the
    server.
    """
    exchange: trio.Lock = field(factory=trio.Lock, init=False)
    """The lock that is held while a client is handed over."""
    set_limits: Callable[[ClientLimits], None] = lambda _: None
    """The function that sends the server the limits for its next client."""
    _queue: list[_Entry] = field(factory=list, init=False)
    """The waiting clients, with their priorities and limits."""
    _unresponsive: set[int] = field(factory=set, init=False)
    """The users whose last client did not answer the server."""
    last: NewClient | None = field(default=None, init=False)
    """The client that was handed over last, or is being handed over."""
    _current: int = field(default=0, init=False)
    """The id of the client that is being handed over; 0 if none is."""
    _current_name: str = field(default="", init=False)
    _has_ended: bool = field(default=False, init=False)
    """Whether the process of the client that is being handed over has ended."""
    _answer_scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _added: trio.Event = field(factory=trio.Event, init=False)

    @property
    def may_be_delayed(self) -> bool:
        """Whether every waiting client either does not receive its end, or is of a user whose last client did not
        answer.
        """
        late = trio.current_time() - FIRST_ANSWER_SECONDS
        return all(
            client.peer.uid in self._unresponsive or (not client.is_ready and client.offered_at < late)
            for client, *_ in self._queue
        )

    def add(self, client: NewClient, priority: int, limits: ClientLimits | None = None) -> None:
        """Hand over a client when its turn comes."""
        self._queue.append((client, priority, limits))
        self._added.set()

    def look(self) -> None:
        """Note that a client has received its end of its connection."""
        self._added.set()

    def remove(self, client: NewClient) -> None:
        """Remove a client that has left."""
        self._queue = [entry for entry in self._queue if entry[0] is not client]

    def note_end(self, client: int) -> None:
        """Note that a client's process has ended, so that nobody waits for its answer."""
        if client == self._current:
            self._has_ended = True
            self._answer_scope.cancel()

    def clients(self) -> tuple[int, ...]:
        """Return the ids of the clients that were not handed over yet."""
        return tuple(entry[0].client for entry in self._queue)

    def give_back(self) -> None:
        """Let the clients that were not handed over yet wait for the next server, because this one is ending."""
        queue, self._queue = self._queue, []
        for entry in queue:
            entry[0].wait_again()

    async def run(self, link: ServerLink, is_adopted: bool) -> None:
        """Hand over one client after another; the server gets the next client when the previous one has answered."""
        if is_adopted:
            async with self.exchange:
                # The server answers when it has carried out the earlier daemon's commands.
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
        """Return the first ready client of a user whose last client answered, or else the last ready client."""
        ready = [entry for entry in self._queue if entry[0].is_ready]
        # The last, so that a user's many unresponsive clients do not delay a client that comes after them.
        return next(
            (entry for entry in ready if entry[0].peer.uid not in self._unresponsive), ready[-1] if ready else None
        )

    async def _hand_over(
        self, link: ServerLink, client: NewClient, priority: int, limits: ClientLimits | None
    ) -> None:
        """Send the server a client with the client's limits, and wait for the client's answer to the server."""
        offer = client.take()
        self.last = client
        self._current, self._current_name = client.client, new_client_name(offer.key)
        # Let the keeper hold the client's end before it is sent. The next daemon needs it to free the server from a
        # client that does not respond.
        if not self._dispatcher.keeper.is_silent:
            self._dispatcher.keeper.hold(self._current_name, offer.clients, str(self._server).encode())
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
            self._dispatcher.keeper.drop(offer_name(offer.key))
            is_unresponsive = await self._await_answer(link, [offer.clients], client.peer.pid)
        finally:
            os.close(offer.clients)
        # The server wrote lines about the client to the FIFO before it answered. The FIFO's reader must get them
        # before `last` is another client.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        (self._unresponsive.add if is_unresponsive else self._unresponsive.discard)(client.peer.uid)
        self._dispatcher.keeper.drop(self._current_name)
        self._current = 0

    async def _await_answer(self, link: ServerLink, ends: Sequence[int], pid: int = 0) -> bool:
        """Wait until the server has received all packets; return whether a living client did not answer the server.

        ``pid``: the client's PID; 0 if unknown.
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
        """Return whether the server answers in time. It has less time if the client is asleep.

        Time in which the server or this process is stopped does not count.
        """
        remaining, asleep = ANSWER_CHECKS, 0
        with trio.CancelScope() as self._answer_scope:
            while remaining and asleep < ASLEEP_CHECKS and not answered.is_set():
                # If this process is stopped, that counts as one check, because trio sees the end of the time and the
                # answer together.
                with trio.move_on_after(FIRST_ANSWER_SECONDS / ANSWER_CHECKS):
                    await answered.wait()
                remaining -= not is_stopped(self._pid)
                asleep = asleep + 1 if is_asleep() else 0
        return answered.is_set()

    def _free(self, ends: Iterable[int], is_unresponsive: bool) -> None:
        """Free the server from clients that do not answer it, because all other clients would wait for them.

        Driver 580's server never continues if such a client leaves without an answer. It continues after any answer,
        so one is sent in the client's place.
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
            self._dispatcher.keeper.drop(name)
            os.close(fd)

    def close(self) -> None:
        """Release everything that was held for a server that has ended."""
        self._release(self.earlier)
        if self._current:
            self._dispatcher.keeper.drop(self._current_name)
        self.give_back()


def _is_unread(end: int) -> bool:
    """Return whether a client has not read everything that arrived at its end of its connection."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))
