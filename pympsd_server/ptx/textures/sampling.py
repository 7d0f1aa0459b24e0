"""Sample textures: levels, filters, layers, cubes, gathers and queries.

A sample has coordinates, a texture object (a record in device memory) and perhaps a level or gradients. The threads
of a group may use different objects, so the work is done for each object separately (`texels.run_by_object`), then
for each level, then for each of the up to eight elements that a linear filter mixes. As on a GPU, coordinates and
weights are rounded to 8 bits of fraction (recorded in tests/data/corpus, texture_filter).
"""

import numpy as np
from attrs import frozen

from pympsd.wire.texture_object import AddressMode, Level, TexturedKind, TextureFlag, TextureObject
from pympsd_server.ptx.isa.datatypes import F32, S64, U32, Array, Value
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.threads import Threads
from pympsd_server.ptx.textures.texels import (
    STEPS,
    border,
    corner_weights,
    cube_face,
    finite,
    map_indices,
    nearest,
    neighbours,
    read,
    round_half_up,
    run_by_object,
    widen,
)

GEOMETRIES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
"""The number of coordinates of each geometry, without the layer, which is first in geometries with layers."""
_FACES = 6


def sample_texture(
    state: BatchState,
    threads: Threads,
    geometry: str,
    handle: Value,
    coordinates: tuple[Value, ...],
    level: Value | None,
    gradients: tuple[Value, ...],
    guard: Value | None,
) -> list[Array]:
    """Return the bits of four channels for each thread.

    `coordinates` are the layer (u32) if the geometry has layers, then floats, or int32 indices of elements. The level
    of a mipmapped array is `level`, or follows from the `gradients` in x and y, or is 0.
    """
    values = (*coordinates, *gradients, *(() if level is None else (level,)))

    def work(texture: TextureObject, arguments: tuple[Array, ...]) -> Array:
        place, level_operands = arguments[: len(coordinates)], arguments[len(coordinates) :]
        if level is not None:
            levels = finite(level_operands[0])
        elif gradients:
            levels = _level_of(texture, level_operands)
        else:
            levels = np.zeros(len(place[0]))
        return _bits(_sample_levels(state, texture, geometry, place, levels))

    return list(run_by_object(state, threads, handle, values, 4, guard, work).astype(U32))


def _bits(values: Array) -> Array:
    """Return each float or integer as 32 bits."""
    bits: Array = values.astype(F32).view(U32) if values.dtype.kind == "f" else values.astype(U32)
    return bits


def _level_of(texture: TextureObject, gradients: tuple[Array, ...]) -> Array:
    """Return the level of each thread: log2 of the longer gradient, in elements of level 0."""
    half = len(gradients) // 2
    first = texture.levels[0]
    sizes = (
        (first.width, first.height, first.depth)
        if texture.sampling.flags & TextureFlag.NORMALIZED_COORDINATES
        else (1, 1, 1)
    )
    lengths = []
    for part in (gradients[:half], gradients[half:]):
        steps = [finite(derivative) * size for derivative, size in zip(part, sizes, strict=False)]
        lengths.append(np.sqrt(sum(step * step for step in steps)))
    longest = np.maximum(*lengths)
    level: Array = np.log2(np.where(longest > 0, longest, 1.0))
    return level


def _sample_levels(
    state: BatchState, texture: TextureObject, geometry: str, place: tuple[Array, ...], levels: Array
) -> Array:
    """Return filtered elements of the level, or the two levels, that each thread samples."""
    how = texture.sampling
    last = len(texture.levels) - 1
    if not last:
        return _sample_level(state, texture, texture.levels[0], geometry, place)
    bias, least, greatest = finite(np.array([how.level_bias, how.least_level, how.greatest_level]))
    where = np.clip(np.minimum(np.maximum(levels + bias, least), greatest), 0, last)
    if how.level_filter and texture.is_float:
        lower = np.floor(where)
        share = round_half_up((where - lower) * STEPS) / STEPS
        upper = np.minimum(lower + 1, last)
        low, high = (
            _sample_each_level(state, texture, geometry, place, bound.astype(S64)) for bound in (lower, upper)
        )
        between: Array = low * (1 - share) + high * share
        return between
    return _sample_each_level(state, texture, geometry, place, np.floor(where + 0.5).astype(S64))


def _sample_each_level(
    state: BatchState, texture: TextureObject, geometry: str, place: tuple[Array, ...], number: Array
) -> Array:
    texels = np.zeros((4, len(number)), np.float64 if texture.is_float else S64)
    for level_index in np.unique(number).tolist():
        selected = np.flatnonzero(number == level_index)
        part = tuple(coordinate[selected] for coordinate in place)
        texels[:, selected] = _sample_level(
            state, texture, texture.levels[min(level_index, len(texture.levels) - 1)], geometry, part
        )
    return texels


@frozen
class _Place:
    """The place of each thread's sample in a level: its coordinates in elements, and its slice."""

    level: Level
    coordinates: list[Array]
    sizes: list[int]
    modes: list[int]
    layer: Array
    is_fetch: bool
    """Whether elements are only fetched: outside of the level they are 0, whatever the texture's sampling is."""


def _place(texture: TextureObject, level: Level, geometry: str, place: tuple[Array, ...]) -> _Place:
    """Return the places of coordinates in a level; a cube's face is chosen here and counts as a layer."""
    modes = list(texture.sampling.address_modes)
    count = len(place[0])
    layer: Array = np.zeros(count, S64)
    if geometry.startswith("a"):
        layers = level.depth // _FACES if geometry == "acube" else level.depth
        layer, place = np.minimum(place[0].astype(S64), max(layers, 1) - 1), place[1:]
    if geometry.endswith("cube"):
        face, across, down = cube_face(*(finite(coordinate) for coordinate in place))
        layer = np.minimum(layer * _FACES + face, level.depth - 1)
        sizes = [level.width, level.height]
        return _Place(level, [across * sizes[0], down * sizes[1]], sizes, modes[:2], layer, False)
    sizes = [level.width, level.height, level.depth][: len(place)]
    is_normalized = bool(texture.sampling.flags & TextureFlag.NORMALIZED_COORDINATES) and place[0].dtype.kind == "f"
    places = [
        finite(coordinate) * (size if is_normalized else 1) for coordinate, size in zip(place, sizes, strict=True)
    ]
    is_fetch = texture.kind is TexturedKind.LINEAR or place[-1].dtype.kind != "f"
    if is_fetch:
        modes = [AddressMode.BORDER] * 3
    elif not is_normalized:
        # Only normalized coordinates can wrap or be mirrored.
        modes = [mode if mode == AddressMode.BORDER else AddressMode.CLAMP for mode in modes]
    return _Place(level, places, sizes, modes[: len(sizes)], layer, is_fetch)


def _sample_level(
    state: BatchState, texture: TextureObject, level: Level, geometry: str, place: tuple[Array, ...]
) -> Array:
    """Return filtered elements of one level."""
    at = _place(texture, level, geometry, place)
    if at.is_fetch or not texture.sampling.filter or not texture.is_float:
        return _element(state, texture, at, [nearest(coordinate) for coordinate in at.coordinates])
    total = np.zeros((4, len(at.layer)))
    around = [neighbours(coordinate) for coordinate in at.coordinates]
    for corner, weight in corner_weights([share for _, share in around]).items():
        index = [first + step for (first, _), step in zip(around, corner, strict=True)]
        # A texel of weight 0 adds nothing even if it is infinite, although infinity * 0 is NaN.
        element = _element(state, texture, at, index)
        total += np.where(weight > 0, element * (weight / STEPS), 0.0)
    return total


def _element(state: BatchState, texture: TextureObject, place: _Place, index: list[Array]) -> Array:
    """Return the elements at ``index`` in the level of a place. Modes other than BORDER map an index outside of the
    level to an element.
    """
    inside: Array | None = None
    indices = []
    for coordinate, size, mode in zip(index, place.sizes, place.modes, strict=True):
        clamped, within = map_indices(coordinate, size, mode)
        indices.append(clamped)
        if within is not None:
            inside = within if inside is None else inside & within
    y = indices[1] if len(indices) > 1 else np.zeros_like(place.layer)
    z = indices[2] if len(indices) > 2 else place.layer
    element = read(state, texture, place.level, indices[0], y, z)
    return element if inside is None else np.where(inside, element, 0 if place.is_fetch else border(texture))


def gather_texels(
    state: BatchState,
    threads: Threads,
    geometry: str,
    handle: Value,
    coordinates: tuple[Value, ...],
    channel: int,
    guard: Value | None,
) -> list[Array]:
    """Return the bits of one channel of the four elements that a linear filter would mix.

    They are in counter-clockwise order, from the element with the lesser x and the greater y.
    """

    def work(texture: TextureObject, place: tuple[Array, ...]) -> Array:
        at = _place(texture, texture.levels[0], geometry, place)
        (x, _), (y, _) = (neighbours(coordinate) for coordinate in at.coordinates)
        corners = ((x, y + 1), (x + 1, y + 1), (x + 1, y), (x, y))
        values = np.array([_element(state, texture, at, list(corner))[channel] for corner in corners])
        return _bits(widen(texture, values))

    return list(run_by_object(state, threads, handle, coordinates, 4, guard, work).astype(U32))


QUERIES = ("width", "height", "depth", "array_size", "num_mipmap_levels", "normalized_coords")


def query_texture(
    state: BatchState, threads: Threads, attribute: str, handle: Value, level: Value | None, guard: Value | None
) -> Array:
    """Return an attribute (one of QUERIES) of texture or surface objects; sizes are of `level`, or of level 0."""

    def work(texture: TextureObject, arguments: tuple[Array, ...]) -> Array:
        if attribute == "num_mipmap_levels":
            return np.full(1, len(texture.levels), np.uint64)
        if attribute == "normalized_coords":
            return np.full(1, bool(texture.sampling.flags & TextureFlag.NORMALIZED_COORDINATES), np.uint64)
        sizes = [getattr(size, "depth" if attribute == "array_size" else attribute) for size in texture.levels]
        number = np.minimum(arguments[0], len(sizes) - 1) if arguments else np.zeros(1, S64)
        return np.array(sizes, np.uint64)[number]

    values = () if level is None else (level,)
    attributes: Array = run_by_object(state, threads, handle, values, 1, guard, work)[0].astype(U32)
    return attributes
