"""The servers of a daemon that died: the next one awaits them, takes them in as they are, or goes on without them.

One that is awaited counts as the current server: nobody else gets one meanwhile, and who knocks waits in the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine import debuggers, turns
from pympsd.state_machine.admission import take_turns, time_leaving
from pympsd.state_machine.daemon_state import Client, Context, Daemon, Server, Waiting
from pympsd.state_machine.events import PredecessorDied, ReturnedClient, ServerReturned
from pympsd.state_machine.instructions import Instruction, KillServer, Log, SetTimer, WatchClient
from pympsd.state_machine.limit_resolution import tell_limits
from pympsd.state_machine.persistent_state import Remembered, RememberedServer
from pympsd.state_machine.server_lifecycle import Phase
from pympsd.vocabulary.identities import Serials
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.statuses import ServerStatus

RETURN_TIMER: Final = "return"
RETURN_PATIENCE: Final = 10.0
"""Seconds a server has to come back; its own knocks are at most 1 s apart."""
GENERATION_BITS: Final = 40
"""The serials of a generation begin at its number times 2 to this."""


def inherit(daemon: Daemon, event: PredecessorDied) -> Iterator[Instruction]:
    """The daemon begins with what another one knew that did not end in order."""
    left = event.remembered
    _take_defaults(daemon, left)
    if left.servers:
        # What the servers go on with has serials of the daemons before.
        daemon.generation = left.generation + 1
        daemon.server_serials = Serials(first_serial(daemon.generation))
        daemon.termination_serials = Serials(first_serial(daemon.generation))
    for known in left.servers:
        daemon.servers[known.serial] = _awaited(known)
        yield Log("server_awaited", {"server": known.pid, "uid": known.uid})
        yield SetTimer(f"{RETURN_TIMER} {known.serial}", RETURN_PATIENCE)
    for uid in left.wishes:
        yield from turns.join(daemon, Waiting(daemon.tickets.take(), daemon.serving_uid(uid)))
    yield from take_turns(daemon)


def first_serial(generation: int) -> int:
    """Return the first serial of a generation."""
    return (generation << GENERATION_BITS) + 1


def returned(daemon: Daemon, event: ServerReturned) -> Iterator[Instruction]:
    """A server that was awaited is back, with its clients."""
    server = daemon.servers.get(event.server)
    if server is None or not server.awaited:
        return
    server.awaited = False
    server.clients = {client.client: _client(server, client) for client in event.clients}
    debuggers.now_known(daemon, server)
    if server.phase is Phase.RETURNING:
        server.become(_phase(event))
    yield Log("server_returned", {"server": server.pid, "uid": server.uid, "count": len(server.clients)})
    yield tell_limits(server)
    if server.phase is Phase.LEAVING and not server.clients:
        yield from time_leaving(server)
    for client in server.clients.values():
        # PID 0: its process is not visible here.
        if client.pid:
            yield WatchClient(client.serial, server.serial, client.pid)
    yield from take_turns(daemon)


def overdue(daemon: Daemon, serial: int) -> Iterator[Instruction]:
    """A server's time to return is over."""
    server = daemon.servers.get(serial)
    if server is not None and server.awaited:
        yield Log("server_not_returned", {"server": server.pid, "seconds": RETURN_PATIENCE})
        yield KillServer(serial)


def _take_defaults(daemon: Daemon, left: Remembered) -> None:
    if left.thread_percentage is not None:
        daemon.thread_percentage = ThreadPercentage(left.thread_percentage)
    if left.client_priority is not None:
        daemon.client_priority = ClientPriority(left.client_priority)
    if left.memory_limits is not None:
        daemon.memory_limits = _limits(left.memory_limits)


def _awaited(known: RememberedServer) -> Server:
    percentage, limits = ThreadPercentage(known.thread_percentage), _limits(known.memory_limits)
    server = Server(known.serial, known.uid, percentage, limits, pid=known.pid, phase=Phase.RETURNING)
    server.awaited = server.proven = True
    return server


def _limits(in_bytes: dict[int, int]) -> dict[int, PinnedMemory]:
    return {ordinal: PinnedMemory(limit) for ordinal, limit in in_bytes.items()}


def _client(server: Server, told: ReturnedClient) -> Client:
    contexts = {context.serial: Context(context.serial, context.number, context.device) for context in told.contexts}
    return Client(told.client, told.pid, server.uid, told.command, told.namespace, contexts)


def _phase(event: ServerReturned) -> Phase:
    if event.leaving:
        return Phase.LEAVING
    return Phase.FAULT if event.status == ServerStatus.FAULT else Phase.ACTIVE
