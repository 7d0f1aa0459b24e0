"""The memory shared with an executor: a mapping that keeps no descriptor, and who uses which part of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from threading import Lock
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

if TYPE_CHECKING:
    from pympsd_client._context import Context

GRAIN: Final = 65536
"""Parts begin and end at multiples of this many bytes, so that there are few of them."""
_FAILED: Final = ctypes.c_void_p(-1).value

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

    def __init__(self, fd: int, size: int) -> None:
        """Map a descriptor and close it; raise OSError when it cannot be mapped."""
        try:
            if not 0 < size <= os.fstat(fd).st_size:  # a page beyond its end would kill the process
                raise OSError(f"shared memory of {os.fstat(fd).st_size} bytes where {size} were announced")
            address = _map(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
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
        weakref.finalize(self, _unmap, address, size).atexit = False

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
