"""``lspart``: protocol 2's list of the static SM partitions, which programs for driver 590 and later read.

They split its lines on blanks: two heading lines, then for each device a line of five words (beginning of its UUID,
free and used chunks, free and used SMs), and after it for each partition one of five (beginning of the UUID, id, used
chunks, used SMs, and whether it has clients). The free SMs include those that are left over from the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.commands.grammar.privileges import Caller, sees_all
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import Syntax
from pympsd.state_machine.partitions import NO_PARTITIONS, clients_in, free_of, partitions_on
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import lines, refusal
from pympsd.vocabulary.partitions import chunk_count, multiprocessors, partition_id

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
def list_partitions(daemon: Daemon, caller: Caller) -> Decision:
    """List the SM partitions of all servers and the free chunks of each device, in the format of driver 590."""
    if not daemon.options.has_own_servers:
        return Decision(refusal(diagnostic=NO_PARTITIONS))
    if not sees_all(daemon, caller):
        reason = "shows what all servers have; here 'sm-partition list' shows your server's partitions"
        return Decision(refusal(diagnostic=f"'{NAME}' {reason}."))
    rows = list(_rows(daemon))
    widths = (max(_WIDTHS[0], *(len(row[0]) + 2 for row in (*HEADINGS, *rows))), *_WIDTHS[1:])
    padded = ("".join(map(str.ljust, row, widths)) for row in (*HEADINGS, *rows))
    data = [dict(zip(KEYS, row, strict=True)) for row in rows]
    return Decision(lines(*(line.rstrip() for line in padded)), data=data)


def _rows(daemon: Daemon) -> Iterator[tuple[str, ...]]:
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
