"""Coordinates of textures to elements: address modes, weights of filters, faces of cubes (CUDA, Texture Fetching)."""

from __future__ import annotations

import numpy as np

from pympsd.wire.texture_object import AddressMode
from pympsd_server.backends.emulated.ptx.datatypes import S64, Array

_FAR = float(1 << 40)
STEPS = 256
"""Coordinates and weights of filters are fixed-point numbers with 8 bits of fraction; 1.0 is a weight."""


def finite(values: Array) -> Array:
    """Return coordinates in double precision, within what integers hold; those that are no numbers are 0."""
    wide = values.astype(np.float64)
    return np.clip(np.where(np.isnan(wide), 0.0, wide), -_FAR, _FAR)


def nearest(place: Array) -> Array:
    """Return the index of the element in which each place lies."""
    found: Array = np.floor(place).astype(S64)
    return found


def neighbours(place: Array) -> tuple[Array, Array]:
    """Return the index of the first of the two elements around each place, and the second's weight in steps."""
    first, share = np.divmod(rounded((place - 0.5) * STEPS), STEPS)
    return first, share


def corner_weights(shares: list[Array]) -> dict[tuple[int, ...], Array]:
    """Return the weights, in steps, of the elements around places, by their steps in x, y and z.

    A GPU rounds them one dimension after the other, so that they always add up: the corpus of recorded kernels
    (texture_filter) shows how.
    """
    nothing = np.zeros_like(shares[0])
    x, y, z = (*shares, nothing, nothing)[:3]
    found = {}
    for depth, whole in ((0, STEPS - z), (1, z)):
        right = rounded(whole * x / STEPS)
        left = whole - right
        right_below = rounded(right * y / STEPS)
        left_above = rounded(left * (STEPS - y) / STEPS)
        found[0, 0, depth], found[0, 1, depth] = left_above, left - left_above
        found[1, 0, depth], found[1, 1, depth] = right - right_below, right_below
    return {corner[: len(shares)]: weight for corner, weight in found.items() if not any(corner[len(shares) :])}


def rounded(values: Array) -> Array:
    """Return the nearest integers, of two the greater."""
    found: Array = np.floor(values + 0.5).astype(S64)
    return found


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
