"""The state of each page of a range, without I/O: advice, and the target of its last prefetch."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from attrs import frozen

PAGE_BYTES: Final = 4096
HOST: Final = -1
"""CU_DEVICE_CPU, in place of a device's number."""


@frozen
class Place:
    """A location: a CUmemLocationType, and the number of the device or NUMA node."""

    type: int
    id: int


@frozen
class PageState:
    """The state of a page."""

    is_read_mostly: bool = False
    preferred: Place | None = None
    accessed_by: frozenset[int] = frozenset()
    """Numbers of devices, and HOST."""
    prefetched: Place | None = None


class PageStates:
    """The states of ``size`` bytes' pages; a change of a part of a page is one of all of it."""

    def __init__(self, size: int) -> None:
        self._starts = [0]
        self._states = [PageState()]
        self._size = _up(size)

    def change(self, start: int, end: int, change: Callable[[PageState], PageState]) -> None:
        """Change the state of the pages that hold bytes ``start`` to ``end``."""
        first, last = self._split(start // PAGE_BYTES * PAGE_BYTES), self._split(min(_up(end), self._size))
        for index in range(first, last):
            self._states[index] = change(self._states[index])

    def _split(self, at: int) -> int:
        """Return the index of the run that begins at an offset, making it begin there."""
        if at >= self._size:
            return len(self._starts)
        index = bisect_right(self._starts, at) - 1
        if self._starts[index] == at:
            return index
        self._starts.insert(index + 1, at)
        self._states.insert(index + 1, self._states[index])
        return index + 1

    def between(self, start: int, end: int) -> Iterator[PageState]:
        """Yield the states of the pages that hold bytes ``start`` to ``end``, each run of pages once."""
        for index in range(bisect_right(self._starts, start) - 1, len(self._starts)):
            if self._starts[index] >= end:
                return
            yield self._states[index]


def _up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
