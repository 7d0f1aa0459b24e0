"""The ring of records in the memory that a client shares with an executor, behind the bulk data.

Offsets are bytes from the ring's start, words are 64 bits. One side writes each word, and each word that the other
side watches has a cache line of its own. Positions count bytes and never wrap; a record lies at its position modulo
RING_BYTES, in two pieces where it meets the end. A client that finds ASLEEP set after it has moved TAIL sends a byte
on the stream's socket, whatever the byte: the executor looks at the ring then. Source: DESIGN, "The command stream".

Here are also the flags of a LAUNCH record: whether it is cooperative, and which clusters the launch requests. Bits
4 to 15 are the blocks of a cluster in x, y and z, 4 bits each and less 1: zeros if the launch asks for none.
"""

from __future__ import annotations

from typing import Final

from pympsd.wire.records import FLAG_COOPERATIVE

TAIL: Final = 0
"""Written by the client: where its next record will begin."""
IN_USE: Final = 8
"""Written by the client before anything else: 1, its records come by the ring, and bytes on the socket are bells."""
HEAD: Final = 64
"""Written by the executor: where the record begins that it takes next."""
ASLEEP: Final = 128
"""Written by the executor: not 0 while it waits for a byte on the socket."""
SPIN_COUNT: Final = 136
"""Written by the executor, once: how many times a client had better look at ANSWERS before it sleeps."""
ANSWERS: Final = 192
"""Written by the executor: counts up before it sends answers."""
DATA: Final = 4096
"""Here the records begin."""
RING_BYTES: Final = 1 << 19
"""What all records take that the executor has not taken yet."""
AREA_BYTES: Final = DATA + RING_BYTES
RECORD_BYTES: Final = RING_BYTES // 4
"""No record in the ring is longer. (A launch brings 4 KiB of parameters at most, or 32,764 bytes from Volta on.)"""


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
