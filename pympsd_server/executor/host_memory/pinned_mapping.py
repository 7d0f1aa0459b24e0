"""Memory mapped at a chosen address while its bytes are referenced."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from pympsd.channel.mapping import map_file, unmap


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
    map_file(fd, size, address)
    held = _Bytes(address, size)
    weakref.finalize(held, _end, address, size, gone).atexit = False
    return np.asarray(held).data


def _end(address: int, size: int, gone: Callable[[], None]) -> None:
    unmap(address, size)
    gone()
