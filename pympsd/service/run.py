"""Run the daemon: open its sockets and files, and run its tasks in one nursery.

`run` is called after the fork. It fetches an earlier daemon's descriptors from its keeper, opens or takes over the
listening sockets and the log FIFO, restores the state, which is saved from then on, and starts the listeners. When
the servers of the earlier daemon have reported, it applies the configuration file and calls ``ready``. All tasks
belong to one nursery. When the dispatcher's ``done`` is set, the last answers are sent and the daemon ends.

`notify` reports the daemon's state to a service manager, as sd_notify(3) describes. Without one it does nothing.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Final

import trio
from attrs import evolve, field, frozen

from pympsd.devices.discovery import Machine
from pympsd.devices.state_folder import resolve, state_folder_of
from pympsd.journal.setup import Journal, control_logger
from pympsd.process.spawn import map_buffers, reap_orphans
from pympsd.process.version import CUDA_VERSIONS
from pympsd.service.children import spawn_server
from pympsd.service.dispatcher import Dispatcher, Ending, Sessions
from pympsd.service.driver_server import NAME, is_driver_server, note_line, spawn_driver_server
from pympsd.service.files.pipe_directory import DRIVERS_PID_MODE, PID_MODE, PipeDirectory
from pympsd.service.followers import MemorySharing, follow
from pympsd.service.listeners import Listener
from pympsd.service.log_fifo import read_fifo
from pympsd.service.metrics import MetricsServer, end
from pympsd.service.namespace_sockets import NamespaceSockets
from pympsd.service.nvml_file import NvmlFile
from pympsd.service.processes.client_memory import ClientMemory
from pympsd.service.processes.fd_quota import fd_limit, raise_fd_limit
from pympsd.service.sessions.conversation import OwnConversation
from pympsd.service.sessions.driver.conversation import DriverConversation
from pympsd.service.sessions.operator import apply_configuration
from pympsd.state_machine.events import StopSignal
from pympsd.state_machine.limit_resolution import default_limits
from pympsd.state_machine.shares import shares_text
from pympsd.state_machine.state.compound_commands import Configuration
from pympsd.state_machine.state.daemon import Daemon, Defaults, ProcessLimits, Usage
from pympsd.state_machine.state.options import MAX_NAMED_SERVERS, MAX_SERVERS, DaemonOptions
from pympsd.state_machine.state.turns import TurnPolicy, Turns, guard, order
from pympsd.takeover.directory_claim import HAND_OVER
from pympsd.takeover.keeper.entries import KeptEntries, file_note
from pympsd.takeover.keeper.link import KeeperLink
from pympsd.takeover.servers import PendingServer, take_over, wait_for_reports
from pympsd.takeover.state.entries import FIFO, listener_name
from pympsd.takeover.state.records import InitialDefaults, snapshot
from pympsd.takeover.state_file import StateFile, device_keys, is_writer_running, log_folders_left
from pympsd.vocabulary import files
from pympsd.vocabulary.identities import Ids
from pympsd.vocabulary.limits import PinnedMemory
from pympsd.vocabulary.rules import Rule
from pympsd.vocabulary.settings import Settings
from pympsd.vocabulary.shares import Shares
from pympsd.wire.driver.handshake import HELLO

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the socket that NOTIFY_SOCKET names. Do nothing if no manager listens there."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock,
    ):
        sock.sendto(state.encode(), address)


def notify_reloading() -> None:
    """Report that the daemon reloads, because it opens its logs again. READY follows."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


async def run_watchdog() -> None:
    """If the manager set an interval, report that the daemon's tasks run twice in each interval."""
    interval = os.environ.get("WATCHDOG_USEC", "")
    if not interval.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1")
        await trio.sleep(int(interval) / 2_000_000)


HANDLED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, HAND_OVER)
FINAL_ANSWER_SECONDS = 1.0
"""The time in seconds that the daemon has at its end to send the answers for which operators wait."""


@frozen
class DaemonSetup:
    """Everything that is prepared before the fork. ``metrics``: the socket to which scrapers connect."""

    settings: Settings
    machine: Machine
    directory: PipeDirectory
    journal: Journal
    show_server_as: str
    multiuser: bool = False
    terminate_by_reset: bool = False
    protocol: int = 2
    static: bool = False
    """Whether the option -S, or another name of this option, was passed."""
    flags: frozenset[str] = frozenset()
    configuration: tuple[str, bytes] | None = None
    """The path and the text of a valid configuration file to apply."""
    rules: tuple[Rule, ...] | None = None
    metrics: socket.socket | None = None
    turn_policy: TurnPolicy = field(factory=order)


def run(setup: DaemonSetup, ready: Callable[[], None]) -> int:
    """Run until the daemon is asked to quit; call ``ready`` when both sockets accept. Return the exit status.

    From here on, a signal of HANDLED_SIGNALS does not end the process by itself.
    """
    early = _record_early_signals()
    os.umask(0o022)
    raise_fd_limit()
    map_buffers()
    setup = _resolve_paths(setup)
    # After an internal error, files and servers stay for another daemon.
    handed_over = True
    try:
        ending = trio.run(_main, setup, ready, early)
        if ending.changes_backend:
            ending = trio.run(_main, _replace_backend(setup), lambda: None, early)
        handed_over = ending.handed_over
        return ending.status
    finally:
        _ignore_signals()
        if setup.metrics is not None:
            end(setup.metrics, handed_over)
        setup.directory.release(handed_over=handed_over)


def _record_early_signals() -> list[int]:
    """Return a list to which each signal is added that arrives while trio is not running."""
    received: list[int] = []
    for number in HANDLED_SIGNALS:
        signal.signal(number, lambda number, _: received.append(number))
    return received


def _ignore_signals() -> None:
    """Ignore HANDLED_SIGNALS until the process ends. Processes would inherit this, but none is started after it."""
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _replace_backend(setup: DaemonSetup) -> DaemonSetup:
    """Return the setup with the backend that replaces an unknown driver's server."""
    machine = setup.machine.instead
    assert machine is not None
    return evolve(setup, machine=machine, settings=evolve(setup.settings, backend=machine.backend, vendor_server=""))


async def _main(setup: DaemonSetup, ready: Callable[[], None], early: list[int]) -> Ending:
    # Receive signals before the daemon is visible, so that none is lost.
    with trio.open_signal_receiver(*HANDLED_SIGNALS) as signals:
        while early:
            signal.raise_signal(early.pop(0))
        return await _work(setup, ready, signals)


async def _work(setup: DaemonSetup, ready: Callable[[], None], signals: AsyncIterator[int]) -> Ending:
    """Open or take over everything that the daemon needs, and run its tasks until it ends; return how it ends."""
    directory = setup.directory
    log = control_logger(setup.journal)
    # Two running daemons must not accept on the same sockets.
    previous = None if is_writer_running(directory.path) else await KeeperLink.fetch(directory, log)
    keeper, entries = previous or (KeeperLink(directory, log), {})
    kept_entries = KeptEntries.of(keeper, entries)
    listening = _open_listeners(setup, kept_entries)
    fifo = _fifo(directory, kept_entries, keeper)
    # Under the vendor's names callers may expect the vendor's modes.
    directory.write_pid(os.getpid(), DRIVERS_PID_MODE if setup.show_server_as == NAME else PID_MODE)
    directory.mark_named_servers(setup.protocol == 3)
    async with trio.open_nursery() as nursery:
        limits, complaints = default_limits(setup.machine.devices, setup.settings.memory_limits)
        dispatcher = _dispatcher(setup, limits, nursery, keeper)
        _log_start(dispatcher, setup, complaints)
        for file, sock in listening.items():
            keeper.hold(listener_name(file), sock.fileno(), file_note(directory.name(file)))
        keeper_ended = trio.Event()
        await nursery.start(_keep, keeper, keeper_ended)
        dispatcher.sockets = sockets = NamespaceSockets(dispatcher, kept_entries, directory.is_taken_by_another)
        pending = _save_and_take_over(dispatcher, directory, kept_entries)
        nursery.start_soon(_handle_signals, dispatcher, signals)
        if os.getpid() == 1:
            nursery.start_soon(reap_orphans)
        for listener in _listeners(dispatcher, listening, kept_entries):
            nursery.start_soon(listener.run)
        kept_entries.close()
        if setup.metrics is not None:
            nursery.start_soon(MetricsServer(dispatcher, setup.metrics).run)
        if dispatcher.state.options.has_own_servers:
            nvml = NvmlFile(dispatcher, directory)
            nvml.update()
            nursery.start_soon(follow, dispatcher, MemorySharing(dispatcher).send, nvml.update)
        else:
            directory.remove(files.NVML)
        of_servers = partial(is_driver_server, dispatcher), partial(note_line, dispatcher)
        nursery.start_soon(read_fifo, dispatcher.journal, fifo, *of_servers)
        os.chdir("/")
        await wait_for_reports(pending)
        if setup.configuration is not None:
            await apply_configuration(dispatcher, *setup.configuration)
        ready()
        notify(READY)
        nursery.start_soon(run_watchdog)
        await dispatcher.ending.done.wait()
        notify(STOPPING)
        with trio.move_on_after(FINAL_ANSWER_SECONDS):
            for operator in list(dispatcher.sessions.operators.values()):
                await operator.drain()
        if not dispatcher.ending.handed_over:
            sockets.remove_all()
            keeper.end()
        if dispatcher.ending.changes_backend:
            with trio.move_on_after(FINAL_ANSWER_SECONDS):
                await keeper_ended.wait()
        nursery.cancel_scope.cancel()
    if dispatcher.sessions.client_memory is not None:
        await dispatcher.sessions.client_memory.close()
    os.close(fifo)
    return dispatcher.ending


async def _keep(keeper: KeeperLink, ended: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    await keeper.run(task_status)
    ended.set()


def _open_listeners(setup: DaemonSetup, kept_entries: KeptEntries) -> dict[str, trio.socket.SocketType]:
    """Return the listening sockets by file: the earlier daemon's, whose backlogs hold clients, or new ones."""
    # With pympsd's own servers the socket is a stream socket: libcuda then continues without MPS, so unmodified
    # programs work too.
    kinds = {
        file: socket.SOCK_SEQPACKET if protocol is DriverConversation else socket.SOCK_STREAM
        for file, (protocol, _) in _protocols(setup.settings).items()
    }
    listening = {
        file: trio.socket.from_stdlib_socket(
            kept_entries.take_listener(file, setup.directory.name(file), kind) or setup.directory.listen(file, kind)
        )
        for file, kind in kinds.items()
    }
    setup.directory.set_modes("--clients-only" in setup.flags, kinds.keys())
    return listening


def _fifo(directory: PipeDirectory, kept_entries: KeptEntries, keeper: KeeperLink) -> int:
    """Return the log FIFO: the earlier daemon's, which may hold lines, or a new one."""
    fifo = kept_entries.take_fifo(directory.name(files.LOG_FIFO))
    if fifo < 0:
        fifo = directory.open_fifo()
        keeper.hold(FIFO, fifo)
    return fifo


def _listeners(
    dispatcher: Dispatcher, listening: dict[str, trio.socket.SocketType], kept_entries: KeptEntries
) -> Iterator[Listener]:
    for file, (protocol, accepts_clients) in _protocols(dispatcher.settings).items():
        conversation = protocol(dispatcher, accepts_clients=accepts_clients)
        greeting = HELLO if protocol is DriverConversation else b""
        connections = kept_entries.take_connections(file)
        yield Listener(dispatcher, file, listening[file], conversation.run, connections, greeting)


def _protocols(settings: Settings) -> dict[str, tuple[type[OwnConversation] | type[DriverConversation], bool]]:
    """Return the protocol of each listening socket, by its file, and whether clients are accepted there."""
    if settings.backend != "vendor":
        return {files.CONTROL: (OwnConversation, True), files.CONTROL_PRIVILEGED: (OwnConversation, False)}
    vendors = {files.CONTROL: (DriverConversation, True), files.CONTROL_PRIVILEGED: (DriverConversation, False)}
    return {**vendors, files.OWN_CONTROL: (OwnConversation, False)}


def _save_and_take_over(
    dispatcher: Dispatcher, directory: PipeDirectory, kept_entries: KeptEntries
) -> list[PendingServer]:
    """Restore an earlier daemon's state, and save this daemon's from now on; return the earlier daemon's servers."""
    initial = InitialDefaults.of(dispatcher.state)
    file = StateFile(
        directory.path,
        lambda: device_keys(dispatcher.state.devices),
        dispatcher.log,
        directory.is_taken_by_another,
        dispatcher.settings.backend,
        lambda: os.fsencode(dispatcher.tracing.path).decode(errors="replace"),
        dispatcher.journal.folders.list_made,
    )
    dispatcher.journal.folders.take(log_folders_left(directory.path))

    def save(*, only_if_lost: bool = False) -> None:
        if not only_if_lost or file.must_be_written:
            file.save(snapshot(dispatcher.state, initial))

    dispatcher.save = save
    dispatcher.keeper.connections = Ids(kept_entries.next_connection())
    pending = take_over(dispatcher, directory.path, kept_entries)
    if dispatcher.state.options.protocol == 3:
        for server in dispatcher.state.list_running_servers():
            dispatcher.journal.open_for_server(server.name, server.uid, server.pid)
    dispatcher.save()
    return pending


def _dispatcher(
    setup: DaemonSetup, limits: dict[int, PinnedMemory], nursery: trio.Nursery, keeper: KeeperLink
) -> Dispatcher:
    """Return the dispatcher with a new state, which has the options of the setup and the default limits."""
    settings = setup.settings
    together = settings.users == "together"
    state = Daemon(
        DaemonOptions(
            os.geteuid(),
            clients_only="--clients-only" in setup.flags,
            open_queries="--open-queries" in setup.flags,
            trusts_containers="--trust-containers" in setup.flags,
            protocol=setup.protocol,
            pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
            multiuser=setup.multiuser,
            # In protocol 3 a server does not end so that another one can start.
            max_servers=MAX_NAMED_SERVERS + 1 if setup.protocol == 3 else MAX_SERVERS if together else 1,
            static=setup.static and setup.protocol == 2,
            driver=setup.machine.driver,
            terminate_by_reset=setup.terminate_by_reset,
            serves_unmapped=settings.unmapped_users == "nobody",
            has_other_backend=setup.machine.instead is not None,
            pipe_directory=setup.directory.path,
            has_own_servers=settings.backend != "vendor",
            show_server_as=setup.show_server_as,
        ),
        setup.machine.devices,
        Defaults(settings.thread_percentage, settings.client_priority, limits),
        turns=Turns(
            policy=guard(setup.turn_policy, keeper.log.error), overtaking_seconds=settings.overtaking_seconds
        ),
        process_limits=ProcessLimits(rules=setup.rules),
        usage=Usage(Shares(settings.user_shares, fd_limit())),
        configuration=Configuration(starts=setup.configuration is not None),
    )
    sessions = (
        Sessions(spawn_driver_server, ClientMemory(keeper.log, nursery))
        if settings.backend == "vendor"
        else Sessions(spawn_server)
    )
    return Dispatcher(state, settings, setup.journal, keeper.log, nursery, keeper, sessions)


def _log_start(dispatcher: Dispatcher, setup: DaemonSetup, limit_complaints: list[str]) -> None:
    dispatcher.log.info("daemon_starting", socket=dispatcher.keeper.directory.control_socket)
    dispatcher.log.info("daemon_connect_hint", directory=setup.directory.requested_path)
    dispatcher.log.info("daemon_version", version=CUDA_VERSIONS[setup.machine.driver])
    dispatcher.log.info("daemon_backend", backend=setup.machine.backend, reason=setup.machine.reason)
    dispatcher.log.info("shares_set", shares=shares_text(dispatcher.state))
    for complaint in (*setup.settings.complaints, *limit_complaints):
        dispatcher.log.warning("daemon_setting_refused", complaint=complaint)


async def _handle_signals(dispatcher: Dispatcher, signals: AsyncIterator[int]) -> None:
    """Reopen the logs, hand over to another daemon or end the daemon, as each received signal requests."""
    async for number in signals:
        if number == signal.SIGHUP:
            notify_reloading()
            dispatcher.journal.reopen()
            notify(READY)
        elif number == HAND_OVER:
            dispatcher.log.info("daemon_hands_over")
            if dispatcher.tracing.path:
                dispatcher.log.warning("trace_ends", file=dispatcher.tracing.path)
                await dispatcher.tracing.stop(dispatcher.state, tuple(dispatcher.sessions.servers.values()))
            dispatcher.ending.handed_over = True
            dispatcher.ending.done.set()
        else:
            dispatcher.feed(StopSignal())


def _resolve_paths(setup: DaemonSetup) -> DaemonSetup:
    """Resolve relative paths, and create the state folder of an emulated machine, which the servers of all users
    share.
    """
    machine, logs = resolve(setup.settings.emulated_devices), os.path.abspath(setup.settings.log_directory)
    if setup.machine.backend == "emulated":
        with contextlib.suppress(OSError):  # a server that needs it reports the error
            state_folder_of(machine).make()
    return evolve(setup, settings=evolve(setup.settings, emulated_devices=machine, log_directory=logs))
