"""The memory behind a client's addresses on one device: a mapped file in memory, and other memory mapped behind it.

The file has pages only where memory was accessed and not freed since. Everywhere else it reads as zero.
"""

import errno
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from threading import RLock
from typing import Final

import numpy as np

from pympsd.channel.mapping import NORESERVE, make_sealed, map_again, map_file_over, map_nothing, open_sealed
from pympsd.errors import DeviceError
from pympsd.vocabulary.device_properties import MAPPED_OFFSET, WINDOW_BITS
from pympsd_server.backends.emulated.memory.peer_windows import PeerWindow, Range, Segment, Table
from pympsd_server.backends.virtual_memory import TABLE_BYTES, File, file_name, new_secret
from pympsd_server.ptx.isa.datatypes import DTYPES, Array, DType

_PAGE: Final = mmap.PAGESIZE


class ReserveRefused(DeviceError, OSError):
    """The host refused to reserve the address range."""


class Window:
    """Memory that costs nothing until touched, in a file by which the client's kernels on other devices access it."""

    def __init__(self, size: int, reserved: int) -> None:
        """Make ``size`` bytes for allocations, in at least ``reserved`` bytes of addresses.

        Raises ReserveRefused, OSError.
        """
        self.allocatable: Final = -(-size // _PAGE) * _PAGE
        self.size: Final = max(self.allocatable, reserved)
        self._secret: Final = new_secret()
        self._file = -1
        self._bytes: Array = np.zeros(0, np.uint8)
        self.host_file: File | None = None
        """The file with all host memory of the client."""
        self._tables: dict[int, Table] = {}
        """The table of each published part, by the offset where the part begins."""
        self._placed: dict[int, tuple[int, File | None]] = {}
        """The mappings behind the allocations, by offset: size in bytes, and the file if peers can map it."""
        self._lock: Final = RLock()
        """Held while mappings change. Kernels change them too, when they find that a peer's mappings have changed."""
        try:
            self._file = make_sealed(file_name(self._secret), self.allocatable + TABLE_BYTES)
        except OverflowError as error:
            raise ReserveRefused(f"cannot reserve {self.size} bytes: {error}") from error
        try:
            self._map_all(self.size)
        except (OSError, OverflowError, ValueError) as error:
            self._close_file()
            raise ReserveRefused(f"cannot reserve {self.size} bytes of address space: {error}") from error

    def _map_all(self, size: int) -> None:
        """Map the existing memory again, at the beginning of ``size`` new bytes of address space.

        Raises OSError, OverflowError.
        """
        before = int(self._bytes.ctypes.data)
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
        mapped = np.frombuffer(mapping, np.uint8)
        map_file_over(self._file, self.allocatable, mapped.ctypes.data)
        for offset, (count, _) in self._placed.items():
            map_again(before + offset, count, mapped.ctypes.data + offset)
        # Running work keeps the old mapping.
        self._map, self._bytes = mapping, mapped
        self.views: dict[DType, Array] = {
            dtype: mapped.view(dtype) for dtype in set(DTYPES.values()) if dtype.kind != "b"
        }
        """The mapping as elements of each type."""

    def bytes(self, low: int, high: int) -> memoryview:
        """Return a part of the mapping."""
        return self._bytes[low:high].data

    def file_at(self, offset: int) -> File:
        """Return the file of the allocations, as memory that begins at an offset."""
        return File(self._file, self._secret, offset)

    def place(self, offset: int, memory: memoryview, file: File | None) -> None:
        """Map whole shared pages of this process behind the allocations; raise OSError.

        ``file``: where other processes find the pages; None if they cannot.
        """
        source = int(np.frombuffer(memory, np.uint8).ctypes.data)
        with self._lock:
            map_again(source, memory.nbytes, self._bytes.ctypes.data + offset)
            self._placed[offset] = memory.nbytes, file

    def place_file(self, offset: int, file: File, size: int) -> None:
        """Map a file of this process behind the allocations; raise OSError."""
        with self._lock:
            map_file_over(file.descriptor, size, self._bytes.ctypes.data + offset, file.offset)
            self._placed[offset] = size, file

    def map_file(self, process: int, segment: Segment) -> None:
        """Map a file of another process; raise OSError, or ValueError if it is not the expected file."""
        size = segment.file.offset + segment.size
        file = open_sealed(process, segment.file.descriptor, file_name(segment.file.secret), size)
        try:
            with self._lock:
                if not self.is_closed:
                    map_file_over(file, segment.size, self._bytes.ctypes.data + segment.offset, segment.file.offset)
                    self._placed[segment.offset] = segment.size, None
        finally:
            os.close(file)

    def clear(self, offset: int, count: int) -> None:
        """Undo `place` and `map_file`. Later accesses read zeros from other pages."""
        with self._lock:
            if not self.is_closed:
                self._placed.pop(offset, None)
                map_nothing(count, self._bytes.ctypes.data + offset)

    def zero(self, start: int, end: int) -> None:
        """Set bytes of allocations to zero and release their whole pages."""
        first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        if first >= last:
            self._bytes[start:end] = 0
            return
        self._bytes[start:first] = 0
        self._bytes[last:end] = 0
        self._map.madvise(mmap.MADV_REMOVE, first, last - first)

    def is_untouched(self, start: int, end: int) -> bool:
        """Return whether bytes of allocations are zero because their pages have never been accessed (lseek(2))."""
        try:
            return end <= self.allocatable and os.lseek(self._file, start, os.SEEK_DATA) >= end
        except OSError as error:
            return error.errno == errno.ENXIO

    # --- peers

    def publish(self, begin: int, ranges: Iterable[Range]) -> File:
        """Show peers which ranges kernels may access in the part that begins at an offset; return its file.

        The allocations and the memory mapped behind them are one part; host memory is the other, and has a file of
        its own. Raises OSError; ValueError if the client has no such memory.
        """
        file = {0: self.file_at(0), MAPPED_OFFSET: self.host_file}.get(begin)
        if file is None:
            raise ValueError(f"there is no memory for peers at offset {begin:#x} of the window")
        if begin not in self._tables:
            table = Table(file.descriptor, _table_at(file.descriptor))
            table.write(min(self.size - begin, MAPPED_OFFSET), _select_part(ranges, begin), [])
            self._tables[begin] = table
            self.publish_segments()
        return file

    def publish_change(self, removed: Iterable[Range], added: Iterable[Range]) -> None:
        """Write changed ranges to the tables of the published parts."""
        for begin, table in self._tables.items():
            table.change(_select_part(removed, begin), _select_part(added, begin))

    def publish_segments(self) -> None:
        """Write changed mappings to the table, if the part with the allocations is published."""
        if table := self._tables.get(0):
            with self._lock:
                entries = list(self._placed.items())
            table.write_segments([Segment(at, count, file) for at, (count, file) in entries if file is not None])

    def map_peer(self, process: int, file: File, distance: int, peers: Iterable[PeerWindow]) -> PeerWindow:
        """Map a window that another process has published, behind this one, where no other peer is mapped.

        Raises OSError; ValueError if the file is not such a window.
        """
        opened = open_sealed(process, file.descriptor, file_name(file.secret), TABLE_BYTES + _PAGE)
        try:
            allocatable = _table_at(opened)
            table = Table(opened, allocatable)
            size, place = table.size, self.size
            is_first_part = distance % (1 << WINDOW_BITS) == 0
            maximum = MAPPED_OFFSET if is_first_part else (1 << WINDOW_BITS) - MAPPED_OFFSET
            if not allocatable <= size <= maximum or size % _PAGE:
                raise ValueError("the file is not a published window")
            for peer in peers:
                if place + size <= peer.place:
                    break
                place = peer.place + peer.size
            with self._lock:
                if place + size > len(self._bytes):
                    self._map_all(place + size)
                map_file_over(opened, allocatable, self._bytes.ctypes.data + place)
                self._placed[place] = allocatable, None
        finally:
            os.close(opened)
        return PeerWindow(distance, place, size, allocatable if is_first_part else 0, process, table, self)

    # --- its end

    @property
    def is_closed(self) -> bool:
        """Whether the window was closed."""
        return self._file < 0

    def close(self) -> None:
        """Release everything. Arrays that refer to the mapping keep it alive until they are dropped."""
        with self._lock:
            if self.is_closed:
                return
            self._placed, self._tables = {}, {}
            self.views = {}
            self._bytes = np.zeros(0, np.uint8)
            self._close_file()
            with suppress(BufferError):  # a view is in use; the mapping ends with the view
                self._map.close()
            del self._map

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    __del__ = _close_file


def _select_part(ranges: Iterable[Range], begin: int) -> list[Range]:
    """Return the ranges in the part of a window that begins at an offset, relative to the part's beginning."""
    return [(start - begin, end - begin) for start, end in ranges if 0 <= start - begin < MAPPED_OFFSET]


def _table_at(file: int) -> int:
    """Return the offset of the table in a file, which is the size of the memory before it."""
    return os.fstat(file).st_size - TABLE_BYTES
