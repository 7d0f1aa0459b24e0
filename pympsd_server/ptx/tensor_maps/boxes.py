"""The elements of a tensor that one copy concerns, in the order in which they lie in shared memory."""

from collections.abc import Sequence

import numpy as np
from attrs import evolve, frozen

from pympsd.wire.tensor_map import DataType, Im2col, Swizzle, TensorMap
from pympsd_server.ptx.isa.datatypes import S64, U64, Array
from pympsd_server.ptx.isa.faults import IllegalAddress, IllegalInstruction

_UNIT = 16
"""Boxes begin at multiples of this many bytes along the first dimension, as on an H100 and an H200."""
_MAX_DIMENSION = 1 << 31
"""Elements of a dimension that can be copied, as on an H100: larger ones can only be encoded."""
_WIDE = 8
"""Bytes of the largest elements."""


@frozen
class Box:
    """Units of elements: their global addresses, which mean nothing outside of the tensor, and which are inside."""

    addresses: Array
    inside: Array
    unit: int
    """Bytes: those of an element, or those of as many as are always copied together."""


def box_at(of: TensorMap, start: Sequence[int], offsets: Sequence[int] | None, limit: int, by_element: bool) -> Box:
    """Return the elements from some coordinates on; the first coordinate is along the innermost dimension.

    ``offsets`` are those of an im2col copy, in W, H and D, and None for a tile. Raises IllegalInstruction if the
    instruction does not fit the map, and IllegalAddress if the elements have more than ``limit`` bytes.
    """
    is_im2col = offsets is not None
    if is_im2col != (of.im2col is not None):
        kinds = "tiled", "im2col"
        raise IllegalInstruction(f"a copy of .{kinds[is_im2col]} by a tensor map that is {kinds[not is_im2col]}")
    if len(start) != of.rank:
        raise IllegalInstruction(f"{len(start)} coordinates for a tensor map of {of.rank} dimensions")
    if max(of.dimensions) > _MAX_DIMENSION:
        raise IllegalInstruction(f"a tensor map of a dimension of more than 2**31 elements: {of.dimensions}")
    if start[0] * of.element_bytes % _UNIT:
        where = f"coordinate {start[0]}, elements of {of.element_bytes} bytes"
        raise IllegalInstruction(f"a box that begins at no multiple of {_UNIT} bytes ({where})")
    size = int(np.prod(counts(of)[1:], dtype=object)) * row_pitch(of)
    if size > limit:
        raise IllegalAddress(f"a box of {size} bytes: outside of the {limit} bytes of shared memory there are")
    if not by_element and of.element_bytes < _WIDE and not of.dimensions[0] * of.element_bytes % _WIDE:
        ratio = _WIDE // of.element_bytes
        column = of.im2col and evolve(of.im2col, channels=of.im2col.channels // ratio)
        dimensions, box = ((sizes[0] // ratio, *sizes[1:]) for sizes in (of.dimensions, of.box))
        wide = evolve(of, data_type=DataType.UINT64, dimensions=dimensions, box=box, im2col=column)
        of, start = wide, (start[0] // ratio, *start[1:])
    if of.im2col is not None:
        return _pixels(of, of.im2col, start, offsets or ())
    return _tile(of, start)


def store_box_at(of: TensorMap, start: Sequence[int], is_im2col: bool, limit: int, by_element: bool) -> Box:
    """Return the elements that a store or reduction from some coordinates on writes, as `box_at` does of a load.

    As recorded on an H100: no coordinate may be negative, and units of 16 bytes are written whole. The last unit of a
    row may so reach past the end of the tensor, into the padding; the store checks every address as always.
    Not recorded: pixels before the image that an im2col column comes to on its way. They are not written.
    """
    if min(start) < 0:
        raise IllegalInstruction(f"a store or reduction that begins before the tensor, at {tuple(start)}")
    size = of.element_bytes
    whole = -(-of.dimensions[0] * size // _UNIT) * _UNIT // size
    padded = evolve(of, dimensions=(whole, *of.dimensions[1:]))
    return box_at(padded, start, () if is_im2col else None, limit, by_element)


def counts(of: TensorMap) -> list[int]:
    """Return the elements that are copied along each dimension; of an im2col map channels and pixels."""
    if of.im2col is not None:
        return [of.im2col.channels, of.im2col.pixels]
    return [of.box[0], *(-(-size // step) for size, step in zip(of.box[1:], of.element_strides[1:], strict=True))]


def row_pitch(of: TensorMap) -> int:
    """Return the bytes in shared memory from one row of a box, or pixel, to the next."""
    return Swizzle(of.swizzle).span if of.swizzle else of.inner * of.element_bytes


def _tile(of: TensorMap, start: Sequence[int]) -> Box:
    steps = (1, *of.element_strides[1:])
    offsets, inside = np.zeros(1, S64), np.ones(1, np.bool_)
    for first, count, step, pitch, size in zip(
        start, counts(of), steps, (of.element_bytes, *of.strides), of.dimensions, strict=True
    ):
        place = np.int64(first) + np.arange(count, dtype=S64) * step
        offsets = (place[:, None] * pitch + offsets).ravel()
        inside = (_is_inside(place, size)[:, None] & inside).ravel()
    return _box(of, offsets, inside)


def _is_inside(place: Array, size: int) -> Array:
    inside: Array = (place >= 0) & (place < size)
    return inside


def _box(of: TensorMap, offsets: Array, inside: Array) -> Box:
    # Addresses are sums of 64 bits, on an H100 too: an element that far away is at the address of the lower bits.
    return Box(offsets.view(U64) + U64.type(of.address), inside, of.element_bytes)


def _pixels(of: TensorMap, column: Im2col, start: Sequence[int], offsets: Sequence[int]) -> Box:
    """Return channels of consecutive pixels of the bounding box, each moved by the offsets."""
    pixels = np.array(_walk(of, column, start[1:]), S64)
    pixels[:, :-1] += np.array(offsets or [0] * (of.rank - 2), S64)
    channels = start[0] + np.arange(column.channels, dtype=S64)
    places, inside = channels * of.element_bytes, _is_inside(channels, of.dimensions[0])
    rows, present = np.zeros(len(pixels), S64), np.ones(len(pixels), np.bool_)
    for coordinate, pitch, size in zip(pixels.T, of.strides, of.dimensions[1:], strict=True):
        rows += coordinate * pitch
        present &= _is_inside(coordinate, size)
    return _box(of, (rows[:, None] + places).ravel(), (present[:, None] & inside).ravel())


def _walk(of: TensorMap, column: Im2col, start: Sequence[int]) -> list[list[int]]:
    """Return pixels along W, then H, D and N: past the box's upper corner a dimension begins at its lower one."""
    place, places = list(start), []
    ends = [size + upper for size, upper in zip(of.dimensions[1:-1], column.upper_corner, strict=True)]
    for _ in range(column.pixels):
        places.append(list(place))
        for index, (end, lower) in enumerate(zip(ends, column.lower_corner, strict=True)):
            place[index] += of.element_strides[1 + index]
            if place[index] < end:
                break
            place[index] = lower
        else:
            place[-1] += of.element_strides[-1]
    return places
