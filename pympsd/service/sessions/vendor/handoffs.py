"""Handing clients over to the driver's server: one after another, as it talks with one new client at a time."""

from __future__ import annotations

import os
import socket
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import trio
from attrs import define, field, frozen

from pympsd.service.dispatcher import Dispatcher
from pympsd.service.inheritance import SessionNote, session_name
from pympsd.service.processes.status import is_stopped
from pympsd.service.sessions.vendor.server_link import ServerLink
from pympsd.state_machine import events
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire.vendor import server_commands as commands

FIRST_WORDS_SECONDS: Final = 1.0
"""Time for a client to answer its server, which waits for nothing else meanwhile."""
STATUS: Final = {commands.STATUS_ACTIVE: ServerStatus.ACTIVE, commands.STATUS_FAULT: ServerStatus.FAULT}


@frozen
class Handoff:
    """A connection that is yet to be sent to the server: its end, and a copy of the client's (-1: none)."""

    note: SessionNote
    connection: int
    client_end: int


@define(eq=False)
class Handoffs:
    """The connections that are yet to be sent to a server."""

    _dispatcher: Dispatcher
    _server: int
    _pid: int
    priority: int = 0
    """The priority of later clients, as the server was told it last."""
    _queue: deque[Handoff] = field(factory=deque, init=False)
    _is_closed: bool = field(default=False, init=False)
    _arrived: trio.Event = field(factory=trio.Event, init=False)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, note: SessionNote, connection: int, client_end: int = -1) -> None:
        """Send it a connection; ``client_end`` is a copy of its other end, if there is one. Take over both."""
        self._dispatcher.hold(session_name(note.client), connection, msgspec.json.encode(note))
        self._queue.append(Handoff(note, connection, client_end))
        self._arrived.set()
        if self._is_closed:
            self.close()

    async def run(self, link: ServerLink) -> None:
        """Send connections one after another, for the server takes the next when the client has answered it."""
        while True:
            while not self._queue:
                self._arrived = trio.Event()
                await self._arrived.wait()
            session = self._queue.popleft()
            try:
                self._send(link, session.note, session.connection)
                answered = trio.Event()
                link.ask(commands.status(), partial(self._taken, answered))
                with trio.move_on_after(FIRST_WORDS_SECONDS):
                    await answered.wait()
                if not (answered.is_set() or is_stopped(self._pid)):
                    self._answer_for(session)
                await answered.wait()
            finally:
                if session.client_end >= 0:
                    os.close(session.client_end)

    def _answer_for(self, session: Handoff) -> None:
        """Free the server from a client that does not answer it: others would wait as long as that one.

        Driver 580's server never goes on if such a client leaves without a word; after a word of anybody's it does.
        """
        self._dispatcher.log.warning("client_mute", server=self._pid, seconds=FIRST_WORDS_SECONDS)
        if session.client_end >= 0:
            with suppress(OSError), socket.socket(fileno=os.dup(session.client_end)) as end:
                end.send(b"\0", socket.MSG_DONTWAIT)
                end.shutdown(socket.SHUT_RDWR)

    def _send(self, link: ServerLink, note: SessionNote, connection: int) -> None:
        # Before it is sent: the next daemon must not send it once more.
        self._dispatcher.drop(session_name(note.client))
        if note.priority != self.priority:
            self.priority = note.priority
            link.tell(commands.set_priority(note.priority))
        link.tell(commands.NEW_CLIENT, connection)

    def _taken(self, answered: trio.Event, status: int) -> None:
        answered.set()
        self._dispatcher.feed(events.StatusPushed(self._server, STATUS[status]))

    def close(self) -> None:
        """Close what the server, which has ended, has not been sent, and what is added from now on."""
        self._is_closed = True
        for session in self._queue:
            self._dispatcher.drop(session_name(session.note.client))
            for fd in (session.connection, session.client_end):
                if fd >= 0:
                    os.close(fd)
        self._queue.clear()
