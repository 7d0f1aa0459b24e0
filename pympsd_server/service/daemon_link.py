"""The server's side of its link to the daemon: push status and client table; drop log records if the link is full.

The link outlives a daemon that is killed: the next one continues with it, and requests a report of everything that
was pushed.
"""

import os
from typing import Any, Final

import trio
from attrs import asdict, define, evolve, field, fields, frozen

from pympsd.channel.message_channel import MessageChannel
from pympsd.journal.setup import Fields
from pympsd.vocabulary.device_properties import DeviceUse
from pympsd.vocabulary.limits import LimitsInForce
from pympsd.vocabulary.results import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.messages import Versions

MAX_LOG_BYTES: Final = 1 << 20
"""The number of unsent bytes above which log records are dropped and counted."""
MAX_CLIENT_TABLE_BYTES: Final = 4 << 20
"""The number of unsent bytes above which changes of the client table wait: without a daemon nobody reads the link."""


@frozen
class Admitted:
    """A client as the daemon handed it over, and the contexts that were pushed."""

    message: link.AdmitClient
    contexts: dict[int, tuple[int, int, int]] = field(factory=dict)
    """The id, number and device of each context, by context id."""
    limits: LimitsInForce | None = None
    """The limits that apply to the client; None until it is accepted."""


@define
class DaemonLink:
    """Sends to the daemon without waiting, and keeps what the next daemon needs."""

    channel: MessageChannel
    is_disconnected: bool = field(default=False, init=False)
    """Whether a daemon has dismissed this server, after which nothing is sent."""
    _sender: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _status: str = field(default=ServerStatus.INITIALIZING, init=False)
    _clients: dict[int, Admitted] = field(factory=dict, init=False)
    _last_left: Admitted | None = field(default=None, init=False)
    """The client that has left most recently. Later log lines may still name it."""
    _dropped: int = field(default=0, init=False)
    _late: dict[tuple[int, int], object] = field(factory=dict, init=False)
    """The changes that wait, by client and context.

    A context that is opened and closed meanwhile is removed from them.
    """
    _use: dict[int, link.MemoryReported] = field(factory=dict, init=False)
    """The last memory report of each device."""
    _is_late: trio.Event = field(factory=trio.Event, init=False)

    # --- messages

    def log(self, event: str, fields: Fields, when: float) -> None:
        """Send a log record, or drop and count it."""
        if self.channel.queued_bytes > MAX_LOG_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            self._push(link.LogDropped(self._dropped))
            self._dropped = 0
        # The record names the namespace of the process's clients, if all of them have the same one.
        pid = fields.get("pid")
        clients = [admitted.message for admitted in self._clients.values() if admitted.message.pid == pid]
        if not clients and self._last_left is not None and self._last_left.message.pid == pid:
            clients = [self._last_left.message]
        namespaces = {client.mps_namespace for client in clients}
        self._push(link.LogRecord(event, fields, when, namespaces.pop() if len(namespaces) == 1 else ""))

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

    def client_joined(self, client: int, limits: LimitsInForce) -> None:
        """Push the limits that apply to a client."""
        if client in self._clients:
            self._clients[client] = evolve(self._clients[client], limits=limits)
        self._change((client, 0), link.ClientJoined(client, limits))

    def context_opened(self, client: int, context_id: int, number: int, device: int) -> None:
        """Push a new context."""
        if client in self._clients:
            self._clients[client].contexts[context_id] = (context_id, number, device)
        self._change((client, context_id), link.ContextReported(client, context_id, number, device))

    def context_closed(self, client: int, context_id: int) -> None:
        """Push the end of a context."""
        if client in self._clients:
            self._clients[client].contexts.pop(context_id, None)
        if isinstance(self._late.get((client, context_id)), link.ContextReported):
            del self._late[client, context_id]
        else:
            self._change((client, context_id), link.ContextGone(client, context_id))

    def client_left(self, client: int) -> None:
        """Push the end of a client."""
        self._last_left = self._clients.pop(client, None)
        self._change((client, 0), link.ClientGone(client))

    def device_used(self, device: int, use: DeviceUse) -> None:
        """Push how this server uses a device."""
        self._use[device] = link.MemoryReported(**asdict(use, recurse=False), device=device)
        self._change((0, device), self._use[device])

    def answer_termination(self, token: int, code: int) -> None:
        """Answer a termination; the next daemon ignores the answer to a dead one's request."""
        self._push(link.Terminated(token, code))

    def trace_stopped(self) -> None:
        """Report that the executors have stopped writing to the trace."""
        self._push(link.TraceStopped())

    # --- takeover by the next daemon

    def report(self, token: int, leaving: bool) -> None:
        """Report status and client table to a daemon that has taken over the link; later changes follow."""
        self._late.clear()
        self._push(link.ServerReturn(Versions(), os.getpid(), self._status, leaving, len(self._clients), token))
        for admitted in self._clients.values():
            client, contexts = admitted.message, tuple(admitted.contexts.values())
            report: dict[str, Any] = {part.name: getattr(client, part.name) for part in fields(link.ClientIdentity)}
            partitions = {device: partition.name for device, partition in client.partitions.items()}
            report |= {"partitions": partitions, "groups": client.groups, "limits": admitted.limits}
            self._push(link.ReturningClient(**report, contexts=contexts))

    def report_all_use(self) -> None:
        """Report how this server uses all devices to a daemon that has taken over the link."""
        for report in self._use.values():
            self._push(report)

    async def run_sender(self) -> None:
        """Send the channel's queue, until the link is disconnected."""
        with self._sender:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_late)
                await self.channel.run_sender()
                nursery.cancel_scope.cancel()

    def disconnect(self) -> None:
        """Close the channel; nothing more is sent."""
        self.is_disconnected = True
        self._sender.cancel()
        self.channel.close()

    async def _send_late(self) -> None:
        while True:
            await self._is_late.wait()
            await self.channel.drain()
            self._is_late = trio.Event()
            for message in self._late.values():
                self._push(message)
            self._late.clear()

    def _change(self, key: tuple[int, int], message: object) -> None:
        if self._late or self.channel.queued_bytes > MAX_CLIENT_TABLE_BYTES:
            self._late[key] = message
            self._is_late.set()
        else:
            self._push(message)

    def _push(self, message: object) -> None:
        if not self.is_disconnected:
            self.channel.send(message)
