"""The commands for static SM partitions in protocol 2, as drivers since 590 have them: ``sm_partition`` and
``lspart``.

Programs start a daemon with -S, create partitions, and pass one to each of their clients:

    > sm_partition add GPU-74d43ed3 10
    Partition GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65/D0f3c... created
    > lspart
    GPU           Partition                             free    used    free  used  clients
                                                        chunks  chunks  SM    SM
    GPU-74d43ed3                                        5       10      52    80
    GPU-74d43ed3  D0f3c...                                      10            80    No

Programs parse these texts: the whole line that add prints, and the rows of lspart, which have five words each when
split on blanks. The free SMs include those that are left over from the chunks. In a refusal, programs search standard
output for ``Failed``, ``in use`` or ``not supported``, so a line there contains one of these, and the reason is on
standard error.

The id of a partition is its name in `Daemon.partitions`. docs/differences.md lists which texts are documented, which
ones programs rely on, and which ones are pympsd's own. ``lspart`` is also answered in protocol 3, where partitions
belong to servers (`pympsd.commands.v3.sm_partitions`).
"""

from collections.abc import Iterator
from typing import Final

from pympsd.commands.grammar.privileges import Caller, sees_all
from pympsd.commands.grammar.recorded import MAX_QUOTED
from pympsd.commands.grammar.registry import Decision, command
from pympsd.commands.grammar.syntax import Argument, CommandRefused, Syntax
from pympsd.process.version import STATIC_SINCE
from pympsd.state_machine import partitions
from pympsd.state_machine.limit_resolution import UnknownDevice, device_named
from pympsd.state_machine.named_servers import NotPossible
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import lines, refusal
from pympsd.vocabulary.partitions import SmPartition, list_multiprocessors, partition_id
from pympsd.vocabulary.results import Result

NOT_ENABLED: Final = "static partitioning is not enabled"
_MAX_DIGITS: Final = 9
"""The maximum number of digits of a number of chunks."""


@command(
    Syntax(
        "sm_partition",
        required=(
            Argument("verb", str, "add|rm"),
            Argument("device", str, "DEVICE"),
            Argument("subject", str, "CHUNKS|PARTITION"),
        ),
    ),
    in_protocol_3="sm-partition create P --server=NAME --device=UUID --chunks=N",
    driver=STATIC_SINCE,
    owner_only=True,
    refuses_unknown=True,
    failure="Failed: sm_partition takes a device and one more argument",
)
def sm_partition(daemon: Daemon, caller: Caller, verb: str, device: str, subject: str) -> Decision:
    """With -S: make a static SM partition of CHUNKS chunks of the SMs of DEVICE (add), or remove one that has no
    clients (rm). A client runs in the partition that its CUDA_MPS_SM_PARTITION names as DEVICE/PARTITION.
    """
    if not daemon.options.static:
        raise _refuse(NOT_ENABLED, _explain_how_to_enable(daemon))
    if verb == "add":
        return _add(daemon, device, subject)
    if verb == "rm":
        return _remove(daemon, caller, *_split_partition(device, subject))
    raise _refuse("sm_partition needs add or rm", f"usage: {_USAGES['add']}, or {_USAGES['rm']}")


_USAGES: Final = {"add": "sm_partition add DEVICE CHUNKS", "rm": "sm_partition rm DEVICE PARTITION"}


def _add(daemon: Daemon, device: str, chunks: str) -> Decision:
    """Add a partition of some chunks of a device; raise CommandRefused if that is not possible."""
    if not device:
        raise _refuse_chunks("0", Result.ERROR_INVALID_VALUE, f"usage: {_USAGES['add']}")
    index = _device_named(daemon, device)
    is_number = chunks.isascii() and chunks.isdecimal() and len(chunks) <= _MAX_DIGITS
    if not is_number or int(chunks) < 1:
        needs = f"sm_partition add needs a device and a number of chunks from 1, not {chunks[:MAX_QUOTED]!r}."
        raise _refuse_chunks(chunks[:MAX_QUOTED] or "0", Result.ERROR_INVALID_VALUE, needs)
    try:
        partition, log = partitions.add_partition(daemon, index, int(chunks))
    except partitions.TooOld as error:
        raise _refuse_chunks(chunks, Result.ERROR_NOT_SUPPORTED, str(error)) from None
    except partitions.NotReported as error:
        raise _refuse_chunks(chunks, Result.ERROR_NOT_READY, str(error)) from None
    except NotPossible as error:
        raise _refuse_chunks(chunks, Result.ERROR_INVALID_RESOURCE_CONFIGURATION, str(error)) from None
    return Decision(lines(f"Partition {daemon.devices[index].uuid}/{partition.name} created"), (log,))


def _remove(daemon: Daemon, caller: Caller, device: str, word: str) -> Decision:
    """Remove a partition that has no clients; raise CommandRefused if that is not possible."""
    if not device or not word:
        raise _refuse("sm_partition rm needs a device and a partition", f"usage: {_USAGES['rm']}")
    index = _device_named(daemon, device)
    uuid = daemon.devices[index].uuid
    partition = _find_partition(daemon, index, word)
    if partition is None:
        names = [partition.name for partition in daemon.partitions if partition.device == index]
        has = f"The device has: {', '.join(names)}" if names else "The device has none."
        raise CommandRefused(
            answer=refusal(f"Failed to find partition {word[:MAX_QUOTED]} on device {uuid}", diagnostic=has)
        )
    whole = f"{uuid}/{partition.name}"
    if present := partitions.clients_in(daemon, "", partition):
        pids = ", ".join(str(client.pid) for client in present)
        text = f"Partition {whole} in use. Terminate all clients before removing."
        raise CommandRefused(answer=refusal(text, diagnostic=f"PIDs of its clients: {pids}"))
    answer = lines(f"Partition {whole} removed")
    try:
        return Decision(None, tuple(partitions.remove_partition(daemon, partition, caller.session, answer)))
    except partitions.NotReported as error:
        raise CommandRefused(answer=refusal(f"Failed to remove partition {whole}", diagnostic=str(error))) from None


def _split_partition(device: str, word: str) -> tuple[str, str]:
    """Return the device and the id in the arguments of ``rm``, which are two words or one, ``DEVICE/PARTITION``."""
    if word:
        return device, word
    place, _, chunks = device.partition("/")
    return place, chunks


def _find_partition(daemon: Daemon, device: int, word: str) -> SmPartition | None:
    """Return a partition of a device by its id, or by the device's UUID (or its beginning) with ``/`` and the id."""
    place, slash, partition_id = word.partition("/")
    if slash:
        try:
            word = partition_id if device_named(daemon.devices, place) == device else ""
        except UnknownDevice:
            return None
    on_device = (partition for partition in daemon.partitions if partition.device == device)
    return next((partition for partition in on_device if partition.name == word), None)


def _device_named(daemon: Daemon, word: str) -> int:
    try:
        return device_named(daemon.devices, word)
    except UnknownDevice as error:
        text = f"Failed to find device {word[:MAX_QUOTED]}"
        raise CommandRefused(answer=refusal(text, diagnostic=str(error))) from None


def _refuse_chunks(chunks: str, result: Result, reason: str) -> CommandRefused:
    text = f"Failed to fulfill the requested SM partition of {chunks} chunks, error CUDA_{result.name}"
    return CommandRefused(answer=refusal(text, diagnostic=reason))


def _refuse(text: str, hint: str) -> CommandRefused:
    return CommandRefused(answer=refusal(f"Failed: {text}", diagnostic=hint))


def _explain_how_to_enable(daemon: Daemon) -> str:
    return "Start the daemon with -S." if daemon.options.has_own_servers else f"{partitions.NO_STATIC_MODE}."


# --- lspart

NAME: Final = "lspart"
HEADINGS: Final = (
    ("GPU", "Partition", "free", "used", "free", "used", "clients"),
    ("", "", "chunks", "chunks", "SM", "SM", ""),
)
KEYS: Final = ("gpu", "partition", "free_chunks", "used_chunks", "free_sms", "used_sms", "clients")
"""The columns in JSON, where ``gpu`` is the full UUID, ``clients`` is true or false, and blank columns are null."""
_WIDTHS: Final = (14, 38, 8, 8, 6, 6, 0)
_MIN_UUID: Final = len("GPU-") + 8
"""The minimum number of characters of a UUID in the table; more are shown if two devices begin with the same ones."""


@command(Syntax(NAME), driver=STATIC_SINCE)
def list_partitions(daemon: Daemon, caller: Caller) -> Decision:
    """List the devices with their free and used chunks and SMs, and below each device its static SM partitions, with
    whether they have clients. In protocol 2 the daemon needs -S.
    """
    if daemon.options.protocol == 2 and not daemon.options.static:
        return Decision(refusal(f"{NAME} is not supported: {NOT_ENABLED}", diagnostic=_explain_how_to_enable(daemon)))
    if not daemon.options.has_own_servers:
        return Decision(refusal(diagnostic=partitions.NO_PARTITIONS))
    if not sees_all(daemon, caller):
        reason = "shows what all servers have; here 'sm-partition list' shows your server's partitions"
        return Decision(refusal(diagnostic=f"'{NAME}' {reason}."))
    records = list(_rows(daemon))
    data = [dict(zip(KEYS, record, strict=True)) for record in records]
    abbreviations = dict(zip((device.uuid for device in daemon.devices), _abbreviate_uuids(daemon), strict=True))
    rows = [(abbreviations[uuid], *map(_word, values)) for uuid, *values in records]
    widths = (max(_WIDTHS[0], *(len(row[0]) + 2 for row in (*HEADINGS, *rows))), *_WIDTHS[1:])
    padded = ("".join(map(str.ljust, row, widths)) for row in (*HEADINGS, *rows))
    return Decision(lines(*(line.rstrip() for line in padded)), data=data)


def _rows(daemon: Daemon) -> Iterator[tuple[str, str | None, *tuple[int | None, ...]]]:
    """Yield a row for each device, followed by one for each of its partitions; None for a blank cell."""
    for index, device in enumerate(daemon.devices):
        free = partitions.free_of(daemon, index)
        chunks, sms = partitions.count_chunks(daemon, index, free), len(list_multiprocessors(device, free))
        used = len(partitions.chunks_of(daemon, index)) - chunks, device.multiprocessors - sms
        yield device.uuid, None, chunks, used[0], sms, used[1], None
        for server, partition in partitions.partitions_on(daemon, index):
            chunks, sms = (
                partitions.count_chunks(daemon, index, partition.chunks),
                len(list_multiprocessors(device, partition.chunks)),
            )
            has_clients = bool(partitions.clients_in(daemon, server, partition))
            yield device.uuid, partition_id(server, device, partition.name), None, chunks, None, sms, has_clients


def _word(value: str | int | None) -> str:
    """Return a value of a row as the table shows it."""
    if value is None:
        return ""
    return ("No", "Yes")[value] if isinstance(value, bool) else str(value)


def _abbreviate_uuids(daemon: Daemon) -> list[str]:
    """Return the beginnings of the devices' UUIDs, long enough to be distinct."""
    uuids = [device.uuid for device in daemon.devices]
    length = _MIN_UUID
    while len({uuid[:length] for uuid in uuids}) < len(set(uuids)):
        length += 1
    return [uuid[:length] for uuid in uuids]
