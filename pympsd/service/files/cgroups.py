"""Read which cgroups exist, and their limits from the files of the kernel's dmem controller (Linux 6.14).

The format of the files is that of cgroup-v2.rst, DMEM.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from pympsd.state_machine.cgroups import MOUNT
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import MAX_MEMORY, CgroupLimit, CgroupLimits, PinnedMemory
from pympsd.vocabulary.rules import expand_cgroups

_LINE: Final = re.compile(r"(\S+) ([0-9]{1,20}|max)")
_BUS_ID: Final = re.compile(
    r"(?<![0-9a-f])([0-9a-f]{4,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?![0-9a-f])", re.ASCII | re.IGNORECASE
)
"""A PCI address in the name of a region, such as ``drm/0000:03:00.0/vram0``."""


@frozen
class CgroupFiles:
    """The contents of a cgroup's files ``dmem.max`` and ``dmem.min``.

    ``path`` names the cgroup, below /sys/fs/cgroup. The contents of a file that cannot be read are empty.
    """

    path: str
    max: str
    min: str


def limits_in(devices: Sequence[DeviceProperties], cgroups: Iterable[CgroupFiles]) -> CgroupLimits:
    """Return the limits of nested cgroups, outermost first, by index in ``devices``.

    Lines that name none of the devices, or have another format, are ignored.
    """
    limits: CgroupLimits = {}
    guaranteed: dict[int, int] = {}
    for files in cgroups:
        hard, soft = _hard(devices, files.max), _soft(devices, files.min)
        # As in the kernel, a guarantee cannot exceed the guarantees of the cgroups above it.
        guaranteed |= {ordinal: min(own, guaranteed.get(ordinal, own)) for ordinal, own in soft.items()}
        soft_limits = {ordinal: PinnedMemory(guaranteed[ordinal]) for ordinal in soft if guaranteed[ordinal]}
        if hard or soft_limits:
            limits[files.path] = {
                index: CgroupLimit(hard.get(index), soft_limits.get(index)) for index in {**hard, **soft_limits}
            }
    return limits


def _hard(devices: Sequence[DeviceProperties], text: str) -> dict[int, PinnedMemory]:
    """Return the smallest of each device's limits in a dmem.max."""
    smallest = {ordinal: min(counts) for ordinal, counts in _group_by_device(devices, text).items()}
    return {ordinal: PinnedMemory(count) for ordinal, count in smallest.items() if count < MAX_MEMORY}


def _soft(devices: Sequence[DeviceProperties], text: str) -> dict[int, int]:
    """Return the smallest of each device's guarantees in a dmem.min, in bytes; 0 if the device has none."""
    # 0 is the kernel's default, not a guarantee, so it is left out.
    return {index: min(filter(None, counts), default=0) for index, counts in _group_by_device(devices, text).items()}


def _group_by_device(devices: Sequence[DeviceProperties], text: str) -> dict[int, list[int]]:
    """Return the values of each device's regions, in bytes.

    If a device has several regions, its smallest value counts: nothing shows in which region a client's memory is.
    """
    values: dict[int, list[int]] = {}
    for region, value in _lines(text):
        bus_ids = {f"{int(domain, 16):08X}{address.upper()}" for domain, address in _BUS_ID.findall(region)}
        for ordinal, device in enumerate(devices):
            if device.bus_id in bus_ids:
                values.setdefault(ordinal, []).append(value)
    return values


def _lines(text: str) -> Iterator[tuple[str, int]]:
    for line in text.split("\n"):
        if match := _LINE.fullmatch(line):
            yield match[1], MAX_MEMORY if match[2] == "max" else min(int(match[2]), MAX_MEMORY)


MAX_LEVELS: Final = 32
"""The maximum depth at which files of a cgroup are read.

A user can nest many cgroups, and all their limits would be sent to a server. The limits of the outer cgroups apply
nevertheless.
"""
_ROOT: Final = Path(MOUNT)


def has_dmem(root: Path = _ROOT) -> bool:
    """Return whether the kernel has the dmem controller, which shows its capacity in the root of cgroup v2."""
    return (root / "dmem.capacity").exists()


def kernel_limits(devices: Sequence[DeviceProperties], cgroup: str, root: Path = _ROOT) -> CgroupLimits:
    """Return the kernel's limits for a cgroup and the cgroups above it, by index in ``devices``."""
    # A path with .. is outside of this process's cgroup namespace. The root has no limits.
    paths = [] if ".." in cgroup.split("/") else expand_cgroups([cgroup])[1 : MAX_LEVELS + 1]
    folders = ((path, root / path.removeprefix("/")) for path in paths)
    return limits_in(
        devices,
        (CgroupFiles(path, _text(folder / "dmem.max"), _text(folder / "dmem.min")) for path, folder in folders),
    )


def _text(file: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return file.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def find_existing_cgroups(paths: Iterable[str]) -> frozenset[str] | None:
    """Return the paths that are cgroups of any hierarchy; None if that cannot be determined."""
    try:
        mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    roots = [fields[1] for fields in mounts if fields[2] in ("cgroup", "cgroup2")]
    if not roots:
        return None
    return frozenset(path for path in paths if any(os.path.isdir(f"{root}{path}") for root in roots))
