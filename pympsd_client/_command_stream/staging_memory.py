"""The memory shared with an executor: a mapping that keeps no descriptor, and who uses which part of it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from threading import Lock
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

if TYPE_CHECKING:
    from pympsd_client._objects.context import Context

GRAIN: Final = 65536
"""Parts begin and end at multiples of this many bytes, so that there are few of them."""
_FAILED: Final = ctypes.c_void_p(-1).value
_FIXED_NOREPLACE: Final = 0x100000
"""MAP_FIXED_NOREPLACE: at this very address, or not at all; kernels before 4.17 take it for a hint."""

# Python's own mmap keeps a duplicate of the descriptor, which a forked child could not close while a view exists.
_libc: Final = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


@frozen
class Part:
    """A part of the shared memory in use by one record of a context."""

    offset: int
    size: int
    context: Context
    serial: int
    """The context's when the record was made: a primary context may have closed and opened again since."""
    kept: bool
    """Whether it stays in use when the answer has come: until the bytes are copied out."""


class SharedMemory:
    """``size`` bytes mapped at ``address``; unmapped when nobody refers to the object any more."""

    def __init__(self, fd: int, size: int, ring_bytes: int = 0) -> None:
        """Map a descriptor, the ring behind the bulk data too, and close it; OSError when it cannot be mapped."""
        mapped = size + ring_bytes
        try:
            if not 0 < size <= mapped <= os.fstat(fd).st_size:  # a page beyond its end would kill the process
                raise OSError(f"shared memory of {os.fstat(fd).st_size} bytes where {mapped} were announced")
            address = _map(None, mapped, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
            if address == _FAILED:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(fd)
        self.address: int = address
        self.size: Final = size
        self.part_limit: Final = max(size // 4 // GRAIN * GRAIN, min(size, GRAIN))
        """The most bytes one part has: four of them keep both sides busy."""
        self._parts: dict[int, Part] = {}
        self._taking = Lock()
        # Not at exit: a daemon thread may still be copying then, and the kernel unmaps anyway.
        weakref.finalize(self, _unmap, address, mapped).atexit = False

    def take(self, sequence: int, count: int, context: Context, kept: bool) -> int | None:
        """Return the offset of a free part of ``count`` bytes, now used by a record; None when there is no room."""
        size = min(-(-count // GRAIN) * GRAIN, self.size)
        with self._taking:
            offset = 0
            # What is taken is the only state there is, so that giving back is one atomic step.
            for part in sorted(self._parts.values(), key=_offset):
                if part.offset - offset >= size:
                    break
                offset = part.offset + part.size
            if self.size - offset < size:
                return None
            self._parts[sequence] = Part(offset, size, context, context.serial, kept)
            return offset

    def limit_for(self, threads: int) -> int:
        """Return the most bytes of a part where so many threads copy: two parts of each keep all of them busy."""
        if threads == 1:
            return self.part_limit
        return max(self.size // (2 * threads) // GRAIN * GRAIN, min(self.size, GRAIN))

    def used_by(self, sequence: int) -> Part | None:
        """Return the part that a record uses."""
        return self._parts.get(sequence)

    def keep_no_more(self, sequence: int) -> None:
        """A kept part goes back with its answer after all."""
        part = self._parts.get(sequence)
        if part is not None:
            self._parts[sequence] = evolve(part, kept=False)

    def give_back(self, sequence: int) -> Part | None:
        """The record's part is free; return it, or None when the record had none. Doing it twice does no harm."""
        return self._parts.pop(sequence, None)

    @property
    def in_use(self) -> int:
        """How many parts are in use."""
        return len(self._parts)


def _offset(part: Part) -> int:
    return part.offset


def map_at(fd: int, address: int, size: int) -> None:
    """Map a descriptor's first ``size`` bytes at an address, and close it; OSError, EEXIST where something is."""
    try:
        if not 0 < size <= os.fstat(fd).st_size:
            raise OSError(errno.EINVAL, f"shared memory of {os.fstat(fd).st_size} bytes where {size} were announced")
        mode = mmap.MAP_SHARED | _FIXED_NOREPLACE
        found = _map(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mode, fd, 0)
        if found == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if found != address:
            _unmap(found, size)
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    finally:
        os.close(fd)


def unmap(address: int, size: int) -> None:
    """Undo ``map_at``."""
    _unmap(address, size)
