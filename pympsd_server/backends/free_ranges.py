"""The free ranges of an area of addresses, for both backends. Sans-I/O.

The smallest range that fits is used, so that long ones remain. The ranges are kept in the order of their lengths, and
by their starts and ends, so that taking a range and giving it back do not look at the others, however many there are:

    by length   (512, 0) (512, 4096) (2048, 1024)       take(1000) cuts the range at 1024
    ends        0: 512,  1024: 3072,  4096: 4608        give(3072, 1024) joins the ranges that end at 3072
    starts      512: 0,  3072: 1024,  4608: 4096        and begin at 4096
"""

from bisect import bisect_left, insort

from pympsd.errors import DeviceError
from pympsd_server.backends.budget import GRANULE_BYTES


class NoRange(DeviceError):
    """No free range is long enough."""


class FreeRanges:
    """The free ranges of an area. Lengths are rounded up to multiples of a granule."""

    def __init__(self, base: int, size: int, granule: int = GRANULE_BYTES) -> None:
        """Make all ``size`` addresses from ``base`` on free."""
        self._granule = granule
        self._by_length: list[tuple[int, int]] = []
        """The length and the start of each range, in order."""
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._add(base, base + size)

    def take(self, count: int, alignment: int = 1) -> int:
        """Take the start of the shortest range that fits, or its first aligned address, and return it.

        Args:
            count: The number of addresses.
            alignment: The number of which the returned address is a multiple; a power of two.

        Raises:
            NoRange: No free range is long enough.
        """
        size = self._round_up(count)
        for at in range(bisect_left(self._by_length, (size,)), len(self._by_length)):
            length, low = self._by_length[at]
            start = -(-low // alignment) * alignment
            if start + size <= low + length:
                return self._cut(low, start, size)
        raise NoRange(f"no free range of {size} bytes")

    def take_at_end(self, count: int, alignment: int) -> int:
        """Do as `take`, but take the end of the last range that fits. This looks at all ranges."""
        size = self._round_up(count)
        for low in sorted(self._ends, reverse=True):
            start = (self._ends[low] - size) // alignment * alignment
            if start >= low:
                return self._cut(low, start, size)
        raise NoRange(f"no free range of {size} bytes")

    def give(self, start: int, count: int) -> None:
        """Give back a range that was taken."""
        low, high = start, start + self._round_up(count)
        if high in self._ends:
            high = self._remove(high)
        if low in self._starts:
            low = self._starts[low]
            self._remove(low)
        self._add(low, high)

    def _round_up(self, count: int) -> int:
        return -(-count // self._granule) * self._granule

    def _cut(self, low: int, start: int, size: int) -> int:
        """Take ``size`` addresses from ``start`` on out of the range that begins at ``low``; return ``start``."""
        high = self._remove(low)
        self._add(low, start)
        self._add(start + size, high)
        return start

    def _add(self, low: int, high: int) -> None:
        if low < high:
            insort(self._by_length, (high - low, low))
            self._ends[low], self._starts[high] = high, low

    def _remove(self, low: int) -> int:
        """Remove the range that begins at ``low``; return its end."""
        high = self._ends.pop(low)
        del self._starts[high]
        del self._by_length[bisect_left(self._by_length, (high - low, low))]
        return high
