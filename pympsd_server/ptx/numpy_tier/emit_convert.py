"""Write moves and conversions: mov with vectors, cvt between all types, cvta and isspacep.

A `mov` of a vector packs or unpacks registers. `cvt` may have a rounding, .ftz, .sat and .relu. Unsigned integers
contain the bits of types without a NumPy equivalent (bf16, e4m3, e5m2, tf32, packed pairs), and functions of ptx/math
convert them. A generic address is the address in a state space plus the base of the space's window.
"""

import numpy as np

from pympsd_server.ptx.isa.datatypes import BOOL, DTYPES, F32, S32, U16, U32, U64, DType, dtype_name, unsigned_of
from pympsd_server.ptx.isa.machine import WINDOWS
from pympsd_server.ptx.lowering.ir import SPACES, Argument, Group, Operation, Sink, space_of
from pympsd_server.ptx.numpy_tier.emit_float import finish
from pympsd_server.ptx.numpy_tier.instruction_table import ANY, ROUNDINGS, emits
from pympsd_server.ptx.numpy_tier.writer import Writer

_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_PLAIN = tuple(t for t in ANY if t not in ("pred", "u16x2", "s16x2"))


@emits("mov", 2, "v2 v4", ANY)
def _move(writer: Writer, operation: Operation) -> None:
    target, source = operation.operands
    dtype = DTYPES[operation.type]
    if length := operation.one_of("v2", "v4"):
        return _move_vector(writer, target, source, dtype, int(length[1:]))
    if isinstance(source, Group):
        return _pack(writer, target, source, unsigned_of(dtype))
    if isinstance(target, Group):
        return _unpack(writer, target, source, unsigned_of(dtype))
    return writer.assign(target, writer.value(source, dtype), dtype)


def _move_vector(writer: Writer, target: Argument, source: Argument, dtype: DType, length: int) -> None:
    """Write a move of every part of a vector."""
    if not all(isinstance(operand, Group) and len(operand.items) == length for operand in (target, source)):
        raise writer.refuse(f"both operands are vectors of {length}")
    values = [writer.keep(writer.value(item, dtype)) for item in source.items]  # type: ignore[union-attr]
    for item, value in zip(target.items, values, strict=True):  # type: ignore[union-attr]
        writer.assign(item, value, dtype)


def _element(writer: Writer, dtype: DType, group: Group) -> DType:
    size = dtype.itemsize // len(group.items)
    writer.refuse_if(
        dtype == BOOL or size * len(group.items) != dtype.itemsize or size not in (1, 2, 4), "vector of this length"
    )
    return np.dtype(f"u{size}")


def _pack(writer: Writer, target: Argument, source: Group, dtype: DType) -> None:
    part = _element(writer, dtype, source)
    terms = []
    for index, item in enumerate(source.items):
        term = f"{writer.value(item, part)}.astype({dtype_name(dtype)})"
        by = writer.scalar(8 * part.itemsize * index, dtype)
        terms.append(f"({term} << {by})" if index else term)
    writer.assign(target, " | ".join(terms), dtype)


def _unpack(writer: Writer, target: Group, source: Argument, dtype: DType) -> None:
    part = _element(writer, dtype, target)
    packed = writer.keep(writer.value(source, dtype))
    pieces = []
    for index, item in enumerate(target.items):
        if not isinstance(item, Sink):
            by = writer.scalar(8 * part.itemsize * index, dtype)
            shifted = f"({packed} >> {by})" if index else packed
            pieces.append((item, writer.keep(f"{shifted}.astype({dtype_name(part)})")))
    for item, piece in pieces:
        writer.assign(item, piece, part)


@emits("cvta", 2, "to " + " ".join(SPACES), ("u64", "u32"))
def _convert_address(writer: Writer, operation: Operation) -> None:
    space = space_of(operation)
    writer.refuse_if(operation.type != "u64" or space == "generic")
    window = writer.scalar(WINDOWS.get(space, 0), U64)
    value = writer.input(1, U64)
    if space in WINDOWS:
        value = f"{value} {'-' if operation.has('to') else '+'} {window}"
    writer.set_result(value, U64)


@emits("isspacep", 2, " ".join(SPACES), ())
def _is_space(writer: Writer, operation: Operation) -> None:
    space = space_of(operation)
    value = writer.keep(f"{writer.input(1, U64)} >> {writer.scalar(40, U64)}")
    writer.refuse_if(space in ("const", "generic"))
    if space == "global":
        return writer.set_result(f"({value} >= {writer.scalar(4, U64)})", BOOL)
    return writer.set_result(f"({value} == {writer.scalar(WINDOWS[space] >> 40, U64)})", BOOL)


_SMALL = ("e4m3x2", "e5m2x2", "tf32")
_MODIFIERS = " ".join((*ROUNDINGS, *_INTEGRAL, "rna", "ftz", "sat", "relu", "satfinite", "pack"))


@emits("cvt", (2, 4), _MODIFIERS, (*_PLAIN, *_SMALL))
def _convert(writer: Writer, operation: Operation) -> None:
    """Write cvt: pick the function for the types, and convert a value of an ordinary type here."""
    if operation.has("pack"):
        return _convert_packed(writer, operation)
    writer.refuse_if(len(operation.types) != 2)
    if operation.types[0] == "tf32":
        return _convert_to_tf32(writer, operation)
    if any(t in _SMALL for t in operation.types):
        return _convert_small(writer, operation)
    writer.refuse_if(operation.has("rna") or operation.has("satfinite"))
    target, source = operation.types
    if target.endswith("x2"):
        return _convert_pair(writer, operation, target, source)
    writer.refuse_if(source.endswith("x2") or len(operation.operands) != 2)
    name, dtype = _convert_value(writer, operation, writer.input(1, DTYPES[source]), source, target)
    return writer.set_result(name, dtype)


def _convert_to_tf32(writer: Writer, operation: Operation) -> None:
    rounding = operation.one_of("rna", "rn", "rz")
    writer.refuse_if(
        operation.types[1] != "f32"
        or len(operation.operands) != 2
        or not rounding
        or set(operation.modifiers) - {rounding, "relu"}
    )
    value = writer.keep(finish(operation, writer.input(1, F32)))
    writer.set_result(f"tf32_from_float({value}, {rounding!r})", U32)


def _convert_small(writer: Writer, operation: Operation) -> None:
    """Write a conversion between f16x2 and e4m3x2 or e5m2x2, or to these from two f32, the upper half first."""
    target, source = operation.types
    to_small = target in _SMALL
    name = (target if to_small else source).removesuffix("x2")
    required = {"rn", "satfinite"} if to_small else {"rn"}
    writer.refuse_if(
        set(operation.modifiers) - {"relu"} != required or len(operation.operands) != (3 if source == "f32" else 2)
    )
    if to_small and source == "f32":
        high, low = (writer.keep(finish(operation, writer.value(x, F32))) for x in operation.inputs)
        writer.set_result(f"small_pair({high}, {low}, {name!r})", U16)
    elif to_small and source == "f16x2":
        value = writer.keep(_rectify(operation, writer.input(1, U32)))
        writer.set_result(f"small_pair_from_halves({value}, {name!r})", U16)
    elif not to_small and target == "f16x2":
        value = writer.keep(f"halves_from_small({writer.input(1, U16)}, {name!r})")
        writer.set_result(_rectify(operation, value), U32)
    else:
        raise writer.refuse()


def _rectify(operation: Operation, pair: str) -> str:
    return f"rectify_halves({pair})" if operation.has("relu") else pair


def _convert_packed(writer: Writer, operation: Operation) -> None:
    """Write cvt.pack.sat: clamp a and b, and put a above b. Above 8-bit integers, c fills the register."""
    kind = operation.types[0] if operation.types else ""
    count = {"s16": 3, "u16": 3, "s8": 4, "u8": 4}.get(kind)
    types = (kind, "s32") if count == 3 else (kind, "s32", "b32")
    if (
        count is None
        or operation.types != types
        or len(operation.operands) != count
        or set(operation.modifiers) != {"pack", "sat"}
    ):
        raise writer.refuse()
    a, b = (
        writer.keep(f"convert_integer({writer.value(x, S32)}, {dtype_name(DTYPES[kind])}_t)")
        for x in operation.operands[1:3]
    )
    above = writer.input(3, U32) if count == 4 else "None"
    writer.set_result(f"pack_integers({a}, {b}, {above})", U32)


def _convert_pair(writer: Writer, operation: Operation, target: str, source: str) -> None:
    """Write a conversion of two f32 to a packed pair; the first operand becomes the upper half."""
    writer.refuse_if(source != "f32" or len(operation.operands) != 3)
    half = target.removesuffix("x2")
    names = [
        writer.keep(_convert_value(writer, operation, writer.value(x, DTYPES[source]), source, half)[0])
        for x in operation.inputs
    ]
    writer.set_result(f"pack_halves({names[0]}, {names[1]})", U32)


def _convert_value(writer: Writer, operation: Operation, name: str, source: str, target: str) -> tuple[str, DType]:
    """Return an expression for the converted value, and its dtype."""
    dtype = DTYPES[target]
    rounding = operation.one_of(*ROUNDINGS, *_INTEGRAL)
    if source == "bf16":
        name, source = writer.keep(f"float_from_bfloat({name})"), "f32"
        if target == "f32" and not operation.modifiers:
            return name, dtype  # the only conversion to f32 that keeps the bits of a NaN, except those from f64
    is_float = DTYPES[source].kind == "f"
    if operation.has("ftz") and is_float and DTYPES[source].itemsize == 4 and target != "f16":
        name = writer.keep(f"canonicalize(flush({name}))")  # an H200 ignores .ftz of conversions to f16
    if target == "bf16":
        if rounding in _INTEGRAL:
            result = f"to_integral({name}, {rounding!r})"
        elif DTYPES[source].kind == "f":
            result = f"{name}.astype(d_f4)" if source == "f16" else name
        else:
            result = f"double_to_odd({name})"
        mode = rounding if rounding in ROUNDINGS else "rn"
        function = "bfloat_from_double" if source == "f64" else "bfloat_from_float"
        return f"{function}({finish(operation, result)}, {mode!r})", U16
    if dtype.kind == "f":
        return _to_float(writer, operation, name, source, target, rounding), dtype
    if is_float:
        writer.refuse_if(rounding not in _INTEGRAL, "no integer rounding")
        return f"float_to_integer({name}, {dtype_name(dtype)}_t, {rounding!r})", dtype
    if operation.has("sat"):
        return f"convert_integer({name}, {dtype_name(dtype)}_t)", dtype
    return f"{name}.astype({dtype_name(dtype)})", dtype


def _to_float(writer: Writer, operation: Operation, name: str, source: str, target: str, rounding: str) -> str:
    kind = f"{dtype_name(DTYPES[target])}_t"
    if DTYPES[source].kind != "f":
        return finish(operation, f"integer_to_float({name}, {kind}, {rounding!r})")
    if rounding in _INTEGRAL:
        name = writer.keep(f"to_integral({name}, {rounding!r})")
        rounding = ""
    result = name if source == target else f"float_to_float({name}, {kind}, {rounding!r})"
    if operation.has("ftz") and target == "f32" and source == "f64":
        result = f"flush({result})"
    result = finish(operation, result)
    return result if source == "f64" else f"canonicalize({result})"
