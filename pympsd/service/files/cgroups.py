"""Which cgroups there are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


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
