"""One client's memory on one emulated device."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from bisect import bisect_right, insort

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import DTYPES, Array, DType, Value
from pympsd_server.backends.emulated.ptx.faults import DeviceFault, IllegalAddress, MisalignedAddress, OutOfMemory

GUARD_BYTES = 512
_PAGE = mmap.PAGESIZE
# The mmap module of Python 3.11 does not name it; the value is that of x86-64 and aarch64 Linux.
_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)


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
    bytes. Between allocations lies a gap of GUARD_BYTES, so that an overrun faults.
    """

    def __init__(self, base: int, size: int) -> None:
        if base % 4096 or size <= 0:
            raise ValueError("an address space needs a page-aligned base and a positive size")
        self.base = base
        self.size = -(-size // _PAGE) * _PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        try:
            self._map = mmap.mmap(-1, self.size, flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise ReserveRefused(f"cannot reserve {size} bytes of address space: {error}") from error
        self._bytes = np.frombuffer(self._map, np.uint8)
        # One view of the whole range per element type: kernels index these.
        self.views: dict[DType, Array] = {
            dtype: self._bytes.view(dtype) for dtype in set(DTYPES.values()) if dtype.kind != "b"
        }
        # Starts and ends of the allocations, in order. Replaced as a whole, never changed: a kernel in
        # another thread that looks an address up sees all of an allocation or nothing.
        self._ranges: tuple[list[int], list[int]] = ([], [])
        self._gaps: list[tuple[int, int]] = [(0, self.size)]
        self._table: tuple[tuple[list[int], list[int]], Array, Array] | None = None
        self.used_bytes = 0

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
                return self.base + start
        raise OutOfMemory(f"no free range of {nbytes} bytes")

    def _take(self, index: int, low: int, high: int, start: int, end: int) -> None:
        rest = [(a, b) for a, b in ((low, start), (end, high)) if a < b]
        self._gaps[index : index + 1] = rest

    def _insert(self, start: int, nbytes: int) -> None:
        starts, ends = self._ranges
        at = bisect_right(starts, start)
        self._ranges = ([*starts[:at], start, *starts[at:]], [*ends[:at], start + nbytes, *ends[at:]])
        self.used_bytes += nbytes

    def free(self, address: int) -> None:
        """Free an allocation. Its pages are released and read zero when reused."""
        at = self._at(address)
        starts, ends = self._ranges
        start, end = starts[at], ends[at]
        self._ranges = (starts[:at] + starts[at + 1 :], ends[:at] + ends[at + 1 :])
        self.used_bytes -= end - start
        self._release(start, end)
        self._return(start, end + GUARD_BYTES)

    def _release(self, start: int, end: int) -> None:
        first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
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
        if nbytes < 0 or not self.contains(low, low + nbytes):
            raise IllegalAddress(f"address {address:#x}, {nbytes} bytes: outside of the allocations")
        return self._bytes[low : low + nbytes].data

    def contains(self, low: int, high: int) -> bool:
        """Return whether offsets low to high (exclusive) all lie inside one allocation."""
        starts, ends = self._ranges
        at = bisect_right(starts, low) - 1
        return at >= 0 and high <= ends[at]

    def check(self, offsets: Value, nbytes: int) -> None:
        """Fault unless at each offset (int64, relative to base) `nbytes` aligned bytes are allocated."""
        each = np.atleast_1d(offsets)
        starts, ends = self._arrays()
        at = np.searchsorted(starts, each, "right") - 1
        good = at >= 0
        if len(starts):
            good &= each + nbytes <= ends[np.maximum(at, 0)]
        self._raise_first(each, ~good, nbytes, IllegalAddress, "outside of the allocations")
        self._raise_first(each, (each & (nbytes - 1)) != 0, nbytes, MisalignedAddress, "misaligned")

    def _arrays(self) -> tuple[Array, Array]:
        """Return starts and ends as arrays, made anew when the allocations have changed."""
        ranges, table = self._ranges, self._table
        if table is None or table[0] is not ranges:
            table = self._table = (ranges, np.array(ranges[0], np.int64), np.array(ranges[1], np.int64))
        return table[1], table[2]

    def _raise_first(self, each: Array, bad: Array, nbytes: int, fault: type[DeviceFault], why: str) -> None:
        if bad.any():
            offset = int(each[int(np.argmax(bad))])
            address = (offset + self.base) & (2**64 - 1)
            raise fault(f"address {address:#x}, {nbytes} bytes: {why}")

    def close(self) -> None:
        """Release everything. Views handed out keep their pages until they are dropped."""
        self._ranges, self._gaps, self._table, self.used_bytes = ([], []), [], None, 0
        self.views = {}
        self._bytes = np.zeros(0, np.uint8)
        # A view still alive somewhere keeps the mapping; it is unmapped with that view.
        try:
            self._map.close()
        except BufferError:
            self._map.madvise(mmap.MADV_DONTNEED)
