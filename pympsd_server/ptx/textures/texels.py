"""Read texels, the elements of arrays, and find those that a coordinate selects (CUDA, Texture Fetching).

The first part reads texture objects and elements: formats, channels, sRGB, the colour of the border. The second part
is the arithmetic of coordinates: address modes, weights of linear filters, faces of cubes.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from pympsd.wire.texture_object import (
    BYTES,
    NORMALIZED,
    PACKED,
    AddressMode,
    Level,
    TextureFlag,
    TextureObject,
    unpack,
)
from pympsd_server.ptx.isa.datatypes import F16, F32, F64, S8, S16, S32, S64, U8, U16, U32, Array, DType, Value
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.spaces import global_elements, translate_fault
from pympsd_server.ptx.runtime.threads import Threads

_DTYPES: Final[dict[int, DType]] = {
    0x01: U8, 0x02: U16, 0x03: U32, 0x08: S8, 0x09: S16, 0x0A: S32, 0x10: F16, 0x20: F32, PACKED: U32,
    **{format: (U8, U16, S8, S16)[index // 3] for index, format in enumerate(NORMALIZED)},
}  # fmt: skip
_PACKED_GREATEST: Final = np.array([1023, 1023, 1023, 3], F64)

Work = Callable[[TextureObject, tuple[Array, ...]], Array]
"""A function that does the work of the threads with one object; each thread has an element of every array."""


def object_at(state: BatchState, handle: int) -> TextureObject:
    """Return the object with a handle, which is its address. Raises IllegalAddress if it is not an object."""
    try:
        return unpack(bytes(state.space.view(handle, BYTES)))
    except (IllegalAddress, ValueError):
        raise IllegalAddress(f"{handle:#x} is not the handle of a texture or surface object") from None


def run_by_object(
    state: BatchState,
    threads: Threads,
    handle: Value,
    values: tuple[Value, ...],
    rows: int,
    guard: Value | None,
    work: Work,
) -> Array:
    """Call `work` for each object that the threads use. Return ``rows`` 64-bit results for each thread.

    The results of a thread whose `guard` is false are 0. Raises Cancelled between two objects if the flag is set,
    because each thread may use an object of its own.
    """
    count = threads.count
    results = np.zeros((rows, count), np.uint64)
    acting = np.ones(count, np.bool_) if guard is None else np.broadcast_to(guard, count)
    handles = np.broadcast_to(handle, count)
    columns = [np.broadcast_to(value, count) for value in values]
    for object_handle in np.unique(handles[acting]).tolist():
        state.poll()
        selected = np.flatnonzero(acting & (handles == object_handle))
        try:
            texels = work(object_at(state, object_handle), tuple(column[selected] for column in columns))
        except DeviceFault as fault:
            raise translate_fault(selected, fault) from None
        if rows:
            results[:, selected] = texels
    return results


def addresses(texture: TextureObject, level: Level, x: Array, y: Array, z: Array) -> Array:
    """Return the addresses of elements (uint64)."""
    offset = z * np.int64(level.slice_pitch) + y * np.int64(level.pitch) + x * np.int64(texture.element_bytes)
    addresses: Array = (offset + np.int64(level.address)).view(np.uint64)
    return addresses


def read(state: BatchState, texture: TextureObject, level: Level, x: Array, y: Array, z: Array) -> Array:
    """Return elements as four rows of channels (float64 or int64). Channels that an element does not have are 0."""
    dtype = _DTYPES[texture.format]
    size = dtype.itemsize
    index = global_elements(state, addresses(texture, level, x, y, z), size, texture.element_bytes, size)
    view = state.view("global", dtype)
    texels = np.zeros((4, len(x)), F64 if texture.is_float else S64)
    if texture.format == PACKED:
        for channel, greatest in enumerate(_PACKED_GREATEST):
            texels[channel] = (view[index] >> np.uint32(10 * channel) & np.uint32(greatest)) / greatest
        return texels
    for channel in range(texture.channels):
        texels[channel] = _convert(texture, view[index + channel], channel)
    return texels


def _convert(texture: TextureObject, raw: Array, channel: int) -> Array:
    if raw.dtype.kind == "f" or not texture.is_float:
        return raw
    greatest = np.iinfo(raw.dtype).max
    scaled = np.maximum(raw.astype(F64) / greatest, -1.0)
    if texture.sampling.flags & TextureFlag.SRGB and raw.dtype == U8 and channel < 3:
        scaled = np.where(scaled <= 0.04045, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4)
    return scaled


def widen(texture: TextureObject, values: Array) -> Array:
    """Return one channel's values as gathers return them, which read signed bytes as numbers of 16 bits.

    The seven bits of the magnitude are repeated to fifteen (recorded on an H200).
    """
    if _DTYPES[texture.format] != np.int8 or not texture.is_float:
        return values
    magnitude = np.rint(np.abs(values) * 127).astype(S64)
    widened: Array = np.copysign((magnitude << 8 | magnitude << 1 | magnitude >> 6) / 32767, values)
    return widened


def border(texture: TextureObject) -> Array:
    """Return the colour of the border in the form of `read`, with one column, in the format of the elements."""
    bits, dtype = np.array(texture.sampling.border, U32), _DTYPES[texture.format]
    if not texture.is_float:
        colour: Array = bits.astype(dtype).astype(S64)
    elif dtype.kind == "f":
        colour = np.clip(bits.view(F32), np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype).astype(F64)
    else:
        greatest = _PACKED_GREATEST if texture.format == PACKED else np.iinfo(dtype).max
        least = -1.0 if dtype.kind == "i" else 0.0
        colour = np.floor(np.clip(bits.view(F32).astype(F64), least, 1.0) * greatest + 0.5) / greatest
    colour[4 if texture.format == PACKED else texture.channels :] = 0
    return colour[:, None]


_FAR = float(1 << 32)
"""A coordinate beyond all elements. In elements, and in STEPS of them, it must still be a 64-bit integer."""
STEPS = 256
"""The number of steps from one element to the next, and in a weight of 1: coordinates and weights have 8 bits of
fraction."""


def finite(values: Array) -> Array:
    """Return coordinates in double precision, clamped so that they can become integers; NaN becomes 0."""
    wide = values.astype(np.float64)
    return np.clip(np.where(np.isnan(wide), 0.0, wide), -_FAR, _FAR)


def nearest(place: Array) -> Array:
    """Return the index of the element that contains each place."""
    index: Array = np.floor(place).astype(S64)
    return index


def neighbours(place: Array) -> tuple[Array, Array]:
    """Return, for each place, the index of the first of the two elements around it, and the second one's weight."""
    first, share = np.divmod(round_half_up((place - 0.5) * STEPS), STEPS)
    return first, share


def corner_weights(shares: list[Array]) -> dict[tuple[int, ...], Array]:
    """Return the weights, in steps, of the elements around places, by each element's offsets (0 or 1) in x, y and z.

    `shares` has the second element's weight in each dimension. The weights are rounded in one dimension after
    another, so that they always add up to STEPS, as on a GPU (recorded in tests/data/corpus, texture_filter).
    """
    nothing = np.zeros_like(shares[0])
    x, y, z = (*shares, nothing, nothing)[:3]
    weights = {}
    for depth, weight in ((0, STEPS - z), (1, z)):
        right = round_half_up(weight * x / STEPS)
        left = weight - right
        right_below = round_half_up(right * y / STEPS)
        left_above = round_half_up(left * (STEPS - y) / STEPS)
        weights[0, 0, depth], weights[0, 1, depth] = left_above, left - left_above
        weights[1, 0, depth], weights[1, 1, depth] = right - right_below, right_below
    return {
        corner[: len(shares)]: corner_weight
        for corner, corner_weight in weights.items()
        if not any(corner[len(shares) :])
    }


def round_half_up(values: Array) -> Array:
    """Round to the nearest integers, halves up."""
    nearest: Array = np.floor(values + 0.5).astype(S64)
    return nearest


def map_indices(index: Array, size: int, mode: int) -> tuple[Array, Array | None]:
    """Return indices from 0 to size - 1, and in the border mode which ones were in this range, else None."""
    if mode == AddressMode.WRAP:
        return index % size, None
    if mode == AddressMode.MIRROR:
        twice = index % (2 * size)
        return np.where(twice < size, twice, 2 * size - 1 - twice), None
    clamped = np.clip(index, 0, size - 1)
    return clamped, (clamped == index) if mode == AddressMode.BORDER else None


def cube_face(x: Array, y: Array, z: Array) -> tuple[Array, Array, Array]:
    """Return the face (0 to 5 for +x, -x, +y, -y, +z, -z) that each direction meets, and where on it, from 0 to 1."""
    wide, high, deep = np.abs(x), np.abs(y), np.abs(z)
    along_x = (wide >= high) & (wide >= deep)
    along_y = ~along_x & (high >= deep)
    choices = (along_x, along_y)
    major, length = np.select(choices, (x, y), z), np.select(choices, (wide, high), deep)
    is_negative = np.signbit(major)
    face = np.select(choices, (0, 2), 4) + is_negative
    sign = np.where(is_negative, -1.0, 1.0)
    across = np.select(choices, (-z * sign, x), x * sign)
    down = np.select(choices, (-y, z * sign), -y)
    scale = np.where(length > 0, length, 1.0)
    return face.astype(S64), (across / scale + 1) / 2, (down / scale + 1) / 2
