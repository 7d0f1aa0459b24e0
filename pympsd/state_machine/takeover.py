"""The servers of a daemon that died: the next one awaits them, adopts them as they are, or continues without them.

A pending server keeps its place: until it reports, its user gets no other, and the clients that connect are queued.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from pympsd.state_machine import debuggers, queueing, restoration, shutdown
from pympsd.state_machine.admission import START_TIMEOUT, serve_queue
from pympsd.state_machine.cgroups import note_context
from pympsd.state_machine.events import PredecessorDied, ServerTakenOver
from pympsd.state_machine.instructions import Instruction, KillServer, Log, SetTimer, WatchClient
from pympsd.state_machine.limit_resolution import limits_update
from pympsd.state_machine.shutdown import time_leaving
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Phase, Server
from pympsd.state_machine.timers import Timer, TimerKind
from pympsd.takeover.state.other_devices import moved
from pympsd.takeover.state.protocol_2 import limits_of
from pympsd.takeover.state.records import PersistentServer, PersistentState, in_memory, limits_of_cgroups
from pympsd.vocabulary.identities import Ids
from pympsd.vocabulary.limits import ClientPriority, ThreadPercentage
from pympsd.vocabulary.results import ServerStatus

TAKEOVER_TIMEOUT: Final = 10.0
"""Seconds that a server has to report to the next daemon, and that the places of waiting clients are kept."""
GENERATION_BITS: Final = 40
"""The ids of a generation begin at its number shifted left by this."""


def take_over(daemon: Daemon, event: PredecessorDied) -> Iterator[Instruction]:
    """Continue from the state of a daemon that did not end in order."""
    saved = event.state
    if event.devices is not None:
        saved, lost = moved(saved, event.devices)
        for owner, device in lost:
            yield Log("state_device_gone", {"owner": owner, "device": device})
    _take_defaults(daemon, saved)
    if saved.servers:
        daemon.lifetime.backend_works = True
        # What the servers hold has ids of the earlier daemons.
        daemon.lifetime.generation = saved.generation + 1
        daemon.lifetime.server_ids = Ids(first_id(daemon.lifetime.generation))
        daemon.terminations.ids = Ids(first_id(daemon.lifetime.generation))
    for process in saved.servers:
        daemon.servers[process.serial] = _pending_server(daemon, process, saved)
        yield Log("server_awaited", {"server": process.pid, "uid": process.uid})
        yield SetTimer(Timer(TimerKind.RETURN, process.serial), TAKEOVER_TIMEOUT)
    if daemon.options.policy.has_named_servers:
        yield from restoration.restore(daemon, saved)
    if saved.quit is not None and saved.servers:
        # Without servers there is nothing left that it waits for: it is over, and this daemon a new one.
        yield from shutdown.resume_quit(daemon, saved.quit.timeout)
    yield from queueing.restore(daemon, saved.wishes, saved.queue_order, event.connections)
    if daemon.queue.reserved:
        yield SetTimer(Timer(TimerKind.PLACES), TAKEOVER_TIMEOUT)
    yield from serve_queue(daemon)


def first_id(generation: int) -> int:
    """Return the first id of a generation."""
    return (generation << GENERATION_BITS) + 1


def adopt(daemon: Daemon, event: ServerTakenOver) -> Iterator[Instruction]:
    """Adopt a pending server that is back, with its clients."""
    server = daemon.servers.get(event.server)
    if server is None or not server.pending:
        return
    server.pending = False
    server.clients = {client.id: client for client in event.clients}
    for client in server.clients.values():
        for context in client.contexts.values():
            note_context(server, client, context.device)
    debuggers.server_returned(daemon, server)
    if server.phase is Phase.RETURNING:
        server.become(_phase(event))
    yield Log("server_returned", {"server": server.pid, "uid": server.uid, "count": len(server.clients)})
    yield limits_update(server)
    if server.phase is Phase.LEAVING and not server.clients:
        yield from time_leaving(server)
    if server.phase is Phase.INITIALIZING:
        yield SetTimer(Timer(TimerKind.START, server.id), START_TIMEOUT)
    for client in server.clients.values():
        yield WatchClient(client.id, server.id, client.pid)
    yield from serve_queue(daemon)
    yield from shutdown.advance(daemon)


def takeover_timed_out(daemon: Daemon, server_id: int) -> Iterator[Instruction]:
    """Kill a server that has not returned in time."""
    server = daemon.servers.get(server_id)
    if server is not None and server.pending:
        yield Log("server_not_returned", {"server": server.pid, "seconds": TAKEOVER_TIMEOUT})
        yield KillServer(server_id)


def _take_defaults(daemon: Daemon, saved: PersistentState) -> None:
    if saved.thread_percentage is not None:
        daemon.defaults.thread_percentage = ThreadPercentage(saved.thread_percentage)
    if saved.client_priority is not None:
        daemon.defaults.client_priority = ClientPriority(saved.client_priority)
    if saved.rules is not None and daemon.process_limits.rules is None:
        daemon.process_limits.rules = saved.rules
    daemon.usage.shares = evolve(daemon.usage.shares, configured=saved.shares)
    daemon.named_servers.default_socket = saved.default_socket or not daemon.options.policy.has_named_servers
    daemon.process_limits.accounts_cgroups, daemon.process_limits.audits_memory = (
        saved.accounts_cgroups,
        saved.audits_memory,
    )
    daemon.process_limits.cgroups = limits_of_cgroups(saved)
    passing = saved.passing_cgroups.items()
    daemon.process_limits.transient_cgroups = {
        path: is_seen for path, is_seen in passing if path in daemon.process_limits.cgroups
    }
    if (configuration := saved.configuration) is not None:
        daemon.configuration = evolve(
            daemon.configuration,
            generation=configuration.generation,
            source=configuration.source,
            applied=configuration.applied,
            refused=configuration.failed,
            text=configuration.text,
        )
    if saved.memory_limits is not None:
        daemon.defaults.memory_limits = in_memory(saved.memory_limits)


def _pending_server(daemon: Daemon, known: PersistentServer, left: PersistentState) -> Server:
    percentage, memory = known.thread_percentage, known.memory_limits
    if not daemon.options.policy.has_named_servers:
        percentage, memory = limits_of(known, left)
    limits = ThreadPercentage(percentage), in_memory(memory)
    server = Server(known.serial, known.uid, *limits, pid=known.pid, phase=Phase.RETURNING)
    server.name = known.name or server.name
    server.pending = server.verified = True
    return server


def _phase(event: ServerTakenOver) -> Phase:
    if event.leaving:
        return Phase.LEAVING
    phases = {ServerStatus.FAULT: Phase.FAULT, ServerStatus.INITIALIZING: Phase.INITIALIZING}
    return phases.get(ServerStatus(event.status), Phase.ACTIVE)
