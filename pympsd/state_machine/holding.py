"""Hold or refuse the waiting clients that a drain covers; see `pympsd.state_machine.drains` for the theory.

A held client keeps its ticket, but nobody waits behind it and no server starts for it. A request to start a server is
held only by a drain that releases the driver: a server without clients does not disturb any other drain.
"""

from collections.abc import Iterator

from pympsd.devices.visible import DuplicateDevice, NoVisibleDevice, select_of
from pympsd.state_machine.instructions import Instruction, Log, RefuseClient
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.drains import Drain, TargetKind
from pympsd.state_machine.state.queue import QueueEntry
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.results import Result


def find_drain(daemon: Daemon, entry: QueueEntry) -> Drain | None:
    """Return the drain that holds a waiting entry, preferably one that refuses it; None if no drain does."""
    covering = [drain for drain in daemon.drains if _covers(daemon, drain, entry)]
    refusing = [drain for drain in covering if drain.refuses and entry.client]
    return next(iter((*refusing, *covering)), None)


def hold(daemon: Daemon, drain: Drain, entry: QueueEntry) -> Iterator[Instruction]:
    """Hold an entry that is not in the queue, or refuse its client if the drain refuses new clients."""
    if drain.refuses and entry.client:
        yield refuse(drain, entry.client)
        return
    if entry.process is not None:
        peer = entry.process.peer
        yield Log("client_held", {"pid": peer.pid, "uid": peer.uid, "target": str(drain.target)})
    daemon.queue.hold(entry)


def refuse(drain: Drain, client: int) -> RefuseClient:
    """Return the refusal of a client, with a sentence that names the drain."""
    reason = f"{drain.target} is being drained: no new clients until 'pympsd undrain {drain.target}'"
    return RefuseClient(client, Result.ERROR_MPS_SERVER_NOT_READY, reason)


def start_problem(daemon: Daemon) -> str:
    """Return why no server may be started, as a sentence; empty if one may."""
    drain = daemon.drains.releasing
    if drain is None:
        return ""
    return f"The driver is released by 'drain {drain.target}': no server starts until 'undrain {drain.target}'."


def has_terminated(daemon: Daemon, server: Server, process: ClientProcess) -> bool:
    """Return whether a drain has terminated a process on a server: its next connection is a new client's."""
    return any(
        client.process.is_same(process) and daemon.drains.has_terminated(client.id)
        for client in server.clients.values()
    )


def _covers(daemon: Daemon, drain: Drain, entry: QueueEntry) -> bool:
    if entry.process is None:
        return drain.releases
    if drain.target.kind is TargetKind.DEVICE:
        return drain.target.name in _visible(daemon, entry)
    if drain.target.kind is TargetKind.CLIENT:
        return _is_client_of(daemon, drain, entry.process)
    return drain.target.has_process(entry.process, entry.server)


def _visible(daemon: Daemon, entry: QueueEntry) -> set[str]:
    """Return the UUIDs of the devices that a waiting client may use."""
    named_server = daemon.named_servers.get(entry.server)
    allowed = None if named_server is None else named_server.allowed_devices
    try:
        ordinals = select_of(daemon.devices, allowed, entry.visible_devices)
    except (NoVisibleDevice, DuplicateDevice):
        return set()  # its server refuses it
    return {daemon.devices[ordinal].uuid for ordinal in ordinals}


def _is_client_of(daemon: Daemon, drain: Drain, process: ClientProcess) -> bool:
    ids = drain.clients.keys() | drain.terminated
    clients = (client for server in daemon.servers.values() for client in server.clients.values())
    return any(client.id in ids and client.process.is_same(process) for client in clients)
