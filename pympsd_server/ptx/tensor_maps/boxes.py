"""Find the elements of boxes: the parts of a tensor that copies read or write, in their order in shared memory."""

from collections.abc import Sequence

import numpy as np
from attrs import evolve, frozen

from pympsd.wire.tensor_map import DataType, Im2col, Swizzle, TensorMap
from pympsd_server.ptx.isa.datatypes import S64, U64, Array
from pympsd_server.ptx.isa.faults import IllegalAddress, IllegalInstruction

_UNIT = 16
"""The alignment of boxes along the first dimension, in bytes, as on an H100 and an H200."""
_MAX_DIMENSION = 1 << 31
"""The maximum number of elements of a dimension in a copy, as on an H100; maps can have larger dimensions."""
_WIDE = 8
"""The size of the largest elements, in bytes."""


@frozen
class Box:
    """The global addresses of a box's units, of which only the ones `inside` the tensor are valid."""

    addresses: Array
    inside: Array
    unit: int
    """The size of a unit in bytes: an element, or several that are always copied together."""


def box_at(
    tensor_map: TensorMap, start: Sequence[int], offsets: Sequence[int] | None, limit: int, by_element: bool
) -> Box:
    """Return the box that begins at the coordinates `start`, of which the first is along the innermost dimension.

    ``offsets`` are an im2col copy's in W, H and D, or None for a tile. With `by_element`, each unit is one element.
    Raises IllegalInstruction if the instruction does not fit the map, and IllegalAddress if the box has more than
    ``limit`` bytes.
    """
    is_im2col = offsets is not None
    if is_im2col != (tensor_map.im2col is not None):
        kinds = "tiled", "im2col"
        raise IllegalInstruction(f"a copy of .{kinds[is_im2col]} by a tensor map that is {kinds[not is_im2col]}")
    if len(start) != tensor_map.rank:
        raise IllegalInstruction(f"{len(start)} coordinates for a tensor map of {tensor_map.rank} dimensions")
    if max(tensor_map.dimensions) > _MAX_DIMENSION:
        raise IllegalInstruction(f"a tensor map of a dimension of more than 2**31 elements: {tensor_map.dimensions}")
    if start[0] * tensor_map.element_bytes % _UNIT:
        where = f"coordinate {start[0]}, elements of {tensor_map.element_bytes} bytes"
        raise IllegalInstruction(f"a box that begins at no multiple of {_UNIT} bytes ({where})")
    size = int(np.prod(counts(tensor_map)[1:], dtype=object)) * row_pitch(tensor_map)
    if size > limit:
        raise IllegalAddress(f"a box of {size} bytes: outside of the {limit} bytes of shared memory")
    if (
        not by_element
        and tensor_map.element_bytes < _WIDE
        and not tensor_map.dimensions[0] * tensor_map.element_bytes % _WIDE
    ):
        ratio = _WIDE // tensor_map.element_bytes
        column = tensor_map.im2col and evolve(tensor_map.im2col, channels=tensor_map.im2col.channels // ratio)
        dimensions, box = ((sizes[0] // ratio, *sizes[1:]) for sizes in (tensor_map.dimensions, tensor_map.box))
        wide = evolve(tensor_map, data_type=DataType.UINT64, dimensions=dimensions, box=box, im2col=column)
        tensor_map, start = wide, (start[0] // ratio, *start[1:])
    if tensor_map.im2col is not None:
        return _pixels(tensor_map, tensor_map.im2col, start, offsets or ())
    return _tile(tensor_map, start)


def store_box_at(tensor_map: TensorMap, start: Sequence[int], is_im2col: bool, limit: int, by_element: bool) -> Box:
    """Return the box that a store or a reduction writes, with the arguments and errors of `box_at`.

    As recorded on an H100, coordinates must not be negative, and 16 bytes are always written together. The last 16
    bytes of a row may therefore be partly in the padding after the tensor; the store checks their addresses, too.
    For pixels of an im2col column that are before the image nothing was recorded. They are not written.
    """
    if min(start) < 0:
        raise IllegalInstruction(f"a store or reduction that begins before the tensor, at {tuple(start)}")
    size = tensor_map.element_bytes
    row_elements = -(-tensor_map.dimensions[0] * size // _UNIT) * _UNIT // size
    padded = evolve(tensor_map, dimensions=(row_elements, *tensor_map.dimensions[1:]))
    return box_at(padded, start, () if is_im2col else None, limit, by_element)


def counts(tensor_map: TensorMap) -> list[int]:
    """Return how many elements are copied along each dimension; for an im2col map, how many channels and pixels."""
    if tensor_map.im2col is not None:
        return [tensor_map.im2col.channels, tensor_map.im2col.pixels]
    return [
        tensor_map.box[0],
        *(-(-size // step) for size, step in zip(tensor_map.box[1:], tensor_map.element_strides[1:], strict=True)),
    ]


def row_pitch(tensor_map: TensorMap) -> int:
    """Return the distance in bytes, in shared memory, from one row or pixel of a box to the next."""
    return Swizzle(tensor_map.swizzle).span if tensor_map.swizzle else tensor_map.inner * tensor_map.element_bytes


def _tile(tensor_map: TensorMap, start: Sequence[int]) -> Box:
    """Return the box of a tile: the product of the places along each dimension, the innermost dimension first."""
    steps = (1, *tensor_map.element_strides[1:])
    offsets, inside = np.zeros(1, S64), np.ones(1, np.bool_)
    for first, count, step, pitch, size in zip(
        start,
        counts(tensor_map),
        steps,
        (tensor_map.element_bytes, *tensor_map.strides),
        tensor_map.dimensions,
        strict=True,
    ):
        place = np.int64(first) + np.arange(count, dtype=S64) * step
        offsets = (place[:, None] * pitch + offsets).ravel()
        inside = (_is_inside(place, size)[:, None] & inside).ravel()
    return _box(tensor_map, offsets, inside)


def _is_inside(place: Array, size: int) -> Array:
    inside: Array = (place >= 0) & (place < size)
    return inside


def _box(tensor_map: TensorMap, offsets: Array, inside: Array) -> Box:
    # Addresses wrap at 64 bits, as on an H100.
    return Box(offsets.view(U64) + U64.type(tensor_map.address), inside, tensor_map.element_bytes)


def _pixels(tensor_map: TensorMap, column: Im2col, start: Sequence[int], offsets: Sequence[int]) -> Box:
    """Return the channels of consecutive pixels in the bounding box; the offsets move each pixel."""
    pixels = np.array(_walk(tensor_map, column, start[1:]), S64)
    pixels[:, :-1] += np.array(offsets or [0] * (tensor_map.rank - 2), S64)
    channels = start[0] + np.arange(column.channels, dtype=S64)
    places, inside = channels * tensor_map.element_bytes, _is_inside(channels, tensor_map.dimensions[0])
    rows, present = np.zeros(len(pixels), S64), np.ones(len(pixels), np.bool_)
    for coordinate, pitch, size in zip(pixels.T, tensor_map.strides, tensor_map.dimensions[1:], strict=True):
        rows += coordinate * pitch
        present &= _is_inside(coordinate, size)
    return _box(tensor_map, (rows[:, None] + places).ravel(), (present[:, None] & inside).ravel())


def _walk(tensor_map: TensorMap, column: Im2col, start: Sequence[int]) -> list[list[int]]:
    """Return the coordinates of consecutive pixels along W, then H, D and N.

    After the upper corner of the bounding box, a dimension continues at the lower corner.
    """
    place, places = list(start), []
    ends = [size + upper for size, upper in zip(tensor_map.dimensions[1:-1], column.upper_corner, strict=True)]
    for _ in range(column.pixels):
        places.append(list(place))
        for index, (end, lower) in enumerate(zip(ends, column.lower_corner, strict=True)):
            place[index] += tensor_map.element_strides[1 + index]
            if place[index] < end:
                break
            place[index] = lower
        else:
            place[-1] += tensor_map.element_strides[-1]
    return places
