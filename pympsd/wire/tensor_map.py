"""Tensor maps (CUtensorMap) as bytes in memory: 128 bytes, opaque to programs.

The client creates them, and kernels of the emulated device read and change them. A kernel may pass any other memory
instead: `unpack` refuses bytes that cannot be a tensor map, and the map's address is checked when it is used. The
rules are those of the CUDA driver API, Tensor Map Object Management, and of the PTX ISA, tensormap.replace.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

from attrs import frozen

BYTES: Final = 128
ALIGNMENT: Final = 64
"""The alignment of a tensor map in device memory, in bytes."""
GREATEST_RANK: Final = 5


class DataType(IntEnum):
    """CUtensorMapDataType without the packed types of 4 and 6 bits, which need compute capability 10.0.

    The numbers are the driver's.
    """

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12


ELEMENT_BYTES: Final = dict(zip(DataType, (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4), strict=True))
PACKED_TYPES: Final = {13: "16U4_ALIGN8B", 14: "16U4_ALIGN16B", 15: "16U6_ALIGN16B"}
_REPLACED_TYPES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15)
"""The data types in the order of tensormap.replace.elemtype."""


class Interleave(IntEnum):
    """CUtensorMapInterleave."""

    NONE = 0
    BYTES_16 = 1
    BYTES_32 = 2


class Swizzle(IntEnum):
    """CUtensorMapSwizzle without the modes whose atoms are not 16 bytes, which need compute capability 10.0."""

    NONE = 0
    BYTES_32 = 1
    BYTES_64 = 2
    BYTES_128 = 3

    @property
    def span(self) -> int:
        """The size in bytes of the range within which pieces of 16 bytes are exchanged."""
        return 16 << self.value


_LATER_SWIZZLES: Final = {4: "128B_ATOM_32B", 5: "128B_ATOM_32B_FLIP_8B", 6: "128B_ATOM_64B"}
_NEEDS_BLACKWELL: Final = "needs a device of compute capability 10.0"


@frozen
class Im2col:
    """The box of an im2col map: offsets of its corners in W, H and D, and the number of elements that one instruction
    reads.
    """

    lower_corner: tuple[int, ...]
    upper_corner: tuple[int, ...]
    channels: int
    pixels: int


@frozen
class TensorMap:
    """A tensor in global memory and the box of it that one instruction copies.

    The first dimension is the innermost.
    """

    data_type: int
    address: int
    dimensions: tuple[int, ...]
    """The tensor's size in elements, by dimension."""
    strides: tuple[int, ...]
    """The strides in bytes of all dimensions except the first."""
    box: tuple[int, ...]
    """The size of the box in elements, before the element strides; unused in an im2col map."""
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    fill: int = 0
    """The value of elements outside of the tensor: 1 if they are read as NaN, 0 if they are read as 0."""
    im2col: Im2col | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.dimensions)

    @property
    def element_bytes(self) -> int:
        """The size of an element in bytes."""
        return ELEMENT_BYTES[DataType(self.data_type)]

    @property
    def inner(self) -> int:
        """The number of elements of the box along the first dimension."""
        return self.box[0] if self.im2col is None else self.im2col.channels


# --- the rules of the manual


def check(tensor: TensorMap) -> None:
    """Raise ValueError for an invalid tensor map; the message explains what is wrong and what is allowed."""
    _check_modes(tensor)
    _check_tensor(tensor)
    if tensor.im2col is None:
        for index, size in enumerate(tensor.box):
            if not 1 <= size <= 256:
                raise ValueError(f"boxDim[{index}] is {size}; 1 to 256 are allowed")
    else:
        _check_im2col(tensor, tensor.im2col)
    # The first element stride is ignored, because without interleaving the first dimension has none.
    for index, stride in enumerate(tensor.element_strides):
        if not 1 <= stride <= 8 and (index or tensor.interleave):
            raise ValueError(f"elementStrides[{index}] is {stride}; 1 to 8 are allowed")
    _check_inner(tensor)


def _check_modes(tensor: TensorMap) -> None:
    """Raise ValueError for modes that do not exist, need a later GPU, or cannot be combined."""
    if tensor.data_type in PACKED_TYPES:
        raise ValueError(f"tensorDataType {PACKED_TYPES[tensor.data_type]} {_NEEDS_BLACKWELL}")
    if tensor.swizzle in _LATER_SWIZZLES:
        raise ValueError(f"swizzle {_LATER_SWIZZLES[tensor.swizzle]} {_NEEDS_BLACKWELL}")
    for name, value, maximum in (
        ("tensorDataType", tensor.data_type, 12),
        ("interleave", tensor.interleave, 2),
        ("swizzle", tensor.swizzle, 3),
        ("l2Promotion", tensor.l2_promotion, 3),
        ("oobFill", tensor.fill, 1),
    ):
        if not 0 <= value <= maximum:
            raise ValueError(f"{name} is {value}; 0 to {maximum} are allowed")
    if tensor.fill and tensor.data_type < DataType.FLOAT16:
        raise ValueError("oobFill NAN_REQUEST_ZERO_FMA is allowed of floating-point types only")
    if tensor.interleave == Interleave.BYTES_32 and tensor.swizzle != Swizzle.BYTES_32:
        raise ValueError("interleave 32B is allowed with swizzle 32B only")


def check_rank(rank: int, minimum: int) -> None:
    """Raise ValueError unless the number of dimensions is ``minimum`` to 5.

    Im2col maps and interleaved layouts need at least 3.
    """
    if not minimum <= rank <= GREATEST_RANK:
        raise ValueError(f"tensorRank is {rank}; {minimum} to {GREATEST_RANK} are allowed")


def _check_tensor(tensor: TensorMap) -> None:
    check_rank(tensor.rank, 1 if tensor.im2col is None and not tensor.interleave else 3)
    unit = 32 if tensor.interleave == Interleave.BYTES_32 else 16
    if tensor.address % unit or not 0 <= tensor.address < 1 << 64:
        raise ValueError(f"globalAddress is {tensor.address:#x}; a multiple of {unit} is needed")
    for index, size in enumerate(tensor.dimensions):
        if not 1 <= size <= 1 << 32:
            raise ValueError(f"globalDim[{index}] is {size}; 1 to 2**32 are allowed")
    for index, stride in enumerate(tensor.strides):
        if stride % unit or not 0 <= stride < 1 << 40:
            raise ValueError(f"globalStrides[{index}] is {stride}; multiples of {unit} below 2**40 are allowed")


_CORNERS: Final = {3: 15, 4: 7, 5: 4}
"""The number of bits of a corner's offsets, without the sign, by the number of dimensions."""


def _check_im2col(tensor: TensorMap, box: Im2col) -> None:
    limit = 1 << _CORNERS[tensor.rank]
    corners = zip(box.lower_corner, box.upper_corner, tensor.dimensions[1:-1], strict=True)
    for index, (lower, upper, size) in enumerate(corners):
        for name, value in (("Lower", lower), ("Upper", upper)):
            if not -limit <= value < limit:
                raise ValueError(f"pixelBox{name}Corner[{index}] is {value}; {-limit} to {limit - 1} are allowed")
        if size + upper - lower < 1:
            raise ValueError(f"the box of pixels is empty along dimension {index + 1} (corners {lower} and {upper})")
    for name, value, maximum in (("channelsPerPixel", box.channels, 256), ("pixelsPerColumn", box.pixels, 1024)):
        if not 1 <= value <= maximum:
            raise ValueError(f"{name} is {value}; 1 to {maximum} are allowed")


def _check_inner(tensor: TensorMap) -> None:
    if tensor.interleave:
        return
    name, size = "boxDim[0]" if tensor.im2col is None else "channelsPerPixel", tensor.inner * tensor.element_bytes
    if size % 16:
        raise ValueError(
            f"{name} is {tensor.inner} elements of {tensor.element_bytes} bytes: not a multiple of 16 bytes"
        )
    if tensor.swizzle and size > Swizzle(tensor.swizzle).span:
        raise ValueError(f"{name} is {size} bytes; the swizzle allows {Swizzle(tensor.swizzle).span}")


# --- in memory

_MAGIC: Final = b"tensormp"
_LAYOUT: Final = struct.Struct("=8s8BQ5I4Q5H5B3h3h2H21x")
"""The layout of a map's bytes: the kind and other modes, the address, the sizes minus 1, strides, box, element
strides, and an im2col map's box.
"""


def _five(values: Sequence[int], count: int = GREATEST_RANK) -> list[int]:
    return [*values, *(0,) * count][:count]


def pack(tensor: TensorMap) -> bytes:
    """Return the bytes of a map that `check` accepts. The first element stride is not used, so any may be given.

    The layout of the 128 bytes is pympsd's own and not a GPU's, because only the emulated device reads them.
    """
    modes = (
        tensor.im2col is not None, tensor.data_type, tensor.rank - 1, tensor.interleave, tensor.swizzle,
        tensor.l2_promotion, tensor.fill, 0,
    )  # fmt: skip
    column = tensor.im2col or Im2col((), (), 0, 0)
    return _LAYOUT.pack(
        _MAGIC, *modes, tensor.address, *_five([size - 1 for size in tensor.dimensions]), *_five(tensor.strides, 4),
        *_five(tensor.box), *_five((1, *tensor.element_strides[1:])),
        *_five(column.lower_corner, 3), *_five(column.upper_corner, 3),
        column.channels, column.pixels,
    )  # fmt: skip


@lru_cache(maxsize=256)
def unpack(data: bytes) -> TensorMap:
    """Return the map in 128 bytes; raise ValueError if they are not a map, or if the map breaks the rules.

    ``data`` is not trusted: it is the memory that a kernel passes as a map.
    """
    magic, kind, data_type, last, interleave, swizzle, promotion, fill, _, address, *geometry = _LAYOUT.unpack(data)
    if magic != _MAGIC:
        raise ValueError("not a tensor map")
    rank, spatial = last + 1, max(last - 1, 0)
    check_rank(rank, 1)
    column = Im2col(
        tuple(geometry[19 : 19 + spatial]), tuple(geometry[22 : 22 + spatial]), geometry[25], geometry[26]
    )
    tensor_map = TensorMap(
        data_type, address, tuple(size + 1 for size in geometry[:rank]), tuple(geometry[5 : 5 + last]),
        tuple(geometry[9 : 9 + rank]), tuple(geometry[14 : 14 + rank]), interleave, swizzle, promotion, fill,
        column if kind else None,
    )  # fmt: skip
    check(tensor_map)
    return tensor_map


_FIELDS: Final = {
    "elemtype": (9, "B", 1),
    "rank": (10, "B", 1),
    "interleave_layout": (11, "B", 1),
    "swizzle_mode": (12, "B", 1),
    "fill_mode": (14, "B", 1),
    "global_address": (16, "Q", 1),
    "global_dim": (24, "I", 5),
    "global_stride": (44, "Q", 4),
    "box_dim": (76, "H", 5),
    "element_stride": (86, "B", 5),
}
"""The fields of tensormap.replace: the offset, the struct code and the number of values of each."""
FIELDS: Final = {name: count for name, (_, _, count) in _FIELDS.items()}
"""The fields that tensormap.replace changes, with the number of values of each."""


def set_field(data: bytes, field: str, ordinal: int, value: int) -> bytes:
    """Return the bytes of a map with one field changed as tensormap.replace does; the result may break the rules.

    ``data`` may be 128 zero bytes, to which fields are then added. Raise ValueError for other bytes that are not a
    map.
    """
    if data == bytes(BYTES):
        data = pack(TensorMap(0, 0, (1,), (), (), ()))
    if not data.startswith(_MAGIC):
        raise ValueError("not a tensor map")
    offset, code, _ = _FIELDS[field]
    size = struct.calcsize(code)
    if field == "elemtype":
        value = _REPLACED_TYPES[value % len(_REPLACED_TYPES)]
    elif field == "global_dim":
        value -= 1
    changed = bytearray(data)
    struct.pack_into(f"={code}", changed, offset + size * ordinal, value % (1 << 8 * size))
    return bytes(changed)
