"""The memory of one client on other devices, as its kernels access it there: a window that two executors have mapped.

A window's file has its memory and behind it a table of its allocations, which its owner writes and its peers read.
"""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_left, bisect_right
from typing import Any, Final

import numpy as np
from attrs import define, field

from pympsd.channel.mapping import map_file_over
from pympsd_server.backends.emulated.ptx.datatypes import Array

Ranges = tuple[list[int], list[int]]
"""Starts and ends of allocations, as offsets in their window, in order."""

ENTRIES: Final = 1 << 20
"""Allocations that a table has room for; peers cannot access more than these."""
TABLE_BYTES: Final = -(-(2 + 2 * ENTRIES) * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
_TRIES: Final = 1000


class Table:
    """A table of allocations in shared memory: a generation, odd while it is written, a count, starts, ends."""

    def __init__(self, fd: int, offset: int) -> None:
        """Map the table at an offset of a file. Raises OSError."""
        words = np.frombuffer(mmap.mmap(fd, TABLE_BYTES, offset=offset), np.int64)
        self._head = words[:2]
        self._starts, self._ends = words[2 : 2 + ENTRIES], words[2 + ENTRIES : 2 + 2 * ENTRIES]

    def write(self, ranges: Ranges) -> None:
        """Replace its allocations."""
        count = min(len(ranges[0]), ENTRIES)
        self._head[0] += 1
        self._starts[:count], self._ends[:count] = ranges[0][:count], ranges[1][:count]
        self._head[1] = count
        self._head[0] += 1

    @property
    def generation(self) -> int:
        """Changes whenever the table does."""
        return int(self._head[0])

    def read(self) -> tuple[int, Array, Array]:
        """Return the generation, the starts and the ends; none if its writer ended while it wrote."""
        for _ in range(_TRIES):
            generation, count = self.generation, int(self._head[1])
            starts, ends = self._starts[:count].copy(), self._ends[:count].copy()
            if not generation & 1 and generation == self.generation:
                return generation, starts, ends
            time.sleep(0)
        return -1, self._starts[:0].copy(), self._ends[:0].copy()


@define(eq=False)
class PeerWindow:
    """A peer's memory, mapped."""

    distance: Final[int]
    """Bytes from the first address of the own window to that of the peer's; may be negative."""
    place: Final[int]
    """Where it is mapped, as an offset in the mapping of the own window, behind all that this has."""
    size: Final[int]
    _table: Final[Table]
    _read: tuple[int, Array, Array] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._read = self._table.read()

    @classmethod
    def mapped(cls, fd: int, distance: int, place: int, base: int) -> PeerWindow:
        """Map a window's file; ``base`` is the address of the own window's mapping. Raises OSError."""
        size = window_bytes(fd)
        table = Table(fd, size)
        map_file_over(fd, size, base + place)
        return cls(distance, place, size, table)

    def has(self, offset: Any) -> Any:
        """Return whether an offset, or each of an array of them, from the own window's base is in the peer's."""
        return (self.distance <= offset) & (offset < self.distance + self.size)

    def ranges(self) -> tuple[int, Array, Array]:
        """Return the generation, the starts and the ends of its allocations, as offsets in its window."""
        if self._read[0] != self._table.generation:
            self._read = self._table.read()
        return self._read


def window_bytes(fd: int) -> int:
    """Return the bytes of memory in a window's file."""
    return os.fstat(fd).st_size - TABLE_BYTES


def below(ranges: Ranges, limit: int) -> Ranges:
    """Return the ranges that begin below an offset."""
    count = bisect_left(ranges[0], limit)
    return ranges[0][:count], ranges[1][:count]


def holds(starts: list[int] | Array, ends: list[int] | Array, low: int, high: int) -> bool:
    """Return whether one range has the offsets low to high (exclusive)."""
    at = bisect_right(starts, low) - 1
    return at >= 0 and high <= ends[at]
