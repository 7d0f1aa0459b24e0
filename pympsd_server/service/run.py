"""The server from start to end: register with the daemon, initialize, serve, and exit.

`run` is the life of the process. The server sends ServerHello on its link, receives its setup, checks and registers
its devices (`exclusive_devices`), builds its parts and obeys the daemon until the link ends:

    Server        state, log, reports                 Executors    the processes that own the devices
    Containment   fatal faults                        Tracing      the trace that an operator requested
    ClientSession one task for each client            DaemonLink   what is pushed to the daemon

All tasks are in one nursery, which is cancelled when the server is done. After the end of a daemon, the next one
takes the link over from the keeper and requests a report; nothing else changes for a server.

All executors, including those that start later, write to the trace that the daemon requests (`ExecutorTraces`).
"""

import os
import socket
from contextlib import suppress
from typing import Any

import trio
from attrs import define, evolve, field

from pympsd.channel.descriptors import ADVICE
from pympsd.channel.message_channel import MessageChannel
from pympsd.channel.trace_file import TraceFile
from pympsd.devices.registrations import GONE
from pympsd.errors import RemoteError
from pympsd.journal.setup import link_logger
from pympsd.process.title import show_as
from pympsd.process.version import CUDA_VERSIONS
from pympsd.vocabulary.device_properties import DeviceUse
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.executor_messages import StartTimeline, StopTimeline
from pympsd.wire.messages import Versions
from pympsd_server.service.client_session import ClientSession
from pympsd_server.service.containment import Containment
from pympsd_server.service.daemon_link import DaemonLink
from pympsd_server.service.eviction import answer_shortage, terminate_client
from pympsd_server.service.exclusive_devices import RegisteredDevices, ServerCannotStart, register_devices
from pympsd_server.service.executor import Executor, ExecutorError
from pympsd_server.service.executors import Executors
from pympsd_server.service.server import Server


@define
class ExecutorTraces:
    """The trace to which executors write, if one was requested."""

    executors: Executors
    log: Any
    nursery: trio.Nursery
    _trace: TraceFile | None = field(default=None, init=False)

    def start(self, fd: int) -> None:
        """Start writing the executors' work to a trace; take over its descriptor."""
        self._forget()
        self._trace = TraceFile(fd)
        self.executors.on_start = lambda executor: self.nursery.start_soon(self._begin, executor)
        for executor in self.executors.all_running:
            self.nursery.start_soon(self._begin, executor)

    async def _begin(self, executor: Executor) -> None:
        if self._trace is None:
            return
        request = self.executors.next_request()
        try:
            await executor.ask(request, StartTimeline(request), (self._trace.duplicate(),))
        except (ExecutorError, OSError) as error:
            self.log.warning("trace_without_device", device=executor.device, reason=str(error))

    async def stop(self) -> None:
        """Let all executors stop writing, and wait until they have written the rest."""
        self._forget()
        async with trio.open_nursery() as nursery:
            for executor in self.executors.all_running:
                nursery.start_soon(self._end, executor)

    async def _end(self, executor: Executor) -> None:
        request = self.executors.next_request()
        with suppress(ExecutorError):  # an executor that has ended does not write either
            await executor.ask(request, StopTimeline(request))

    def _forget(self) -> None:
        self.executors.on_start = lambda executor: None
        if self._trace is not None:
            self._trace.close()
            self._trace = None


FAILED_STATUS = 1
"""The exit status of a server that cannot start."""
LAST_SECONDS = 1.0
"""The time limit for sending the rest of the daemon's queue at the end."""


def run(link_fd: int, name: str, multiuser: bool) -> int:
    """Serve until the daemon ends the server; return the exit status."""
    os.umask(0o077)
    show_as([name, "-multiuser-server"] if multiuser else [name])
    return trio.run(_main, link_fd)


async def _main(link_fd: int) -> int:
    """Register with the daemon, serve until the end, and return the exit status."""
    os.set_inheritable(link_fd, False)
    sock = trio.socket.from_stdlib_socket(socket.socket(fileno=link_fd))
    daemon = DaemonLink(MessageChannel(sock, fds_allowed=2))
    log = link_logger(daemon.log)
    async with trio.open_nursery() as outer:
        outer.start_soon(daemon.run_sender)
        daemon.channel.send(link.ServerHello(Versions(), os.getpid()))
        log.info("server_startup")
        setup, status = await _receive_setup(daemon), 0
        # Without a setup, no daemon is left, or the daemon no longer needs a server.
        if setup is not None:
            status = await _serve(daemon, log, setup)
        daemon.channel.finish()
        outer.cancel_scope.deadline = trio.current_time() + LAST_SECONDS
    daemon.disconnect()
    return status


async def _serve(daemon: DaemonLink, log: Any, setup: link.ServerSetup) -> int:
    """Serve until the end; return the exit status."""
    log.info("server_connecting", socket=setup.control_socket)
    log.info("server_initializing")
    try:
        devices = register_devices(setup)
    except ServerCannotStart as error:
        log.error("server_failed")
        for reason in error.reasons:
            log.error("server_failed_reason", reason=reason)
        daemon.start_refused(error.reasons[0])
        return FAILED_STATUS
    try:
        async with trio.open_nursery() as nursery:
            containment = _initialise(daemon, log, evolve(setup, devices=devices.properties), nursery)
            _record_memory(containment, devices)
            nursery.start_soon(devices.register_late, log)
            daemon.status(ServerStatus.ACTIVE)
            nursery.start_soon(_obey, containment, nursery)
            await containment.server.done.wait()
            nursery.cancel_scope.cancel()
    finally:
        devices.release()
    return containment.server.status


def _record_memory(containment: Containment, devices: RegisteredDevices) -> None:
    """Report how clients use the devices: to the daemon, and in the folder that every user can read."""
    recorded: dict[int, tuple[list[tuple[int, int]], int]] = {}

    def record(device: int, used: dict[int, int]) -> None:
        clients = containment.server.client_table.clients
        living = {client_id: count for client_id, count in used.items() if client_id in clients}
        left_behind = sum(used.values()) - sum(living.values())
        executors = containment.executors
        use = DeviceUse(living, executors.launches[device], left_behind, executors.get_utilization(device))
        containment.server.link.device_used(device, use)
        present = [(clients[client_id].pid, count) for client_id, count in living.items()]
        rows = [*present, (GONE, left_behind)] if left_behind else present
        figures = rows, use.utilization or 0
        if figures != recorded.get(device):  # otherwise only kernels were launched
            devices.report(device, *figures)
            recorded[device] = figures

    containment.executors.on_memory = record


async def _receive_setup(daemon: DaemonLink) -> link.ServerSetup | None:
    """Wait for the daemon's setup and return it; None if no daemon is left or none needs this server."""
    try:
        while received := await daemon.channel.receive_message():
            match received[0]:
                case link.ServerSetup() as setup:
                    return setup
                case link.ReportRequest(_, token):
                    daemon.report(token, leaving=False)
                    # The previous daemon was killed, perhaps before it sent the setup, so request it from this one.
                    daemon.channel.send(link.ServerHello(Versions(), os.getpid()))
                case link.ServerAdopted() | link.LimitsChanged():  # the setup that follows contains the limits
                    continue
                case _:
                    return None
    except RemoteError:
        pass  # a daemon that breaks the protocol counts as gone
    return None


def _initialise(daemon: DaemonLink, log: Any, setup: link.ServerSetup, nursery: trio.Nursery) -> Containment:
    """Create the server, its executors and their containment, log the settings, and start to serve."""
    percentage = ThreadPercentage(setup.thread_percentage)
    server = Server(daemon, log, setup.devices, percentage, setup.memory_limits, setup.client_priority)
    executors = Executors(
        setup.devices,
        setup.backend,
        nursery,
        log,
        is_used=lambda slot: bool(server.client_table.contexts_in(slot)),
    )
    executors.accounts.groups_of = server.groups_of
    containment = Containment(server, executors, nursery)
    executors.on_fault, executors.on_loss = containment.context_faulted, containment.executor_lost
    executors.on_shortage = lambda *shortage: nursery.start_soon(answer_shortage, containment, *shortage)
    executors.on_audited = server.log_audited
    server.observers.append(containment)
    for ordinal, device in enumerate(setup.devices):
        log.info("server_context_creating", device=ordinal, name=device.name)
    driver = setup.devices[0].driver
    log.info("server_version", version=CUDA_VERSIONS[driver])
    log.info("server_driver", version=driver)
    log.info("server_backend", backend=setup.backend)
    log.info("server_thread_percentage", percentage=str(server.thread_percentage))
    for ordinal, limit in setup.memory_limits.items():
        log.info("server_memory_limit", device=ordinal, limit=limit)
    log.info("server_priority", priority=setup.client_priority)
    if setup.static:
        log.info("server_static")
    server.start_serving()
    log.info("server_started")
    return containment


async def _stop_trace(tracing: ExecutorTraces, daemon: DaemonLink) -> None:
    await tracing.stop()
    daemon.trace_stopped()


async def _obey(containment: Containment, nursery: trio.Nursery) -> None:
    """Carry out the messages of the daemon, and of later daemons with the same link, until the link ends."""
    server = containment.server
    tracing = ExecutorTraces(containment.executors, server.log, nursery)
    try:
        while (received := await server.link.channel.receive_message()) is not None:
            match received:
                case link.AdmitClient() as message, ():
                    # The client's socket is lost with the descriptors, so the client notices.
                    server.client_refused(message.pid, f"no descriptors were free for the session: {ADVICE}")
                    server.link.client_left(message.client)
                case link.AdmitClient() as message, fds:
                    server.link.client_admitted(message)
                    session = ClientSession.of(containment, message, fds)
                    server.channels[message.client] = session.channel
                    nursery.start_soon(session.run)
                case link.ShutDown(forced, is_deletion), _:
                    server.leave(forced, is_deletion)
                case link.EndIfAlone(), _:
                    server.end_if_alone()
                case link.LimitsChanged(thread_percentage, memory_limits), _:
                    server.change_limits(thread_percentage, memory_limits)
                case link.MemoryElsewhere(device, count, groups), _:
                    containment.executors.accounts.set_other_servers(device, count, groups)
                case link.TerminateClient() as message, _:
                    nursery.start_soon(terminate_client, containment, message)
                case link.StartTrace(), (fd,):
                    tracing.start(fd)
                case link.StopTrace(), _:
                    nursery.start_soon(_stop_trace, tracing, server.link)
                case link.ReportRequest(_, token), _:
                    server.ends_if_alone = False  # a daemon runs again
                    server.link.report(token, server.is_leaving)
                case link.ServerAdopted(), _:
                    nursery.start_soon(tracing.stop)  # the trace was the previous daemon's
                    server.link.report_all_use()
                    server.log.info("server_taken_over")
                case link.ServerDismissed(reason), _:
                    server.leave_without_daemon(reason)
                    return
    except RemoteError:
        pass  # a daemon that breaks the protocol counts as gone
    server.end_without_daemon()
