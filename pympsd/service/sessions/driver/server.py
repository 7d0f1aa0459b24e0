"""Run the session of the driver's server: poll it for the reports that pympsd's own servers send by themselves.

The daemon asks the server when an operator queries it, and while a client waits for the server to end. It also
watches the processes of the server's clients, so the next user's turn begins when the last one ends.
"""

import random
import re
from collections.abc import Callable
from typing import Final

import trio
from attrs import Factory, define, field

from pympsd.channel.packet_channel import PacketChannel
from pympsd.channel.trace_file import TraceFile
from pympsd.devices.driver_probe import driver_version
from pympsd.errors import RemoteError
from pympsd.journal.catalogue import SERVER_LINES
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.processes.status import is_stopped
from pympsd.service.sessions.driver.handoffs import STATUS, Handoffs
from pympsd.service.sessions.driver.server_link import ServerLink
from pympsd.service.sessions.driver.watched_clients import WatchedClients
from pympsd.state_machine import events
from pympsd.state_machine.state.client import Client, ReportedContext
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limit_table import ClientLimits, count_bytes, percentage_on
from pympsd.vocabulary.limits import MAX_MEMORY
from pympsd.vocabulary.results import Result, ServerStatus
from pympsd.wire.driver import server_commands as commands
from pympsd.wire.driver.handshake import encode_defaults, shared_memory_of

ANSWER_SECONDS: Final = 1.0
"""The longest time that an operator waits for a server's answers."""
FIRST_PAUSE: Final = 0.02
"""The pause in seconds after the daemon first asks a server whether its clients have gone. Each later pause is twice
as long, up to LAST_PAUSE.
"""
LAST_PAUSE: Final = 0.1
LOGGED_PAUSE: Final = 1.6
"""The longest pause in seconds, instead of LAST_PAUSE, if the server has clients: it then logs each question."""

_FULL: Final = re.compile(re.escape(str(SERVER_LINES["connection_limit"].r580)).replace(r"\{most\}", r"(\d{1,6})"))
"""The line that the server logs when a device has no connection left for a client."""


@define(eq=False)
class DriverServerSession:
    """The session with a process of the driver's server. The process has no link to the daemon until it registers."""

    dispatcher: Dispatcher
    id: int
    uid: int
    pid: int
    kill: Callable[[], None]
    taken_over: dict[int, Client] | None = None
    """The clients of a server that an earlier daemon started, by id."""
    pidfds: dict[int, int] = field(factory=dict)
    """The pidfds of the clients in ``taken_over``, until these are watched."""
    _is_leaving: bool = False
    """Whether the server was asked to end when its last client has gone."""
    registered: trio.Event = field(factory=trio.Event, init=False)
    ended: trio.Event = field(factory=trio.Event, init=False)
    """The event that is set when the server's connection has ended."""
    _link: ServerLink | None = field(default=None, init=False)
    _percentage: float = field(default=100.0, init=False)
    _memory_limits: dict[int, int] = field(factory=dict, init=False)
    """The memory limits for new clients, in bytes by device ordinal, that were last sent to the server."""
    _limits_unknown: bool = field(
        default=Factory(lambda self: self.taken_over is not None, takes_self=True), init=False
    )
    """True if an earlier daemon started the server, and this daemon has not sent the server limits yet."""
    _refreshed: trio.Event | None = field(default=None, init=False)
    """The event that is set when the running refresh has all its answers; None if no refresh runs."""
    _requested_at: float = field(default=0.0, init=False)
    _ends: bool = field(default=False, init=False)
    """Whether the server has answered a question by reporting that it is ending."""
    _wanted: trio.Event = field(factory=trio.Event, init=False)
    """The event that is set while a client or user waits for the server to end."""
    _changed: trio.Event = field(factory=trio.Event, init=False)
    """The event that is set when a client's process has ended."""
    _nursery: trio.Nursery | None = field(default=None, init=False)
    clients: WatchedClients = field(
        default=Factory(
            lambda self: WatchedClients(self.dispatcher, self.id, self.ended, self._note_gone), takes_self=True
        ),
        init=False,
    )
    handoffs: Handoffs = field(
        default=Factory(
            lambda self: Handoffs(self.dispatcher, self.id, self.pid, set_limits=self._set_next), takes_self=True
        ),
        init=False,
    )

    @property
    def queued_descriptors(self) -> int:
        """Always 0, because the driver's server gets a client only when it can take one."""
        return 0

    @property
    def watched_clients(self) -> int:
        """The number of clients whose processes are watched."""
        return len(self.clients)

    @property
    def has_room(self) -> bool:
        """Always true, because clients are not queued for the driver's server."""
        return True

    @property
    def link(self) -> ServerLink:
        """The connection to the server, which exists whenever a client is admitted."""
        assert self._link is not None
        return self._link

    def _register(self, channel: PacketChannel, registration: bytes) -> None:
        """Accept the server's registration, and send the limits for its clients. Raise RemoteError."""
        shared_memory_of(registration)
        server = self.dispatcher.state.servers[self.id]
        self._percentage = server.thread_percentage.value
        self.handoffs.priority = self.dispatcher.state.defaults.client_priority.level
        self._memory_limits = {device: limit.value for device, limit in server.memory_limits.items()}
        self._link = ServerLink(channel)
        self._link.send(encode_defaults(self._percentage, self._memory_limits, self.handoffs.priority))
        self.registered.set()
        self._ask_devices()

    def _ask_devices(self) -> None:
        if not self.dispatcher.state.devices:
            self.link.ask(commands.devices(), self._report_devices)

    def _report_devices(self, devices: tuple[commands.ServerDevice, ...]) -> None:
        driver = self.dispatcher.state.options.driver
        properties = (
            DeviceProperties(device.name, device.uuid, device.pci, (7, 0), 0, 0, {}, driver=driver)
            for device in devices
        )
        self.dispatcher.feed(events.DevicesReported(tuple(properties)))

    def set_limits(self, percentage: float, memory_limits: dict[int, int]) -> None:
        """Send a registered server the limits for its new clients, if they have changed."""
        if self._link is None:
            return
        if percentage != self._percentage:
            self._percentage = percentage
            self.link.send(commands.set_percentage(percentage))
        for device, limit in self._effective(memory_limits).items():
            if self._memory_limits.get(device) != limit:
                self.link.send(commands.set_memory_limit(device, limit))
        self._memory_limits = memory_limits

    def _set_next(self, limits: ClientLimits) -> None:
        """Send the server the limits for its next client, except limits that were sent already."""
        if self._limits_unknown:
            # An earlier daemon may have sent other limits.
            self._limits_unknown = False
            count = len(self.dispatcher.state.devices)
            self._percentage, self._memory_limits = 0.0, dict.fromkeys(range(count), 0)
        combined = limits.combine()
        self.set_limits(percentage_on(combined).value, count_bytes(combined.pinned_memory))

    def _effective(self, memory_limits: dict[int, int]) -> dict[int, int]:
        """Return the limits to send: a removed limit becomes the device's whole memory."""
        devices = self.dispatcher.state.devices
        removed = {
            device: devices[device].memory_bytes or MAX_MEMORY
            for device in self._memory_limits
            if device < len(devices)
        }
        return {**removed, **memory_limits}

    def terminate(self, token: int, pid: int, by_reset: bool, evicted: tuple[int, ...]) -> None:
        """Request that the server end a client process's contexts. The process can still create new ones."""

        def report(code: int) -> None:
            self.dispatcher.feed(events.TerminationAnswered(self.id, token, code))

        if self._link is None:
            report(Result.ERROR_INVALID_CONTEXT)
        else:
            self.clients.terminations.terminate(self._link, pid, report)

    def shut_down(self, forced: bool, is_deletion: bool) -> None:
        """Ask the server to end after its last client; if ``forced``, close the connection, which ends it
        immediately.
        """
        self._is_leaving = True
        self._wanted.set()
        if forced and self._link is not None:
            self._link.channel.shut_down()

    def note_waiting(self) -> None:
        """Begin to check whether the server's clients have gone."""
        self._wanted.set()

    def start_trace(self, trace: TraceFile) -> None:
        """Do nothing, because the driver's server does not report its work."""

    async def stop_trace(self) -> None:
        """Do nothing, because no trace was started."""

    def watch(self, dispatcher: Dispatcher, client: int, pidfd: int) -> None:
        """Feed ClientGonePushed when a client's process ends; take over the pidfd.

        Do nothing if too many clients are watched, or without a pidfd (-1): then the end is noticed when the server
        is asked.
        """
        server = dispatcher.state.servers.get(self.id)
        record = server.clients.get(client) if server is not None else None
        self.clients.add(self._nursery, client, record, pidfd)

    def watch_by_pid(self, dispatcher: Dispatcher, client: int, pid: int) -> None:
        """Watch a client that an earlier daemon admitted."""
        self.watch(dispatcher, client, self.pidfds.pop(client, -1))

    def _note_gone(self, client: int) -> None:
        self.handoffs.note_end(client)
        self.dispatcher.feed(events.ClientGonePushed(self.id, client))
        self._changed.set()

    def note_line(self, text: str) -> None:
        """Note a line that the server has logged.

        If it states that a device is full, the server has refused its last client.
        """
        full, client = _FULL.fullmatch(text), self.handoffs.last
        if full is None or client is None:
            return
        reason = (
            f"the MPS server has its maximum of {full[1]} client contexts on this device: no more clients fit until "
            "contexts of others end"
        )
        self.dispatcher.budgets.log_refused(client.peer, reason)
        code = Result.ERROR_MPS_MAX_CLIENTS_REACHED
        self.dispatcher.note_refusal(client.peer, code, reason, client.run_id, "cuCtxCreate")

    async def refresh(self) -> bool:
        """Ask the server for its status, clients and contexts; return whether it answered within ANSWER_SECONDS."""
        if self._link is None or self._ends or self.ended.is_set():
            return True
        if self._refreshed is None:
            self._refreshed = trio.Event()
            self._requested_at = trio.current_time()
            processes: list[commands.ListedProcess] = []
            self._link.ask(commands.processes(), processes.extend)
            devices: list[commands.DeviceClients] = []
            self._link.ask(commands.device_clients(), devices.extend)
            self._link.ask(commands.status(), lambda status: self._report(status, processes, devices))
        refreshed = self._refreshed
        # Operators that ask meanwhile wait for the same answers, and no longer than the first one.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_memory)
            with trio.move_on_at(self._requested_at + (0 if is_stopped(self.pid) else ANSWER_SECONDS)):
                await refreshed.wait()
        return refreshed.is_set()

    async def _read_memory(self) -> None:
        """Record the memory of the clients, as far as NVML reports it."""
        source, server = self.dispatcher.sessions.client_memory, self.dispatcher.state.servers.get(self.id)
        if source is None or server is None or not server.clients:
            return
        memory = await source.current()
        by_pid: dict[int, dict[int, int]] = {}
        for ordinal, device in enumerate(self.dispatcher.state.devices):
            for pid, count in memory.get(device.uuid, {}).items():
                by_pid.setdefault(pid, {})[ordinal] = count
        self.dispatcher.feed(events.ClientMemoryRead(self.id, by_pid))

    def _report(
        self, status: int, processes: list[commands.ListedProcess], devices: list[commands.DeviceClients]
    ) -> None:
        """Feed the server's status and the contexts of its clients as an event, and complete the running refresh."""
        ordinals = {properties.uuid: ordinal for ordinal, properties in enumerate(self.dispatcher.state.devices)}
        contexts: dict[int, list[ReportedContext]] = {process.pid: [] for process in processes}
        first = {(process.pid, process.context, process.uuid): process.identity for process in processes}
        unnumbered = 0
        for device in devices:
            for context in device.contexts:
                # Only the first context of a process has an ID; the others need separate keys.
                unnumbered -= 1
                context_id = first.get((context.pid, context.number, device.uuid), unnumbered)
                reported = ReportedContext(context_id, context.number, ordinals.get(device.uuid, -1))
                contexts.setdefault(context.pid, []).append(reported)
        ordered = {pid: tuple(sorted(own, key=lambda context: -context.id)) for pid, own in contexts.items()}
        self.dispatcher.feed(events.ServerReported(self.id, STATUS[status], ordered))
        if self._refreshed is not None:
            self._refreshed.set()
            self._refreshed = None

    async def serve(self, channel: PacketChannel, registration: bytes) -> None:
        """Handle a server from its registration until its connection ends; kill a server that violates
        the protocol.
        """
        if self.id not in self.dispatcher.state.servers:
            self.ended.set()  # the process has ended since it sent the registration
            return
        try:
            self._register(channel, registration)
        except RemoteError as error:
            self._kill_misbehaving(error)
            self.ended.set()
            return
        await self._run()

    async def resume(self, channel: PacketChannel) -> None:
        """Handle a server that registered with an earlier daemon, until its connection ends."""
        self._link = ServerLink(channel)
        self.registered.set()
        # The server may not have received the last commands of the earlier daemon.
        self._percentage, self.handoffs.priority, self._memory_limits = 0.0, -1, {}
        self._link.ask(commands.resume(random.randrange(1, 100 << 10) / 1024), lambda _: None)
        self._ask_devices()
        await self._run()

    async def _run(self) -> None:
        """Run the tasks of a registered server until its connection ends; kill the server after a wrong answer."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self.taken_over is None:
                    self.dispatcher.feed(events.StatusPushed(self.id, ServerStatus.ACTIVE))
                else:
                    report = ServerStatus.ACTIVE, self._is_leaving, tuple(self.taken_over.values())
                    self.dispatcher.feed(events.ServerTakenOver(self.id, *report))
                nursery.start_soon(self._pass_the_turn)
                nursery.start_soon(self.handoffs.run, self.link, self.taken_over is not None)
                wrong = await self.link.run()
                self.ended.set()
                nursery.cancel_scope.cancel()
            if wrong is not None:
                self._kill_misbehaving(wrong)
        finally:
            self.ended.set()

    def _kill_misbehaving(self, error: RemoteError) -> None:
        self.dispatcher.log.error("server_misbehaved", server=self.pid, reason=str(error))
        self.handle_unknown_message(str(error))
        self.kill()

    def handle_unknown_message(self, reason: str) -> None:
        """Handle an unknown message.

        If the server has not served a client yet, its driver may be an unsupported one.
        """
        server = self.dispatcher.state.servers.get(self.id)
        if server is not None and not server.verified:
            version = driver_version()
            self.dispatcher.log.error("driver_unknown", server=self.pid, version=version, reason=reason)
            text = f"the MPS server of driver {version} is not known to pympsd: {reason}"
            self.dispatcher.feed(events.ServerUnknown(self.id, text))

    async def _pass_the_turn(self) -> None:
        """While a client or user waits for the server to end, keep asking whether the server's clients have gone."""
        pause = FIRST_PAUSE
        while not self._ends:
            if not (self._is_leaving or self._is_waited_for()):
                self._wanted = trio.Event()
                await self._wanted.wait()
                pause = FIRST_PAUSE
                continue
            self._changed = trio.Event()
            was_refused = await self._ask_whether_idle()
            pause = min(pause * 2, LOGGED_PAUSE if was_refused else LAST_PAUSE)
            with trio.move_on_after(pause):
                await self._changed.wait()
                pause = FIRST_PAUSE

    def _is_waited_for(self) -> bool:
        """Return whether clients may wait for this server to end.

        With ``--users together`` they wait only if the maximum number of servers runs.
        """
        state = self.dispatcher.state
        return bool(state.queue) and (state.is_full or not state.options.serves_users_together)

    async def _ask_whether_idle(self) -> bool:
        """Ask the server to end if none of its clients has a context.

        Return whether the server refused because it has clients.
        """
        server = self.dispatcher.state.servers.get(self.id)
        if server is None or not (server.clients or self._is_leaving):
            return False
        if server.clients and await self.link.answer(commands.clients()) != ():
            return False
        # Wait without a time-out: a client that is sent to the server before it answers would be lost if the server
        # ends.
        async with self.handoffs.exchange:
            if not self.handoffs.may_be_delayed:
                return False
            workers = await self.link.answer(commands.shut_down_if_idle())
            if not workers:
                self._ends = True
                self.dispatcher.feed(events.ServerEnds(self.id, self.handoffs.clients()))
                self.handoffs.give_back()
        return bool(workers and server.clients)
