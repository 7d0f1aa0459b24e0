"""Coordinates of textures to elements: address modes, weights of filters, faces of cubes (CUDA, Texture Fetching)."""

from __future__ import annotations

import numpy as np

from pympsd.wire.texture_object import AddressMode
from pympsd_server.backends.emulated.ptx.datatypes import S64, Array

_FAR = float(1 << 40)
_STEPS = 256.0
"""Weights are fixed-point numbers with 8 bits of fraction; 1.0 is one of them."""


def finite(values: Array) -> Array:
    """Return coordinates in double precision, within what integers hold; those that are no numbers are 0."""
    wide = values.astype(np.float64)
    return np.clip(np.where(np.isnan(wide), 0.0, wide), -_FAR, _FAR)


def nearest(place: Array) -> Array:
    """Return the index of the element in which each place lies."""
    found: Array = np.floor(place).astype(S64)
    return found


def neighbours(place: Array) -> tuple[Array, Array]:
    """Return the index of the first of the two elements around each place, and the weight of the second."""
    shifted = place - 0.5
    first = np.floor(shifted)
    return first.astype(S64), weight(shifted - first)


def weight(fraction: Array) -> Array:
    """Return fractions as filters have them."""
    rounded: Array = np.floor(fraction * _STEPS + 0.5) / _STEPS
    return rounded


def mapped(index: Array, size: int, mode: int) -> tuple[Array, Array | None]:
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
