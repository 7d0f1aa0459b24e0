"""Find servers by PID; make the records of devices, servers and clients for --json.

A server's record lists its clients, and a client's record its contexts.
"""

from collections.abc import Mapping
from typing import Any

from pympsd.commands.grammar.syntax import CommandRefused
from pympsd.state_machine.state.client import Client, ReportedContext
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.drains import Drain, DrainTarget, TargetKind
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.answers import refusal
from pympsd.vocabulary.limits import PinnedMemory


def find_server(daemon: Daemon, pid: int) -> Server:
    """Return the server with a PID; raise the recorded refusal if none has it."""
    server = daemon.server_by_pid(pid)
    if server is None:
        raise CommandRefused(answer=refusal(f"Server {pid} not found"))
    return server


def device_record(daemon: Daemon, ordinal: int) -> dict[str, Any]:
    """Return the record of a device of the daemon."""
    device = daemon.devices[ordinal]
    return {
        "ordinal": ordinal,
        "uuid": device.uuid,
        "pci": device.pci,
        "name": device.name,
        "multiprocessors": device.multiprocessors,
        "memory_bytes": device.memory_bytes,
    }


def server_record(daemon: Daemon, server: Server) -> dict[str, Any]:
    """Return the record of a server, with the limits of its next client."""
    return {
        "pid": server.pid,
        "uid": server.uid,
        "name": server.name,
        "status": str(server.status),
        "active_thread_percentage": server.thread_percentage.value,
        "pinned_memory_limits": {str(device): limit.value for device, limit in server.memory_limits.items()},
        "launches": {str(device): count for device, count in server.launches.items()},
        "clients": [client_record(daemon, client) for client in server.clients.values()],
        "draining": target_text(find_drain_of_server(daemon, server.name)),
    }


def client_record(daemon: Daemon, client: Client) -> dict[str, Any]:
    """Return the record of a client, with the limits that apply to it; the priority is 0 (normal) or 1 (below
    normal).
    """
    limits = client.limits
    return {
        "pid": client.pid,
        "uid": client.uid,
        "command": client.process.command,
        "active_thread_percentage": None if limits is None else limits.percentage_record,
        "pid_namespace": client.process.pid_namespace,
        "namespace": client.process.namespace or None,
        "multiprocessors": {} if limits is None else _key_by_device(limits.multiprocessors),
        "memory_limits": {} if limits is None else _key_by_device(limits.memory),
        "priority": None if limits is None else limits.priority,
        "memory_bytes": _key_by_device(client.memory),
        "contexts": [context_record(context) for context in client.contexts.values()],
        "draining": target_text(daemon.drains.find_by_client(client.id)),
    }


def target_text(drain: Drain | None) -> str | None:
    """Return the target of a drain as an argument of ``undrain``; None without a drain."""
    return None if drain is None else str(drain.target)


def find_drain_of_server(daemon: Daemon, name: str) -> Drain | None:
    """Return the drain of a server, named by its name, or else the drain of everything."""
    targets = DrainTarget(TargetKind.SERVER, name), DrainTarget(TargetKind.ALL)
    return next((drain for drain in daemon.drains if drain.target in targets), None)


def _key_by_device(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(device): count for device, count in counts.items()}


def make_device_record(client: Client, device: int, *, memory: int | None) -> dict[str, Any]:
    """Return the record of the limits that apply to a client on a device, and of the bytes that it holds there.

    ``memory``: the bytes if nothing is reported; None if unknown.
    """
    limits = client.limits
    return {
        "active_thread_percentage": None if limits is None else limits.percentage_on(device),
        "multiprocessors": None if limits is None else limits.multiprocessors.get(device) or None,
        "memory_limit": None if limits is None else limits.memory.get(device),
        "memory_bytes": client.memory.get(device, memory),
        "priority": None if limits is None else limits.priority,
    }


def context_record(context: ReportedContext) -> dict[str, Any]:
    """Return the record of a context: ``id`` is unique on its server, ``number`` in its process."""
    return {"id": context.id, "number": context.number, "device": context.device}


def limit_record(device: int, limit: PinnedMemory | None) -> dict[str, Any]:
    """Return the record of a device's memory limit, in bytes or None."""
    return {"device": device, "pinned_memory_limit": limit and limit.value}
