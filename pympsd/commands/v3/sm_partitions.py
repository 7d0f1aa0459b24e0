"""The module ``sm-partition``: the static SM partitions of servers; see also `pympsd.commands.v2.partitions`."""

from typing import Final

from pympsd.commands.grammar.privileges import Caller, check_owner, sees_all
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import Option, Syntax
from pympsd.commands.v3 import view
from pympsd.commands.v3.options import FORMAT, SERVER
from pympsd.commands.v3.output import Format, Row, columns, listing
from pympsd.state_machine.named_servers import server as server_named
from pympsd.state_machine.named_servers import status
from pympsd.state_machine.partitions import clients_in, create_partition, delete_partition, free_of
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, NamedStatus
from pympsd.vocabulary.answers import Answer, AnswerPart
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.partitions import VARIABLE, chunk_count, list_multiprocessors, partition_id
from pympsd.vocabulary.texts import read_boolean, read_count

COLUMNS: Final = columns(
    "server", "device", "name", "chunks", "sm-count", "include-remainder", "status", "visible-uuid"
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
    """Create a static SM partition of a server: chunks of a device's SMs that only the partition's clients use; with
    --include-remainder, also the SMs that are in no chunk. As soon as a server has a partition on a device, each of
    its clients has to name one there: by the CUDA_MPS_SM_PARTITION that is printed, or as <device>/<name> or <name>.
    """
    owner = server_named(daemon, server)
    check_owner(caller, owner, "sm-partition create")
    index = view.device_of(daemon, owner, device)
    instructions = tuple(create_partition(daemon, server, name, index, chunks, include_remainder, caller.uid))
    properties = daemon.devices[index]
    if _is_created(daemon, owner):
        count = len(list_multiprocessors(properties, owner.partitions[-1].chunks))
        text = f"created on device {properties.uuid} (sm-count={count})"
    else:
        when = f"it is created when server '{server}' starts"
        text = f"configured on device {properties.uuid} (chunks={chunks}); {when}"
    variable = f"{VARIABLE}={properties.uuid}/{partition_id(server, properties, name)}"
    return Decision(Answer((AnswerPart(f"SM partition '{name}' {text}"), AnswerPart(variable))), instructions)


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
    """Delete a static SM partition. It is refused while the partition has clients; --force terminates them."""
    owner = server_named(daemon, server)
    check_owner(caller, owner, "sm-partition delete")
    index = view.device_of(daemon, owner, device)
    answer = Answer((AnswerPart(f"SM partition '{name}' deleted from device {daemon.devices[index].uuid}"),))
    return Decision(None, tuple(delete_partition(daemon, server, name, index, force, caller.session, answer)))


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
    """List the static SM partitions; with --all, also the free chunks of each device. With --server, --device is an
    index that the clients of that server see, otherwise one of the daemon.
    """
    servers = view.servers(daemon) if server is None else [server_named(daemon, server)]
    only = None
    if device is not None:
        only = view.device_named(daemon, device) if server is None else view.device_of(daemon, servers[0], device)
    rows = []
    for owner in servers:
        indices = owner.ordinals(len(daemon.devices))
        for index in indices if only is None else [only] if only in indices else []:
            rows += _rows(daemon, owner, index)
            # A tenant's view lacks the chunks of other servers, and the driver's own server has no chunks.
            shows_free = all and daemon.options.has_own_servers and sees_all(daemon, caller)
            if shows_free and (free := free_of(daemon, index)):
                rows.append(_free_row(owner, daemon.devices[index], free))
    return listing(COLUMNS, rows, format)


def _rows(daemon: Daemon, owner: NamedServer, index: int) -> list[Row]:
    """Return a row for each static SM partition of a server on one device."""
    properties, state = daemon.devices[index], "created" if _is_created(daemon, owner) else "configured"
    return [
        Row(
            (
                owner.name,
                properties.uuid,
                partition.name,
                sum(chunk < chunk_count(properties) for chunk in partition.chunks),
                len(list_multiprocessors(properties, partition.chunks)),
                chunk_count(properties) in partition.chunks,
                state,
                partition_id(owner.name, properties, partition.name),
            ),
            {"clients": sorted(client.pid for client in clients_in(daemon, owner.name, partition))},
        )
        for partition in owner.partitions
        if partition.device == index
    ]


def _free_row(owner: NamedServer, properties: DeviceProperties, free: tuple[int, ...]) -> Row:
    whole = sum(chunk < chunk_count(properties) for chunk in free)
    cells = (
        owner.name,
        properties.uuid,
        None,
        whole,
        len(list_multiprocessors(properties, free)),
        None,
        "unallocated",
        None,
    )
    return Row(cells)


def _is_created(daemon: Daemon, owner: NamedServer) -> bool:
    return status(daemon, owner) in (NamedStatus.READY, NamedStatus.FAULT)
