"""The running daemon on a page: what it opens, and the tasks of its one nursery."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable

import trio
from attrs import frozen

from pympsd.journal.setup import Journal, control_logger
from pympsd.mind.daemon_state import Daemon as Mind
from pympsd.mind.events import StopSignal
from pympsd.mind.limit_resolution import default_limits
from pympsd.service.children import spawn_server
from pympsd.service.fifo import read_fifo
from pympsd.service.front_door import FrontDoor
from pympsd.service.hub import Hub
from pympsd.service.pipe_directory import PipeDirectory
from pympsd.version import CUDA_VERSION
from pympsd.vocabulary import files
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import PinnedMemory
from pympsd.vocabulary.settings import Settings

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


def run(daemon: Daemon, ready: Callable[[], None]) -> int:
    """Run until quit; call ``ready`` when both sockets accept; return the exit status."""
    os.umask(0o022)
    _raise_fd_limit()
    try:
        return trio.run(_main, daemon, ready)
    finally:
        daemon.directory.leave()


async def _main(daemon: Daemon, ready: Callable[[], None]) -> int:
    directory = daemon.directory
    control = directory.listen(files.CONTROL)
    privileged = directory.listen(files.CONTROL_PRIVILEGED)
    fifo = directory.open_fifo()
    directory.write_pid(os.getpid())
    async with trio.open_nursery() as nursery:
        limits, complaints = default_limits(daemon.devices, daemon.settings.memory_limits)
        hub = _hub(daemon, limits, nursery)
        _log_start(hub, daemon, complaints)
        nursery.start_soon(_watch_signals, hub)
        nursery.start_soon(_listen, hub, control, True)
        nursery.start_soon(_listen, hub, privileged, False)
        nursery.start_soon(read_fifo, hub, fifo)
        os.chdir("/")
        ready()
        await hub.done.wait()
        with trio.move_on_after(LAST_SECONDS):
            for operator in list(hub.operators.values()):
                await operator.channel.drain()
        nursery.cancel_scope.cancel()
    os.close(fifo)
    return hub.status


def _hub(daemon: Daemon, limits: dict[int, PinnedMemory], nursery: trio.Nursery) -> Hub:
    settings = daemon.settings
    mind = Mind(
        os.geteuid(),
        daemon.devices,
        settings.thread_percentage,
        settings.client_priority,
        limits,
        multiuser=daemon.multiuser,
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


async def _watch_signals(hub: Hub) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            if number == signal.SIGHUP:
                hub.journal.reopen()
            else:
                hub.feed(StopSignal())


def _raise_fd_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
