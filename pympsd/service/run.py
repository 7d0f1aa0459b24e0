"""The running daemon on a page: what it opens, and the tasks of its one nursery."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import trio
from attrs import evolve, frozen

from pympsd.devices.state_folder import resolved, state_folder_of
from pympsd.journal.setup import Journal, control_logger
from pympsd.service.dispatcher import Hub
from pympsd.service.files.log_fifo import read_fifo
from pympsd.service.files.pipe_directory import PipeDirectory
from pympsd.service.files.state_file import StateFile, device_keys
from pympsd.service.listeners import FrontDoor
from pympsd.service.processes.children import spawn_server
from pympsd.service.replacement import HAND_OVER
from pympsd.service.sessions.adoption import all_settled, inherit
from pympsd.state_machine.daemon_state import Daemon as Mind
from pympsd.state_machine.events import StopSignal
from pympsd.state_machine.limit_resolution import default_limits
from pympsd.state_machine.persistent_state import InitialDefaults, snapshot
from pympsd.version import CUDA_VERSION
from pympsd.vocabulary import files
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import PinnedMemory
from pympsd.vocabulary.settings import Settings

OBEYED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, HAND_OVER)
LAST_SECONDS = 1.0
"""Operators who are owed an answer get it within this at the end."""


@frozen
class Daemon:
    """What was prepared before the fork."""

    settings: Settings
    devices: tuple[DeviceFacts, ...]
    directory: PipeDirectory
    journal: Journal
    show_server_as: str
    multiuser: bool = False
    terminate_by_reset: bool = False


def run(daemon: Daemon, ready: Callable[[], None]) -> int:
    """Run until quit; call ``ready`` when both sockets accept; return the exit status.

    No signal that the daemon obeys ends the process any more, from here to its end.
    """
    early = _note_signals()
    os.umask(0o022)
    _raise_fd_limit()
    daemon = _settle_machine(daemon)
    # An end by a defect is no orderly one: another daemon may take the servers in.
    handed_over = True
    try:
        hub = trio.run(_main, daemon, ready, early)
        handed_over = hub.handed_over
        return hub.status
    finally:
        _ignore_signals()
        daemon.directory.leave(handed_over=handed_over)


def _note_signals() -> list[int]:
    """Return the list where signals are noted while nobody reads them: before trio begins, and when it has ended."""
    noted: list[int] = []
    for number in OBEYED:
        signal.signal(number, lambda number, _: noted.append(number))
    return noted


def _ignore_signals() -> None:
    """What is left to do is done, whoever wants the end once more; nothing is started now that would inherit this."""
    for number in OBEYED:
        signal.signal(number, signal.SIG_IGN)


async def _main(daemon: Daemon, ready: Callable[[], None], early: Sequence[int]) -> Hub:
    # Before anybody can know of the daemon: a signal that comes first would be lost.
    with trio.open_signal_receiver(*OBEYED) as signals:
        for number in early:
            signal.raise_signal(number)
        return await _work(daemon, ready, signals)


async def _work(daemon: Daemon, ready: Callable[[], None], signals: AsyncIterator[int]) -> Hub:
    directory = daemon.directory
    control = directory.listen(files.CONTROL)
    privileged = directory.listen(files.CONTROL_PRIVILEGED)
    fifo = directory.open_fifo()
    directory.write_pid(os.getpid())
    async with trio.open_nursery() as nursery:
        limits, complaints = default_limits(daemon.devices, daemon.settings.memory_limits)
        hub = _hub(daemon, limits, nursery)
        _log_start(hub, daemon, complaints)
        _keep_and_inherit(hub, directory)
        nursery.start_soon(_obey_signals, hub, signals)
        nursery.start_soon(_listen, hub, control, True)
        nursery.start_soon(_listen, hub, privileged, False)
        nursery.start_soon(read_fifo, hub, fifo)
        os.chdir("/")
        await all_settled(hub)
        ready()
        await hub.done.wait()
        with trio.move_on_after(LAST_SECONDS):
            for operator in list(hub.operators.values()):
                await operator.channel.drain()
        nursery.cancel_scope.cancel()
    os.close(fifo)
    return hub


def _keep_and_inherit(hub: Hub, directory: PipeDirectory) -> None:
    """Keep what another daemon would have to know, and begin with what the one before knew."""
    initial = InitialDefaults.of(hub.mind)
    file = StateFile(directory.path, device_keys(hub.mind.devices), hub.log, directory.is_anothers)
    hub.keep = lambda: file.keep(snapshot(hub.mind, initial))
    inherit(hub, directory.path)
    hub.keep()


def _hub(daemon: Daemon, limits: dict[int, PinnedMemory], nursery: trio.Nursery) -> Hub:
    settings = daemon.settings
    mind = Mind(
        os.geteuid(),
        daemon.devices,
        settings.thread_percentage,
        settings.client_priority,
        limits,
        multiuser=daemon.multiuser,
        terminate_by_reset=daemon.terminate_by_reset,
        turn_patience=settings.turn_patience,
    )
    return Hub(
        mind=mind,
        settings=settings,
        control_socket=os.path.join(daemon.directory.given, files.CONTROL),
        show_server_as=daemon.show_server_as,
        journal=daemon.journal,
        log=control_logger(daemon.journal),
        nursery=nursery,
        spawn=spawn_server,
        door=daemon.directory.name(files.CONTROL),
    )


def _log_start(hub: Hub, daemon: Daemon, limit_complaints: list[str]) -> None:
    hub.log.info("daemon_starting", socket=hub.control_socket)
    hub.log.info("daemon_connect_hint", directory=daemon.directory.given)
    hub.log.info("daemon_version", version=CUDA_VERSION)
    for complaint in (*daemon.settings.complaints, *limit_complaints):
        hub.log.warning("daemon_setting_refused", complaint=complaint)


async def _listen(hub: Hub, listener: socket.socket, clients_too: bool) -> None:
    with trio.socket.from_stdlib_socket(listener) as sock:
        await FrontDoor(hub, sock, clients_too).run()


async def _obey_signals(hub: Hub, signals: AsyncIterator[int]) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            hub.journal.reopen()
        elif number == HAND_OVER:
            hub.log.info("daemon_hands_over")
            hub.handed_over = True
            hub.done.set()
        else:
            hub.feed(StopSignal())


def _settle_machine(daemon: Daemon) -> Daemon:
    """Find the machine's state from any working folder, and make room for it that every user's server can use."""
    machine = resolved(daemon.settings.emulated_devices)
    folder = state_folder_of(machine)
    if folder is not None:
        with contextlib.suppress(OSError):  # a server that cannot do without it says so
            folder.make()
    return evolve(daemon, settings=evolve(daemon.settings, emulated_devices=machine))


def _raise_fd_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
