"""The memory behind a client's addresses on one device: a file in memory, mapped, and what is mapped behind it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import numpy as np

from pympsd.channel.mapping import NORESERVE, map_again, map_file_over, map_nothing
from pympsd.channel.sealed_file import make_sealed, open_sealed
from pympsd_server.backends.emulated.memory.peer_windows import (
    TABLE_BYTES,
    PeerWindow,
    Ranges,
    Table,
    below,
    window_bytes,
)
from pympsd_server.backends.emulated.ptx.datatypes import DTYPES, Array, DType

_PAGE: Final = mmap.PAGESIZE


class ReserveRefused(OSError):
    """The host refused to reserve the address range."""


class Window:
    """Memory that costs nothing until touched. Its file lets the client's kernels on other devices access it too."""

    def __init__(self, size: int, reserved: int) -> None:
        """Make ``size`` bytes for allocations, in ``reserved`` addresses at least; ReserveRefused."""
        self.allocatable: Final = -(-size // _PAGE) * _PAGE
        self.size: Final = max(self.allocatable, reserved)
        self._secret: Final = int.from_bytes(os.urandom(16), "little")
        self._file = -1
        self._bytes: Array = np.zeros(0, np.uint8)
        self._table: Table | None = None
        self._placed: dict[int, int] = {}
        """What is mapped behind the allocations: sizes by offset."""
        try:
            self._file = make_sealed(_name_of(self._secret), self.allocatable + TABLE_BYTES)
            self._map_all(self.size)
        except (OSError, OverflowError, ValueError) as error:
            raise ReserveRefused(f"cannot reserve {self.size} bytes of address space: {error}") from error

    def _map_all(self, size: int) -> None:
        """Map what there is, at the beginning of ``size`` bytes of this process; OSError, OverflowError."""
        before = int(self._bytes.ctypes.data)
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
        found = np.frombuffer(mapping, np.uint8)
        map_file_over(self._file, self.allocatable, found.ctypes.data)
        for offset, count in self._placed.items():
            map_again(before + offset, count, found.ctypes.data + offset)
        # What still runs keeps the mapping that it has.
        self._map, self._bytes = mapping, found
        self.views: dict[DType, Array] = {
            dtype: found.view(dtype) for dtype in set(DTYPES.values()) if dtype.kind != "b"
        }
        """The mapping as elements of each type."""

    def bytes(self, low: int, high: int) -> memoryview:
        """Return a part of the mapping."""
        return self._bytes[low:high].data

    def place(self, offset: int, memory: memoryview) -> None:
        """Map whole shared pages of this process behind the allocations; OSError."""
        source = int(np.frombuffer(memory, np.uint8).ctypes.data)
        map_again(source, memory.nbytes, self._bytes.ctypes.data + offset)
        self._placed[offset] = memory.nbytes

    def clear(self, offset: int, count: int) -> None:
        """Undo `place`. What still accesses the pages meets others."""
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

    # --- peers

    def publish(self, ranges: Ranges) -> tuple[int, int]:
        """Have peers see which ranges are allocations; return the descriptor of the file, which stays, its secret."""
        if self._table is None:
            self._table = Table(self._file, self.allocatable)
            self.publish_again(ranges)
        return self._file, self._secret

    def publish_again(self, ranges: Ranges) -> None:
        """Have peers see that the allocations have changed, if there may be peers."""
        if self._table is not None:
            self._table.write(below(ranges, self.allocatable))

    def map_peer(self, source: tuple[int, int, int], distance: int, peers: Iterable[PeerWindow]) -> PeerWindow:
        """Map a published window, by process, descriptor and secret, behind this one and in no peer's place.

        Raises OSError; ValueError if it is no such window.
        """
        pid, fd, secret = source
        file = open_sealed(pid, fd, _name_of(secret))
        try:
            size, place = window_bytes(file), self.size
            for peer in peers:
                if place + size <= peer.place:
                    break
                place = peer.place + peer.size
            if place + size > len(self._bytes):
                self._map_all(place + size)
            found = PeerWindow.mapped(file, distance, place, self._bytes.ctypes.data)
        finally:
            os.close(file)
        self._placed[place] = size
        return found

    # --- its end

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._file < 0

    def close(self) -> None:
        """Release everything. What has a part of the mapping keeps it."""
        self._placed, self._table = {}, None
        self.views = {}
        self._bytes = np.zeros(0, np.uint8)
        self._close_file()
        with suppress(BufferError):  # somebody has a part: it is unmapped with that
            self._map.close()

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    __del__ = _close_file


def _name_of(secret: int) -> str:
    return f"pympsd-window-{secret:032x}"
