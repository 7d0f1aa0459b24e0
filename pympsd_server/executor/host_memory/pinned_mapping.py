"""Memory mapped at a chosen address while its bytes are referenced."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np

FIXED_NOREPLACE: Final = 0x100000
"""MAP_FIXED_NOREPLACE: at this address or not at all; kernels before 4.17 take it as a hint."""
_FAILED: Final = ctypes.c_void_p(-1).value
# Python's own mmap cannot map at a given address.
_libc: Final = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class _Bytes:
    """The owner that arrays over the mapping keep alive (NumPy, The array interface protocol)."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, False),
        }


def mapped_at(fd: int, address: int, size: int, gone: Callable[[], None]) -> memoryview:
    """Return ``size`` bytes of a file, mapped at ``address``; OSError (EEXIST if something else is mapped there).

    When the last reference to the bytes is dropped, unmap them and then call ``gone``, from any thread.
    """
    found = _map(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | FIXED_NOREPLACE, fd, 0)
    if found == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if found != address:
        _unmap(found, size)
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    held = _Bytes(address, size)
    weakref.finalize(held, _end, address, size, gone).atexit = False
    return np.asarray(held).data


def _end(address: int, size: int, gone: Callable[[], None]) -> None:
    _unmap(address, size)
    gone()
