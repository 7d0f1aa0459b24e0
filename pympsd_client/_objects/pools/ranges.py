"""Free ranges of addresses, pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


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
            left = ends[index] - start - size
            if left > 0:
                starts[index] = start + size
                return start
            if left == 0:
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
        """Remove a range if all of it is here, as one; return whether it was."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._starts[at] != start or self._ends[at] != end:
            return False
        del self._starts[at], self._ends[at]
        return True
