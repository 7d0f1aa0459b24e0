"""One client's memory on one emulated device."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from bisect import bisect_right, insort

import numpy as np

from pympsd.channel.mapping import NORESERVE, map_again, map_nothing
from pympsd.vocabulary.device_facts import MAPPED_OFFSET, VIRTUAL_OFFSET
from pympsd_server.backends.emulated.memory.bounds import chosen_bounds
from pympsd_server.backends.emulated.ptx.datatypes import DTYPES, Array, DType, Value
from pympsd_server.backends.emulated.ptx.faults import DeviceFault, IllegalAddress, MisalignedAddress, OutOfMemory

GUARD_BYTES = 512
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 20


class NotAnAllocation(ValueError):
    """The address given to free or size_of is not the start of an allocation."""


class ReserveRefused(OSError):
    """The host refused to reserve the address range."""


class AccessibleMemory(ABC):
    """Memory whose bytes are found by their addresses, through `view`."""

    @abstractmethod
    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes themselves, writable. Raises IllegalAddress unless all lie in one allocation."""

    def read(self, address: int, nbytes: int) -> bytes:
        return bytes(self.view(address, nbytes))

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        source = memoryview(data).cast("B")
        self.view(address, source.nbytes)[:] = source


class AddressSpace(AccessibleMemory):
    """Device addresses `base` to `base + size`, backed by virtual memory that costs nothing until touched.

    Kernels and copies of the owner can access its allocations and nothing else. Addresses and sizes are in
    bytes. Between allocations lies a gap of GUARD_BYTES, so that an overrun faults: of kernels beyond `bounds`.
    """

    def __init__(self, base: int, size: int, reserved: int = 0) -> None:
        """Reserve ``size`` bytes for allocations, or ``reserved`` in all with what is mapped behind them."""
        if base % 4096 or size <= 0:
            raise ValueError("an address space needs a page-aligned base and a positive size")
        self.base = base
        allocatable = -(-size // _PAGE) * _PAGE
        self.size = max(allocatable, reserved)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        try:
            self._map = mmap.mmap(-1, self.size, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise ReserveRefused(f"cannot reserve {self.size} bytes of address space: {error}") from error
        self._bytes = np.frombuffer(self._map, np.uint8)
        # One view of the whole range per element type: kernels index these.
        self.views: dict[DType, Array] = {
            dtype: self._bytes.view(dtype) for dtype in set(DTYPES.values()) if dtype.kind != "b"
        }
        # Starts and ends of the allocations, in order. Replaced as a whole, never changed: a kernel in
        # another thread that looks an address up sees all of an allocation or nothing.
        self._ranges: tuple[list[int], list[int]] = ([], [])
        self._gaps: list[tuple[int, int]] = [(0, allocatable)]
        self._table: tuple[tuple[list[int], list[int]], Array, Array] | None = None
        self._edges: dict[int, memoryview] = {}
        """Pages in which a shared allocation begins or ends, by their offsets: others may have parts of them."""
        self.used_bytes = 0
        self.bounds = chosen_bounds()

    def allocate(self, nbytes: int, alignment: int = 512) -> int:
        """Return the address of `nbytes` new bytes, zero. Raises OutOfMemory, ValueError for a bad size."""
        if nbytes <= 0 or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"cannot allocate {nbytes} bytes aligned to {alignment}")
        for index, (low, high) in enumerate(self._gaps):
            start = -(-(self.base + low) // alignment) * alignment - self.base
            taken = start + nbytes + GUARD_BYTES
            if taken <= high:
                self._take(index, low, high, start, taken)
                self._insert(start, nbytes)
                self.used_bytes += nbytes
                return self.base + start
        raise OutOfMemory(f"no free range of {nbytes} bytes")

    def _take(self, index: int, low: int, high: int, start: int, end: int) -> None:
        rest = [(a, b) for a, b in ((low, start), (end, high)) if a < b]
        self._gaps[index : index + 1] = rest

    def _insert(self, start: int, nbytes: int) -> None:
        starts, ends = self._ranges
        at = bisect_right(starts, start)
        self._ranges = ([*starts[:at], start, *starts[at:]], [*ends[:at], start + nbytes, *ends[at:]])

    def free(self, address: int) -> None:
        """Free an allocation. Its pages are released and read zero when reused."""
        start, end = self._remove(address)
        self.used_bytes -= end - start
        self._release(start, self.bounds.end(end))
        self._return(start, end + GUARD_BYTES)

    def _remove(self, address: int) -> tuple[int, int]:
        at = self._at(address)
        starts, ends = self._ranges
        start, end = starts[at], ends[at]
        self._ranges = (starts[:at] + starts[at + 1 :], ends[:at] + ends[at + 1 :])
        return start, end

    def place(self, address: int, memory: memoryview) -> None:
        """Map whole shared pages of this process at an address behind the allocations, not accessible yet."""
        source = int(np.frombuffer(memory, np.uint8).ctypes.data)
        map_again(source, memory.nbytes, self._bytes.ctypes.data + address - self.base)

    def clear(self, address: int, nbytes: int) -> None:
        """Undo `place`. What still accesses the pages meets others."""
        map_nothing(nbytes, self._bytes.ctypes.data + address - self.base)

    def set_accessible(self, address: int, nbytes: int, accessible: bool) -> None:
        """Make part of what was placed accessible, joined to what is on either side of it, or inaccessible."""
        low, high = address - self.base, address - self.base + nbytes
        starts: list[int] = []
        ends: list[int] = []
        for start, end in zip(*self._ranges, strict=True):
            if accessible and start >= VIRTUAL_OFFSET and start <= high and low <= end <= MAPPED_OFFSET:
                low, high = min(low, start), max(high, end)
            elif start < high and low < end:
                rest = [(a, b) for a, b in ((start, low), (high, end)) if a < b]
                starts += [a for a, _ in rest]
                ends += [b for _, b in rest]
            else:
                starts.append(start)
                ends.append(end)
        if accessible:
            at = bisect_right(starts, low)
            starts.insert(at, low)
            ends.insert(at, high)
        self._ranges = starts, ends

    def attach(self, address: int, memory: memoryview) -> None:
        """Make whole shared pages of this process accessible at an address behind the allocations."""
        self.place(address, memory)
        self._insert(address - self.base, memory.nbytes)

    def detach(self, address: int) -> None:
        """Undo `attach`. What still accesses the pages meets others."""
        start, end = self._remove(address)
        self.clear(address, end - start)

    def share(self, address: int) -> tuple[list[memoryview], int]:
        """Replace the pages of an allocation by shared ones; return these, and where it begins in them.

        Nothing may write to it meanwhile. It must be freed by `withdraw` and `reclaim`. Raises NotAnAllocation;
        OSError.
        """
        at = self._at(address)
        start, end = self._ranges[0][at], self._ranges[1][at]
        first, last = start // _PAGE * _PAGE, -(-end // _PAGE) * _PAGE
        low, high = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        pieces = []
        if first < low:
            pieces.append(self._edge(first))
        if low < high:
            pieces.append(self._made_shared(low, high))
        if high < last and (last - first > _PAGE or not pieces):
            pieces.append(self._edge(high))
        return pieces, start - first

    def _edge(self, offset: int) -> memoryview:
        found = self._edges.get(offset)
        if found is None:
            found = self._edges[offset] = self._made_shared(offset, offset + _PAGE)
        return found

    def _made_shared(self, low: int, high: int) -> memoryview:
        shared = np.frombuffer(
            mmap.mmap(-1, high - low, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NORESERVE), np.uint8
        )
        for start in range(low, high, _PIECE):
            piece = self._bytes[start : min(start + _PIECE, high)]
            if piece.any():  # pages that were never written to stay without memory
                shared[start - low : start - low + len(piece)] = piece
        map_again(shared.ctypes.data, high - low, self._bytes.ctypes.data + low)
        return shared.data

    def withdraw(self, address: int) -> tuple[int, int]:
        """Make a shared allocation inaccessible; its addresses stay taken. Return what `reclaim` is to be given."""
        return self._remove(address)

    def reclaim(self, start: int, end: int) -> None:
        """Free the addresses of a shared allocation that was withdrawn; no effect on a closed space."""
        if not len(self._bytes):
            return
        self.used_bytes -= end - start
        low, high = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        if low < high:
            map_nothing(high - low, self._bytes.ctypes.data + low)
        self._release(start, self.bounds.end(end))
        self._return(start, end + GUARD_BYTES)

    def _release(self, start: int, end: int) -> None:
        first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        if self._edges:
            for offset in [each for each in self._edges if first <= each < last]:
                del self._edges[offset]
                map_nothing(_PAGE, self._bytes.ctypes.data + offset)
        if first >= last:
            self._bytes[start:end] = 0
            return
        self._bytes[start:first] = 0
        self._bytes[last:end] = 0
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _return(self, low: int, high: int) -> None:
        insort(self._gaps, (low, high))
        merged: list[tuple[int, int]] = []
        for gap in self._gaps:
            if merged and merged[-1][1] == gap[0]:
                merged[-1] = (merged[-1][0], gap[1])
            else:
                merged.append(gap)
        self._gaps = merged

    def _at(self, address: int) -> int:
        start = address - self.base
        starts, _ = self._ranges
        at = bisect_right(starts, start) - 1
        if at < 0 or starts[at] != start:
            raise NotAnAllocation(f"{address:#x} is not the start of an allocation")
        return at

    def size_of(self, address: int) -> int:
        """Return the size in bytes of the allocation that starts at `address`. Raises NotAnAllocation."""
        at = self._at(address)
        starts, ends = self._ranges
        return ends[at] - starts[at]

    def find(self, address: int) -> tuple[int, int]:
        """Return (start, size) of the allocation that contains `address`. Raises IllegalAddress."""
        offset = address - self.base
        starts, ends = self._ranges
        at = bisect_right(starts, offset) - 1
        if at < 0 or offset >= ends[at]:
            raise IllegalAddress(f"address {address:#x} is in no allocation")
        return self.base + starts[at], ends[at] - starts[at]

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes themselves, writable. Raises IllegalAddress unless all lie in one allocation."""
        low = address - self.base
        starts, ends = self._ranges
        at = bisect_right(starts, low) - 1
        if nbytes < 0 or at < 0 or low + nbytes > ends[at]:
            raise IllegalAddress(f"address {address:#x}, {nbytes} bytes: outside of the allocations")
        return self._bytes[low : low + nbytes].data

    def contains(self, low: int, high: int) -> bool:
        """Return whether kernels reach the offsets low to high (exclusive) in one allocation."""
        starts, ends = self._ranges
        at = bisect_right(starts, low) - 1
        return at >= 0 and high <= self.bounds.end(ends[at])

    def check(self, offsets: Value, nbytes: int) -> None:
        """Fault unless kernels reach, at each offset (int64, relative to base), `nbytes` aligned bytes."""
        each = np.atleast_1d(offsets)
        starts, ends = self._arrays()
        at = np.searchsorted(starts, each, "right") - 1
        good = at >= 0
        if len(starts):
            good &= each + nbytes <= ends[np.maximum(at, 0)]
        self._raise_first(each, ~good, nbytes, IllegalAddress, "outside of the allocations")
        self._raise_first(each, (each & (nbytes - 1)) != 0, nbytes, MisalignedAddress, "misaligned")

    def _arrays(self) -> tuple[Array, Array]:
        """Return the starts and ends that kernels reach as arrays, made anew when the allocations have changed."""
        ranges, table = self._ranges, self._table
        if table is None or table[0] is not ranges:
            ends = [self.bounds.end(end) for end in ranges[1]]
            table = self._table = (ranges, np.array(ranges[0], np.int64), np.array(ends, np.int64))
        return table[1], table[2]

    def _raise_first(self, each: Array, bad: Array, nbytes: int, fault: type[DeviceFault], why: str) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            address = (int(each[at]) + self.base) & (2**64 - 1)
            raise fault(f"address {address:#x}, {nbytes} bytes: {why}", position=at)

    def close(self) -> None:
        """Release everything. Views handed out keep their pages until they are dropped."""
        self._ranges, self._gaps, self._table, self.used_bytes = ([], []), [], None, 0
        self._edges = {}
        self.views = {}
        self._bytes = np.zeros(0, np.uint8)
        # A view still alive somewhere keeps the mapping; it is unmapped with that view.
        try:
            self._map.close()
        except BufferError:
            self._map.madvise(mmap.MADV_DONTNEED)
