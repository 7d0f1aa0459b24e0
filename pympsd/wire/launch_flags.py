"""The flags of a LAUNCH record: whether it is cooperative, and the clusters that the launch asks for.

Bits 4 to 15 are the blocks of a cluster in x, y and z, 4 bits each and less 1: zeros where the launch asks for none.
"""

from __future__ import annotations

from typing import Final

from pympsd.wire.records import FLAG_COOPERATIVE

NO_CLUSTER: Final = (1, 1, 1)
MOST: Final = 16
"""The most blocks of a cluster in a direction."""
_SHIFTS: Final = (4, 8, 12)


def packed(cooperative: bool, cluster: tuple[int, int, int]) -> int:
    """Return the flags of a launch; each of ``cluster`` is 1 to MOST."""
    flags = FLAG_COOPERATIVE if cooperative else 0
    for size, shift in zip(cluster, _SHIFTS, strict=True):
        flags |= (size - 1) << shift
    return flags


def cluster_of(flags: int) -> tuple[int, int, int]:
    """Return the clusters that a launch asks for, NO_CLUSTER for none."""
    x, y, z = ((flags >> shift) % MOST + 1 for shift in _SHIFTS)
    return x, y, z
