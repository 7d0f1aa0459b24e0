"""The server's side of its link to the daemon: it pushes status and roster, and drops log records when it is full.

The link keeps what it has pushed, to report all of it to the next daemon after a daemon's death.
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
"""The limit of unsent bytes, beyond which log records are dropped and counted."""
KEPT_RECORDS: Final = 4096
"""The limit of log records kept while there is no daemon; the oldest are dropped and counted."""


@frozen
class Admitted:
    """A client as the daemon handed it over, and its contexts as pushed."""

    message: link.AdmitClient
    contexts: dict[int, tuple[int, int, int]] = field(factory=dict)
    """(serial, number, device) by serial."""


@define
class DaemonLink:
    """Sends to the daemon without waiting; without a daemon it keeps what to report."""

    channel: MessageChannel
    is_disconnected: bool = field(default=False, init=False)
    """Whether there is no daemon, so that nothing is sent."""
    sender: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The scope of the task that sends what the channel has queued."""
    _is_adopted: bool = field(default=True, init=False)
    """Whether a daemon has accepted this server, so that it takes log records."""
    _status: str = field(default=ServerStatus.INITIALIZING, init=False)
    _clients: dict[int, Admitted] = field(factory=dict, init=False)
    _kept: deque[link.LogRecord] = field(factory=deque, init=False)
    _dropped: int = field(default=0, init=False)

    # --- messages

    def log(self, event: str, fields: Fields, when: float) -> None:
        """Send a log record, keep it for the next daemon, or drop and count it."""
        record = link.LogRecord(event, fields, when)
        if not self._is_adopted:
            self._keep(record)
            return
        if self.channel.queued_bytes > LOG_BYTES:
            self._dropped += 1
            return
        self._report_dropped()
        self.channel.send(record)

    def status(self, status: ServerStatus) -> None:
        """Push the server's status."""
        self._status = status
        self._push(link.StatusChanged(status))

    def start_refused(self, reason: str) -> None:
        """Push the reason why the server cannot start."""
        self._push(link.StartRefused(reason))

    def client_admitted(self, message: link.AdmitClient) -> None:
        """Keep a client that the daemon has handed over."""
        self._clients[message.client] = Admitted(message)

    def context_opened(self, client: int, serial: int, number: int, device: int) -> None:
        """Push a new context."""
        if client in self._clients:
            self._clients[client].contexts[serial] = (serial, number, device)
        self._push(link.ContextReported(client, serial, number, device))

    def context_closed(self, client: int, serial: int) -> None:
        """Push the end of a context."""
        if client in self._clients:
            self._clients[client].contexts.pop(serial, None)
        self._push(link.ContextGone(client, serial))

    def client_left(self, client: int) -> None:
        """Push the end of a client."""
        self._clients.pop(client, None)
        self._push(link.ClientGone(client))

    def terminated(self, token: int, code: int) -> None:
        """Answer a termination; the answer to a dead daemon's request is dropped."""
        self._push(link.Terminated(token, code))

    # --- between two daemons

    def disconnect(self) -> None:
        """Close the channel: the daemon is gone."""
        self.is_disconnected, self._is_adopted = True, False
        self.sender.cancel()
        self.sender = trio.CancelScope()
        self.channel.close()

    async def run_sender(self, channel: MessageChannel, scope: trio.CancelScope) -> None:
        """Send what a channel has queued, until the link is disconnected."""
        with scope:
            await channel.run_sender()

    def reconnect(self, channel: MessageChannel, leaving: bool) -> None:
        """Report status and roster to a new daemon; later changes follow."""
        self.channel, self.is_disconnected = channel, False
        for message in self._report(leaving):
            channel.send(message)

    def adopted(self) -> None:
        """Send the kept log records to the new daemon, which has accepted this server."""
        self._is_adopted = True
        self._report_dropped()
        while self._kept:
            self.channel.send(self._kept.popleft())

    def _report(self, leaving: bool) -> Iterator[object]:
        yield link.ServerReturn(Versions(), os.getpid(), self._status, leaving, len(self._clients))
        for serial, admitted in self._clients.items():
            client, contexts = admitted.message, tuple(admitted.contexts.values())
            yield link.ReturningClient(serial, client.pid, client.uid, client.command, client.namespace, contexts)

    def _push(self, message: object) -> None:
        if not self.is_disconnected:
            self.channel.send(message)

    def _keep(self, record: link.LogRecord) -> None:
        if len(self._kept) >= KEPT_RECORDS:
            self._kept.popleft()
            self._dropped += 1
        self._kept.append(record)

    def _report_dropped(self) -> None:
        if self._dropped:
            self.channel.send(link.LogDropped(self._dropped))
            self._dropped = 0
