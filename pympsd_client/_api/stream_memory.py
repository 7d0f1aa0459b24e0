"""Stream memory operations: a stream writes a word, or waits for one (CUDA driver API, Stream Memory Operations).

A word is written by a fill. A wait is a kernel of one thread, which reads the word again and again.
"""

import ctypes
import struct
from typing import Any, Final

from attrs import frozen

from pympsd_client._api.memory.copies import fill
from pympsd_client._arguments.errors import check_no_flags, invalid_value, not_supported
from pympsd_client._arguments.values import InMemory
from pympsd_client._objects.code.launch import launch
from pympsd_client._objects.code.library import Kernel, Library, libraries, new_library
from pympsd_client._objects.memory.allocations import check_range
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import resolve

_KINDS: Final = {1: (True, 4), 2: (False, 4), 4: (True, 8), 5: (False, 8)}
"""For each CUstreamBatchMemOpType: whether it waits, and the size of its word in bytes."""
_FLUSH: Final = 1 << 30
_CONDITIONS: Final = range(4)
"""CU_STREAM_WAIT_VALUE_GEQ, EQ, AND, NOR."""
_MAX_OPERATIONS: Final = 256
"""The maximum number of operations in a batch, as documented for cuStreamBatchMemOp."""
_OPERATION: Final = struct.Struct("=I4xQQI20x")
"""CUstreamBatchMemOpParams: operation, address, value, flags."""
ONE_THREAD: Final = (1, 1, 1, 1, 1, 1, 0)
_TYPES: Final = (ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_uint)
_PTX: Final = "".join(
    (
        ".version 6.0\n.target sm_60\n.address_size 64\n",
        *(
            f"""
.visible .entry wait{bits}(.param .u64 address, .param .u64 value, .param .u32 condition)
{{
    .reg .pred %p<5>; .reg .b32 %r<2>; .reg .b64 %a; .reg .b{bits} %w<6>; .reg .b64 %v;
    ld.param.u64 %a, [address]; ld.param.u64 %v, [value]; ld.param.u32 %r0, [condition];
    cvt.u{bits}.u64 %w0, %v;
AGAIN:
    ld.volatile.global.u{bits} %w1, [%a];
    setp.ne.u32 %p0, %r0, 0; @%p0 bra NOT_GEQ;
    sub.s{bits} %w2, %w1, %w0; setp.lt.s{bits} %p1, %w2, 0; @%p1 bra AGAIN; ret;
NOT_GEQ:
    setp.ne.u32 %p0, %r0, 1; @%p0 bra NOT_EQ;
    setp.ne.u{bits} %p1, %w1, %w0; @%p1 bra AGAIN; ret;
NOT_EQ:
    setp.ne.u32 %p0, %r0, 2; @%p0 bra NOR;
    and.b{bits} %w3, %w1, %w0; setp.eq.u{bits} %p1, %w3, 0; @%p1 bra AGAIN; ret;
NOR:
    or.b{bits} %w4, %w1, %w0; not.b{bits} %w5, %w4; setp.eq.u{bits} %p1, %w5, 0; @%p1 bra AGAIN; ret;
}}
"""
            for bits in (32, 64)
        ),
    )
)


@frozen
class MemoryOperation:
    """A wait for a word of ``size`` bytes, or the writing of one."""

    waits: bool
    size: int
    address: int
    value: int
    flags: int


def write(stream: int, address: int, value: int, size: int, flags: int) -> None:
    """Write a word of 4 or 8 bytes, its lower half first, when the stream reaches this point.

    Raise INVALID_VALUE if the address is misaligned.
    """
    resolve(stream)
    for place, word in words(address, value, size, flags):
        fill(place, word, 4, 1, stream)


def words(address: int, value: int, size: int, flags: int) -> list[tuple[int, int]]:
    """Return (address, value) of each 4-byte word that an operation writes; raise CudaError."""
    if flags:  # cuda.h has CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER for the functions of CUDA 8 only
        raise invalid_value(f"the flags must be CU_STREAM_WRITE_VALUE_DEFAULT (0), not {flags:#x}")
    _check_address(address, size)
    return [(address + place, value >> 8 * place & 0xFFFFFFFF) for place in range(0, size, 4)]


def wait(stream: int, address: int, value: int, size: int, flags: int) -> None:
    """Make the stream's later work wait until a word of 4 or 8 bytes has a value (>= cyclically, ==, &, or NOR)."""
    resolve(stream)
    kernel, values = prepare_wait(address, value, size, flags)
    launch(kernel.handle, ONE_THREAD, stream, values, 0)


def prepare_wait(address: int, value: int, size: int, flags: int) -> tuple[Kernel, tuple[Any, Any]]:
    """Return the kernel that waits for a word, and its parameters.

    Raise CudaError, INVALID_VALUE for an address that kernels cannot access.
    """
    if flags & ~_FLUSH not in _CONDITIONS:
        raise invalid_value(f"the flags must be a CUstreamWaitValue_flags, 0 to 3, not {flags:#x}")
    if flags & _FLUSH:
        raise not_supported("CU_STREAM_WAIT_VALUE_FLUSH needs CAN_FLUSH_REMOTE_WRITES, which no device has here")
    _check_address(address, size)
    if not pinned.holds(address):
        check_range(address, size)
    return _library().kernel(f"wait{8 * size}"), ((address, value, flags), _TYPES)


def _check_address(address: int, size: int) -> None:
    if not address or address % size:
        raise invalid_value(f"{address:#x} is not the address of a word of {size} bytes")


_kept: dict[object, Library] = {}
"""The library of kernels for each connection of this process; only tests have more than one connection."""


def _library() -> Library:
    connection = process.require()
    library = _kept.get(connection)
    if library is None or library.handle not in libraries:
        _kept.clear()
        library = _kept[connection] = new_library(_PTX.encode())
    return library


def batch(stream: int, count: int, operations: Any, flags: int) -> None:
    """Put several operations into a stream, in order.

    Raise INVALID_VALUE or NOT_SUPPORTED before the first one starts.
    """
    check_no_flags("cuStreamBatchMemOp", flags)
    for operation in [read(data) for data in operations_at(count, operations)]:
        act = wait if operation.waits else write
        act(stream, operation.address, operation.value, operation.size, operation.flags)


def operations_at(count: int, argument: Any) -> list[bytes]:
    """Return the first ``count`` CUstreamBatchMemOpParams of a list, or of an array in memory.

    Raise INVALID_VALUE if a list has fewer.
    """
    if count > _MAX_OPERATIONS:
        raise invalid_value(f"a batch must have at most {_MAX_OPERATIONS} operations, not {count}")
    if isinstance(argument, InMemory):
        return [ctypes.string_at(argument + index * _OPERATION.size, _OPERATION.size) for index in range(count)]
    if len(argument or ()) < count:
        raise invalid_value(f"the number of operations is {count} and there are {len(argument or ())}")
    return [ctypes.string_at(int(operation.getPtr()), _OPERATION.size) for operation in (argument or ())[:count]]


def read(operation: bytes) -> MemoryOperation:
    """Return the operation in a CUstreamBatchMemOpParams; raise NOT_SUPPORTED unless it is a wait or a write."""
    kind, address, value, flags = _OPERATION.unpack(operation)
    if kind not in _KINDS:
        raise not_supported(
            f"the stream memory operation {kind} is not supported; those that write or wait for a value are"
        )
    waits, size = _KINDS[kind]
    return MemoryOperation(waits, size, address, value & (1 << 8 * size) - 1, flags)
