"""Load the native library, which the installation builds if a compiler exists, and declare its functions."""

import ctypes
import os
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, Final

from pympsd.errors import StartError
from pympsd.wire.ring_layout import AREA_BYTES
from pympsd_server.native.states import SHARED_STATES, ContextState, DriverCalls, KernelRow, StreamState

_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "worker_open": (c_void_p, (c_int, c_void_p, POINTER(DriverCalls), c_int64)),
    "worker_free": (None, (c_void_p,)),
    "worker_take": (c_int, (c_void_p, POINTER(c_void_p), POINTER(c_uint32), POINTER(c_int))),
    "worker_send": (c_int64, (c_void_p, c_char_p, c_uint64)),
    "worker_lock_sending": (None, (c_void_p,)),
    "worker_unlock_sending": (None, (c_void_p, c_int)),
    "worker_close": (None, (c_void_p,)),
    "worker_add_context": (c_int, (c_void_p, c_uint64, POINTER(ContextState))),
    "worker_drop_context": (c_int, (c_void_p, c_uint64, c_int64)),
    "worker_add_stream": (c_int, (c_void_p, c_uint64, c_uint64, POINTER(StreamState))),
    "worker_drop_stream": (None, (c_void_p, c_uint64, c_uint64)),
    "worker_add_module": (c_int, (c_void_p, c_uint64, c_uint64, POINTER(KernelRow), c_uint32)),
    "worker_drop_module": (None, (c_void_p, c_uint64, c_uint64)),
    "native_sizes": (None, (POINTER(c_uint64),)),
}


class NoLibrary(StartError):
    """The native library cannot be used; the message contains the reason."""


@cache
def library() -> Any:
    """Return the library with its functions declared; raise NoLibrary. ctypes releases the GIL in each call."""
    loaded = load("_worker", _SIGNATURES)
    _check_sizes(loaded)
    return loaded


def load(module: str, signatures: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> Any:
    """Return a library of this package, with the functions of ``signatures`` declared; raise NoLibrary."""
    folder = os.path.dirname(__file__)
    # The build names the file .abi3.so, for all versions of Python; an earlier build's file may be next to it.
    suffixes = sorted(EXTENSION_SUFFIXES, key=lambda suffix: "abi3" not in suffix)
    paths = [path for suffix in suffixes if os.path.exists(path := os.path.join(folder, f"{module}{suffix}"))]
    if not paths:
        raise NoLibrary("the library was not built: install a C compiler, then pympsd again")
    try:
        loaded = ctypes.CDLL(paths[0])
        for name, (result, arguments) in signatures.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NoLibrary(f"the library cannot be loaded: {error}") from None
    return loaded


def _check_sizes(loaded: Any) -> None:
    expected = (*map(ctypes.sizeof, SHARED_STATES.values()), AREA_BYTES)
    sizes = (c_uint64 * len(expected))()
    loaded.native_sizes(sizes)
    if tuple(sizes) != expected:
        difference = f"structures of {list(sizes)} bytes instead of {list(expected)}"
        raise NoLibrary(f"the library is of another build, {difference}: install pympsd again")
