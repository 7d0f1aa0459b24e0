"""The limits in the files of the kernel's dmem controller, by cgroup and device (cgroup-v2.rst, DMEM)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import MAX_MEMORY, CgroupLimit, CgroupLimits, PinnedMemory

_LINE: Final = re.compile(r"(\S+) ([0-9]{1,20}|max)")
_BUS_ID: Final = re.compile(
    r"(?<![0-9a-f])([0-9a-f]{4,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?![0-9a-f])", re.ASCII | re.IGNORECASE
)
"""A PCI address in the name of a region, such as ``drm/0000:03:00.0/vram0``."""


@frozen
class CgroupFiles:
    """The contents of a cgroup's files ``dmem.max`` and ``dmem.min``.

    ``path`` is the cgroup's, below /sys/fs/cgroup. A content is empty if the file does not exist or cannot be read.
    """

    path: str
    max: str
    min: str


def limits_in(devices: Sequence[DeviceProperties], cgroups: Iterable[CgroupFiles]) -> CgroupLimits:
    """Return the limits of cgroups, each of which is in the one before, by ordinal of ``devices``.

    A line that is of no device, or cannot be read, does not count.
    """
    limits: CgroupLimits = {}
    guaranteed: dict[int, int] = {}
    for files in cgroups:
        hard, soft = _hard(devices, files.max), _soft(devices, files.min)
        # A guarantee holds as far as the cgroups above have it, as in the kernel: its owner cannot give it more.
        guaranteed |= {ordinal: min(own, guaranteed.get(ordinal, own)) for ordinal, own in soft.items()}
        kept = {ordinal: PinnedMemory(guaranteed[ordinal]) for ordinal in soft if guaranteed[ordinal]}
        if hard or kept:
            limits[files.path] = {index: CgroupLimit(hard.get(index), kept.get(index)) for index in {**hard, **kept}}
    return limits


def _hard(devices: Sequence[DeviceProperties], text: str) -> dict[int, PinnedMemory]:
    """Return the least of each device's limits in a dmem.max."""
    least = {ordinal: min(counts) for ordinal, counts in _by_device(devices, text).items()}
    return {ordinal: PinnedMemory(count) for ordinal, count in least.items() if count < MAX_MEMORY}


def _soft(devices: Sequence[DeviceProperties], text: str) -> dict[int, int]:
    """Return the least of each device's guarantees in a dmem.min, in bytes; 0: it has none."""
    # A region's 0 is left out: nobody has set it.
    return {index: min(filter(None, counts), default=0) for index, counts in _by_device(devices, text).items()}


def _by_device(devices: Sequence[DeviceProperties], text: str) -> dict[int, list[int]]:
    """Return the values of each device's regions, in bytes.

    Of several regions the least counts: the memory of a client may lie in any of them, and nothing shows in which.
    """
    values: dict[int, list[int]] = {}
    for region, value in _lines(text):
        bus_ids = {f"{int(domain, 16):08X}{rest.upper()}" for domain, rest in _BUS_ID.findall(region)}
        for ordinal, device in enumerate(devices):
            if device.bus_id in bus_ids:
                values.setdefault(ordinal, []).append(value)
    return values


def _lines(text: str) -> Iterator[tuple[str, int]]:
    for line in text.split("\n"):
        if match := _LINE.fullmatch(line):
            yield match[1], MAX_MEMORY if match[2] == "max" else min(int(match[2]), MAX_MEMORY)
