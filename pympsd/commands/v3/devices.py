"""Define the module ``device``, which lists devices."""

from typing import Final

from pympsd.commands.grammar.privileges import Caller, sees_all
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import Syntax
from pympsd.commands.v3 import view
from pympsd.commands.v3.options import FORMAT, SERVER
from pympsd.commands.v3.output import Format, Row, columns, listing
from pympsd.state_machine.named_servers import server as server_named
from pympsd.state_machine.partitions import free_of
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.partitions import chunk_count, chunk_size
from pympsd.vocabulary.sm_rounding import rounding

COLUMNS: Final = columns(
    *("Ordinal", "Server", "PCI ID", "Device UUID", "Name", "Total SMs", "Total Chunks", "Attributes"), heading=str
)
NOT_POSSIBLE: Final = "no-static-partitions no-memacct"
"""The attributes of a device with the driver's own server."""


@command(Syntax("device list", options={"server": SERVER, "format": FORMAT}), asks_servers=True)
def list_devices(daemon: Daemon, caller: Caller, server: str | None = None, format: Format | None = None) -> Decision:
    """List the devices of each server, by the indices that its clients see, and the devices of no server. Chunks are
    those of static SM partitions. JSON has how many more clients with one context fit on each.
    """
    servers = view.servers(daemon) if server is None else [server_named(daemon, server)]
    used = [(owner.name, owner.ordinals(len(daemon.devices))) for owner in servers]
    places: list[tuple[int, str | None, int]] = [
        (ordinal, name, device) for name, devices in used for ordinal, device in enumerate(devices)
    ]
    if server is None:
        in_use = {device for _, _, device in places}
        places += [(index, None, index) for index in range(len(daemon.devices)) if index not in in_use]
    clients = [client for process in daemon.servers.values() for client in process.clients.values()]
    rows = []
    for ordinal, name, index in places:
        device = daemon.devices[index]
        major, minor = device.compute_capability
        # A tenant must not see the memory of others.
        is_known = daemon.options.has_own_servers and sees_all(daemon, caller)
        chunks = chunk_count(device) if daemon.options.has_own_servers else 0
        size = chunk_size(device) if chunks else None
        row = rounding(device) if device.is_volta_or_newer else None
        extra = {
            "compute_capability": f"{major}.{minor}",
            "memory_total": device.memory_bytes,
            "daemon_ordinal": index,
            "memory_free": device.memory_bytes - sum(client.memory.get(index, 0) for client in clients)
            if is_known
            else None,
            "chunk_size": size,
            "remainder_sms": None if size is None else device.multiprocessors - chunks * size,
            "sm_step": None if row is None else row.step,
            "sm_minimum": None if row is None else row.minimum,
            "sm_rounding": None if row is None else "measured" if row.is_measured else "not measured",
            "max_clients": device.max_contexts,
            "free_clients": daemon.count_free(daemon.server_named(name), index)
            if name and sees_all(daemon, caller)
            else None,
            "free_chunks": sum(chunk < chunks for chunk in free_of(daemon, index)) if is_known and chunks else None,
        }
        static = any(
            partition.device == index for partition in (daemon.named_servers[name].partitions if name else ())
        )
        attributes = "static-partitions" if static else None
        if not daemon.options.has_own_servers:
            attributes = NOT_POSSIBLE
        identity = device.pci, device.uuid, device.name, device.multiprocessors
        cells = (ordinal, name, *identity, chunks or None, attributes)
        rows.append(Row(cells, extra))
    return listing(COLUMNS, rows, format)
