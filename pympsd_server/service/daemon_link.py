"""The server's side of its link to the daemon: status and roster are pushed, log records dropped when it is full.

The link remembers what it has pushed: when the daemon has died, the next one is told all of it at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Final

import trio
from attrs import define, field, frozen

from pympsd.channel.message_channel import MessageChannel
from pympsd.journal.setup import Fields
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.versions import Versions

LOG_BYTES: Final = 1 << 20
"""With more than this unsent, log records are dropped and counted."""
KEPT_RECORDS: Final = 4096
"""Log records kept while there is no daemon; the oldest are dropped, and counted."""


@frozen
class Admitted:
    """A client as the daemon handed it over, with its contexts as they were pushed."""

    message: link.AdmitClient
    contexts: dict[int, tuple[int, int, int]] = field(factory=dict)
    """(serial, number, device) by serial."""


@define
class DaemonLink:
    """Says things to the daemon; never waits. Without one, what it says is remembered."""

    channel: MessageChannel
    adrift: bool = field(default=False, init=False)
    """There is no daemon: nothing is sent."""
    sender: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Around the task that sends what the channel has queued."""
    _received: bool = field(default=True, init=False)
    """A daemon has taken this server in: it takes log records."""
    _status: str = field(default=ServerStatus.INITIALIZING, init=False)
    _clients: dict[int, Admitted] = field(factory=dict, init=False)
    _kept: deque[link.LogRecord] = field(factory=deque, init=False)
    _dropped: int = field(default=0, init=False)

    # --- what is said

    def log(self, event: str, fields: Fields, when: float) -> None:
        """Send a log record, or keep it for the next daemon, or count it as dropped."""
        record = link.LogRecord(event, fields, when)
        if not self._received:
            self._keep(record)
            return
        if self.channel.queued_bytes > LOG_BYTES:
            self._dropped += 1
            return
        self._tell_of_dropped()
        self.channel.send(record)

    def status(self, status: ServerStatus) -> None:
        """Push the server's status."""
        self._status = status
        self._push(link.StatusChanged(status))

    def start_refused(self, reason: str) -> None:
        """Tell why the server cannot start."""
        self._push(link.StartRefused(reason))

    def client_came(self, message: link.AdmitClient) -> None:
        """Remember a client that the daemon has handed over."""
        self._clients[message.client] = Admitted(message)

    def context_made(self, client: int, serial: int, number: int, device: int) -> None:
        """Push a new context."""
        if client in self._clients:
            self._clients[client].contexts[serial] = (serial, number, device)
        self._push(link.ContextReported(client, serial, number, device))

    def context_gone(self, client: int, serial: int) -> None:
        """Push the end of a context."""
        if client in self._clients:
            self._clients[client].contexts.pop(serial, None)
        self._push(link.ContextGone(client, serial))

    def client_gone(self, client: int) -> None:
        """Push the end of a client."""
        self._clients.pop(client, None)
        self._push(link.ClientGone(client))

    def terminated(self, token: int, code: int) -> None:
        """Answer a termination; whoever asked a daemon that has died is not there to hear it."""
        self._push(link.Terminated(token, code))

    # --- between two daemons

    def lose(self) -> None:
        """The daemon is gone."""
        self.adrift, self._received = True, False
        self.sender.cancel()
        self.sender = trio.CancelScope()
        self.channel.close()

    async def run_sender(self, channel: MessageChannel, scope: trio.CancelScope) -> None:
        """Send what a channel has queued, until it is lost."""
        with scope:
            await channel.run_sender()

    def knock(self, channel: MessageChannel, leaving: bool) -> None:
        """Say to a new daemon who and what is here; what happens from now on is said after it."""
        self.channel, self.adrift = channel, False
        for message in self._report(leaving):
            channel.send(message)

    def taken_in(self) -> None:
        """The new daemon takes this server's word: it gets the log of the time between."""
        self._received = True
        self._tell_of_dropped()
        while self._kept:
            self.channel.send(self._kept.popleft())

    def _report(self, leaving: bool) -> Iterator[object]:
        yield link.ServerReturn(Versions(), os.getpid(), self._status, leaving, len(self._clients))
        for serial, admitted in self._clients.items():
            told, contexts = admitted.message, tuple(admitted.contexts.values())
            yield link.ReturningClient(serial, told.pid, told.uid, told.command, told.namespace, contexts)

    def _push(self, message: object) -> None:
        if not self.adrift:
            self.channel.send(message)

    def _keep(self, record: link.LogRecord) -> None:
        if len(self._kept) >= KEPT_RECORDS:
            self._kept.popleft()
            self._dropped += 1
        self._kept.append(record)

    def _tell_of_dropped(self) -> None:
        if self._dropped:
            self.channel.send(link.LogDropped(self._dropped))
            self._dropped = 0
