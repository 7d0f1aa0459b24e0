"""The memory of one pool in one context: chunks of device memory, and the free ranges in them.

Freed memory is a range with a `FreePoint`, a point in the stream in which it was freed. Later work of that stream may
use the range immediately, other streams may use it when the stream has reached the point (CUDA driver API, Stream
Ordered Memory Allocator). `Arena.reclaim` moves ranges whose point has been reached to ``free``, which every stream
may use. `Arena.take_over` does not wait until then: it makes one stream wait for all others by events, and gives it
all free memory.

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
        """The number of bytes in all ranges."""
        return sum(self._ends) - sum(self._starts)

    def take(self, size: int) -> int | None:
        """Take ``size`` bytes from the first range that is large enough; return their start, or None without one."""
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
        """Add a range that is within a chunk of memory."""
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
        """Remove a range if exactly this range is free; return whether it was."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._starts[at] != start or self._ends[at] != end:
            return False
        del self._starts[at], self._ends[at]
        return True


_GROWTH_BYTES: Final = 32 << 20
"""The maximum size in bytes to which chunks grow. Each doubles the pool, so that few are needed."""
_QUERIES: Final = 8
"""The number of free points that `reclaim_some` checks."""


@frozen
class FreePoint:
    """A point in a stream at which memory was freed.

    ``stream`` is the stream's name in records; ``event`` replaces it when the stream is destroyed.
    """

    context: Context
    stream: int
    event: int = 0

    def is_passed(self) -> bool:
        """Return whether all earlier work of the stream is done, as it is if the context has failed or closed."""
        operation = operations.QUERY_EVENT if self.event else operations.QUERY_STREAM
        try:
            self.context.call(operation, self.event or self.stream)
        except CudaError as error:
            return error.code != Result.ERROR_NOT_READY
        return True

    def as_event(self) -> FreePoint:
        """Return the same point with an event, so that the stream can be destroyed."""
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
    """A pool's memory in one context. Protected by the pool's lock."""

    context: Context
    chunks: dict[int, int]
    """The ends of the chunks by their starts."""
    free: Ranges
    """Memory that every stream may use."""
    freed: dict[FreePoint, Ranges]
    """Memory that only the stream may use in which it was freed, oldest first."""
    source: Chunks
    _starts: list[int]

    @classmethod
    def of(cls, context: Context, source: Chunks) -> Arena:
        """Return an empty arena."""
        return cls(context, {}, Ranges(), {}, source, [])

    def take(self, size: int, point: FreePoint) -> int | None:
        """Take ``size`` bytes that are free for a stream and return their start; None if it has no such range."""
        own_ranges = self.freed.get(point) if self.freed else None
        if own_ranges is not None:
            start = own_ranges.take(size)
            if start is not None:
                if not own_ranges:
                    del self.freed[point]
                return start
        return self.free.take(size)

    def give(self, start: int, size: int, point: FreePoint | None) -> None:
        """Add memory that was freed at a point of a stream; without a point, memory that all streams may use."""
        ranges = self.free
        if point is not None:
            point_ranges = self.freed.get(point)
            if point_ranges is None:
                point_ranges = self.freed[point] = Ranges()
            ranges = point_ranges
        ranges.give(start, start + size, *self.chunk_of(start))

    def chunk_of(self, address: int) -> tuple[int, int]:
        """Return the start and the end of the chunk that contains an address."""
        start = self._starts[bisect_right(self._starts, address) - 1]
        return start, self.chunks[start]

    def reclaim(self, is_passed: Callable[[FreePoint], bool]) -> int:
        """Make memory whose point has passed free for all streams; return the number of bytes."""
        reclaimed_bytes = 0
        for point in tuple(self.freed):
            if is_passed(point):
                reclaimed_bytes += self._merge(self.free, self.freed.pop(point))
                point.destroy_event()
        return reclaimed_bytes

    def reclaim_some(self) -> int:
        """Check the _QUERIES oldest free points, and reclaim those that have passed; return the number of bytes."""
        oldest = tuple(self.freed)[:_QUERIES]
        return self.reclaim(lambda point: point in oldest and point.is_passed())

    def take_over(self, point: FreePoint) -> int:
        """Make one stream wait for the others, and give it all free memory; return the number of bytes."""
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
        """Return the size in bytes of the next chunk for an allocation in a pool that has ``reserved`` bytes."""
        return round_up(max(size, min(reserved, _GROWTH_BYTES)))

    def grow(self, size: int) -> None:
        """Add a chunk; raise CudaError."""
        start = self.source.add(size)
        self.chunks[start] = start + size
        self._starts = sorted(self.chunks)
        self.free.give(start, start + size, start, start + size)

    def release(self, excess: int, at_most: bool) -> int:
        """Give chunks that are free for all streams back to the device, and return the number of bytes.

        It is at least ``excess`` if so much is free; with ``at_most`` it is not more than ``excess``. The executor
        frees the chunks when the context's earlier work is done.
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
    """Round a size up to a multiple of CHUNK_BYTES."""
    return -(-size // CHUNK_BYTES) * CHUNK_BYTES
