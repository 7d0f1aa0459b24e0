"""The files of the kernel's dmem controller (Linux 6.14), which are read and never written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pympsd.devices.dmem import CgroupFiles, limits_in
from pympsd.state_machine.v3.cgroups import MOUNT
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.limits import CgroupLimits
from pympsd.vocabulary.rules import at_or_above

MOST_LEVELS: Final = 32
"""Below this depth no files are read: a user can make many cgroups in one of its own, and the limits of each would be
sent to a server. Those above bound them."""
_ROOT: Final = Path(MOUNT)


def has_dmem(root: Path = _ROOT) -> bool:
    """Return whether the kernel has the dmem controller: the root of cgroup v2 has its capacity."""
    return (root / "dmem.capacity").exists()


def kernel_limits(devices: Sequence[DeviceFacts], cgroup: str, root: Path = _ROOT) -> CgroupLimits:
    """Return the limits that the kernel has for a cgroup and those above, by ordinal of ``devices``."""
    # The kernel writes .. for what is outside of this process's cgroup namespace. The root has no limits.
    paths = [] if ".." in cgroup.split("/") else at_or_above([cgroup])[1 : MOST_LEVELS + 1]
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
