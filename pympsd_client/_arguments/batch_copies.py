"""The operations of cuMemcpy3DBatchAsync: those of cuda.bindings, or C's in memory, as plain values."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from attrs import frozen

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.structs import CopySide, address_of
from pympsd_client._arguments.values import InMemory, check_count

_POINTER, _ARRAY = 1, 2
"""CUmemcpy3DOperandType"""
_NAME: Final = "CUDA_MEMCPY3D_BATCH_OP"


@frozen
class Operand:
    """A CUmemcpy3DOperand: an array, or memory at an address."""

    is_array: bool
    place: int
    """The handle or the address."""
    sizes: tuple[int, int, int]
    """The offset in an array, in elements, rows and slices; or memory's row length, layer height and 0."""

    def described(self, element: int) -> CopySide:
        """Return it as a side of a copy, with the bytes of an element."""
        first, second, third = self.sizes
        if self.is_array:
            return CopySide(3, 0, 0, 0, 0, first * element, second, third, 0, self.place)
        return CopySide(4, 0, self.place, first * element, second, 0, 0, 0, 0)


@frozen
class BatchCopy:
    """A CUDA_MEMCPY3D_BATCH_OP; sizes are in elements."""

    sides: tuple[Operand, Operand]
    """Destination and source."""
    width: int
    height: int
    depth: int


class _Operand(ctypes.Structure):
    # of a pointer the address, rowLength, layerHeight and a hint; of an array its handle and an offset
    _fields_ = (("type", ctypes.c_int), ("place", ctypes.c_uint64), ("sizes", ctypes.c_size_t * 3))


class _BatchCopy(ctypes.Structure):
    _fields_ = (
        ("source", _Operand),
        ("destination", _Operand),
        ("extent", ctypes.c_size_t * 3),
        ("order", ctypes.c_int),
        ("flags", ctypes.c_uint),
    )


def batch_copies(given: Any, count: int) -> list[BatchCopy]:
    """Return the first ``count`` operations; INVALID_VALUE for fewer, and for operands of no known type."""
    if isinstance(given, InMemory):
        check_count(count, "opList")
        size = ctypes.sizeof(_BatchCopy)
        return [_read(given + index * size) for index in range(count)]
    if len(given or ()) < count:
        raise invalid_value(f"the number of operations is {count} and there are {len(given or ())}")
    return [_read(address_of(one, _NAME)) for one in given[:count]]


def _read(address: int) -> BatchCopy:
    raw: Any = _BatchCopy.from_address(address)
    return BatchCopy((_operand(raw.destination), _operand(raw.source)), *raw.extent)


def _operand(raw: Any) -> Operand:
    if raw.type not in (_POINTER, _ARRAY):
        raise invalid_value(f"the type of an operand is POINTER (1) or ARRAY (2), not {raw.type}")
    is_array = raw.type == _ARRAY
    first, second, third = raw.sizes
    return Operand(is_array, raw.place, (first, second, third if is_array else 0))
