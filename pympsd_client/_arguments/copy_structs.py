"""The structures that describe copies, as cuda.bindings or C has them, read into plain values and written back."""

import ctypes
from typing import Any, Final

from attrs import astuple, frozen

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import address_of, addresses_of


@frozen
class CopySide:
    """One side of a copy of rows and slices. ``pitch`` and ``rows`` are 0 if the program gave none."""

    memory_type: int
    host: int
    device: int
    pitch: int
    """The number of bytes from row to row."""
    rows: int
    """The number of rows from slice to slice."""
    x: int
    y: int
    z: int
    level: int
    """The level of a mipmapped array: always 0, because a level is an array of its own."""
    array: int = 0
    """The handle of an array."""


@frozen
class Copy3D:
    """A copy of ``depth`` slices of ``height`` rows of ``width`` bytes; a 2D copy has one slice."""

    destination: CopySide
    source: CopySide
    width: int
    height: int
    depth: int


_HOST, _DEVICE = 1, 2
"""Values of CUmemorytype."""


def copy_side(is_host: bool, address: int, pitch: int = 0, rows: int = 0) -> CopySide:
    """Return one side of a copy."""
    kind = _HOST if is_host else _DEVICE
    return CopySide(kind, address if is_host else 0, 0 if is_host else address, pitch, rows, 0, 0, 0, 0)


def linear_copy(to_host: bool, destination: int, from_host: bool, source: int, count: int) -> Copy3D:
    """Return the description of a copy of ``count`` bytes."""
    return Copy3D(copy_side(to_host, destination), copy_side(from_host, source), count, 1, 1)


def _fields(names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_int if name.endswith("MemoryType") else ctypes.c_size_t) for name in names.split())


class _Memcpy2D(ctypes.Structure):
    _fields_ = _fields(
        "srcXInBytes srcY srcMemoryType srcHost srcDevice srcArray srcPitch "
        "dstXInBytes dstY dstMemoryType dstHost dstDevice dstArray dstPitch WidthInBytes Height"
    )


class Memcpy3D(ctypes.Structure):
    """A CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER; the context fields of the former are reserved."""

    _fields_ = _fields(
        "srcXInBytes srcY srcZ srcLOD srcMemoryType srcHost srcDevice srcArray srcContext srcPitch srcHeight "
        "dstXInBytes dstY dstZ dstLOD dstMemoryType dstHost dstDevice dstArray dstContext dstPitch dstHeight "
        "WidthInBytes Height Depth"
    )


def copy_2d(argument: Any) -> Copy3D | None:
    """Return the values of a CUDA_MEMCPY2D, None for None; raise TypeError for anything else."""
    return None if argument is None else copy_at(address_of(argument, "CUDA_MEMCPY2D"), _Memcpy2D)


def copy_3d(argument: Any) -> Copy3D | None:
    """Return the values of a CUDA_MEMCPY3D, None for None; raise TypeError for anything else."""
    return None if argument is None else copy_at(address_of(argument, "CUDA_MEMCPY3D"), Memcpy3D)


def copy_3d_peer(argument: Any) -> tuple[Copy3D, int, int] | None:
    """Return the values of a CUDA_MEMCPY3D_PEER with the contexts of destination and source, None for None."""
    if argument is None:
        return None
    address = address_of(argument, "CUDA_MEMCPY3D_PEER")
    raw: Any = Memcpy3D.from_address(address)
    return copy_at(address, Memcpy3D), raw.dstContext, raw.srcContext


_FIELDS: Final = ("MemoryType", "Host", "Device", "Pitch", "Height", "XInBytes", "Y", "Z", "LOD", "Array")
_SIDE_FIELDS: Final = {prefix: tuple(prefix + name for name in _FIELDS) for prefix in ("dst", "src")}
"""The C fields of `CopySide`'s attributes, in the same order. The 2D structure lacks some."""


def copy_at(address: int, layout: type[_Memcpy2D | Memcpy3D] = Memcpy3D) -> Copy3D:
    """Return the values of a C structure in memory."""
    raw: Any = layout.from_address(address)
    destination, source = (CopySide(*[getattr(raw, name, 0) for name in names]) for names in _SIDE_FIELDS.values())
    return Copy3D(destination, source, raw.WidthInBytes, raw.Height, getattr(raw, "Depth", 1))


def copy_bytes(copy: Copy3D) -> bytes:
    """Return the bytes of a CUDA_MEMCPY3D."""
    raw = Memcpy3D(WidthInBytes=copy.width, Height=copy.height, Depth=copy.depth)
    for prefix, side in (("dst", copy.destination), ("src", copy.source)):
        for name, value in zip(_SIDE_FIELDS[prefix], astuple(side), strict=True):
            setattr(raw, name, value)
    return bytes(raw)


# --- the operations of cuMemcpy3DBatchAsync

_POINTER, _ARRAY = 1, 2
"""Values of CUmemcpy3DOperandType."""


@frozen
class CopyOperand:
    """A CUmemcpy3DOperand: an array, or memory at an address."""

    is_array: bool
    place: int
    """The handle or the address."""
    sizes: tuple[int, int, int]
    """For an array, the offset in elements, rows and slices; for memory, the row length, the layer height and 0."""

    def describe(self, element: int) -> CopySide:
        """Return the operand as a side of a copy; ``element`` is the size of an element in bytes."""
        first, second, third = self.sizes
        if self.is_array:
            return CopySide(3, 0, 0, 0, 0, first * element, second, third, 0, self.place)
        return CopySide(4, 0, self.place, first * element, second, 0, 0, 0, 0)


@frozen
class BatchCopy:
    """A CUDA_MEMCPY3D_BATCH_OP; sizes are in elements."""

    sides: tuple[CopyOperand, CopyOperand]
    """Destination and source."""
    width: int
    height: int
    depth: int


class _Operand(ctypes.Structure):
    # for a pointer the address, rowLength, layerHeight and a hint; for an array its handle and an offset
    _fields_ = (("type", ctypes.c_int), ("place", ctypes.c_uint64), ("sizes", ctypes.c_size_t * 3))


class _BatchCopy(ctypes.Structure):
    _fields_ = (
        ("source", _Operand),
        ("destination", _Operand),
        ("extent", ctypes.c_size_t * 3),
        ("order", ctypes.c_int),
        ("flags", ctypes.c_uint),
    )


def batch_copies(argument: Any, count: int) -> list[BatchCopy]:
    """Return the first ``count`` operations.

    Raise INVALID_VALUE if a list has fewer, or if an operand's type is unknown.
    """
    addresses = addresses_of(argument, count, "CUDA_MEMCPY3D_BATCH_OP", ctypes.sizeof(_BatchCopy))
    values: list[Any] = [_BatchCopy.from_address(address) for address in addresses]
    return [BatchCopy((_operand(raw.destination), _operand(raw.source)), *raw.extent) for raw in values]


def _operand(raw: Any) -> CopyOperand:
    if raw.type not in (_POINTER, _ARRAY):
        raise invalid_value(f"the type of an operand must be POINTER (1) or ARRAY (2), not {raw.type}")
    is_array = raw.type == _ARRAY
    first, second, third = raw.sizes
    return CopyOperand(is_array, raw.place, (first, second, third if is_array else 0))
