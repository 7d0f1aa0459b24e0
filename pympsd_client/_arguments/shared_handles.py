"""The 64 bytes by which processes name shared objects: memory, events, allocations of pools (CUDA driver API, IPC).

A handle holds a secret of 128 bits, which cannot be guessed. With it any client of the executor opens the named
object.
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
    """``secret`` names the memory or the event; ``pool``, of an allocation of a pool, names that.

    ``ordinal`` is the device's; the allocation has ``size`` bytes at ``offset`` of the memory.
    """

    secret: int
    ordinal: int
    offset: int = 0
    size: int = 0
    pool: int = 0


def pack(name: str, handle: SharedHandle) -> bytes:
    """Return a handle as the bytes of a structure of CUDA's, by its name."""
    secret, ordinal, offset, size, pool = astuple(handle)
    return _LAYOUT.pack(
        _MARKS[name], secret.to_bytes(16, "little"), pool.to_bytes(16, "little"), ordinal, offset, size
    )


def unpack(name: str, argument: Any, refusal: Callable[[str], CudaError]) -> SharedHandle:
    """Return the handle in a structure of CUDA's, given as cuda.bindings has it, as bytes, or by its address.

    Raise the error of ``refusal`` for bytes that are not a handle; TypeError.
    """
    if isinstance(argument, bytes):
        data = argument[:HANDLE_BYTES].ljust(HANDLE_BYTES, b"\0")
    else:
        data = ctypes.string_at(address_of(argument, name), HANDLE_BYTES)
    mark, secret, pool, ordinal, offset, size = _LAYOUT.unpack(data)
    if mark != _MARKS[name]:
        raise refusal(f"these are not the bytes of a {name} that a client of pympsd has made")
    return SharedHandle(int.from_bytes(secret, "little"), ordinal, offset, size, int.from_bytes(pool, "little"))
