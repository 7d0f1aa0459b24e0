"""Write instructions on textures and surfaces."""

from pympsd_server.ptx.isa.datatypes import DTYPES, F32, S32, U32, U64, DType, dtype_name
from pympsd_server.ptx.lowering.ir import Argument, Group, Operation, items_of
from pympsd_server.ptx.numpy_tier.instruction_table import emits
from pympsd_server.ptx.numpy_tier.writer import Writer
from pympsd_server.ptx.textures.sampling import GEOMETRIES, QUERIES
from pympsd_server.ptx.textures.surfaces import SURFACE_GEOMETRIES

_RESULTS = ("f32", "s32", "u32")
_CACHE = "ca cg cs cv wb wt"
_BEYOND = ("trap", "clamp", "zero")


def _object(writer: Writer, argument: Argument) -> str:
    """Return the value of the handle in an operand `[object]` or `[object, ...]`."""
    if isinstance(argument, Group):
        return writer.value(argument.items[0], U64)
    base, offset = writer.split_address(argument)
    writer.refuse_if(offset, "an offset of an object")
    return base


def _coordinates(
    writer: Writer, operation: Operation, argument: Argument, geometries: dict[str, int], dtype: DType
) -> str:
    """Return the text of a tuple of the coordinates of `[object, {...}]`.

    If there are three coordinates, the vector may have a fourth item, which is ignored.
    """
    geometry = operation.one_of(*geometries)
    writer.refuse_if(not geometry, "this geometry")
    operands = items_of(argument)[1:]
    is_layered = geometry.startswith("a")
    count = geometries[geometry] + is_layered
    writer.refuse_if(
        len(operands) < count or (len(operands) > count and (count, len(operands)) != (3, 4)),
        f"{len(operands)} coordinates",
    )
    types = ([U32] if is_layered else []) + [dtype] * geometries[geometry]
    values = [writer.value(operand, type) for operand, type in zip(operands[:count], types, strict=True)]
    return f"({', '.join(values)},)"


def _assign_all(writer: Writer, target: Argument, name: str, source: DType, dtype: DType) -> None:
    for index, item in enumerate(items_of(target)):
        element = f"{name}[{index}]" if source == dtype else f"{name}[{index}].view({dtype_name(dtype)})"
        writer.assign(item, writer.keep(element), dtype)


_TEXTURE_MODIFIERS = f"v4 base level grad {' '.join(GEOMETRIES)}"


@emits("tex", (2, 4), _TEXTURE_MODIFIERS, _RESULTS)
def _sample(writer: Writer, operation: Operation) -> None:
    """Write tex with a texture object, which is in a register; texture references are not supported."""
    geometry, how = operation.one_of(*GEOMETRIES), operation.one_of("base", "level", "grad")
    operands = {"level": 3, "grad": 4}.get(how, 2)
    writer.refuse_if(
        len(operation.types) != 2
        or operation.types[1] == "u32"
        or not operation.has("v4")
        or len(items_of(operation.operands[0])) != 4
    )
    writer.refuse_count_if(len(operation.operands) != operands)
    coordinates = _coordinates(
        writer, operation, operation.operands[1], GEOMETRIES, F32 if operation.types[1] == "f32" else S32
    )
    level, gradients = "None", "()"
    if how == "level":
        level = writer.input(2, F32 if operation.types[1] == "f32" else S32)
    elif how == "grad":
        writer.refuse_if(geometry.endswith("cube") or operation.types[1] != "f32", "gradients of this geometry")
        parts = [items_of(operand)[: GEOMETRIES[geometry]] for operand in operation.operands[2:]]
        gradients = writer.tuple_of((item for part in parts for item in part), F32)
    handle, name = _object(writer, operation.operands[1]), writer.name()
    writer.run(
        f"{name} = sample_texture(B, T, {geometry!r}, {handle}, {coordinates}, {level}, {gradients}, {writer.guard})"
    )
    _assign_all(writer, operation.operands[0], name, U32, DTYPES[operation.types[0]])


@emits("tld4", 2, "r g b a 2d a2d v4", _RESULTS)
def _gather(writer: Writer, operation: Operation) -> None:
    component = operation.one_of("r", "g", "b", "a")
    writer.refuse_if(
        len(operation.types) != 2
        or operation.types[1] != "f32"
        or not component
        or len(items_of(operation.operands[0])) != 4
    )
    coordinates = _coordinates(writer, operation, operation.operands[1], {"2d": 2, "a2d": 2}, F32)
    handle, name = _object(writer, operation.operands[1]), writer.name()
    geometry = operation.one_of("2d", "a2d")
    channel = "rgba".index(component)
    writer.run(f"{name} = gather_texels(B, T, {geometry!r}, {handle}, {coordinates}, {channel}, {writer.guard})")
    _assign_all(writer, operation.operands[0], name, U32, DTYPES[operation.types[0]])


@emits("txq", (2, 3), f"level {' '.join(QUERIES)}", ("b32",))
@emits("suq", 2, "width height depth array_size", ("b32",))
def _query(writer: Writer, operation: Operation) -> None:
    attribute = operation.one_of(*QUERIES)
    writer.refuse_if(not attribute or operation.has("level") != (len(operation.operands) == 3))
    level = writer.input(2, U32) if operation.has("level") else "None"
    handle, name = _object(writer, operation.operands[1]), writer.name()
    writer.run(f"{name} = query_texture(B, T, {attribute!r}, {handle}, {level}, {writer.guard})")
    writer.set_result(name, U32)


_SURFACE_MODIFIERS = f"b v2 v4 {_CACHE} {' '.join(SURFACE_GEOMETRIES)} {' '.join(_BEYOND)}"
_SURFACE_TYPES = ("b8", "b16", "b32", "b64")


def _access(writer: Writer, operation: Operation, place: Argument, values: Argument) -> tuple[str, DType]:
    """Return the text of the arguments that describe an access to a surface, and the type of its values."""
    count = {"v2": 2, "v4": 4}.get(operation.one_of("v2", "v4"), 1)
    writer.refuse_if(
        not operation.has("b")
        or len(operation.types) != 1
        or not operation.one_of(*_BEYOND)
        or len(items_of(values)) != count
    )
    writer.refuse_if(count * DTYPES[operation.type].itemsize > 16, "vector of the wrong length")
    coordinates = _coordinates(writer, operation, place, SURFACE_GEOMETRIES, S32)
    geometry, beyond = operation.one_of(*SURFACE_GEOMETRIES), operation.one_of(*_BEYOND)
    dtype = DTYPES[operation.type]
    access = f"SurfaceAccess({geometry!r}, {beyond!r}, {dtype_name(dtype)}_t, {count})"
    return f"B, T, {access}, {_object(writer, place)}, {coordinates}", dtype


@emits("suld", 2, _SURFACE_MODIFIERS, _SURFACE_TYPES)
def _read(writer: Writer, operation: Operation) -> None:
    access, dtype = _access(writer, operation, operation.operands[1], operation.operands[0])
    name = writer.keep(f"read_surface({access}, {writer.guard})")
    _assign_all(writer, operation.operands[0], name, dtype, dtype)


@emits("sust", 2, _SURFACE_MODIFIERS, _SURFACE_TYPES)
def _write(writer: Writer, operation: Operation) -> None:
    access, dtype = _access(writer, operation, operation.operands[0], operation.operands[1])
    values = ", ".join(writer.value(item, dtype) for item in items_of(operation.operands[1]))
    writer.run(f"write_surface({access}, ({values},), {writer.guard})")
