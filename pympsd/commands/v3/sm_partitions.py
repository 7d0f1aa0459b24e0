"""The module ``sm-partition``: static SM partitions; and ``lspart``, their list in protocol 2.

Programs for driver 590 and later read the lines of ``lspart``. They split them on blanks: two heading lines, then for
each device a line of five words (beginning of its UUID, free and used chunks, free and used SMs), and after it for
each partition one of five (beginning of the UUID, id, used chunks, used SMs, and whether it has clients). The free
SMs include those that are left over from the chunks.
"""

from collections.abc import Iterator
from typing import Final

from pympsd.commands.grammar.privileges import Caller, check_owner, sees_all
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import Option, Syntax
from pympsd.commands.v3 import view
from pympsd.commands.v3.options import FORMAT, SERVER
from pympsd.commands.v3.output import Format, Row, columns, listing
from pympsd.state_machine.named_servers import server as server_named
from pympsd.state_machine.named_servers import status
from pympsd.state_machine.partitions import (
    NO_PARTITIONS,
    clients_in,
    create_partition,
    delete_partition,
    free_of,
    partitions_on,
)
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, NamedStatus
from pympsd.vocabulary.answers import Answer, Part, lines, refusal
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.partitions import VARIABLE, chunk_count, multiprocessors, partition_id
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
    """Create a static SM partition of a server: chunks of the SMs of a device that only its clients use; with
    --include-remainder, also the SMs that are in no chunk. As soon as a server has a partition on a device, each of
    its clients has to name one there: by the CUDA_MPS_SM_PARTITION that is printed, or as <device>/<name> or <name>.
    """
    owner = server_named(daemon, server)
    check_owner(caller, owner, "sm-partition create")
    index = view.device_of(daemon, owner, device)
    instructions = tuple(create_partition(daemon, server, name, index, chunks, include_remainder, caller.uid))
    properties = daemon.devices[index]
    if _is_created(daemon, owner):
        count = len(multiprocessors(properties, owner.partitions[-1].chunks))
        text = f"created on device {properties.uuid} (sm-count={count})"
    else:
        when = f"it is made when server '{server}' starts"
        text = f"configured on device {properties.uuid} (chunks={chunks}); {when}"
    variable = f"{VARIABLE}={properties.uuid}/{partition_id(server, properties, name)}"
    return Decision(Answer((Part(f"SM partition '{name}' {text}"), Part(variable))), instructions)


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
    answer = Answer((Part(f"SM partition '{name}' deleted from device {daemon.devices[index].uuid}"),))
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
            # A tenant's view lacks the chunks of other servers, and the driver's own server has none.
            shows_free = all and daemon.options.has_own_servers and sees_all(daemon, caller)
            if shows_free and (free := free_of(daemon, index)):
                rows.append(_free_row(owner, daemon.devices[index], free))
    return listing(COLUMNS, rows, format)


def _rows(daemon: Daemon, owner: NamedServer, index: int) -> list[Row]:
    properties, state = daemon.devices[index], "created" if _is_created(daemon, owner) else "configured"
    return [
        Row(
            (
                owner.name,
                properties.uuid,
                partition.name,
                sum(chunk < chunk_count(properties) for chunk in partition.chunks),
                len(multiprocessors(properties, partition.chunks)),
                chunk_count(properties) in partition.chunks,
                state,
                partition_id(owner.name, properties, partition.name),
            ),
            {"clients": sorted(client.pid for client in clients_in(daemon, owner, partition))},
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
        len(multiprocessors(properties, free)),
        None,
        "unallocated",
        None,
    )
    return Row(cells)


def _is_created(daemon: Daemon, owner: NamedServer) -> bool:
    return status(daemon, owner) in (NamedStatus.READY, NamedStatus.FAULT)


# --- lspart

NAME: Final = "lspart"
HEADINGS: Final = (
    ("GPU", "Partition", "free", "used", "free", "used", "clients"),
    ("", "", "chunks", "chunks", "SM", "SM", ""),
)
KEYS: Final = ("gpu", "partition", "free_chunks", "used_chunks", "free_sms", "used_sms", "clients")
"""The columns in JSON."""
_WIDTHS: Final = (14, 38, 8, 8, 6, 6, 0)
_MIN_UUID: Final = len("GPU-") + 8
"""The characters of a UUID in the table; more if two devices begin with the same ones."""


@command(Syntax(NAME), protocols=(3,))
def list_for_driver_590(daemon: Daemon, caller: Caller) -> Decision:
    """List the SM partitions of all servers and the free chunks of each device, in the format of driver 590."""
    if not daemon.options.has_own_servers:
        return Decision(refusal(diagnostic=NO_PARTITIONS))
    if not sees_all(daemon, caller):
        reason = "shows what all servers have; here 'sm-partition list' shows your server's partitions"
        return Decision(refusal(diagnostic=f"'{NAME}' {reason}."))
    rows = list(_lspart_rows(daemon))
    widths = (max(_WIDTHS[0], *(len(row[0]) + 2 for row in (*HEADINGS, *rows))), *_WIDTHS[1:])
    padded = ("".join(map(str.ljust, row, widths)) for row in (*HEADINGS, *rows))
    data = [dict(zip(KEYS, row, strict=True)) for row in rows]
    return Decision(lines(*(line.rstrip() for line in padded)), data=data)


def _lspart_rows(daemon: Daemon) -> Iterator[tuple[str, ...]]:
    uuids = _abbreviate_uuids([device.uuid for device in daemon.devices])
    for index, device in enumerate(daemon.devices):
        count, free = chunk_count(device), free_of(daemon, index)
        free_count, free_sms = sum(chunk < count for chunk in free), len(multiprocessors(device, free))
        used = count - free_count, device.multiprocessors - free_sms
        yield uuids[index], "", *map(str, (free_count, used[0], free_sms, used[1])), ""
        for server, partition in partitions_on(daemon, index):
            chunks = str(sum(chunk < count for chunk in partition.chunks))
            sms = str(len(multiprocessors(device, partition.chunks)))
            has_clients = "Yes" if clients_in(daemon, server, partition) else "No"
            yield uuids[index], partition_id(server.name, device, partition.name), "", chunks, "", sms, has_clients


def _abbreviate_uuids(uuids: list[str]) -> list[str]:
    """Return the beginnings of UUIDs, long enough to differ."""
    length = _MIN_UUID
    while len({uuid[:length] for uuid in uuids}) < len(set(uuids)):
        length += 1
    return [uuid[:length] for uuid in uuids]
