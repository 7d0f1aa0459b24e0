"""Let the kernels of a client access its memory on other devices: executors map each other's windows.

A window's file has the allocations and, behind them, a table that its owner writes and its peers read. The table
lists the bytes that kernels may access, and the files of memory that is mapped behind the allocations. The host
memory of the client is in a second file of the same form, which peers map separately, as a window that begins there.

The owner changes the table with each allocation, and peers read it when a kernel needs it. So the ranges are in no
order: a new one is written where an earlier one was removed, and a peer sorts them.
"""

import mmap
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final, Protocol

import numpy as np
from attrs import define, field, frozen

from pympsd.channel.mapping import NORESERVE, map_file_over
from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from pympsd_server.backends.virtual_memory import TABLE_BYTES, File
from pympsd_server.ptx.isa.datatypes import Array

Range = tuple[int, int]
"""The start and the end of a range that kernels may access, as offsets in its window."""

MAX_MAPPINGS: Final = 4096
"""The maximum number of mappings of one client. Each is a mapping of this process, of which Linux allows 65,530."""
_RANGES: Final = 1 << 20
MAX_CLIENT_ALLOCATIONS: Final = _RANGES - MAX_MAPPINGS
"""The maximum number of allocations of one client on a device, so that each range has a place in the table."""
_HEAD: Final = 4
_WORDS: Final = 6
assert 8 * (_HEAD + 2 * _RANGES + _WORDS * MAX_MAPPINGS) <= TABLE_BYTES
_READ_TIMEOUT_SECONDS: Final = 1.0
_SHORT_TIMEOUT_SECONDS: Final = 0.002
"""The longest wait in seconds for a table that is being written, after an earlier read has waited in vain.

Before that, the longest wait is _READ_TIMEOUT_SECONDS.
"""
_PAUSE_SECONDS: Final = 50e-6


@frozen
class Segment:
    """A part of a file that is mapped in a window, at an offset."""

    offset: int
    size: int
    file: File

    def is_within(self, size: int) -> bool:
        """Return whether the segment is in the first ``size`` bytes of its window."""
        return 0 <= self.offset <= self.offset + self.size <= size and self.size > 0


class Table:
    """A table in shared memory: generation (odd while the table is written), two counts, size, ranges, segments.

    The first count is that of places for ranges, some of which have an empty range (0, 0).
    """

    def __init__(self, fd: int, offset: int) -> None:
        """Map the table at an offset of a file. Raises OSError."""
        # mmap.mmap of the file itself would keep a duplicate of the descriptor.
        mapping = mmap.mmap(-1, TABLE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
        words = np.frombuffer(mapping, np.int64)
        map_file_over(fd, TABLE_BYTES, words.ctypes.data, offset)
        self._head = words[:_HEAD]
        self._starts, self._ends = (words[at : at + _RANGES] for at in (_HEAD, _HEAD + _RANGES))
        at = _HEAD + 2 * _RANGES
        self._segments = words[at : at + _WORDS * MAX_MAPPINGS].reshape(-1, _WORDS)
        self._places: dict[int, int] = {}
        """The place of each range by its start. The owner does not read them in the table, which peers can write."""
        self._empty: list[int] = []
        """The places of removed ranges."""
        self._timeout_seconds = _READ_TIMEOUT_SECONDS
        """The seconds that a read waits for an unfinished table.

        After a peer was late once, reads wait only briefly.
        """

    def write(self, size: int, ranges: Iterable[Range], segments: list[Segment]) -> None:
        """Replace the table's contents: the size of the window in bytes, ranges, and segments."""
        self._places, self._empty = {}, []
        self._head[3] = size
        self.change((), ranges)
        self.write_segments(segments)

    def change(self, removed: Iterable[Range], added: Iterable[Range]) -> None:
        """Remove ranges, and then add others."""
        self._head[0] += 1
        for start, _ in removed:
            place = self._places.pop(start)
            self._empty.append(place)
            self._starts[place] = self._ends[place] = 0
        for start, end in added:
            place = self._places[start] = self._empty.pop() if self._empty else len(self._places)
            self._starts[place], self._ends[place] = start, end
        self._head[1] = len(self._places) + len(self._empty)
        self._head[0] += 1

    def write_segments(self, segments: list[Segment]) -> None:
        """Replace the segments."""
        self._head[0] += 1
        self._head[2] = len(segments)
        for row, segment in zip(self._segments[: len(segments)], segments, strict=True):
            high, low = (_convert_to_signed(segment.file.secret >> shift) for shift in (64, 0))
            row[:] = segment.offset, segment.size, segment.file.descriptor, segment.file.offset, high, low
        self._head[0] += 1

    @property
    def generation(self) -> int:
        """A number that changes whenever the table does."""
        return int(self._head[0])

    @property
    def size(self) -> int:
        """The size of the window in bytes."""
        return int(self._head[3])

    def read(self, size: int) -> tuple[int, Array, Array, set[Segment]]:
        """Return the generation, and the starts and ends in order, and the segments in a window of ``size`` bytes.

        Return generation -1 and nothing else if the table stays unfinished, because its writer ended while it wrote,
        or another process with the file writes to it.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            generation, count, segments = (int(word) for word in self._head[:3])
            if not generation & 1:
                starts, ends = self._starts[:count].copy(), self._ends[:count].copy()
                rows = self._segments[:segments].tolist()
                if generation == self.generation:
                    # A client may have made the file, or may write to it, so entries outside the window are ignored.
                    inside = np.flatnonzero((starts >= 0) & (starts < ends) & (ends <= size))
                    inside = inside[np.argsort(starts[inside], kind="stable")]
                    within = {segment for segment in (_segment(*row) for row in rows) if segment.is_within(size)}
                    return generation, starts[inside], ends[inside], within
            if time.monotonic() >= deadline:
                break
            if generation & 1:
                # The writer may be waiting for a processor; a copy made before it continues would be useless.
                time.sleep(_PAUSE_SECONDS)
        self._timeout_seconds = _SHORT_TIMEOUT_SECONDS
        return -1, self._starts[:0].copy(), self._ends[:0].copy(), set()


def _convert_to_signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (word >> 63 << 64)


def _segment(offset: int, size: int, descriptor: int, begins: int, high: int, low: int) -> Segment:
    mask = (1 << 64) - 1
    return Segment(offset, size, File(descriptor, (high & mask) << 64 | low & mask, begins))


class MapsFiles(Protocol):
    """The mapping that peers' memory is part of."""

    def map_file(self, process: int, segment: Segment) -> None:
        """Map a file of another process at the segment's offset in this mapping; raise OSError or ValueError."""

    def clear(self, offset: int, count: int) -> None:
        """Undo `map_file`."""


@define(eq=False)
class PeerWindow:
    """A peer's memory, mapped in this process. Safe to use from several threads."""

    distance: Final[int]
    """The bytes from the first address of this process's window to the first of the peer's; may be negative."""
    place: Final[int]
    """The offset of the peer's memory in this process's mapping, in which it comes after the process's own window."""
    size: Final[int]
    allocatable: Final[int]
    """The number of bytes at the beginning of the peer's memory that are for allocations; 0 for host memory."""
    _process: Final[int]
    _table: Final[Table]
    _mapping: Final[MapsFiles]
    _mapped: set[Segment] = field(factory=set, init=False)
    _lock: RLock = field(factory=RLock, init=False)
    _read: tuple[int, Array, Array] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._read = -2, np.zeros(0, np.int64), np.zeros(0, np.int64)

    def has(self, offset: Any) -> Any:
        """Return whether an offset from the base of this process's window is in the peer's window.

        For an array of offsets, return an array.
        """
        return (self.distance <= offset) & (offset < self.distance + self.size)

    def ranges(self) -> tuple[int, Array, Array]:
        """Return the generation, and the starts and ends of the ranges that kernels may access, as window offsets."""
        if self._read[0] != self._table.generation:
            with self._lock:
                generation, starts, ends, segments = self._table.read(self.size)
                self._follow(segments)
                for missing in segments - self._mapped:
                    reached = (ends <= missing.offset) | (missing.offset + missing.size <= starts)
                    starts, ends = starts[reached], ends[reached]
                self._read = generation, starts, ends
        return self._read

    def _follow(self, segments: set[Segment]) -> None:
        """Map the segments that the peer has now, as far as possible, and unmap those that it no longer has."""
        for segment in self._mapped - segments:
            self._mapping.clear(self.place + segment.offset, segment.size)
        self._mapped &= segments
        for segment in segments - self._mapped:
            placed = Segment(self.place + segment.offset, segment.size, segment.file)
            try:
                self._mapping.map_file(self._process, placed)
            except (OSError, ValueError):
                continue  # the peer has unmapped it, as the next generation shows, or the system maps no more
            self._mapped.add(segment)

    def clear(self) -> None:
        """Unmap everything."""
        with self._lock:
            self._follow(set())
            self._mapping.clear(self.place, self.size)


def holds(starts: Array, ends: Array, low: int, high: int) -> bool:
    """Return whether one range contains the offsets low to high (exclusive)."""
    at = bisect_right(starts, low) - 1
    return at >= 0 and high <= ends[at]


@contextmanager
def map_errors() -> Iterator[None]:
    """Convert the errors of mapping another executor's file to BackendError."""
    try:
        yield
    except ValueError as error:
        raise BackendError(Result.ERROR_INVALID_VALUE, str(error)) from None
    except OSError as error:
        reason = f"the memory of the peer cannot be mapped: {error.strerror}"
        raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason) from None
