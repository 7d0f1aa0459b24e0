"""The module ``sm-partition``: static SM partitions."""

from __future__ import annotations

from typing import Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Option, Syntax
from pympsd.commands.v3.options import FORMAT, SERVER
from pympsd.commands.v3.output import Column, Format, Row
from pympsd.commands.v3.registry import command, listing
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, NamedStatus
from pympsd.state_machine.v3.partitions import clients_in, create_partition, delete_partition, free_of
from pympsd.state_machine.v3.servers import server as server_named
from pympsd.state_machine.v3.servers import status
from pympsd.vocabulary.answers import Answer, Part
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.partitions import VARIABLE, chunk_count, multiprocessors, partition_id
from pympsd.vocabulary.texts import read_boolean, read_count

COLUMNS: Final = tuple(
    Column(name, name.upper())
    for name in ("server", "device", "name", "chunks", "sm-count", "include-remainder", "status", "visible-uuid")
)
_DEVICE: Final = Option(str, "<ordinal|UUID>")


@command(
    Syntax(
        "sm-partition create",
        required=("name",),
        options={
            "server": SERVER,
            "device": _DEVICE,
            "chunks": Option(read_count, "<n>"),
            "include-remainder": Option(read_boolean, "true|false"),
        },
        needed=("server", "device", "chunks"),
    ),
    asks_servers=True,
)
def create(
    daemon: Daemon,
    caller: Caller,
    name: str,
    server: str,
    device: str,
    chunks: int,
    include_remainder: bool = False,
) -> Decision:
    """Make a static SM partition of a server: chunks of the SMs of a device that its clients alone use, with
    --include-remainder those too that are in no chunk. From the first partition on every client of the server has to
    name one on that device, by the CUDA_MPS_SM_PARTITION that is printed, or as <device>/<name> or <name>.
    """
    named = server_named(daemon, server)
    view.check_owner(caller, named, "sm-partition create")
    ordinal = view.device_of(daemon, named, device)
    made = tuple(create_partition(daemon, server, name, ordinal, chunks, include_remainder, caller.uid))
    facts = daemon.devices[ordinal]
    if _is_created(daemon, named):
        count = len(multiprocessors(facts, named.partitions[-1].chunks))
        said = f"created on device {facts.uuid} (sm-count={count})"
    else:
        when = f"it is made when server '{server}' starts"
        said = f"configured on device {facts.uuid} (chunks={chunks}); {when}"
    variable = f"{VARIABLE}={facts.uuid}/{partition_id(server, facts, name)}"
    return Decision(Answer((Part(f"SM partition '{name}' {said}"), Part(variable))), made)


@command(
    Syntax(
        "sm-partition delete",
        required=("name",),
        options={"server": SERVER, "device": _DEVICE},
        flags=("force",),
        needed=("server", "device"),
    ),
    asks_servers=True,
)
def delete(daemon: Daemon, caller: Caller, name: str, server: str, device: str, force: bool = False) -> Decision:
    """Delete a static SM partition; refused while it has clients, which --force terminates."""
    named = server_named(daemon, server)
    view.check_owner(caller, named, "sm-partition delete")
    ordinal = view.device_of(daemon, named, device)
    answer = Answer((Part(f"SM partition '{name}' deleted from device {daemon.devices[ordinal].uuid}"),))
    return Decision(None, tuple(delete_partition(daemon, server, name, ordinal, force, caller.session, answer)))


@command(
    Syntax(
        "sm-partition list",
        options={"server": SERVER, "device": _DEVICE, "format": FORMAT},
        flags=("all",),
    ),
    asks_servers=True,
)
def list_partitions(
    daemon: Daemon,
    caller: Caller,
    server: str | None = None,
    device: str | None = None,
    all: bool = False,
    format: Format | None = None,
) -> Decision:
    """List the static SM partitions, with --all also what is left of each device. With --server its clients' ordinals
    of devices count, otherwise the daemon's.
    """
    shown = view.servers(daemon) if server is None else [server_named(daemon, server)]
    only = None
    if device is not None:
        only = view.device_named(daemon, device) if server is None else view.device_of(daemon, shown[0], device)
    rows = []
    for named in shown:
        ordinals = named.ordinals(len(daemon.devices))
        for ordinal in ordinals if only is None else [only] if only in ordinals else []:
            rows += _rows(daemon, named, ordinal)
            # Of the other servers' chunks a tenant's view knows nothing, and the driver's own server has none.
            known = all and daemon.options.has_own_servers and view.sees_all(daemon, caller)
            if known and (free := free_of(daemon, ordinal)):
                rows.append(_unallocated(named, daemon.devices[ordinal], free))
    return listing(COLUMNS, rows, format)


def _rows(daemon: Daemon, named: NamedServer, ordinal: int) -> list[Row]:
    facts, made = daemon.devices[ordinal], "created" if _is_created(daemon, named) else "configured"
    return [
        Row(
            (
                named.name,
                facts.uuid,
                one.name,
                sum(chunk < chunk_count(facts) for chunk in one.chunks),
                len(multiprocessors(facts, one.chunks)),
                chunk_count(facts) in one.chunks,
                made,
                partition_id(named.name, facts, one.name),
            ),
            {"clients": sorted(client.pid for client in clients_in(daemon, named, one))},
        )
        for one in named.partitions
        if one.device == ordinal
    ]


def _unallocated(named: NamedServer, facts: DeviceFacts, free: tuple[int, ...]) -> Row:
    whole = sum(chunk < chunk_count(facts) for chunk in free)
    cells = named.name, facts.uuid, None, whole, len(multiprocessors(facts, free)), None, "unallocated", None
    return Row(cells)


def _is_created(daemon: Daemon, named: NamedServer) -> bool:
    return status(daemon, named) in (NamedStatus.READY, NamedStatus.FAULT)
