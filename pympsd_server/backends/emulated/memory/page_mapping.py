"""Pages mapped at chosen addresses of this process, over what is mapped there (mmap(2), mremap(2))."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

import numpy as np

# The mmap module of Python 3.11 does not name it; the values are those of x86-64 and aarch64 Linux.
NORESERVE: Final[int] = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIXED: Final = 0x10
_MAY_MOVE_TO: Final = 1 | 2
"""MREMAP_MAYMOVE and MREMAP_FIXED."""
_FAILED: Final = ctypes.c_void_p(-1).value
_libc: Final = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_remap = _libc.mremap
_remap.restype = ctypes.c_void_p
_remap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


def map_again(memory: memoryview, address: int) -> None:
    """Map whole pages of a shared mapping a second time, at an address. Raises OSError."""
    source = int(np.frombuffer(memory, np.uint8).ctypes.data)
    # An old size of 0 leaves the first mapping as it is.
    if _remap(source, 0, memory.nbytes, _MAY_MOVE_TO, address) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def map_nothing(address: int, size: int) -> None:
    """Map zero pages that cost nothing until they are touched. Raises OSError."""
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE | _FIXED
    if _map(address, size, protection, flags, -1, 0) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
