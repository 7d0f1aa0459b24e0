"""Texels: elements of arrays in memory, and which of them a coordinate means (CUDA, Texture Fetching).

The first part reads the texture object and the elements: formats, channels, sRGB, the colour of the border. The
second is the arithmetic of coordinates: address modes, weights of linear filters, faces of cubes.
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
    TexturedKind,
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
"""The work of some threads on one object; each thread has an element of every array."""


def object_at(state: BatchState, handle: int) -> TextureObject:
    """Return the object of a handle; raise IllegalAddress if the address has none."""
    try:
        return unpack(bytes(state.space.view(handle, BYTES)))
    except (IllegalAddress, ValueError):
        raise IllegalAddress(f"{handle:#x} is the handle of no texture or surface object") from None


def run_by_object(
    state: BatchState,
    threads: Threads,
    handle: Value,
    values: tuple[Value, ...],
    rows: int,
    guard: Value | None,
    work: Work,
) -> Array:
    """Return the 64-bit results of a work, ``rows`` for each thread; 0 where `guard` is false."""
    count = threads.count
    results = np.zeros((rows, count), np.uint64)
    acting = np.ones(count, np.bool_) if guard is None else np.broadcast_to(guard, count)
    handles = np.broadcast_to(handle, count)
    columns = [np.broadcast_to(value, count) for value in values]
    for object_handle in np.unique(handles[acting]).tolist():
        selected = np.flatnonzero(acting & (handles == object_handle))
        try:
            texels = work(object_at(state, object_handle), tuple(column[selected] for column in columns))
        except DeviceFault as fault:
            raise translate_fault(selected, fault) from None
        if rows:
            results[:, selected] = texels
    return results


def addresses(of: TextureObject, level: Level, x: Array, y: Array, z: Array) -> Array:
    """Return the addresses of elements, unsigned."""
    offset = z * np.int64(level.slice_pitch) + y * np.int64(level.pitch) + x * np.int64(of.element_bytes)
    addresses: Array = (offset + np.int64(level.address)).view(np.uint64)
    return addresses


def read(state: BatchState, of: TextureObject, level: Level, x: Array, y: Array, z: Array) -> Array:
    """Return elements as four rows, of double precision or of int64; missing channels are 0, 0 and 1."""
    dtype = _DTYPES[of.format]
    size = dtype.itemsize
    index = global_elements(state, addresses(of, level, x, y, z), size, of.element_bytes, size)
    view = state.view("global", dtype)
    texels = np.zeros((4, len(x)), F64 if of.is_float else S64)
    texels[3] = 1
    if of.format == PACKED:
        for channel, greatest in enumerate(_PACKED_GREATEST):
            texels[channel] = (view[index] >> np.uint32(10 * channel) & np.uint32(greatest)) / greatest
        return texels
    for channel in range(of.channels):
        texels[channel] = _convert(of, view[index + channel], channel)
    return texels


def _convert(of: TextureObject, raw: Array, channel: int) -> Array:
    if raw.dtype.kind == "f" or not of.is_float:
        return raw
    greatest = np.iinfo(raw.dtype).max
    scaled = np.maximum(raw.astype(F64) / greatest, -1.0)
    if of.sampling.flags & TextureFlag.SRGB and raw.dtype == U8 and channel < 3:
        scaled = np.where(scaled <= 0.04045, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4)
    return scaled


def border(of: TextureObject) -> Array:
    """Return the colour of the border as `read` returns elements, in one column."""
    bits = np.array(of.sampling.border, U32)
    if of.kind is TexturedKind.LINEAR:
        bits = np.zeros(4, U32)
    if not of.is_float:
        return bits.view(S32).astype(S64)[:, None]
    colour: Array = bits.view(F32).astype(F64)
    dtype = _DTYPES[of.format]
    if dtype.kind != "f":
        # The colour is kept in the format of the elements.
        greatest = _PACKED_GREATEST if of.format == PACKED else np.iinfo(dtype).max
        least = -1.0 if dtype.kind == "i" else 0.0
        colour = np.floor(np.clip(colour, least, 1.0) * greatest + 0.5) / greatest
    return colour[:, None]


_FAR = float(1 << 40)
STEPS = 256
"""Coordinates and weights of filters are fixed-point numbers with 8 bits of fraction; 1.0 is a weight."""


def finite(values: Array) -> Array:
    """Return coordinates in double precision, within the range of integers; NaN becomes 0."""
    wide = values.astype(np.float64)
    return np.clip(np.where(np.isnan(wide), 0.0, wide), -_FAR, _FAR)


def nearest(place: Array) -> Array:
    """Return the index of the element in which each place lies."""
    index: Array = np.floor(place).astype(S64)
    return index


def neighbours(place: Array) -> tuple[Array, Array]:
    """Return the index of the first of the two elements around each place, and the second's weight in steps."""
    first, share = np.divmod(round_half_up((place - 0.5) * STEPS), STEPS)
    return first, share


def corner_weights(shares: list[Array]) -> dict[tuple[int, ...], Array]:
    """Return the weights, in steps, of the elements around places, by their steps in x, y and z.

    A GPU rounds them one dimension after the other, so that they always add up: the corpus of recorded kernels
    (texture_filter) shows how.
    """
    nothing = np.zeros_like(shares[0])
    x, y, z = (*shares, nothing, nothing)[:3]
    weights = {}
    for depth, whole in ((0, STEPS - z), (1, z)):
        right = round_half_up(whole * x / STEPS)
        left = whole - right
        right_below = round_half_up(right * y / STEPS)
        left_above = round_half_up(left * (STEPS - y) / STEPS)
        weights[0, 0, depth], weights[0, 1, depth] = left_above, left - left_above
        weights[1, 0, depth], weights[1, 1, depth] = right - right_below, right_below
    return {corner[: len(shares)]: weight for corner, weight in weights.items() if not any(corner[len(shares) :])}


def round_half_up(values: Array) -> Array:
    """Return the nearest integers, of two the greater."""
    nearest: Array = np.floor(values + 0.5).astype(S64)
    return nearest


def map_indices(index: Array, size: int, mode: int) -> tuple[Array, Array | None]:
    """Return indices within 0 to size - 1, and which were there if the border has a colour of its own."""
    if mode == AddressMode.WRAP:
        return index % size, None
    if mode == AddressMode.MIRROR:
        twice = index % (2 * size)
        return np.where(twice < size, twice, 2 * size - 1 - twice), None
    clamped = np.clip(index, 0, size - 1)
    return clamped, (clamped == index) if mode == AddressMode.BORDER else None


def cube_face(x: Array, y: Array, z: Array) -> tuple[Array, Array, Array]:
    """Return the face (+x, -x, +y, -y, +z, -z) that each direction meets, and where, from 0 to 1."""
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
