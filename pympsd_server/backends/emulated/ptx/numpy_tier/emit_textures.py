"""Textures and surfaces."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import DTYPES, F32, S32, U32, U64, DType, dtype_name
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer
from pympsd_server.backends.emulated.ptx.textures.sampling import GEOMETRIES, QUERIES
from pympsd_server.backends.emulated.ptx.textures.surfaces import SURFACE_GEOMETRIES

_RESULTS = ("f32", "s32", "u32")
_CACHE = "ca cg cs cv wb wt"
_BEYOND = ("trap", "clamp", "zero")


def _items(argument: Argument) -> tuple[Argument, ...]:
    return argument.items if isinstance(argument, Group) else (argument,)


def _object(w: Writer, argument: Argument) -> str:
    """Return the handle of `[object]`, or of `[object, ...]`, of which it is the first item."""
    if isinstance(argument, Group):
        return w.value(argument.items[0], U64)
    base, offset = w.address(argument)
    if offset:
        raise w.refuse("an offset of an object")
    return base


def _coordinates(w: Writer, o: Operation, argument: Argument, geometries: dict[str, int], dtype: DType) -> str:
    """Return a tuple of the coordinates of `[object, {...}]`; what is behind them, in vectors of four, is ignored."""
    geometry = o.one_of(*geometries)
    if not geometry:
        raise w.refuse("this geometry")
    given = _items(argument)[1:]
    is_layered = geometry.startswith("a")
    wanted = geometries[geometry] + is_layered
    if len(given) < wanted or (len(given) > wanted and (wanted, len(given)) != (3, 4)):
        raise w.refuse(f"{len(given)} coordinates")
    types = ([U32] if is_layered else []) + [dtype] * geometries[geometry]
    values = [w.value(each, type) for each, type in zip(given[:wanted], types, strict=True)]
    return f"({', '.join(values)},)"


def _assign_all(w: Writer, target: Argument, name: str, held: DType, dtype: DType) -> None:
    for index, each in enumerate(_items(target)):
        shown = f"{name}[{index}]" if held == dtype else f"{name}[{index}].view({dtype_name(dtype)})"
        w.assign(each, w.keep(shown), dtype)


_TEXTURE_MODIFIERS = f"v4 base level grad {' '.join(GEOMETRIES)}"


@emits("tex", (2, 4), _TEXTURE_MODIFIERS, _RESULTS)
def _sample(w: Writer, o: Operation) -> None:
    """The object is a register; texture and sampler references are not."""
    geometry, how = o.one_of(*GEOMETRIES), o.one_of("base", "level", "grad")
    operands = {"level": 3, "grad": 4}.get(how, 2)
    if len(o.types) != 2 or o.types[1] == "u32" or not o.has("v4") or len(_items(o.operands[0])) != 4:
        raise w.refuse()
    if len(o.operands) != operands:
        raise w.refuse(f"{len(o.operands)} operands")
    coordinates = _coordinates(w, o, o.operands[1], GEOMETRIES, F32 if o.types[1] == "f32" else S32)
    level, gradients = "None", "()"
    if how == "level":
        level = w.value(o.operands[2], F32 if o.types[1] == "f32" else S32)
    elif how == "grad":
        if geometry.endswith("cube") or o.types[1] != "f32":
            raise w.refuse("gradients of this geometry")
        parts = [_items(each)[: GEOMETRIES[geometry]] for each in o.operands[2:]]
        gradients = f"({', '.join(w.value(each, F32) for part in parts for each in part)},)"
    handle, name = _object(w, o.operands[1]), w.name()
    w.lines.append(
        f"{name} = sample_texture(B, T, {geometry!r}, {handle}, {coordinates}, {level}, {gradients}, {w.guard})"
    )
    _assign_all(w, o.operands[0], name, U32, DTYPES[o.types[0]])


@emits("tld4", 2, "r g b a 2d a2d v4", _RESULTS)
def _gather(w: Writer, o: Operation) -> None:
    component = o.one_of("r", "g", "b", "a")
    if len(o.types) != 2 or o.types[1] != "f32" or not component or len(_items(o.operands[0])) != 4:
        raise w.refuse()
    coordinates = _coordinates(w, o, o.operands[1], {"2d": 2, "a2d": 2}, F32)
    handle, name = _object(w, o.operands[1]), w.name()
    geometry = o.one_of("2d", "a2d")
    channel = "rgba".index(component)
    w.lines.append(f"{name} = gather_texels(B, T, {geometry!r}, {handle}, {coordinates}, {channel}, {w.guard})")
    _assign_all(w, o.operands[0], name, U32, DTYPES[o.types[0]])


@emits("txq", (2, 3), f"level {' '.join(QUERIES)}", ("b32",))
@emits("suq", 2, "width height depth array_size", ("b32",))
def _query(w: Writer, o: Operation) -> None:
    what = o.one_of(*QUERIES)
    if not what or o.has("level") != (len(o.operands) == 3):
        raise w.refuse()
    level = w.value(o.operands[2], U32) if o.has("level") else "None"
    handle, name = _object(w, o.operands[1]), w.name()
    w.lines.append(f"{name} = query_texture(B, T, {what!r}, {handle}, {level}, {w.guard})")
    w.assign(o.operands[0], name, U32)


_SURFACE_MODIFIERS = f"b v2 v4 {_CACHE} {' '.join(SURFACE_GEOMETRIES)} {' '.join(_BEYOND)}"
_SURFACE_TYPES = ("b8", "b16", "b32", "b64")


def _access(w: Writer, o: Operation, place: Argument, values: Argument) -> tuple[str, str, str, DType, int]:
    """Return the geometry, the handle, the coordinates, the type and the number of values of an access."""
    count = {"v2": 2, "v4": 4}.get(o.one_of("v2", "v4"), 1)
    if not o.has("b") or len(o.types) != 1 or not o.one_of(*_BEYOND) or len(_items(values)) != count:
        raise w.refuse()
    if count * DTYPES[o.type].itemsize > 16:
        raise w.refuse("vector of the wrong length")
    coordinates = _coordinates(w, o, place, SURFACE_GEOMETRIES, S32)
    return o.one_of(*SURFACE_GEOMETRIES), _object(w, place), coordinates, DTYPES[o.type], count


@emits("suld", 2, _SURFACE_MODIFIERS, _SURFACE_TYPES)
def _read(w: Writer, o: Operation) -> None:
    geometry, handle, coordinates, dtype, count = _access(w, o, o.operands[1], o.operands[0])
    name = w.name()
    w.lines.append(
        f"{name} = read_surface(B, T, {geometry!r}, {o.one_of(*_BEYOND)!r}, {handle}, {coordinates}, "
        f"{dtype_name(dtype)}_t, {count}, {w.guard})"
    )
    _assign_all(w, o.operands[0], name, dtype, dtype)


@emits("sust", 2, _SURFACE_MODIFIERS, _SURFACE_TYPES)
def _write(w: Writer, o: Operation) -> None:
    geometry, handle, coordinates, dtype, _ = _access(w, o, o.operands[0], o.operands[1])
    values = ", ".join(w.value(each, dtype) for each in _items(o.operands[1]))
    w.lines.append(
        f"write_surface(B, T, {geometry!r}, {o.one_of(*_BEYOND)!r}, {handle}, {coordinates}, "
        f"{dtype_name(dtype)}_t, ({values},), {w.guard})"
    )
