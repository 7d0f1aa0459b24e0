"""Ranges of addresses that the program has reserved, pure."""

from __future__ import annotations

from bisect import bisect_right, insort


class Reservations:
    """The ranges reserved in an area of addresses, by their starts."""

    def __init__(self, base: int, end: int) -> None:
        self._base = base
        self._end = end
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def reserve(self, size: int, alignment: int, wanted: int) -> int | None:
        """Reserve a range, at the wanted address if it is free; return its start, None if there is no room."""
        if wanted % alignment == 0 and self._is_free(wanted, size):
            return self._add(wanted, size)
        at = self._base
        for start in (*self._starts, self._end):
            at = -(-at // alignment) * alignment
            if at + size <= start:
                return self._add(at, size)
            at = start + self._sizes.get(start, 0)
        return None

    def _is_free(self, start: int, size: int) -> bool:
        if start < self._base or start + size > self._end:
            return False
        at = bisect_right(self._starts, start)
        before = self._starts[at - 1] if at else None
        if before is not None and before + self._sizes[before] > start:
            return False
        return at == len(self._starts) or start + size <= self._starts[at]

    def _add(self, start: int, size: int) -> int:
        insort(self._starts, start)
        self._sizes[start] = size
        return start

    def free(self, start: int, size: int) -> bool:
        """Free a range; return whether it was one."""
        if self._sizes.get(start) != size:
            return False
        del self._sizes[start]
        self._starts.remove(start)
        return True

    def hold(self, start: int, size: int) -> bool:
        """Return whether all of a range is reserved; it may be several ranges."""
        at = start
        while at < start + size:
            index = bisect_right(self._starts, at) - 1
            if index < 0:
                return False
            end = self._starts[index] + self._sizes[self._starts[index]]
            if at >= end:
                return False
            at = end
        return True
