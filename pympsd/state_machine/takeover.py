"""Wait for the servers of a daemon that died, and take them over or continue without them.

A pending server keeps its place: until it reports, its user does not get another, and new clients are queued.
"""

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from pympsd.state_machine import debuggers, drains, queueing, registration, shutdown
from pympsd.state_machine.admission import START_TIMEOUT, serve_queue
from pympsd.state_machine.cgroups import note_context
from pympsd.state_machine.events import PredecessorDied, ServerTakenOver
from pympsd.state_machine.instructions import Instruction, KillServer, Log, SetTimer, Timer, TimerKind, WatchClient
from pympsd.state_machine.limit_resolution import limits_update
from pympsd.state_machine.shutdown import time_leaving
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace, Source
from pympsd.state_machine.state.server import Phase, Server
from pympsd.takeover.state import records
from pympsd.takeover.state.other_devices import move
from pympsd.takeover.state.protocol_2 import limits_of
from pympsd.vocabulary.identities import DEFAULT, Ids, server_of_user
from pympsd.vocabulary.limit_table import Limits, percentages
from pympsd.vocabulary.limits import ClientPriority, ThreadPercentage
from pympsd.vocabulary.results import ServerStatus

TAKEOVER_TIMEOUT: Final = 10.0
"""The seconds in which a server has to report to the next daemon, and for which the places of waiting clients are
kept."""
GENERATION_BITS: Final = 40
"""The number of bits of an id below its generation: a generation's ids begin at its number shifted left by this."""


def take_over(daemon: Daemon, event: PredecessorDied) -> Iterator[Instruction]:
    """Restore the state of a daemon that was killed or replaced.

    Each of its servers is pending until it has reported its clients, for at most TAKEOVER_TIMEOUT seconds.
    """
    saved = event.state
    if event.devices is not None:
        saved, lost = move(saved, event.devices)
        for owner, device in lost:
            yield Log("state_device_gone", {"owner": owner, "device": device})
    _take_defaults(daemon, saved)
    if saved.servers:
        daemon.lifetime.backend_works = True
        # The servers have clients with ids of the earlier daemons.
        daemon.lifetime.generation = saved.generation + 1
        daemon.lifetime.server_ids = Ids(first_id(daemon.lifetime.generation))
        daemon.terminations.ids = Ids(first_id(daemon.lifetime.generation))
    for process in saved.servers:
        daemon.servers[process.serial] = _make_pending_server(daemon, process, saved)
        yield Log("takeover_pending", {"server": process.pid, "uid": process.uid})
        yield SetTimer(Timer(TimerKind.RETURN, process.serial), TAKEOVER_TIMEOUT)
    if daemon.options.policy.has_named_servers:
        yield from _restore_named_servers(daemon, saved)
    if saved.quit is not None and saved.servers:
        # Without servers a quit has nothing left to wait for: it is over, and this is a new daemon.
        yield from shutdown.resume_quit(daemon, saved.quit.timeout)
    yield from drains.restore(daemon, records.drains_of(saved))
    yield from queueing.restore(daemon, saved.wishes, saved.queue_order, event.connections)
    if daemon.queue.reserved:
        yield SetTimer(Timer(TimerKind.PLACES), TAKEOVER_TIMEOUT)
    yield from serve_queue(daemon)


def first_id(generation: int) -> int:
    """Return the first id that a generation may use. Generations never share ids."""
    return (generation << GENERATION_BITS) + 1


def adopt(daemon: Daemon, server: Server, event: ServerTakenOver) -> Iterator[Instruction]:
    """Take over a pending server that has connected again, together with its clients."""
    if not server.pending:
        return
    server.pending = False
    server.clients = {client.id: client for client in event.clients}
    for client in server.clients.values():
        for context in client.contexts.values():
            note_context(server, client, context.device)
    debuggers.server_returned(daemon, server)
    if server.phase is Phase.RETURNING:
        phases = {ServerStatus.FAULT: Phase.FAULT, ServerStatus.INITIALIZING: Phase.INITIALIZING}
        phase = phases.get(ServerStatus(event.status), Phase.ACTIVE)
        server.become(Phase.LEAVING if event.leaving else phase)
    yield Log("server_taken_over", {"server": server.pid, "uid": server.uid, "count": len(server.clients)})
    yield limits_update(server)
    if server.phase is Phase.LEAVING and not server.clients:
        yield from time_leaving(server)
    if server.phase is Phase.INITIALIZING:
        yield SetTimer(Timer(TimerKind.START, server.id), START_TIMEOUT)
    for client in server.clients.values():
        yield WatchClient(client.id, server.id, client.pid)
    yield from serve_queue(daemon)
    yield from shutdown.advance(daemon)


def takeover_timed_out(_: Daemon, server: Server) -> Iterator[Instruction]:
    """Kill a pending server that has not connected again in time."""
    if server.pending:
        yield Log("takeover_timeout", {"server": server.pid, "seconds": TAKEOVER_TIMEOUT})
        yield KillServer(server.id)


def _take_defaults(daemon: Daemon, saved: records.PersistentState) -> None:
    """Restore from the state file the daemon's defaults, shares, rules, cgroup limits and configuration."""
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
    daemon.process_limits.cgroups = records.limits_of_cgroups(saved)
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
    if daemon.options.static:
        daemon.partitions += saved.partitions
    if saved.memory_limits is not None:
        daemon.defaults.memory_limits = records.parse_memory(saved.memory_limits)


def _make_pending_server(daemon: Daemon, process: records.PersistentServer, saved: records.PersistentState) -> Server:
    percentage, memory = process.thread_percentage, process.memory_limits
    if not daemon.options.policy.has_named_servers:
        percentage, memory = limits_of(process, saved)
    limits = ThreadPercentage(percentage), records.parse_memory(memory)
    server = Server(process.serial, process.uid, *limits, pid=process.pid, phase=Phase.RETURNING)
    server.name = process.name or server.name
    server.pending = server.verified = True
    return server


def _restore_named_servers(daemon: Daemon, saved: records.PersistentState) -> Iterator[Instruction]:
    """Restore the named servers, whether or not their processes return; those that do not are started again."""
    for saved_server in saved.named_servers:
        daemon.named_servers.add(_restore_server(saved_server))
    for process in saved.servers:
        name = process.name or server_of_user(process.uid)
        if name not in daemon.named_servers:
            # A server of protocol 2, whose clients had the daemon's default priority, becomes one of protocol 3.
            memory, priority = records.parse_memory(process.memory_limits), daemon.defaults.client_priority
            limits = Limits(percentages(process.thread_percentage), memory, priority)
            namespaces = {DEFAULT: Namespace(DEFAULT, limits)}
            named_server = NamedServer(name, process.uid, namespaces, source=Source.AUTO)
            # A server that has a name but no record was being deleted.
            named_server.deleted = bool(process.name) and saved.protocol == 3
            daemon.named_servers.add(named_server)
    for named_server in tuple(daemon.named_servers.values()):
        yield from (
            registration.close_sockets(named_server)
            if named_server.deleted
            else registration.open_sockets(named_server)
        )


def _restore_server(saved_server: records.PersistentNamedServer) -> NamedServer:
    """Return the named server that a record of the state file describes."""
    namespaces = {
        namespace.name: Namespace(namespace.name, namespace.limits, clients_only=namespace.clients_only)
        for namespace in saved_server.namespaces
    }
    namespaces.setdefault(DEFAULT, Namespace(DEFAULT))
    named_server = NamedServer(
        saved_server.name,
        saved_server.uid,
        namespaces,
        saved_server.allowed_devices,
        Source(saved_server.source),
        saved_server.failed,
    )
    named_server.partitions += saved_server.partitions
    named_server.maximum, named_server.contains_partitions, named_server.created = (
        saved_server.maximum,
        saved_server.contains_partitions,
        saved_server.created,
    )
    return named_server
