"""One client's address space on one emulated device: which addresses exist, and the bytes behind them.

The problem: a kernel can compute any address, and computes 32,768 at a time. Each of them has to be checked against
the client's allocations without a Python loop. An access outside must fault with ILLEGAL_ADDRESS, as on a GPU, and
must never touch the bytes of another client or of this process itself.

The idea: an address space is one range of the device's window, reserved in this process as one mapping that costs
nothing until it is touched (window.py). An address minus ``base`` is an offset in the mapping, so a checked access of
all threads is one NumPy index into a view of it:

    base                                VIRTUAL_OFFSET           MAPPED_OFFSET            size
    | allocation | gap | allocation |   | memory mapped by the   | host memory that the   |  windows and host memory
    |            |     |            |   | client (cuMemMap)      | client registered      |  of peers

Allocations are kept as a sorted list of starts and ends, and as arrays that `reach` makes from the list after a
change. Kernels first check the lowest and the highest address of an access: if both lie in the same allocation, all
others do, too. Otherwise `locate` looks up each address by a binary search in the arrays. The free addresses between
allocations are in `FreeRanges`. So the time of an allocation does not depend on how many there are.

Invariants:

- ``_ranges`` changes in one step (an assignment to a slice) under the client's lock, so that a kernel in the compute
  thread sees an allocation either completely or not at all while another thread allocates. What a thread without the
  lock finds by a position may have moved there since; `_find_around` searches again if so.
- Between two allocations lies a gap of GUARD_BYTES, so that with strict bounds an overrun faults. With the bounds of
  hardware, kernels reach the whole pages of 2 MiB in which there is an allocation, as on a GPU (`Bounds.reach`).
- Pages without an allocation are zero and take no memory of the host. `free` zeroes an allocation and the part of its
  pages that no other allocation makes reachable; `withdraw` zeroes only that part. New memory is zero, because
  `allocate` zeroes the part of it that kernels could reach before.
"""

import mmap
import os
from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

import numpy as np
from attrs import frozen

from pympsd.errors import DeviceError
from pympsd.vocabulary.device_properties import MAPPED_OFFSET, VIRTUAL_OFFSET
from pympsd.vocabulary.variables import STRICT_BOUNDS, read
from pympsd_server.backends.budget import GRANULE_BYTES
from pympsd_server.backends.emulated.memory.peer_windows import MAX_CLIENT_ALLOCATIONS, PeerWindow, Range, holds
from pympsd_server.backends.emulated.memory.window import Window
from pympsd_server.backends.free_ranges import FreeRanges, NoRange
from pympsd_server.backends.virtual_memory import File
from pympsd_server.ptx.isa.datatypes import Array, DType, Value
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, MisalignedAddress, OutOfMemory

_END: Final = 1 << 65
"""An offset beyond those of all addresses."""


@frozen
class Bounds:
    """How far kernels reach beyond allocations and a block's shared memory, in bytes."""

    page: int
    """The size of a page in bytes. Kernels reach the whole pages in which an allocation has bytes."""
    shared: int
    """The unit in bytes to which the end of a block's shared memory is rounded up."""

    @property
    def is_strict(self) -> bool:
        """Whether kernels reach the allocations' own bytes only."""
        return self.page == 1

    def floor(self, offset: int) -> int:
        """Return the beginning of the page of an offset."""
        return offset - offset % self.page

    def ceiling(self, offset: int) -> int:
        """Return the end of the pages up to an offset."""
        return offset + -offset % self.page

    def reach(self, starts: Array, ends: Array, size: int) -> tuple[Array, Array]:
        """Return the ranges that kernels can access, in order, in a window with ``size`` bytes for allocations.

        Allocations of cuMemAlloc whose pages touch or overlap become one range. If these ranges had more than
        MAX_SLACK_BYTES outside of allocations, each allocation gets a range of its own instead, which ends at the
        next multiple of 512 bytes.
        """
        count = int(np.searchsorted(starts, size))
        if self.is_strict or not count:
            return starts, ends
        own = ends[:count]
        low, high = starts[:count] - starts[:count] % self.page, np.minimum(own + -own % self.page, size)
        is_apart = low[1:] > high[:-1]
        low, high = low[np.append(True, is_apart)], high[np.append(is_apart, True)]
        if np.sum(high - low) - np.sum(own - starts[:count]) > MAX_SLACK_BYTES:
            low, high = starts[:count], own + -own % GRANULE_BYTES
        return np.append(low, starts[count:]), np.append(high, ends[count:])

    def end_of_shared(self, size: int) -> int:
        """Return the number of bytes of shared memory that a block can reach if it has ``size`` bytes."""
        return size + -size % self.shared


GUARD_BYTES: Final = 1024
MAX_SLACK_BYTES: Final = 64 << 20
"""The maximum number of bytes outside of its allocations that a client's kernels can access, in the same pages."""
HARDWARE: Final = Bounds(2 << 20, 128)
"""The bounds of cuMemAlloc as measured on an H200, and of shared memory since compute capability 8.0 (CUDA C++
Programming Guide). A GPU checks pages: programs that run there may read or write beyond their allocations.
"""
STRICT: Final = Bounds(1, 1)


def choose_bounds(environment: Mapping[str, str] = os.environ) -> Bounds:
    """Return the bounds that PYMPSD_STRICT_BOUNDS asks for."""
    return STRICT if read(environment, STRICT_BOUNDS) == "1" else HARDWARE


_PAGE = mmap.PAGESIZE


class NotAnAllocation(DeviceError, ValueError):
    """The address passed to `free` or `size_of` is not the start of an allocation."""


def _check_size(nbytes: int, alignment: int) -> None:
    if nbytes <= 0 or alignment <= 0 or alignment & (alignment - 1):
        raise ValueError(f"cannot allocate {nbytes} bytes aligned to {alignment}")


class AccessibleMemory(ABC):
    """Memory whose bytes are found by their addresses, through `view`."""

    @abstractmethod
    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes themselves, writable. Raises IllegalAddress unless all lie in one allocation."""

    def is_untouched(self, address: int, nbytes: int) -> bool:
        """Return whether bytes are known to be zero without reading them."""
        return False

    def read(self, address: int, nbytes: int) -> bytes:
        """Return a copy of bytes. Raises IllegalAddress, as `view` does."""
        return bytes(self.view(address, nbytes))

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes. Raises IllegalAddress, as `view` does."""
        source = memoryview(data).cast("B")
        self.view(address, source.nbytes)[:] = source


@frozen(eq=False)
class _Arrays:
    """The ranges that kernels reach, as arrays, and what the arrays were made from."""

    changes: int
    """The number of changes of the own ranges before."""
    peers: list[tuple[PeerWindow, int]]
    starts: Array
    ends: Array


class AddressSpace(AccessibleMemory):
    """Device addresses `base` to `base + size`, backed by virtual memory that costs nothing until touched.

    The owner's copies can access its allocations and nothing else. Its kernels can also access the bytes that
    `bounds` adds to the allocations. Addresses and sizes are in bytes.
    """

    def __init__(self, base: int, size: int, reserved: int = 0) -> None:
        """Reserve ``size`` bytes for allocations, and at least ``reserved`` with the memory mapped behind them."""
        if base % 4096 or size <= 0:
            raise ValueError("an address space needs a page-aligned base and a positive size")
        self.base = base
        self._window = Window(size, reserved)
        self.size = self._window.size
        self._ranges: list[Range] = [(-_END, -_END), (_END, _END)]
        """The starts and ends of the allocations as offsets, in order, between an empty range on each side."""
        self._changes = 0
        """The number of changes of the ranges."""
        self._free = FreeRanges(base, self._window.allocatable)
        self._withdrawn: set[tuple[int, int]] = set()
        """The starts and ends of shared allocations that were freed here and that others still use."""
        self._arrays: _Arrays | None = None
        self._peers: tuple[PeerWindow, ...] = ()
        """The windows of peers, in the order of their places."""
        self.bounds = choose_bounds()

    @property
    def views(self) -> dict[DType, Array]:
        """A view of the range, and of peers' memory behind it, for each element type; kernels index these."""
        return self._window.views

    def _change(self, at: int, end: int, ranges: list[Range]) -> None:
        """Replace the ranges at the positions from ``at`` up to ``end`` (exclusive), here and for peers."""
        before = self._ranges[at:end]
        self._ranges[at:end] = ranges
        self._changes += 1
        self._window.publish_change(before, ranges)

    def _find_around(self, offset: int) -> tuple[Range, Range]:
        """Return the last range that begins at or before an offset, and the next one."""
        while True:
            at = bisect_right(self._ranges, (offset, _END))
            around = self._ranges[at - 1 : at + 1]
            # Another thread may have changed the list since the search.
            if len(around) == 2 and around[0][0] <= offset < around[1][0]:
                return around[0], around[1]

    def _holds(self, low: int, high: int) -> bool:
        """Return whether one allocation contains the offsets low to high (exclusive)."""
        return high <= self._find_around(low)[0][1]

    def allocate(self, nbytes: int, alignment: int = GRANULE_BYTES) -> int:
        """Return the address of `nbytes` new bytes, which are zero. Raises OutOfMemory; ValueError for a bad size."""
        return self._take(self._free.take, nbytes, alignment)

    def allocate_at_end(self, nbytes: int, alignment: int) -> int:
        """Return the address of new bytes for a module, in pages that `allocate` uses only if memory is short.

        As on a GPU, a kernel that writes beyond an allocation does not change a module's variables.
        """
        return self._take(self._free.take_at_end, nbytes, alignment)

    def _take(self, take: Callable[[int, int], int], nbytes: int, alignment: int) -> int:
        """Allocate bytes in the free range that ``take`` selects; return their address."""
        _check_size(nbytes, alignment)
        if len(self._ranges) - 2 >= MAX_CLIENT_ALLOCATIONS:
            reason = f"a client has at most {MAX_CLIENT_ALLOCATIONS} allocations on a device"
            raise OutOfMemory(f"{reason}; free some, or allocate larger ones and divide them")
        try:
            address = take(nbytes + GUARD_BYTES, alignment)
        except NoRange:
            raise OutOfMemory(f"no free range of {nbytes} bytes") from None
        start = address - self.base
        self._clear(start, start + nbytes)
        self._insert(start, nbytes)
        return address

    def _insert(self, start: int, nbytes: int) -> None:
        at = bisect_right(self._ranges, (start, _END))
        self._change(at, at, [(start, start + nbytes)])

    def _clear(self, start: int, end: int) -> None:
        """Zero the bytes of a new allocation that kernels could reach before, from allocations in the same pages."""
        (_, before), (after, _) = self._find_around(start)
        for low, high in (
            (start, min(end, self.bounds.ceiling(before))),
            (max(start, self.bounds.floor(after)), end),
        ):
            if low < high and not self._window.is_untouched(low, high):
                self._window.zero(low, high)

    def free(self, address: int) -> None:
        """Free an allocation and release its pages, which are zero when they are used again."""
        self._release(*self._remove(address))

    def _release(self, start: int, end: int) -> None:
        self._zero_unreached(start, end)
        self._free.give(self.base + start, end - start + GUARD_BYTES)

    def _zero_unreached(self, start: int, end: int) -> None:
        """Zero a range that is no longer allocated, and the rest of its pages that kernels can no longer reach.

        Withdrawn memory is left as it is, because others still use it.
        """
        (_, before), (after, _) = self._find_around(start)
        low = min(start, max(self.bounds.floor(start), self.bounds.ceiling(before)))
        high = max(end, min(self.bounds.ceiling(end), self.bounds.floor(after), self._window.allocatable))
        for kept_low, kept_high in sorted(kept for kept in self._withdrawn if kept[0] < high and low < kept[1]):
            if low < kept_low:
                self._window.zero(low, kept_low)
            low = kept_high
        if low < high:
            self._window.zero(low, high)

    def _remove(self, address: int) -> tuple[int, int]:
        start, end = self._find_at(address)
        at = bisect_right(self._ranges, (start, end))
        self._change(at - 1, at, [])
        return start, end

    def place(self, address: int, memory: memoryview, file: File | None = None) -> None:
        """Map whole shared pages of this process at an address behind the allocations, not accessible yet.

        ``file``: where peers find the pages; None if they cannot.
        """
        self._window.place(address - self.base, memory, file)

    def place_file(self, address: int, file: File, nbytes: int) -> None:
        """Map a file of this process at an address behind the allocations, not accessible yet."""
        self._window.place_file(address - self.base, file, nbytes)

    def clear(self, address: int, nbytes: int) -> None:
        """Undo `place`. Later accesses read zeros from other pages."""
        self._window.clear(address - self.base, nbytes)
        self._window.publish_segments()

    def set_accessible(self, address: int, nbytes: int, accessible: bool) -> None:
        """Make placed memory inaccessible, or accessible as one range with the accessible memory next to it."""
        low, high = address - self.base, address - self.base + nbytes
        # The ranges to replace: those in the memory, and the ones before and after it if they meet it.
        first, behind = (bisect_right(self._ranges, (offset, _END)) for offset in (low, high))
        ranges: list[Range] = []
        for start, end in self._ranges[first - 1 : behind]:
            if accessible and start >= VIRTUAL_OFFSET and start <= high and low <= end <= MAPPED_OFFSET:
                low, high = min(low, start), max(high, end)
            elif start < high and low < end:
                ranges += [(a, b) for a, b in ((start, low), (high, end)) if a < b]
            else:
                ranges.append((start, end))
        if accessible:
            insort(ranges, (low, high))
            self._window.publish_segments()
        self._change(first - 1, behind, ranges)

    def attach(self, address: int, memory: memoryview, file: File) -> None:
        """Make whole shared pages of this process accessible at an address behind the allocations.

        ``file``: the file with all of the client's host memory, for peers.
        """
        self.place(address, memory)
        self._window.host_file = file
        self._insert(address - self.base, memory.nbytes)

    def detach(self, address: int) -> None:
        """Undo `attach`. Later accesses read zeros from other pages."""
        start, end = self._remove(address)
        self.clear(address, end - start)

    def share(self, address: int) -> tuple[memoryview, File, int]:
        """Return the pages of an allocation, their file, and its offset in them in bytes. Raises NotAnAllocation.

        After this, `withdraw` and `reclaim` free the allocation instead of `free`.
        """
        start, end = self._find_at(address)
        first, last = start // _PAGE * _PAGE, -(-end // _PAGE) * _PAGE
        return self._window.bytes(first, last), self._window.file_at(first), start - first

    def withdraw(self, address: int) -> tuple[int, int]:
        """Make a shared allocation inaccessible, and keep its addresses taken. Return the arguments for `reclaim`."""
        withdrawn = self._remove(address)
        self._withdrawn.add(withdrawn)
        self._zero_unreached(*withdrawn)
        return withdrawn

    def reclaim(self, start: int, end: int) -> None:
        """Free the addresses of a shared allocation that was withdrawn; no effect on a closed space."""
        if self._window.is_closed:
            return
        self._withdrawn.discard((start, end))
        self._release(start, end)

    def _find_at(self, address: int) -> Range:
        start, end = self._find_around(address - self.base)[0]
        if start != address - self.base:
            raise NotAnAllocation(f"{address:#x} is not the start of an allocation")
        return start, end

    def size_of(self, address: int) -> int:
        """Return the size in bytes of the allocation that starts at `address`. Raises NotAnAllocation."""
        start, end = self._find_at(address)
        return end - start

    def find(self, address: int) -> tuple[int, int]:
        """Return (start, size) of the allocation that contains `address`. Raises IllegalAddress."""
        start, end = self._find_around(address - self.base)[0]
        if address - self.base >= end:
            raise IllegalAddress(f"address {address:#x} is in no allocation")
        return self.base + start, end - start

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes themselves, writable. Raises IllegalAddress unless all lie in one allocation."""
        low = address - self.base
        if nbytes < 0 or not (self._holds(low, low + nbytes) or self._is_peers(low, nbytes)):
            raise IllegalAddress(f"address {address:#x}, {nbytes} bytes: outside of the allocations")
        # A peer's memory is at a different place in the mapping.
        low += next((peer.place - peer.distance for peer in self._peers if peer.has(low)), 0)
        return self._window.bytes(low, low + nbytes)

    def is_untouched(self, address: int, nbytes: int) -> bool:
        """Return whether bytes of an allocation are zero because their pages have never been accessed."""
        low = address - self.base
        return self._holds(low, low + nbytes) and self._window.is_untouched(low, low + nbytes)

    def _is_peers(self, low: int, nbytes: int) -> bool:
        """Return whether a range is inside one allocation of a peer."""
        return any(
            holds(*peer.ranges()[1:], low - peer.distance, low - peer.distance + nbytes) for peer in self._peers
        )

    def contains(self, low: int, high: int) -> bool:
        """Return whether kernels reach the offsets low to high (exclusive) in one range of this space."""
        return high <= self.size and self.contains_places(low, high)

    def contains_places(self, low: int, high: int) -> bool:
        """Return the same as `contains` for places in the views, which include peers' memory."""
        return holds(*self.reach(), low, high)

    def locate(self, offsets: Value, nbytes: int, align: int) -> Value:
        """Return where offsets (int64, relative to base) are in the views, in which peers' memory comes last.

        Raises:
            DeviceFault: Kernels do not reach ``nbytes`` bytes at an offset, or it is not a multiple of ``align``.
        """
        requested = np.atleast_1d(offsets)
        places, is_located = requested, np.ones(1, np.bool_)
        if self._peers:
            places, is_located = requested.copy(), (requested >= 0) & (requested < self.size)
            for peer in self._peers:
                has = peer.has(requested)
                np.copyto(places, requested + (peer.place - peer.distance), where=has)
                is_located |= has
        starts, ends = self.reach()
        at = np.searchsorted(starts, places, "right") - 1
        good = (at >= 0) & is_located
        if len(starts):
            good &= places <= ends[np.maximum(at, 0)] - nbytes  # the sum may overflow
        self._raise_first(requested, ~good, nbytes, IllegalAddress, "outside of the allocations")
        self._raise_first(requested, (requested & (align - 1)) != 0, nbytes, MisalignedAddress, "misaligned")
        return places if offsets.ndim else places[0]

    def reach(self) -> tuple[Array, Array]:
        """Return the starts and ends, in the views, of the ranges that kernels reach; recomputed after a change."""
        # The changes are read before the ranges: after a change in between, the next call makes the arrays again.
        changes, peers = self._changes, tuple((peer, *peer.ranges()) for peer in self._peers)
        generations = [(peer, generation) for peer, generation, _, _ in peers]
        arrays = self._arrays
        if arrays is None or arrays.changes != changes or arrays.peers != generations:
            ranges = self._ranges[1:-1]
            starts, ends = np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges)).reshape(-1, 2).T
            windows = [(starts, ends, self._window.allocatable, 0)]
            windows += [(low, high, peer.allocatable, peer.place) for peer, _, low, high in peers]
            reached = [np.stack(self.bounds.reach(low, high, size)) + place for low, high, size, place in windows]
            arrays = _Arrays(changes, generations, *np.concatenate(reached, axis=1))
            self._arrays = arrays
        return arrays.starts, arrays.ends

    def peer_windows(self) -> Array:
        """Return a row for each peer's window: first offset, end, and the distance from an offset to its place in the
        views.
        """
        rows = [(p.distance, p.distance + p.size, p.place - p.distance) for p in self._peers]
        return np.array(rows, np.int64).reshape(-1, 3)

    def _raise_first(self, addresses: Array, bad: Array, nbytes: int, fault: type[DeviceFault], why: str) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            address = (int(addresses[at]) + self.base) & (2**64 - 1)
            raise fault(f"address {address:#x}, {nbytes} bytes: {why}", position=at)

    # --- peers

    def publish(self, address: int) -> File:
        """Show peers which bytes kernels may access in the part of the window that begins at ``address``.

        Return the file that peers map; its owner closes it. Raises ValueError if the part has no file.
        """
        return self._window.publish(address - self.base, self._ranges)

    def map_peer(self, process: int, file: File, distance: int) -> None:
        """Make a published window of another process accessible, ``distance`` bytes from the base of this one.

        Raises OSError; ValueError if the file is not such a window.
        """
        peer = self._window.map_peer(process, file, distance, self._peers)
        self._peers = tuple(sorted((*self._peers, peer), key=lambda other: other.place))

    def unmap_peer(self, distance: int) -> None:
        """Undo `map_peer`; no effect if nothing is mapped at that distance. Later accesses read zeros."""
        for peer in self._peers:
            if peer.distance == distance:
                self._peers = tuple(other for other in self._peers if other is not peer)
                peer.clear()

    def close(self) -> None:
        """Release all memory. The pages under views that callers hold stay until the views are dropped."""
        for start, end in self._ranges[1:-1]:
            if start < self._window.allocatable:
                self._window.zero(start, end)
        self._change(1, len(self._ranges) - 1, [])
        self._free, self._arrays, self._peers = FreeRanges(self.base, 0), None, ()
        self._window.close()
