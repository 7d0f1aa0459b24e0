"""Read and write surfaces: suld and sust."""

import numpy as np

from pympsd.wire.texture_object import Level, TexturedKind, TextureObject
from pympsd_server.ptx.isa.datatypes import S64, Array, DType, Value
from pympsd_server.ptx.isa.faults import IllegalAddress, LaunchFailed
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.spaces import global_elements, store_elements
from pympsd_server.ptx.runtime.threads import Threads
from pympsd_server.ptx.textures.texels import run_by_object

SURFACE_GEOMETRIES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}
"""The number of coordinates of each geometry, without the layer, which is first in geometries with layers."""


def read_surface(
    state: BatchState,
    threads: Threads,
    geometry: str,
    beyond: str,
    handle: Value,
    coordinates: tuple[Value, ...],
    dtype: DType,
    count: int,
    guard: Value | None,
) -> list[Array]:
    """suld: return ``count`` values for each thread; the coordinate x is in bytes.

    `beyond` is "zero", "clamp" or "trap". With "trap", an access outside of the surface raises LaunchFailed.
    """

    def work(surface: TextureObject, place: tuple[Array, ...]) -> Array:
        index, inside = _elements(state, surface, geometry, beyond, place, dtype, count)
        view = state.view("global", dtype)
        return np.array([np.where(inside, view[index + number], 0) for number in range(count)])

    return list(run_by_object(state, threads, handle, coordinates, count, guard, work).astype(dtype))


def write_surface(
    state: BatchState,
    threads: Threads,
    geometry: str,
    beyond: str,
    handle: Value,
    coordinates: tuple[Value, ...],
    dtype: DType,
    values: tuple[Value, ...],
    guard: Value | None,
) -> None:
    """sust: write values of each thread; the coordinate x is in bytes, and `beyond` as for `read_surface`."""

    def work(surface: TextureObject, arguments: tuple[Array, ...]) -> Array:
        place, data = arguments[: len(coordinates)], arguments[len(coordinates) :]
        index, inside = _elements(state, surface, geometry, beyond, place, dtype, len(values))
        view = state.view("global", dtype)
        for number, component in enumerate(data):
            store_elements(view[number:], index[inside], component[inside])
        return index

    run_by_object(state, threads, handle, (*coordinates, *values), 0, guard, work)


def _elements(
    state: BatchState,
    surface: TextureObject,
    geometry: str,
    beyond: str,
    place: tuple[Array, ...],
    dtype: DType,
    count: int,
) -> tuple[Array, Array]:
    """Return the index of each access's first element, and which accesses take place.

    Outside of the surface, "clamp" moves an access to the nearest element, and "zero" leaves it out.
    """
    if surface.kind is not TexturedKind.SURFACE:
        raise IllegalAddress("the object is a texture, not a surface")
    level, total = surface.levels[0], dtype.itemsize * count
    wide = [coordinate.astype(S64) for coordinate in place]
    zeros = np.zeros(len(wide[0]), S64)
    layer, wide = (wide[0], wide[1:]) if geometry.startswith("a") else (None, wide)
    x, y, z = [*wide, zeros, zeros][:3]
    z = z if layer is None else layer
    furthest = _furthest(surface, level, total)
    clamped = tuple(np.clip(coordinate, 0, most) for coordinate, most in zip((x, y, z), furthest, strict=True))
    inside = np.logical_and.reduce(
        [coordinate == original for coordinate, original in zip(clamped, (x, y, z), strict=True)]
    )
    if min(furthest) < 0:
        inside[:] = False
    if beyond == "trap" and not inside.all():
        at = int(np.argmin(inside))
        why = f"surface access at byte {int(x[at])} of row {int(y[at])} of slice {int(z[at])}: outside of the surface"
        raise LaunchFailed(why, position=at)
    if beyond == "clamp":
        # Clamp x to a multiple of the access's width.
        clamped = (clamped[0] - np.where(inside, 0, clamped[0] % total), *clamped[1:])
        inside = np.ones_like(inside) if min(furthest) >= 0 else inside
    x, y, z = (np.where(inside, coordinate, 0) for coordinate in clamped)
    address = x + y * np.int64(level.pitch) + z * np.int64(level.slice_pitch) + np.int64(level.address)
    if min(furthest) < 0:
        return zeros, inside
    return global_elements(state, address.view(np.uint64), dtype.itemsize, total, total), inside


def _furthest(surface: TextureObject, level: Level, total: int) -> tuple[int, int, int]:
    """Return the greatest x, y and z at which an access of `total` bytes is inside the surface.

    x is in bytes. It is negative if a row is shorter than the access.
    """
    return level.width * surface.element_bytes - total, level.height - 1, level.depth - 1
