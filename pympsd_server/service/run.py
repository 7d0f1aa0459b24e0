"""The running server on a page: it registers, initialises, serves, and leaves."""

from __future__ import annotations

import os
import socket
from typing import Any

import trio
from attrs import evolve

from pympsd.channel.descriptors import ADVICE
from pympsd.channel.message_channel import MessageChannel
from pympsd.devices.registrations import GONE
from pympsd.journal.setup import link_logger
from pympsd.process_title import show_as
from pympsd.version import CUDA_VERSION, DRIVER_BRANCH
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire import link_messages as link
from pympsd.wire.errors import RemoteError
from pympsd.wire.versions import Versions
from pympsd_server.service.client_session import ClientSession
from pympsd_server.service.containment import Containment
from pympsd_server.service.daemon_link import DaemonLink
from pympsd_server.service.daemon_reconnect import Door, serve_on
from pympsd_server.service.exclusive_devices import CannotStart, Holdings, take_devices
from pympsd_server.service.executors import Executors
from pympsd_server.service.server import Server
from pympsd_server.service.termination import terminate_client

FAILED_STATUS = 1
"""The exit status of a server that cannot start."""
LAST_SECONDS = 1.0
"""What is queued for the daemon at the end is sent within this."""


def run(link_fd: int, name: str, multiuser: bool) -> int:
    """Serve until told to leave; return the exit status."""
    os.umask(0o077)
    show_as([name, "-multiuser-server"] if multiuser else [name])
    return trio.run(_main, link_fd, name)


async def _main(link_fd: int, name: str) -> int:
    os.set_inheritable(link_fd, False)
    sock = trio.socket.from_stdlib_socket(socket.socket(fileno=link_fd))
    channel = MessageChannel(sock, fds_allowed=2)
    daemon = DaemonLink(channel)
    door = Door.of(sock)
    log = link_logger(daemon.log)
    async with trio.open_nursery() as outer:
        outer.start_soon(daemon.run_sender, channel, daemon.sender)
        channel.send(link.ServerHello(Versions(), os.getpid()))
        log.info("server_startup")
        setup, status = await _receive_setup(channel), 0
        # Without one the daemon is gone, or wants no server any more.
        if setup is not None:
            door.path = setup.door
            status = await _serve(daemon, log, setup, name, door, outer)
        daemon.channel.finish()
        outer.cancel_scope.deadline = trio.current_time() + LAST_SECONDS
    if not daemon.adrift:
        daemon.channel.close()
    return status


async def _serve(
    daemon: DaemonLink, log: Any, setup: link.ServerSetup, name: str, door: Door, senders: trio.Nursery
) -> int:
    """Serve to the end and return the exit status."""
    log.info("server_connecting", socket=setup.control_socket)
    log.info("server_initializing")
    try:
        holdings = take_devices(setup)
    except CannotStart as error:
        log.error("server_failed")
        for reason in error.reasons:
            log.error("server_failed_reason", reason=reason)
        daemon.start_refused(error.reasons[0])
        return FAILED_STATUS
    try:
        async with trio.open_nursery() as nursery:
            server = _initialise(daemon, log, evolve(setup, devices=holdings.devices), name, nursery)
            _record_memory(server, holdings)
            nursery.start_soon(holdings.enter_late, log)
            daemon.status(ServerStatus.ACTIVE)
            nursery.start_soon(_obey_daemons, server, door, nursery, senders)
            await server.done.wait()
            nursery.cancel_scope.cancel()
    finally:
        holdings.release()
    return server.status


def _record_memory(server: Server, holdings: Holdings) -> None:
    """Have what clients hold recorded, where anybody can see it."""

    def record(device: int, held: dict[int, int]) -> None:
        clients = server.roster.clients
        there = [(clients[serial].pid, count) for serial, count in held.items() if serial in clients]
        left = sum(count for serial, count in held.items() if serial not in clients)
        holdings.report(device, [*there, (GONE, left)] if left else there)

    if holdings.recorded:
        server.executors.on_memory = record


async def _receive_setup(channel: MessageChannel) -> link.ServerSetup | None:
    try:
        received = await channel.receive_message()
    except RemoteError:
        return None
    return received[0] if received and isinstance(received[0], link.ServerSetup) else None


def _initialise(daemon: DaemonLink, log: Any, setup: link.ServerSetup, name: str, nursery: trio.Nursery) -> Server:
    percentage = ThreadPercentage(setup.thread_percentage)
    server = Server(daemon, log, setup.devices, percentage, setup.memory_limits, setup.client_priority)
    server.executors = Executors(
        setup.devices,
        setup.backend,
        name,
        nursery,
        log,
        on_fault=lambda serial, code, reason: server.containment.context_faulted(serial, code, reason),
        on_loss=lambda place, reason: server.containment.executor_lost(place, reason),
        is_used=lambda place: bool(server.roster.contexts_at(place)),
    )
    server.containment = Containment(server, nursery)
    for ordinal, device in enumerate(setup.devices):
        log.info("server_context_creating", device=ordinal, name=device.name)
    log.info("server_version", version=CUDA_VERSION)
    log.info("server_driver", version=DRIVER_BRANCH)
    log.info("server_backend", backend=setup.backend)
    log.info("server_thread_percentage", percentage=str(server.thread_percentage))
    for ordinal, limit in setup.memory_limits.items():
        log.info("server_memory_limit", device=ordinal, limit=limit)
    log.info("server_priority", priority=setup.client_priority)
    server.serving()
    log.info("server_started")
    return server


async def _obey_daemons(server: Server, door: Door, nursery: trio.Nursery, senders: trio.Nursery) -> None:
    """Obey the daemon, and when it has died the next one on the same pipe directory."""
    while True:
        await _obey(server, server.link.channel, nursery)
        if not await serve_on(server, door, senders):
            return


async def _obey(server: Server, channel: MessageChannel, nursery: trio.Nursery) -> None:
    try:
        while (received := await channel.receive_message()) is not None:
            message, fds = received
            if isinstance(message, link.AdmitClient) and not fds:
                # Its session is lost with them, which it notices; the daemon is told.
                server.refused_client(message.pid, f"there was no room for its session: {ADVICE}")
                server.link.client_gone(message.client)
            elif isinstance(message, link.AdmitClient):
                server.link.client_came(message)
                nursery.start_soon(ClientSession.of(server, message, fds).run)
            elif isinstance(message, link.ShutDown):
                server.leave(message.forced)
            elif isinstance(message, link.LimitsChanged):
                server.change_limits(message.thread_percentage, message.memory_limits)
            elif isinstance(message, link.TerminateClient):
                nursery.start_soon(terminate_client, server, message)
    except RemoteError:
        pass  # a daemon that breaks the conversation is as good as gone
