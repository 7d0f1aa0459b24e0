"""Stream callbacks: cuda.bindings passes a function of its own, and that of the program in the data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from pympsd_client._api import stream as streams
from pympsd_client._api.entry_point import not_permitted
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._objects.process import process
from pympsd_client._objects.thread_local import this_thread


class _Symbol(ctypes.Structure):
    """Dl_info"""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _add() -> tuple[Callable[..., Any], str]:
    def add(stream: int, callback: int, data: int, flags: int) -> None:
        if this_thread.in_host_function:
            raise not_permitted()
        process.require()
        if data and _is_of_bindings(callback) and not ctypes.c_void_p.from_address(data).value:
            raise invalid_value("the callback is NULL; pass the address of a C function")
        streams.add_callback(stream, callback, data, flags)

    return add, "QQQI"


def _is_of_bindings(function: int) -> bool:
    found = _Symbol()
    is_found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(function), ctypes.byref(found))
    return bool(is_found) and b"/cuda/bindings/" in (found.file or b"")


SPECIAL: Final = {"cuStreamAddCallback": _add}
"""What resolves them."""
