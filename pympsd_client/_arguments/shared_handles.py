"""The 64-byte handles that name shared memory, events and pool allocations to other processes (CUDA driver API, IPC).

A handle holds a secret of 128 bits, which cannot be guessed. Any client of the executor that has the secret can open
the object.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final

from attrs import astuple, frozen

from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.values import address_of

HANDLE_BYTES: Final = 64
_LAYOUT: Final = struct.Struct("=8s16s16sQQQ")
_MARKS: Final = {
    "CUipcMemHandle": b"pympsd M",
    "CUipcEventHandle": b"pympsd E",
    "CUmemPoolPtrExportData": b"pympsd P",
}


@frozen
class SharedHandle:
    """A handle: ``secret`` names the memory or the event, ``pool`` the pool of a pool's allocation.

    ``ordinal`` is the device's; the allocation is ``size`` bytes at ``offset`` in the memory.
    """

    secret: int
    ordinal: int
    offset: int = 0
    size: int = 0
    pool: int = 0


def pack(name: str, handle: SharedHandle) -> bytes:
    """Return the bytes of a handle as the CUDA structure ``name``."""
    secret, ordinal, offset, size, pool = astuple(handle)
    return _LAYOUT.pack(
        _MARKS[name], secret.to_bytes(16, "little"), pool.to_bytes(16, "little"), ordinal, offset, size
    )


def unpack(name: str, argument: Any, refusal: Callable[[str], CudaError]) -> SharedHandle:
    """Return the handle in one of CUDA's structures, given as a cuda.bindings object, as bytes, or by its address.

    Raise the error that ``refusal`` makes if the bytes are not a handle, TypeError for anything else.
    """
    if isinstance(argument, bytes):
        data = argument[:HANDLE_BYTES].ljust(HANDLE_BYTES, b"\0")
    else:
        data = ctypes.string_at(address_of(argument, name), HANDLE_BYTES)
    mark, secret, pool, ordinal, offset, size = _LAYOUT.unpack(data)
    if mark != _MARKS[name]:
        raise refusal(f"these are not the bytes of a {name} that a client of pympsd has made")
    return SharedHandle(int.from_bytes(secret, "little"), ordinal, offset, size, int.from_bytes(pool, "little"))
