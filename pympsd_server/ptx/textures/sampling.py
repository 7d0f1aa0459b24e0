"""Samples of textures: levels, filters, layers, cubes, gathers and queries.

A sample has coordinates, a texture object (a record in device memory) and perhaps a level or gradients. The threads
of a group may use different objects, so the work is done for each object separately (`texels.run_by_object`), then
for each level, then for each of the up to eight elements that a linear filter mixes. Coordinates and weights are
rounded to 8 bits of fraction as on a GPU, recorded in tests/data/corpus (texture_filter).
"""

import numpy as np

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
)

GEOMETRIES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
"""The coordinates of each geometry, without the layer, which comes first in geometries that have layers."""
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
    """Return the bits of four channels. Coordinates are a layer (u32), then floats, or int32 for elements.

    The level of a mipmapped array is given, or found from the gradients by x and by y, or it is 0.
    """
    values = (*coordinates, *gradients, *(() if level is None else (level,)))

    def work(of: TextureObject, arguments: tuple[Array, ...]) -> Array:
        place, level_operands = arguments[: len(coordinates)], arguments[len(coordinates) :]
        if level is not None:
            levels = finite(level_operands[0])
        elif gradients:
            levels = _level_of(of, level_operands)
        else:
            levels = np.zeros(len(place[0]))
        return _bits(_sample_levels(state, of, geometry, place, levels))

    return list(run_by_object(state, threads, handle, values, 4, guard, work).astype(U32))


def _bits(values: Array) -> Array:
    """Return 32 bits of each float or integer."""
    bits: Array = values.astype(F32).view(U32) if values.dtype.kind == "f" else values.astype(U32)
    return bits


def _level_of(of: TextureObject, gradients: tuple[Array, ...]) -> Array:
    half = len(gradients) // 2
    first = of.levels[0]
    sizes = (
        (first.width, first.height, first.depth)
        if of.sampling.flags & TextureFlag.NORMALIZED_COORDINATES
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
    state: BatchState, of: TextureObject, geometry: str, place: tuple[Array, ...], levels: Array
) -> Array:
    """Return elements, filtered, of the levels that the threads sample."""
    how = of.sampling
    last = len(of.levels) - 1
    if not last:
        return _sample_level(state, of, of.levels[0], geometry, place)
    bias, least, greatest = finite(np.array([how.level_bias, how.least_level, how.greatest_level]))
    where = np.clip(np.minimum(np.maximum(levels + bias, least), greatest), 0, last)
    if how.level_filter and of.is_float:
        lower = np.floor(where)
        share = round_half_up((where - lower) * STEPS) / STEPS
        upper = np.minimum(lower + 1, last)
        low, high = (_sample_each_level(state, of, geometry, place, bound.astype(S64)) for bound in (lower, upper))
        between: Array = low * (1 - share) + high * share
        return between
    return _sample_each_level(state, of, geometry, place, np.floor(where + 0.5).astype(S64))


def _sample_each_level(
    state: BatchState, of: TextureObject, geometry: str, place: tuple[Array, ...], number: Array
) -> Array:
    texels = np.zeros((4, len(number)), np.float64 if of.is_float else S64)
    for level_index in np.unique(number).tolist():
        selected = np.flatnonzero(number == level_index)
        part = tuple(coordinate[selected] for coordinate in place)
        texels[:, selected] = _sample_level(
            state, of, of.levels[min(level_index, len(of.levels) - 1)], geometry, part
        )
    return texels


Place = tuple[list[Array], list[int], list[int], Array]
"""Coordinates in elements, the sizes and modes of their dimensions, and the slice of each thread."""


def _place(of: TextureObject, level: Level, geometry: str, place: tuple[Array, ...]) -> Place:
    modes = list(of.sampling.address_modes)
    count = len(place[0])
    layer: Array = np.zeros(count, S64)
    if geometry.startswith("a"):
        layers = level.depth // _FACES if geometry == "acube" else level.depth
        layer, place = np.minimum(place[0].astype(S64), max(layers, 1) - 1), place[1:]
    if geometry.endswith("cube"):
        face, across, down = cube_face(*(finite(coordinate) for coordinate in place))
        layer = np.minimum(layer * _FACES + face, level.depth - 1)
        return (
            [across * level.width, down * level.height],
            [level.width, level.height],
            [AddressMode.CLAMP] * 2,
            layer,
        )
    sizes = [level.width, level.height, level.depth][: len(place)]
    is_normalized = bool(of.sampling.flags & TextureFlag.NORMALIZED_COORDINATES) and place[0].dtype.kind == "f"
    places = [
        finite(coordinate) * (size if is_normalized else 1) for coordinate, size in zip(place, sizes, strict=True)
    ]
    if of.kind is TexturedKind.LINEAR:
        modes = [AddressMode.BORDER] * 3
    elif not is_normalized:
        # Repetition is for normalized coordinates only.
        modes = [mode if mode == AddressMode.BORDER else AddressMode.CLAMP for mode in modes]
    return places, sizes, modes[: len(sizes)], layer


def _sample_level(
    state: BatchState, of: TextureObject, level: Level, geometry: str, place: tuple[Array, ...]
) -> Array:
    """Return the elements of one level, filtered."""
    places, sizes, modes, layer = _place(of, level, geometry, place)
    if not of.sampling.filter or not of.is_float or place[-1].dtype.kind != "f" or of.kind is TexturedKind.LINEAR:
        return _element(state, of, level, [nearest(coordinate) for coordinate in places], sizes, modes, layer)
    total = np.zeros((4, len(layer)))
    around = [neighbours(coordinate) for coordinate in places]
    for corner, weight in corner_weights([share for _, share in around]).items():
        index = [first + step for (first, _), step in zip(around, corner, strict=True)]
        # A texel without weight adds nothing, not even if it is infinite.
        element = _element(state, of, level, index, sizes, modes, layer)
        total += np.where(weight > 0, element * (weight / STEPS), 0.0)
    return total


def _element(
    state: BatchState,
    of: TextureObject,
    level: Level,
    index: list[Array],
    sizes: list[int],
    modes: list[int],
    layer: Array,
) -> Array:
    inside: Array | None = None
    indices = []
    for coordinate, size, mode in zip(index, sizes, modes, strict=True):
        clamped, within = map_indices(coordinate, size, mode)
        indices.append(clamped)
        if within is not None:
            inside = within if inside is None else inside & within
    y = indices[1] if len(indices) > 1 else np.zeros_like(layer)
    z = indices[2] if len(indices) > 2 else layer
    element = read(state, of, level, indices[0], y, z)
    return element if inside is None else np.where(inside, element, border(of))


def gather_texels(
    state: BatchState,
    threads: Threads,
    geometry: str,
    handle: Value,
    coordinates: tuple[Value, ...],
    channel: int,
    guard: Value | None,
) -> list[Array]:
    """Return the bits of one channel of the four elements that linear filtering has, counter-clockwise.

    The first is that at the lower left: of the lesser x and the greater y.
    """

    def work(of: TextureObject, place: tuple[Array, ...]) -> Array:
        level = of.levels[0]
        places, sizes, modes, layer = _place(of, level, geometry, place)
        (x, _), (y, _) = (neighbours(coordinate) for coordinate in places)
        corners = ((x, y + 1), (x + 1, y + 1), (x + 1, y), (x, y))
        rows = [_element(state, of, level, list(corner), sizes, modes, layer)[channel] for corner in corners]
        return _bits(np.array(rows))

    return list(run_by_object(state, threads, handle, coordinates, 4, guard, work).astype(U32))


QUERIES = ("width", "height", "depth", "array_size", "num_mipmap_levels", "normalized_coords")


def query_texture(
    state: BatchState, threads: Threads, what: str, handle: Value, level: Value | None, guard: Value | None
) -> Array:
    """Return an attribute of texture or surface objects; a size is that of one level."""

    def work(of: TextureObject, arguments: tuple[Array, ...]) -> Array:
        if what == "num_mipmap_levels":
            return np.full(1, len(of.levels), np.uint64)
        if what == "normalized_coords":
            return np.full(1, bool(of.sampling.flags & TextureFlag.NORMALIZED_COORDINATES), np.uint64)
        sizes = [getattr(size, "depth" if what == "array_size" else what) for size in of.levels]
        number = np.minimum(arguments[0], len(sizes) - 1) if arguments else np.zeros(1, S64)
        return np.array(sizes, np.uint64)[number]

    values = () if level is None else (level,)
    attributes: Array = run_by_object(state, threads, handle, values, 1, guard, work)[0].astype(U32)
    return attributes
