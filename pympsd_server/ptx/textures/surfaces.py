"""Read and write surfaces: suld and sust."""

import numpy as np
from attrs import frozen

from pympsd.wire.texture_object import Level, TexturedKind, TextureObject
from pympsd_server.ptx.isa.datatypes import S64, Array, DType, Value
from pympsd_server.ptx.isa.faults import IllegalAddress, LaunchFailed
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.spaces import global_elements, store_elements
from pympsd_server.ptx.runtime.threads import Threads
from pympsd_server.ptx.textures.texels import run_by_object

SURFACE_GEOMETRIES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}
"""The number of coordinates of each geometry, without the layer, which is first in geometries with layers."""


@frozen
class SurfaceAccess:
    """The fixed part of an access to a surface; the coordinate x is in bytes."""

    geometry: str
    beyond: str
    """What an access outside of the surface does: "zero", "clamp" or "trap", which raises LaunchFailed."""
    dtype: DType
    count: int
    """The number of values of each thread."""


def read_surface(
    state: BatchState,
    threads: Threads,
    access: SurfaceAccess,
    handle: Value,
    coordinates: tuple[Value, ...],
    guard: Value | None,
) -> list[Array]:
    """suld: return ``access.count`` values for each thread."""

    def work(surface: TextureObject, place: tuple[Array, ...]) -> Array:
        index, inside = _elements(state, surface, access, place)
        view = state.view("global", access.dtype)
        return np.array([np.where(inside, view[index + number], 0) for number in range(access.count)])

    return list(run_by_object(state, threads, handle, coordinates, access.count, guard, work).astype(access.dtype))


def write_surface(
    state: BatchState,
    threads: Threads,
    access: SurfaceAccess,
    handle: Value,
    coordinates: tuple[Value, ...],
    values: tuple[Value, ...],
    guard: Value | None,
) -> None:
    """sust: write ``access.count`` values of each thread."""

    def work(surface: TextureObject, arguments: tuple[Array, ...]) -> Array:
        place, data = arguments[: len(coordinates)], arguments[len(coordinates) :]
        index, inside = _elements(state, surface, access, place)
        view = state.view("global", access.dtype)
        for number, component in enumerate(data):
            store_elements(view[number:], index[inside], component[inside])
        return index

    run_by_object(state, threads, handle, (*coordinates, *values), 0, guard, work)


def _elements(
    state: BatchState, surface: TextureObject, access: SurfaceAccess, place: tuple[Array, ...]
) -> tuple[Array, Array]:
    """Return the index of each access's first element, and which accesses take place.

    Outside of the surface, "clamp" moves an access to the nearest element, and "zero" leaves it out.
    """
    if surface.kind is not TexturedKind.SURFACE:
        raise IllegalAddress("the object is a texture, not a surface")
    level, total = surface.levels[0], access.dtype.itemsize * access.count
    wide = [coordinate.astype(S64) for coordinate in place]
    zeros = np.zeros(len(wide[0]), S64)
    layer, wide = (wide[0], wide[1:]) if access.geometry.startswith("a") else (None, wide)
    x, y, z = [*wide, zeros, zeros][:3]
    z = z if layer is None else layer
    furthest = _furthest(surface, level, total)
    clamped = tuple(np.clip(coordinate, 0, most) for coordinate, most in zip((x, y, z), furthest, strict=True))
    inside = np.logical_and.reduce(
        [coordinate == original for coordinate, original in zip(clamped, (x, y, z), strict=True)]
    )
    if min(furthest) < 0:
        inside[:] = False
    if access.beyond == "trap" and not inside.all():
        at = int(np.argmin(inside))
        why = f"surface access at byte {int(x[at])} of row {int(y[at])} of slice {int(z[at])}: outside of the surface"
        raise LaunchFailed(why, position=at)
    if access.beyond == "clamp":
        # Clamp x to a multiple of the access's width.
        clamped = (clamped[0] - np.where(inside, 0, clamped[0] % total), *clamped[1:])
        inside = np.ones_like(inside) if min(furthest) >= 0 else inside
    x, y, z = (np.where(inside, coordinate, 0) for coordinate in clamped)
    address = x + y * np.int64(level.pitch) + z * np.int64(level.slice_pitch) + np.int64(level.address)
    if min(furthest) < 0:
        return zeros, inside
    return global_elements(state, address.view(np.uint64), access.dtype.itemsize, total, total), inside


def _furthest(surface: TextureObject, level: Level, total: int) -> tuple[int, int, int]:
    """Return the greatest x, y and z at which an access of `total` bytes is inside the surface.

    x is in bytes. It is negative if a row is shorter than the access.
    """
    return level.width * surface.element_bytes - total, level.height - 1, level.depth - 1
