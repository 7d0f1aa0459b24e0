"""The server's side of its link to the daemon: status and roster are pushed, log records dropped when it is full."""

from __future__ import annotations

from typing import Final

from attrs import define

from pympsd.channel.awaited import MessageChannel
from pympsd.journal.setup import Fields
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire import link_messages as link

LOG_BYTES: Final = 1 << 20
"""With more than this unsent, log records are dropped and counted."""


@define
class DaemonLink:
    """Says things to the daemon; never waits, and says nothing more once the daemon is gone."""

    channel: MessageChannel
    _dropped: int = 0

    def log(self, event: str, fields: Fields, when: float) -> None:
        """Send a log record, or count it as dropped."""
        if self.channel.queued_bytes > LOG_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            self.channel.send(link.LogDropped(self._dropped))
            self._dropped = 0
        self.channel.send(link.LogRecord(event, fields, when))

    def status(self, status: ServerStatus) -> None:
        """Push the server's status."""
        self.channel.send(link.StatusChanged(status))

    def context_made(self, client: int, serial: int, number: int, device: int) -> None:
        """Push a new context."""
        self.channel.send(link.ContextReported(client, serial, number, device))

    def context_gone(self, client: int, serial: int) -> None:
        """Push the end of a context."""
        self.channel.send(link.ContextGone(client, serial))

    def client_gone(self, client: int) -> None:
        """Push the end of a client."""
        self.channel.send(link.ClientGone(client))

    def terminated(self, token: int, code: int) -> None:
        """Answer a termination."""
        self.channel.send(link.Terminated(token, code))
