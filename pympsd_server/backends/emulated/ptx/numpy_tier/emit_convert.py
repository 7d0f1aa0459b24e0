"""Moves and conversions."""

from __future__ import annotations

import numpy as np

from pympsd_server.backends.emulated.ptx.isa.datatypes import (
    BOOL,
    DTYPES,
    F32,
    S32,
    U16,
    U32,
    U64,
    DType,
    dtype_name,
    unsigned,
)
from pympsd_server.backends.emulated.ptx.isa.machine import WINDOWS
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation, Sink
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import ANY, ROUNDINGS, emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer

_SPACES = "global shared local const param"
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_PLAIN = tuple(t for t in ANY if t not in ("pred", "u16x2", "s16x2"))


@emits("mov", 2, "v2 v4", ANY)
def _move(w: Writer, o: Operation) -> None:
    target, source = o.operands
    dtype = DTYPES[o.type]
    if length := o.one_of("v2", "v4"):
        return _move_vector(w, target, source, dtype, int(length[1:]))
    if isinstance(source, Group):
        return _pack(w, target, source, unsigned(dtype))
    if isinstance(target, Group):
        return _unpack(w, target, source, unsigned(dtype))
    return w.assign(target, w.value(source, dtype), dtype)


def _move_vector(w: Writer, target: Argument, source: Argument, dtype: DType, length: int) -> None:
    """Move every part; one or both of the vectors may be in braces."""
    if not all(isinstance(each, Group) and len(each.items) == length for each in (target, source)):
        raise w.refuse(f"both operands are vectors of {length}")
    values = [w.keep(w.value(item, dtype)) for item in source.items]  # type: ignore[union-attr]
    for item, value in zip(target.items, values, strict=True):  # type: ignore[union-attr]
        w.assign(item, value, dtype)


def _element(w: Writer, dtype: DType, group: Group) -> DType:
    size = dtype.itemsize // len(group.items)
    if dtype == BOOL or size * len(group.items) != dtype.itemsize or size not in (1, 2, 4):
        raise w.refuse("vector of this length")
    return np.dtype(f"u{size}")


def _pack(w: Writer, target: Argument, source: Group, dtype: DType) -> None:
    part = _element(w, dtype, source)
    terms = []
    for index, item in enumerate(source.items):
        term = f"{w.value(item, part)}.astype({dtype_name(dtype)})"
        by = w.scalar(8 * part.itemsize * index, dtype)
        terms.append(f"({term} << {by})" if index else term)
    w.assign(target, " | ".join(terms), dtype)


def _unpack(w: Writer, target: Group, source: Argument, dtype: DType) -> None:
    part = _element(w, dtype, target)
    whole = w.keep(w.value(source, dtype))
    pieces = []
    for index, item in enumerate(target.items):
        if not isinstance(item, Sink):
            by = w.scalar(8 * part.itemsize * index, dtype)
            shifted = f"({whole} >> {by})" if index else whole
            pieces.append((item, w.keep(f"{shifted}.astype({dtype_name(part)})")))
    for item, piece in pieces:
        w.assign(item, piece, part)


# Other names of the same windows.
_WINDOWS = {space: space for space in _SPACES.split()}
_WINDOWS |= {"shared::cta": "shared", "shared::cluster": "shared", "param::entry": "param", "param::func": "param"}


@emits("cvta", 2, "to " + " ".join(_WINDOWS), ("u64", "u32"))
def _convert_address(w: Writer, o: Operation) -> None:
    space = _WINDOWS.get(o.one_of(*_WINDOWS), "")
    if o.type != "u64" or not space:
        raise w.refuse()
    window = w.scalar(WINDOWS.get(space, 0), U64)
    value = w.value(o.operands[1], U64)
    if space in WINDOWS:
        value = f"{value} {'-' if o.has('to') else '+'} {window}"
    w.assign(o.operands[0], value, U64)


@emits("isspacep", 2, " ".join(_WINDOWS), ())
def _is_space(w: Writer, o: Operation) -> None:
    space = _WINDOWS.get(o.one_of(*_WINDOWS), "")
    value = w.keep(f"{w.value(o.operands[1], U64)} >> {w.scalar(40, U64)}")
    if space == "const" or not space:
        raise w.refuse()
    if space == "global":
        return w.assign(o.operands[0], f"({value} >= {w.scalar(4, U64)})", BOOL)
    return w.assign(o.operands[0], f"({value} == {w.scalar(WINDOWS[space] >> 40, U64)})", BOOL)


_SMALL = ("e4m3x2", "e5m2x2", "tf32")
_MODIFIERS = " ".join((*ROUNDINGS, *_INTEGRAL, "rna", "ftz", "sat", "relu", "satfinite", "pack"))


@emits("cvt", (2, 4), _MODIFIERS, (*_PLAIN, *_SMALL))
def _convert(w: Writer, o: Operation) -> None:
    if o.has("pack"):
        return _convert_packed(w, o)
    if len(o.types) != 2:
        raise w.refuse()
    if o.types[0] == "tf32":
        return _convert_to_tf32(w, o)
    if any(t in _SMALL for t in o.types):
        return _convert_small(w, o)
    if o.has("rna") or o.has("satfinite"):
        raise w.refuse()
    target, source = o.types
    if target.endswith("x2"):
        return _convert_pair(w, o, target, source)
    if source.endswith("x2") or len(o.operands) != 2:
        raise w.refuse()
    name, dtype = _converted(w, o, w.value(o.operands[1], DTYPES[source]), source, target)
    return w.assign(o.operands[0], name, dtype)


def _convert_to_tf32(w: Writer, o: Operation) -> None:
    rounding = o.one_of("rna", "rn", "rz")
    if o.types[1] != "f32" or len(o.operands) != 2 or not rounding or set(o.modifiers) - {rounding, "relu"}:
        raise w.refuse()
    value = w.keep(_finish(o, w.value(o.operands[1], F32)))
    w.assign(o.operands[0], f"tf32_from_float({value}, {rounding!r})", U32)


def _convert_small(w: Writer, o: Operation) -> None:
    """e4m3x2 and e5m2x2, from f32 (two operands, the first for the upper half) or f16x2, and to f16x2."""
    target, source = o.types
    to_small = target in _SMALL
    name = (target if to_small else source).removesuffix("x2")
    wanted = {"rn", "satfinite"} if to_small else {"rn"}
    if set(o.modifiers) - {"relu"} != wanted or len(o.operands) != (3 if source == "f32" else 2):
        raise w.refuse()
    if to_small and source == "f32":
        high, low = (w.keep(_finish(o, w.value(x, F32))) for x in o.operands[1:])
        w.assign(o.operands[0], f"small_pair({high}, {low}, {name!r})", U16)
    elif to_small and source == "f16x2":
        value = w.keep(_rectified(o, w.value(o.operands[1], U32)))
        w.assign(o.operands[0], f"small_pair_from_halves({value}, {name!r})", U16)
    elif not to_small and target == "f16x2":
        value = w.keep(f"halves_from_small({w.value(o.operands[1], U16)}, {name!r})")
        w.assign(o.operands[0], _rectified(o, value), U32)
    else:
        raise w.refuse()


def _rectified(o: Operation, pair: str) -> str:
    return f"rectify_halves({pair})" if o.has("relu") else pair


def _convert_packed(w: Writer, o: Operation) -> None:
    """cvt.pack.sat: two integers to the ends of their type, b the low one; eight-bit ones above them come from c."""
    kind = o.types[0] if o.types else ""
    count = {"s16": 3, "u16": 3, "s8": 4, "u8": 4}.get(kind)
    types = (kind, "s32") if count == 3 else (kind, "s32", "b32")
    if count is None or o.types != types or len(o.operands) != count or set(o.modifiers) != {"pack", "sat"}:
        raise w.refuse()
    a, b = (
        w.keep(f"convert_integer({w.value(x, S32)}, {dtype_name(DTYPES[kind])}_t, True)") for x in o.operands[1:3]
    )
    above = w.value(o.operands[3], U32) if count == 4 else "None"
    w.assign(o.operands[0], f"pack_integers({a}, {b}, {above})", U32)


def _convert_pair(w: Writer, o: Operation, target: str, source: str) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper half."""
    if source != "f32" or len(o.operands) != 3:
        raise w.refuse()
    half = target.removesuffix("x2")
    names = [w.keep(_converted(w, o, w.value(x, DTYPES[source]), source, half)[0]) for x in o.operands[1:]]
    w.assign(o.operands[0], f"pack_halves({names[0]}, {names[1]})", U32)


def _converted(w: Writer, o: Operation, name: str, source: str, target: str) -> tuple[str, DType]:
    """Return an expression for the value converted, and its dtype."""
    dtype = DTYPES[target]
    rounding = o.one_of(*ROUNDINGS, *_INTEGRAL)
    if source == "bf16":
        name, source = w.keep(f"float_from_bfloat({name})"), "f32"
    is_float = DTYPES[source].kind == "f"
    if o.has("ftz") and is_float and DTYPES[source].itemsize == 4:
        name = w.keep(f"flush({name})")
    if target == "bf16":
        return _to_bfloat(w, o, name, source, rounding), U16
    if dtype.kind == "f":
        return _to_float(w, o, name, source, target, rounding), dtype
    if is_float:
        if rounding not in _INTEGRAL:
            raise w.refuse("no integer rounding")
        return f"float_to_integer({name}, {dtype_name(dtype)}_t, {rounding!r})", dtype
    if o.has("sat"):
        return f"convert_integer({name}, {dtype_name(dtype)}_t, True)", dtype
    return f"{name}.astype({dtype_name(dtype)})", dtype


def _to_bfloat(w: Writer, o: Operation, name: str, source: str, rounding: str) -> str:
    if rounding in _INTEGRAL:
        result = f"to_integral({name}, {rounding!r})"
    elif DTYPES[source].kind == "f":
        result = f"{name}.astype(d_f4)" if source == "f16" else name
    else:
        result = f"double_to_odd({name})"
    return f"bfloat_from_float({_finish(o, result)}, {rounding if rounding in ROUNDINGS else 'rn'!r})"


def _to_float(w: Writer, o: Operation, name: str, source: str, target: str, rounding: str) -> str:
    kind = f"{dtype_name(DTYPES[target])}_t"
    if DTYPES[source].kind != "f":
        return _finish(o, f"integer_to_float({name}, {kind}, {rounding!r})")
    if rounding in _INTEGRAL:
        name = w.keep(f"to_integral({name}, {rounding!r})")
        rounding = ""
    result = name if source == target else f"float_to_float({name}, {kind}, {rounding!r})"
    if o.has("ftz") and target == "f32" and source == "f64":
        result = f"flush({result})"
    return _finish(o, result)


def _finish(o: Operation, result: str) -> str:
    if o.has("sat"):
        result = f"saturate({result})"
    return f"rectify({result})" if o.has("relu") else result
