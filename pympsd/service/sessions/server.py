"""Run the daemon's side of a server's link: turn the server's messages into events, and its log records into lines.

A server runs as its user and is not trusted: every message is checked before it becomes an event, a message that
violates the protocol ends the server, and log lines are limited, cleaned and counted. Messages to a server that does
not read are queued up to a limit, above which the server's clients are refused.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import trio
from attrs import asdict, define, evolve, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.channel.trace_file import TraceFile
from pympsd.devices.machine import MAX_DEVICES
from pympsd.errors import RemoteError
from pympsd.journal.catalogue import RENAMED_SERVER_EVENTS
from pympsd.journal.line_format import sanitise
from pympsd.process.version import CLIENT_CONTEXTS
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.status import process_end
from pympsd.service.rate_limit import RateLimit, cost_of
from pympsd.state_machine import events
from pympsd.state_machine.state.client import ClientProcess
from pympsd.takeover.keeper.packets import NOTE_BYTES
from pympsd.vocabulary.limit_table import ClientLimits, count_bytes, percentages
from pympsd.vocabulary.phases import IllegalMove
from pympsd.vocabulary.results import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.messages import Versions, agree

LOG_RECORDS_PER_SECOND: Final = 5000
"""The number of log lines that one server and its clients may cause per second."""
MAX_CONTEXTS: Final = MAX_DEVICES * max(CLIENT_CONTEXTS.values())
"""The maximum number of contexts of all clients of a server, on all devices, for any branch of the driver."""
QUEUED_CLIENTS_BYTES: Final = 4 << 20
"""The number of bytes that may be queued for a server.

Above it, its clients are refused; above twice as much, its link is closed.
"""


@define
class ServerSession:
    """A running server. A server that an earlier daemon started has no channel until it returns."""

    id: int
    uid: int
    pid: int
    kill: Callable[[], None]
    """The function that kills the server's process, which is a child of this daemon or of an earlier one."""
    _channel: MessageChannel | None = None
    is_set_up: bool = field(default=False, init=False)
    """Whether the server has been sent its devices and limits."""
    _held: list[object] = field(factory=list, init=False)
    """The messages to send when the server is set up."""
    _rate_limit: RateLimit = field(factory=lambda: RateLimit(LOG_RECORDS_PER_SECOND), init=False)
    _dropped: int = field(default=0, init=False)
    _trace_stopped: trio.Event = field(factory=trio.Event, init=False)
    _watched: dict[int, trio.CancelScope] = field(factory=dict, init=False)
    """The scope of the task that waits for the end of a client's process, by the client's id."""

    @property
    def channel(self) -> MessageChannel:
        """The link to the server, which exists whenever a client is admitted."""
        assert self._channel is not None
        return self._channel

    def take_over(self, channel: MessageChannel) -> None:
        """Take over a returned server, and send it the held messages."""
        self._channel = channel
        channel.send(link.ServerAdopted())
        self._send_held()

    def admit(
        self,
        client: int,
        process: ClientProcess,
        priority: int,
        environment: dict[str, str],
        limits: ClientLimits | None,
        fds: tuple[int, ...],
    ) -> None:
        """Send the server a client; take over ``fds``: the server's end of the session, and the client's pidfd, if
        any.
        """
        peer = process.peer
        identity = client, peer.pid, peer.uid, process.command, process.pid_namespace
        message = link.AdmitClient(*identity, peer.gid, priority, environment, since=process.since)
        if limits is not None:
            values = asdict(limits, recurse=False)
            namespace = values.pop("namespace")
            message = evolve(message, mps_namespace=namespace, **values, **_translate_for_older_servers(limits))
        self.channel.send(message, fds)

    def shut_down(self, forced: bool, is_deletion: bool) -> None:
        """Request that the server end after its last client or, if ``forced``, immediately.

        ``is_deletion``: clients get the reason that the server was deleted.
        """
        self.send(link.ShutDown(forced, is_deletion))

    def set_limits(self, percentage: float, memory_limits: dict[int, int]) -> None:
        """Send the server the limits for its next clients."""
        self.send(link.LimitsChanged(percentage, memory_limits))

    def terminate(self, token: int, pid: int, by_reset: bool, evicted: tuple[int, ...]) -> None:
        """Request that the server end a client process's contexts; clients in ``evicted`` cannot create new ones."""
        self.send(link.TerminateClient(token, pid, by_reset, evicted))

    def note_waiting(self) -> None:
        """Do nothing, because the server reports by itself that clients have gone."""

    def start_trace(self, trace: TraceFile) -> None:
        """Let the server's executors write to a trace, from when the server is set up."""
        if self.is_set_up:
            with suppress(OSError):  # if descriptors run out, the server's devices are missing in the trace
                self.channel.send(link.StartTrace(), (trace.duplicate(),))

    async def stop_trace(self) -> None:
        """Let the executors stop writing to the trace, and return when they have."""
        if self.is_set_up:
            self._trace_stopped = trio.Event()
            self.channel.send(link.StopTrace())
            await self._trace_stopped.wait()

    async def refresh(self) -> bool:
        """Do nothing, because the server reports changes itself."""
        return True

    def send(self, message: object) -> None:
        """Send the server a message, or hold it until the server is set up."""
        if self.is_set_up:
            self.channel.send(message)
        else:
            self._held.append(message)

    @property
    def queued_descriptors(self) -> int:
        """The number of descriptors that were sent to the server and that it has not received yet."""
        return self._channel.queued_descriptors if self._channel is not None else 0

    @property
    def watched_clients(self) -> int:
        """The number of clients whose processes are watched."""
        return len(self._watched)

    @property
    def has_room(self) -> bool:
        """Whether the hello of another client may be queued for the server."""
        channel = self._channel
        return channel is None or (
            channel.queued_bytes < QUEUED_CLIENTS_BYTES and channel.allowance.has_room(NOTE_BYTES)
        )

    def watch(self, dispatcher: Dispatcher, client: int, pidfd: int) -> None:
        """Feed ClientEnded if a client's process ends before the server reports it; take over the pidfd.

        Do nothing if too many clients are watched, or without a pidfd (-1): then only the server reports the end.
        """
        server = dispatcher.state.servers.get(self.id)
        is_known = server is not None and client in server.clients
        if pidfd >= 0 and is_known and dispatcher.may_watch(self):
            self._watched[client] = trio.CancelScope()
            dispatcher.nursery.start_soon(self._watch, dispatcher, client, pidfd, self._watched[client])
        elif pidfd >= 0:
            os.close(pidfd)

    def watch_by_pid(self, dispatcher: Dispatcher, client: int, pid: int) -> None:
        """Watch a client that an earlier daemon admitted.

        If another process has the client's PID by now, the client's end is reported late, but never too early.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            dispatcher.feed(events.ClientEnded(self.id, client))
        except (OSError, OverflowError):
            return
        else:
            self.watch(dispatcher, client, pidfd)

    async def _watch(self, dispatcher: Dispatcher, client: int, pidfd: int, scope: trio.CancelScope) -> None:
        try:
            # If the system cannot watch more descriptors (epoll(7)), the server reports the end.
            with suppress(OSError), scope:
                await process_end(pidfd)
                dispatcher.feed(events.ClientEnded(self.id, client))
        finally:
            os.close(pidfd)

    def _unwatch(self, clients: Iterable[int]) -> None:
        for client in clients:
            if client in self._watched:
                self._watched.pop(client).cancel()

    async def run(self, dispatcher: Dispatcher) -> None:
        """Handle the server's messages until it ends; kill a server that violates the protocol."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.channel.run_sender)
            try:
                while (received := await self.channel.receive_message()) is not None:
                    self.handle(dispatcher, received[0])
            except RemoteError as error:
                dispatcher.log.error("server_misbehaved", server=self.pid, reason=str(error))
                self.kill()
            nursery.cancel_scope.cancel()
        self._unwatch(tuple(self._watched))
        self._report_dropped(dispatcher)

    def handle(self, dispatcher: Dispatcher, message: object) -> None:
        """Handle one message; raise RemoteError if it violates the protocol."""
        match message:
            case link.ServerHello(versions):
                self._set_up(dispatcher, versions)
            case link.StatusChanged(status):
                if status not in set(ServerStatus):
                    raise RemoteError(f"{status!r} is not a server status")
                try:
                    dispatcher.feed(events.StatusPushed(self.id, status))
                except IllegalMove as error:
                    raise RemoteError(str(error)) from None
            case link.StartRefused(reason):
                dispatcher.feed(events.StartRefused(self.id, sanitise(reason.encode())))
            case link.ClientJoined(client, limits):
                if not limits.is_possible(len(dispatcher.state.devices)):
                    raise RemoteError("a client cannot have the limits that it reports")
                dispatcher.feed(events.ClientJoined(self.id, client, limits))
            case link.ContextReported(client, context_id, number, device):
                if not 0 <= device < len(dispatcher.state.devices):
                    raise RemoteError(f"there is no device {device}")
                server = dispatcher.state.servers.get(self.id)
                if server is not None and sum(len(c.contexts) for c in server.clients.values()) >= MAX_CONTEXTS:
                    raise RemoteError(f"more than {MAX_CONTEXTS} contexts at a time")
                pushed = events.ContextPushed(self.id, client, context_id, number, device)
                dispatcher.feed(pushed, quiet=not self._may_log(dispatcher))
            case link.ContextGone(client, context_id):
                dispatcher.feed(events.ContextGonePushed(self.id, client, context_id))
            case link.MemoryReported() as report:
                devices = dispatcher.state.devices
                memory_bytes = devices[report.device].memory_bytes if 0 <= report.device < len(devices) else -1
                if not report.is_possible(memory_bytes):
                    raise RemoteError(f"nobody holds such memory on device {report.device}")
                dispatcher.feed(events.MemoryPushed(self.id, report.device, report))
            case link.ClientGone(client):
                self._unwatch((client,))
                dispatcher.feed(events.ClientGonePushed(self.id, client))
            case link.Terminated(token, code):
                dispatcher.feed(events.TerminationAnswered(self.id, token, code))
            case link.TraceStopped():
                self._trace_stopped.set()
            case link.LogRecord():
                self._log(dispatcher, message)
            case link.LogDropped(count):
                self._dropped += max(count, 0)  # reported with the next line: reports count as lines, too
            case _:
                raise RemoteError(f"{type(message).__name__} is not for the daemon")

    def _set_up(self, dispatcher: Dispatcher, versions: Versions) -> None:
        """Send the server its devices and limits; raise RemoteError if its versions are not supported."""
        if agree(Versions(), versions) is None:
            raise RemoteError(f"the server speaks versions {versions.oldest} to {versions.newest}")
        setup = link.ServerSetup(
            uid=self.uid,
            control_socket=dispatcher.keeper.directory.control_socket,
            backend=dispatcher.settings.backend,
            devices=dispatcher.state.devices,
            thread_percentage=dispatcher.state.servers[self.id].thread_percentage.value,
            client_priority=dispatcher.state.defaults.client_priority.level,
            memory_limits={n: limit.value for n, limit in dispatcher.state.servers[self.id].memory_limits.items()},
            machine=dispatcher.settings.emulated_devices,
            used=dispatcher.state.ordinals_of(dispatcher.state.servers[self.id]),
            static=dispatcher.state.options.static,
        )
        self.channel.send(setup)
        self._send_held()
        dispatcher.tracing.include(self)

    def _send_held(self) -> None:
        self.is_set_up = True
        for message in self._held:
            self.channel.send(message)
        self._held.clear()

    def _log(self, dispatcher: Dispatcher, record: link.LogRecord) -> None:
        if not self._may_log(dispatcher, *(str(part) for field in record.fields.items() for part in field)):
            return
        fields = {**record.fields, **self._place(dispatcher, record)}
        try:
            # The server's user controls the content, so no field may start a new line.
            clean = {name: sanitise(v.encode()) if isinstance(v, str) else v for name, v in fields.items()}
            is_volta = any(device.is_volta_or_newer for device in dispatcher.state.devices)
            event = RENAMED_SERVER_EVENTS.get(record.event, record.event)
            dispatcher.journal.write_server("Server", self.pid, event, clean, record.time, is_volta)
        except (KeyError, IndexError, ValueError, OverflowError, OSError) as error:
            raise RemoteError(f"a log record that is not in the catalogue: {record.event!r} ({error})") from None

    def _place(self, dispatcher: Dispatcher, record: link.LogRecord) -> dict[str, str]:
        """Return the log field that names a record's namespace or its server; none if the server has only one
        namespace.
        """
        server = dispatcher.state.servers.get(self.id)
        named_server = dispatcher.state.named_servers.get(server.name) if server is not None else None
        if named_server is None or len(named_server.namespaces) == 1 or "namespace" in record.fields:
            return {}
        return {"place": f"{named_server.name}/{record.namespace}" if record.namespace else named_server.name}

    def _may_log(self, dispatcher: Dispatcher, *texts: str) -> bool:
        """Return whether the server may cause log lines with these texts.

        First log how many of its lines were dropped.
        """
        cost = cost_of([" ".join(texts)])
        if self._rate_limit.take(cost, trio.current_time()) < cost:
            self._dropped += 1
            return False
        self._report_dropped(dispatcher)
        return True

    def _report_dropped(self, dispatcher: Dispatcher) -> None:
        if self._dropped:
            dispatcher.journal.write_server("Server", self.pid, "records_dropped", {"count": self._dropped})
            self._dropped = 0


def _translate_for_older_servers(limits: ClientLimits) -> dict[str, Any]:
    """Return the fields of AdmitClient for servers of an earlier pympsd, which take one combined limit of each kind.

    Their percentage is the same on all devices, so they get the smallest one.
    """
    combined = limits.combine()
    bounds = (bound.client_priority.level for bound in limits.bounds if bound.client_priority is not None)
    return {
        "thread_percentage": min((combined.thread_percentage or percentages(100)).values()).value,
        "memory_limits": count_bytes(combined.pinned_memory),
        "least_priority": max(bounds, default=0),
    }
