"""The memory that one pool has in one context: chunks of the device, and the ranges of them that are free for each
stream.

Freed memory is a range with a `FreePoint`: the stream in which it was freed. The range is immediately free for that
stream's later work, and for other streams when the stream has reached the point (CUDA driver API, Stream Ordered
Memory Allocator). `Arena.reclaim` moves ranges whose point has passed to ``free``, which every stream may use.
`Arena.take_over` does not wait for points to pass: it makes one stream wait for all other streams by events and gives
it everything.

Ranges never join across the end of a chunk, so that a chunk that is free as a whole can be given back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from attrs import define, frozen

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context
from pympsd_client._objects.pools.chunks import CHUNK_BYTES, Chunks


class Ranges:
    """Free ranges in order of their addresses. Neighbours are joined, unless a chunk of memory ends between them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def bytes(self) -> int:
        """The bytes in all of them."""
        return sum(self._ends) - sum(self._starts)

    def take(self, size: int) -> int | None:
        """Take ``size`` bytes from the first range that has as many; return their start, None if no range has."""
        starts, ends = self._starts, self._ends
        for index, start in enumerate(starts):
            remaining = ends[index] - start - size
            if remaining > 0:
                starts[index] = start + size
                return start
            if remaining == 0:
                del starts[index], ends[index]
                return start
        return None

    def give(self, start: int, end: int, chunk_start: int, chunk_end: int) -> None:
        """Add a range that lies in a chunk of memory."""
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, start)
        joins_left = at > 0 and start != chunk_start and ends[at - 1] == start
        joins_right = at < len(starts) and end != chunk_end and starts[at] == end
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = start
        else:
            starts.insert(at, start)
            ends.insert(at, end)

    def remove(self, start: int, end: int) -> bool:
        """Remove a range if it is free here as a whole; return whether it was."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._starts[at] != start or self._ends[at] != end:
            return False
        del self._starts[at], self._ends[at]
        return True


_GROWTH_BYTES: Final = 32 << 20
"""A chunk is as large as all before it together, up to this, so that few are needed."""
_QUERIES: Final = 8
"""Streams that are queried at a time, whether they have reached the frees in them."""


@frozen
class FreePoint:
    """A point of a stream at which memory was freed.

    ``stream`` is the stream's name in records; ``event`` takes its place once the stream is destroyed.
    """

    context: Context
    stream: int
    event: int = 0

    def is_passed(self) -> bool:
        """Return whether all earlier work is done there; a context that has failed, or closed, does no more."""
        operation = operations.QUERY_EVENT if self.event else operations.QUERY_STREAM
        try:
            self.context.call(operation, self.event or self.stream)
        except CudaError as error:
            return error.code != Result.ERROR_NOT_READY
        return True

    def as_event(self) -> FreePoint:
        """Return the same point as an event, before the stream is destroyed."""
        event = self.context.allocate_handle()
        self.context.post(operations.CREATE_EVENT, event, 0)
        self.context.post(operations.RECORD_EVENT, event, self.stream)
        return FreePoint(self.context, self.stream, event)

    def make_wait(self, stream: int) -> None:
        """Make later work of another stream of the context wait for the work up to this point."""
        point = self if self.event else self.as_event()
        self.context.post(operations.WAIT_EVENT, stream, point.event)
        if point is not self:
            point.destroy_event()

    def destroy_event(self) -> None:
        """Destroy the event, if it has one."""
        if self.event and self.context.active and self.context.sticky_error is None:
            self.context.post(operations.DESTROY_EVENT, self.event)


@define(eq=False)
class Arena:
    """Chunks of a context's memory. Its pool locks it."""

    context: Context
    chunks: dict[int, int]
    """Their ends by their starts."""
    free: Ranges
    """Memory that every stream may use."""
    freed: dict[FreePoint, Ranges]
    """Memory that was freed in a stream, oldest first, which only that stream may use yet."""
    source: Chunks
    _starts: list[int]

    @classmethod
    def of(cls, context: Context, source: Chunks) -> Arena:
        """Return an empty one."""
        return cls(context, {}, Ranges(), {}, source, [])

    def take(self, size: int, point: FreePoint) -> int | None:
        """Return the start of memory that is free for a stream; None if there is none."""
        own_ranges = self.freed.get(point) if self.freed else None
        if own_ranges is not None:
            start = own_ranges.take(size)
            if start is not None:
                if not own_ranges:
                    del self.freed[point]
                return start
        return self.free.take(size)

    def give(self, start: int, size: int, point: FreePoint | None) -> None:
        """Add memory that was freed in a stream, or is free for all."""
        ranges = self.free
        if point is not None:
            point_ranges = self.freed.get(point)
            if point_ranges is None:
                point_ranges = self.freed[point] = Ranges()
            ranges = point_ranges
        ranges.give(start, start + size, *self.chunk_of(start))

    def chunk_of(self, address: int) -> tuple[int, int]:
        """Return the start and the end of the chunk that an address lies in."""
        start = self._starts[bisect_right(self._starts, address) - 1]
        return start, self.chunks[start]

    def reclaim(self, is_passed: Callable[[FreePoint], bool]) -> int:
        """Make memory free for all whose stream has passed the point of the free; return its bytes."""
        reclaimed_bytes = 0
        for point in tuple(self.freed):
            if is_passed(point):
                reclaimed_bytes += self._merge(self.free, self.freed.pop(point))
                point.destroy_event()
        return reclaimed_bytes

    def reclaim_some(self) -> int:
        """Ask the streams in which something was freed longest ago; return the bytes that are free for all now."""
        oldest = tuple(self.freed)[:_QUERIES]
        return self.reclaim(lambda point: point in oldest and point.is_passed())

    def take_over(self, point: FreePoint) -> int:
        """Make all free memory free for one stream, which is made to wait for the other streams; return its bytes."""
        other_points = [
            freed_point for freed_point in self.freed if freed_point != point and freed_point.context is point.context
        ]
        own_ranges = self.freed.pop(point, None) or Ranges()
        taken_bytes = 0
        for earlier_point in other_points:
            earlier_point.make_wait(point.stream)
            taken_bytes += self._merge(own_ranges, self.freed.pop(earlier_point))
            earlier_point.destroy_event()
        taken_bytes += self._merge(own_ranges, self.free)
        self.free = Ranges()
        if own_ranges:
            self.freed[point] = own_ranges
        return taken_bytes

    def _merge(self, into: Ranges, ranges: Ranges) -> int:
        for start, end in ranges:
            into.give(start, end, *self.chunk_of(start))
        return ranges.bytes

    def growth(self, size: int, reserved: int) -> int:
        """Return the bytes of the next chunk for an allocation by a pool that has ``reserved`` bytes."""
        return round_up(max(size, min(reserved, _GROWTH_BYTES)))

    def grow(self, size: int) -> None:
        """Add a chunk; raise CudaError."""
        start = self.source.add(size)
        self.chunks[start] = start + size
        self._starts = sorted(self.chunks)
        self.free.give(start, start + size, start, start + size)

    def release(self, excess: int, at_most: bool) -> int:
        """Give chunks that are free for all back to the device: at least ``excess`` bytes if there are, or at most.

        Return their bytes. The executor frees them when the context's earlier work is done.
        """
        released = 0
        for start, end in sorted(self.chunks.items(), key=lambda chunk: chunk[0] - chunk[1]):
            if released >= excess:
                break
            if at_most and released + end - start > excess:
                continue
            if self.free.remove(start, end):
                del self.chunks[start]
                released += end - start
                self.source.remove(start, end - start)
        if released:
            self._starts = sorted(self.chunks)
        return released


def round_up(size: int) -> int:
    """Return a size in whole chunks."""
    return -(-size // CHUNK_BYTES) * CHUNK_BYTES
