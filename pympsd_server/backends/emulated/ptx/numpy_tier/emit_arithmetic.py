"""Integer arithmetic instructions, carry chains included."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import (
    DTYPES,
    S16,
    S32,
    U16,
    U32,
    DType,
    dtype_name,
    unsigned,
    widened,
)
from pympsd_server.backends.emulated.ptx.lowering.ir import Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.emit_float import emit_float, is_float
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import INTEGERS, dtype_of, emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer

_TYPES = (*INTEGERS, "f16", "f32", "f64", "bf16", "f16x2", "bf16x2", "u16x2", "s16x2")
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}
_FLOAT_MODIFIERS = "rn rz rm rp ftz sat"


_PAIRS = {"u16x2": U16, "s16x2": S16}


def _pairs(w: Writer, o: Operation) -> None:
    """Write add, min or max of two packed 16-bit integers."""
    if o.has("cc") or o.has("sat") or o.name == "sub":
        raise w.refuse()
    names = [w.keep(f"{w.value(x, U32)}.view(d_u4)") for x in o.operands[1:]]
    halves = []
    for part in ("low_half", "high_half"):
        a, b = (w.keep(f"{part}({n}).view({dtype_name(_PAIRS[o.type])})") for n in names)
        result = f"{a} + {b}" if o.name == "add" else f"np.{o.name}imum({a}, {b})"
        halves.append(w.keep(f"np.maximum({result}, {w.scalar(0, _PAIRS[o.type])})" if o.has("relu") else result))
    w.assign(o.operands[0], f"pack_halves({halves[1]}, {halves[0]})", U32)


@emits("add sub", 3, _FLOAT_MODIFIERS + " cc", _TYPES)
def _add(w: Writer, o: Operation) -> None:
    if is_float(o):
        return emit_float(w, o)
    if o.has("cc"):
        return _carry_add(w, o)
    if o.type in _PAIRS:
        return _pairs(w, o)
    dtype = dtype_of(w, o)
    a, b = (w.value(x, dtype) for x in o.operands[1:])
    if o.has("sat"):
        if dtype != S32:
            raise w.refuse("modifier .sat")
        return w.assign(o.operands[0], f"add_saturating({a}, {b}, {o.name == 'sub'})", dtype)
    total = w.keep(f"{a} {_SIGNS[o.name]} {b}")
    if o.name == "add" and dtype.itemsize == 8:
        w.sums[total] = (a, b)
    return w.assign(o.operands[0], total, dtype)


@emits("addc subc", 3, "cc", ("u32", "s32", "u64", "s64"))
def _add_with_carry(w: Writer, o: Operation) -> None:
    _carry_add(w, o)


def _carry_add(w: Writer, o: Operation) -> None:
    dtype = unsigned(dtype_of(w, o))
    a, b = (w.value(x, dtype) for x in o.operands[1:])
    _carry_chain(w, o, a, b, o.name.startswith("sub"))


def _carry_chain(w: Writer, o: Operation, a: str, b: str, subtract: bool) -> None:
    """Write a + b, or a - b, with the carry flag, which is 0 or 1 in its register.

    A difference is the sum of a, the complement of b, and 1 or the flag: the flag is 1 if nothing was borrowed.
    (PTX calls it a borrow of the opposite meaning; a GPU has one flag, which ``addc`` reads after ``sub.cc`` too.)
    """
    dtype = unsigned(dtype_of(w, o))
    if subtract and not o.name.endswith("c"):
        total, flag = w.keep(f"{a} - {b}"), f"({a} >= {b})"
    else:
        total = w.keep(f"{a} + ~{b}" if subtract else f"{a} + {b}")
        flag = f"({total} < {a})"
    if o.name.endswith("c"):
        carry = w.value(w.code.carry, U32)
        wide = carry if dtype == U32 else f"{carry}.astype({dtype_name(dtype)})"
        with_carry = w.keep(f"{total} + {wide}")
        flag = f"({flag} | ({with_carry} < {total}))"
        total = with_carry
    flag = w.keep(f"{flag}.astype(d_u4)") if o.has("cc") else ""
    w.assign(o.operands[0], total, dtype)
    if flag:
        w.assign(w.code.carry, flag, U32)


def _product(w: Writer, o: Operation) -> tuple[str, DType]:
    """Return the product of operands 1 and 2 by .lo, .hi or .wide, and its dtype."""
    dtype = dtype_of(w, o)
    if o.type in _PAIRS or o.one_of("rn", "rz", "rm", "rp", "ftz"):
        raise w.refuse()
    a, b = (w.value(x, dtype) for x in o.operands[1:3])
    if o.has("hi"):
        return f"multiply_high({a}, {b})", dtype
    if o.has("wide"):
        if dtype.itemsize == 8:
            raise w.refuse()
        wide = DTYPES[widened(o.type)]
        return f"{a}.astype({dtype_name(wide)}) * {b}.astype({dtype_name(wide)})", wide
    if not o.has("lo"):
        raise w.refuse("one of .lo, .hi and .wide is needed")
    return f"{a} * {b}", dtype


@emits("mul", 3, _FLOAT_MODIFIERS + " lo hi wide", _TYPES)
def _multiply(w: Writer, o: Operation) -> None:
    if is_float(o):
        return emit_float(w, o)
    return w.assign(o.operands[0], *_product(w, o))


@emits("mad", 4, _FLOAT_MODIFIERS + " lo hi wide cc", _TYPES)
def _multiply_add(w: Writer, o: Operation) -> None:
    if is_float(o):
        return emit_float(w, o)
    if o.has("cc"):
        return _carry_multiply(w, o)
    product, dtype = _product(w, o)
    c = w.value(o.operands[3], dtype)
    # mad.hi.sat.s32 is accepted, but wraps: so does the hardware (recorded on an H200), whatever PTX says.
    if o.has("sat") and (dtype != S32 or not o.has("hi")):
        raise w.refuse("modifier .sat")
    return w.assign(o.operands[0], f"{product} + {c}", dtype)


@emits("madc", 4, "lo hi cc", ("u32", "s32", "u64", "s64"))
def _multiply_add_carry(w: Writer, o: Operation) -> None:
    _carry_multiply(w, o)


def _carry_multiply(w: Writer, o: Operation) -> None:
    if o.has("wide"):
        raise w.refuse()
    product, dtype = _product(w, o)
    name = w.keep(product)
    plain = unsigned(dtype)
    if plain != dtype:
        name = w.keep(f"{name}.view({dtype_name(plain)})")
    _carry_chain(w, o, w.value(o.operands[3], plain), name, subtract=False)


@emits("mul24 mad24", (3, 4), "lo hi sat", ("u32", "s32"))
def _multiply_24(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    a, b = (w.value(x, dtype) for x in o.operands[1:3])
    product = f"multiply_24({a}, {b}, {o.has('hi')})"
    if len(o.operands) != (4 if o.name == "mad24" else 3):
        raise w.refuse(f"{len(o.operands)} operands")
    if o.name == "mul24":
        return w.assign(o.operands[0], product, dtype)
    c = w.value(o.operands[3], dtype)
    total = f"add_saturating({product}, {c})" if o.has("sat") else f"{product} + {c}"
    return w.assign(o.operands[0], total, dtype)


@emits("div rem", 3, "rn rz rm rp ftz approx full", (*INTEGERS, "f32", "f64"))
def _divide(w: Writer, o: Operation) -> None:
    if is_float(o):
        return emit_float(w, o)
    dtype = dtype_of(w, o)
    a, b = (w.value(x, dtype) for x in o.operands[1:])
    return w.assign(o.operands[0], f"{'divide' if o.name == 'div' else 'remainder'}({a}, {b})", dtype)


@emits("min max", (3, 4), "ftz NaN xorsign abs relu", _TYPES)
def _extreme(w: Writer, o: Operation) -> None:
    if is_float(o):
        return emit_float(w, o)
    relu = o.modifiers == ("relu",) and o.type in ("s32", "s16x2")
    if (o.modifiers and not relu) or len(o.operands) != 3:
        raise w.refuse()
    if o.type in _PAIRS:
        return _pairs(w, o)
    dtype = dtype_of(w, o)
    a, b = (w.value(x, dtype) for x in o.operands[1:])
    result = f"np.{o.name}imum({a}, {b})"
    return w.assign(o.operands[0], f"np.maximum({result}, {w.scalar(0, dtype)})" if relu else result, dtype)


@emits("abs neg", 2, "ftz", (*INTEGERS, "f16", "f32", "f64", "bf16", "f16x2", "bf16x2"))
def _sign(w: Writer, o: Operation) -> None:
    if is_float(o):
        return emit_float(w, o)
    dtype = dtype_of(w, o)
    function = "np.absolute" if o.name == "abs" else "np.negative"
    return w.assign(o.operands[0], f"{function}({w.value(o.operands[1], dtype)})", dtype)


@emits("sad", 4, "", INTEGERS)
def _sum_of_differences(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    a, b, c = (w.value(x, dtype) for x in o.operands[1:])
    w.assign(o.operands[0], f"{c} + absolute_difference({a}, {b})", dtype)


@emits("dp4a dp2a", 4, "lo hi", ("u32", "s32"))
def _dot(w: Writer, o: Operation) -> None:
    a, b, c = (w.value(x, U32) for x in o.operands[1:])
    signs = ", ".join(str(t == "s32") for t in o.types)
    if len(o.types) != 2 or (o.name == "dp2a") != bool(o.modifiers):
        raise w.refuse()
    if o.name == "dp4a":
        return w.assign(o.operands[0], f"dot({a}, {b}, {c}, {signs})", U32)
    return w.assign(o.operands[0], f"dot_pairs({a}, {b}, {c}, {signs}, {o.has('hi')})", U32)
