"""Host memory as callers pass it and as cuda.bindings accepts it: an address, or an object with a buffer."""

from __future__ import annotations

import ctypes
from numbers import Integral
from typing import Any, Final

from pympsd_client._arguments.errors import invalid_value


class _Buffer(ctypes.Structure):
    """Py_buffer, part of Python's stable ABI since 3.11 (C API, Buffer Protocol)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_ANY_CONTIGUOUS: Final = 0x90 | 0x08
_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_Buffer),)


class HostMemory:
    """``size`` bytes (None if unknown) at ``address``; a buffer stays open during the ``with`` block.

    Accepts the same values as cuda.bindings for a ``void *``: an int, None (0), an object with a buffer, or with
    __int__. A one-element array is a buffer here; cuda.bindings treats it as a number. Raise TypeError for anything
    else.
    """

    def __init__(self, pointer: Any) -> None:
        self._buffer: _Buffer | None = None
        self.size: int | None = None
        self.readonly = False
        if pointer is None:
            self.address = 0
        elif isinstance(pointer, Integral) or hasattr(pointer, "getPtr"):
            self.address = int(pointer)
        else:
            self._hold(pointer)

    def _hold(self, pointer: Any) -> None:
        """Set the address and the size from an object's buffer, which stays open, or the address from its int."""
        buffer = _Buffer()
        try:
            _get(pointer, ctypes.byref(buffer), _ANY_CONTIGUOUS)
        except TypeError:
            if not hasattr(pointer, "__int__"):
                raise TypeError(
                    f"a host pointer must be an int, None or an object with a buffer, not {type(pointer).__name__}"
                ) from None
            self.address = int(pointer)
            return
        self._buffer = buffer
        self.address = buffer.buf or 0
        self.size = buffer.len
        self.readonly = bool(buffer.readonly)

    def __enter__(self) -> HostMemory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._buffer is not None:
            _release(ctypes.byref(self._buffer))
            self._buffer = None

    def check(self, count: int, to_be_written: bool) -> None:
        """Raise INVALID_VALUE for NULL, for a buffer that is too small, and for a read-only one ``to_be_written``."""
        if self.address == 0:
            raise invalid_value("the host pointer is NULL; pass an address or an object with a buffer")
        if self.size is not None and count > self.size:
            raise invalid_value(f"{count} bytes are more than the host buffer has: {self.size}")
        if to_be_written and self.readonly:
            raise invalid_value("the host buffer is read-only; copy into a writable one")


def host_memory_at(address: int) -> HostMemory:
    """Return the host memory at an address, of unknown size."""
    return HostMemory(address)
