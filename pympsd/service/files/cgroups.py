"""Which cgroups there are, and the files of the kernel's dmem controller (Linux 6.14); they are never written."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pympsd.devices.dmem import CgroupFiles, limits_in
from pympsd.state_machine.cgroups import MOUNT
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import CgroupLimits
from pympsd.vocabulary.rules import at_or_above

MAX_LEVELS: Final = 32
"""Below this depth no files are read: a user can make many cgroups in one of its own, and the limits of each would be
sent to a server. Those above bound them."""
_ROOT: Final = Path(MOUNT)


def has_dmem(root: Path = _ROOT) -> bool:
    """Return whether the kernel has the dmem controller: the root of cgroup v2 has its capacity."""
    return (root / "dmem.capacity").exists()


def kernel_limits(devices: Sequence[DeviceProperties], cgroup: str, root: Path = _ROOT) -> CgroupLimits:
    """Return the limits that the kernel has for a cgroup and those above, by ordinal of ``devices``."""
    # The kernel writes .. for what is outside of this process's cgroup namespace. The root has no limits.
    paths = [] if ".." in cgroup.split("/") else at_or_above([cgroup])[1 : MAX_LEVELS + 1]
    folders = ((path, root / path.removeprefix("/")) for path in paths)
    return limits_in(
        devices,
        (CgroupFiles(path, _text(folder / "dmem.max"), _text(folder / "dmem.min")) for path, folder in folders),
    )


def _text(file: Path) -> str:
    """Return the text of a file; empty if there is none that can be read."""
    try:
        return file.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def existing_cgroups(paths: Iterable[str]) -> frozenset[str] | None:
    """Return those of some paths that are cgroups of any hierarchy; None if that is unknown."""
    try:
        mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    roots = [fields[1] for fields in mounts if fields[2] in ("cgroup", "cgroup2")]
    if not roots:
        return None
    return frozenset(path for path in paths if any(os.path.isdir(f"{root}{path}") for root in roots))
