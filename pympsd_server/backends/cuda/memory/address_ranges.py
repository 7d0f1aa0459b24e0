"""Ranges of addresses: allocations, the pages under them, and those that a client may access. Sans-I/O."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final

from attrs import define, field, frozen

from pympsd_server.backends.budget import GRANULE_BYTES, round_up_to_granules
from pympsd_server.backends.free_ranges import FreeRanges

PAGE_BYTES: Final = 2 << 20
"""The smallest piece that the driver maps (measured: the granularity of cuMemCreate on an H200)."""
REGISTERED_BYTES: Final = 16 << 20
"""The size in bytes of the parts in which host memory is registered.

Parts end at multiples of this size. They are small because registering a part blocks launches for 7 ms.
"""


def split_at_registered_parts(address: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Split a range of host memory where registered parts end; yield (offset, address, length) of each piece.

    The driver copies only within one part.
    """
    at, end = address, address + count
    while at < end:
        length = min(end, (at // REGISTERED_BYTES + 1) * REGISTERED_BYTES) - at
        yield at - address, at, length
        at += length


@frozen
class Pages:
    """Physical memory under an allocation: ``whole`` (start, size) is one mapping, ``shared`` lists single pages."""

    whole: tuple[int, int] | None
    shared: tuple[int, ...]


class AddressWindow:
    """The allocations of a window of addresses, and the pages under them.

    Allocations smaller than a page share pages. A larger one begins at a page; its whole pages are mapped in one
    piece, and the rest is in a page that small ones may share. A shared page is unmapped with the last allocation
    that touches it.
    """

    def __init__(self, base: int, size: int) -> None:
        self._free = FreeRanges(base, size)
        self._sizes: dict[int, int] = {}
        self._users: dict[int, int] = {}
        """The number of allocations that touch each shared page, by the page's address."""

    def allocate(self, count: int) -> tuple[int, Pages]:
        """Return the address for ``count`` bytes and the pages that must be mapped for them; raise NoRange."""
        size = round_up_to_granules(count)
        start = self._free.take(size, PAGE_BYTES if size >= PAGE_BYTES else GRANULE_BYTES)
        self._sizes[start] = size
        pages = self.pages_under(start)
        for page in pages.shared:
            self._users[page] = self._users.get(page, 0) + 1
        return start, Pages(pages.whole, tuple(page for page in pages.shared if self._users[page] == 1))

    def free(self, address: int) -> Pages:
        """Free an allocation; return the pages that no allocation touches any more."""
        pages = self.pages_under(address)
        self._free.give(address, self._sizes.pop(address))
        for page in pages.shared:
            self._users[page] -= 1
        unused_pages = tuple(page for page in pages.shared if not self._users[page])
        for page in unused_pages:
            del self._users[page]
        return Pages(pages.whole, unused_pages)

    def pages_under(self, address: int) -> Pages:
        """Return the pages under an allocation."""
        size = self._sizes[address]
        length = size // PAGE_BYTES * PAGE_BYTES
        first = address + length if length else address // PAGE_BYTES * PAGE_BYTES
        return Pages((address, length) if length else None, tuple(range(first, address + size, PAGE_BYTES)))

    def end_of(self, address: int) -> int:
        """Return the address after the last granule of an allocation."""
        return address + self._sizes[address]


@define(eq=False)
class OwnedRanges:
    """The ranges that one client's calls may access: its own allocations and variables, each separately."""

    _starts: list[int] = field(factory=list, init=False)
    _sizes: dict[int, int] = field(factory=dict, init=False)

    def add(self, start: int, size: int) -> None:
        """Add a range."""
        insort(self._starts, start)
        self._sizes[start] = size

    def remove(self, start: int) -> None:
        """Remove a range; no effect if it does not exist."""
        if self._sizes.pop(start, None) is not None:
            del self._starts[bisect_left(self._starts, start)]

    def covers(self, start: int, count: int) -> bool:
        """Return whether all of ``count`` bytes lie in one range."""
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return False
        first = self._starts[at]
        return start + count <= first + self._sizes[first]
