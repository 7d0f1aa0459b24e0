"""``lspart``: protocol 2's list of the static SM partitions, which programs for driver 590 and later read.

They split its lines on blanks: two heading lines, then for each device a line of five words (beginning of its UUID,
free and used chunks, free and used SMs), and after it for each partition one of five (beginning of the UUID, id, used
chunks, used SMs, and whether it has clients). The free SMs include those that are left over from the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.commands.registry import Caller, Decision
from pympsd.commands.v3 import view
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.v3.partitions import NO_PARTITIONS, clients_in, free_of, partitions_on
from pympsd.vocabulary.answers import lines, refusal
from pympsd.vocabulary.partitions import chunk_count, multiprocessors, partition_id

NAME: Final = "lspart"
HEADINGS: Final = (
    ("GPU", "Partition", "free", "used", "free", "used", "clients"),
    ("", "", "chunks", "chunks", "SM", "SM", ""),
)
_WIDTHS: Final = (14, 38, 8, 8, 6, 6, 0)
_MIN_UUID: Final = len("GPU-") + 8
"""The characters of a UUID that are shown, more if two devices share them."""


def answer(daemon: Daemon, caller: Caller, arguments: list[str]) -> Decision:
    """List the SM partitions of all servers with what is free; refuse arguments, and callers who may not see all."""
    if arguments:
        return Decision(refusal(diagnostic=f"'{NAME}' takes no arguments, not {' '.join(arguments)[:80]!r}."))
    if not daemon.options.has_own_servers:
        return Decision(refusal(diagnostic=NO_PARTITIONS))
    if not view.sees_all(daemon, caller):
        reason = "shows what all servers have; here 'sm-partition list' shows your server's partitions"
        return Decision(refusal(diagnostic=f"'{NAME}' {reason}."))
    rows = (*HEADINGS, *_rows(daemon))
    widths = (max(_WIDTHS[0], *(len(row[0]) + 2 for row in rows)), *_WIDTHS[1:])
    padded = ("".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return Decision(lines(*(line.rstrip() for line in padded)))


def _rows(daemon: Daemon) -> Iterator[tuple[str, ...]]:
    shown = _shown_uuids([device.uuid for device in daemon.devices])
    for ordinal, device in enumerate(daemon.devices):
        count, free = chunk_count(device), free_of(daemon, ordinal)
        free_count, free_sms = sum(chunk < count for chunk in free), len(multiprocessors(device, free))
        used = count - free_count, device.multiprocessors - free_sms
        yield shown[ordinal], "", *map(str, (free_count, used[0], free_sms, used[1])), ""
        for named, partition in partitions_on(daemon, ordinal):
            chunks = str(sum(chunk < count for chunk in partition.chunks))
            sms = str(len(multiprocessors(device, partition.chunks)))
            has_clients = "Yes" if clients_in(daemon, named, partition) else "No"
            yield shown[ordinal], partition_id(named.name, device, partition.name), "", chunks, "", sms, has_clients


def _shown_uuids(uuids: list[str]) -> list[str]:
    """Return beginnings of UUIDs, long enough to be different."""
    length = _MIN_UUID
    while len({uuid[:length] for uuid in uuids}) < len(set(uuids)):
        length += 1
    return [uuid[:length] for uuid in uuids]
