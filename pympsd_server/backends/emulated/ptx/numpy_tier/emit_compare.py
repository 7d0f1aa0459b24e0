"""Comparison and selection instructions."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import BOOL, DTYPES, U16, U32, DType
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Both, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import (
    ANY,
    BITS,
    FLOATS,
    INTEGERS,
    dtype_of,
    emits,
)
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer

_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_RELATIONS |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
_COMBINES = {"and": "&", "or": "|", "xor": "^"}
_COMPARISONS = " ".join([*_RELATIONS, *_UNORDERED, "num", "nan"])
_MODIFIERS = _COMPARISONS + " and or xor ftz"
_TYPES = (*BITS, *INTEGERS, *FLOATS, "bf16", "f16x2", "bf16x2")


def _comparison(w: Writer, o: Operation, a: str, b: str, is_float: bool) -> str:
    """Return a boolean expression for the operation's comparison of two values."""
    which = o.modifiers[0]
    if which in ("num", "nan"):
        return f"~unordered({a}, {b})" if which == "num" else f"unordered({a}, {b})"
    if which in _UNORDERED:
        sign = _UNORDERED[which]
        # NumPy's != is already true for NaN.
        return f"({a} != {b})" if which == "neu" else f"(({a} {sign} {b}) | unordered({a}, {b}))"
    if which not in _RELATIONS:
        raise w.refuse("no comparison")
    if which == "ne" and is_float:
        return f"(({a} < {b}) | ({a} > {b}))"
    return f"({a} {_RELATIONS[which]} {b})"


def _operands(w: Writer, o: Operation, type_name: str) -> tuple[str, str, bool]:
    if type_name == "bf16":
        a, b = (w.keep(f"float_from_bfloat({w.value(x, U16)})") for x in o.operands[1:3])
        return a, b, True
    dtype = DTYPES[type_name]
    a, b = (w.value(x, dtype) for x in o.operands[1:3])
    if o.has("ftz"):
        a, b = w.keep(f"flush({a})"), w.keep(f"flush({b})")
    return a, b, dtype.kind == "f"


@emits("setp", (3, 4), _MODIFIERS, _TYPES)
def _set_predicate(w: Writer, o: Operation) -> None:
    if o.type.endswith("x2"):
        return _set_pair(w, o)
    expression = _comparison(w, o, *_operands(w, o, o.type))
    first, second = _targets(o.operands[0])
    result = w.keep(expression)
    opposite = w.keep(f"~{result}") if second is not None else ""
    return _combine_and_assign(w, o, ((first, result), (second, opposite)))


def _combine_and_assign(w: Writer, o: Operation, results: tuple[tuple[Argument | None, str], ...]) -> None:
    combine = o.one_of(*_COMBINES)
    if bool(combine) != (len(o.operands) == 4):
        raise w.refuse(f"{len(o.operands)} operands")
    other = w.value(o.operands[3], BOOL) if combine else ""
    # All results are computed before one is assigned: a target may be an operand too.
    done = [(t, w.keep(f"{r} {_COMBINES[combine]} {other}") if combine else r) for t, r in results if r]
    for target, result in done:
        if target is not None:
            w.assign(target, result, BOOL)


def _targets(operand: Argument) -> tuple[Argument, Argument | None]:
    return (operand.first, operand.second) if isinstance(operand, Both) else (operand, None)


def _halves(w: Writer, o: Operation) -> list[str]:
    """Return the comparison of each half of packed operands."""
    packed = [w.value(x, U32) for x in o.operands[1:3]]
    found = []
    for part in ("low_half", "high_half"):
        names = [w.keep(f"{part}({p})") for p in packed]
        wrap = "float_from_bfloat({})" if o.type == "bf16x2" else "{}.view(d_f2)"
        a, b = (w.keep(wrap.format(n)) for n in names)
        found.append(w.keep(_comparison(w, o, a, b, is_float=True)))
    return found


def _set_pair(w: Writer, o: Operation) -> None:
    low, high = _halves(w, o)
    first, second = _targets(o.operands[0])
    if second is None:
        raise w.refuse("two results are needed")
    _combine_and_assign(w, o, ((first, low), (second, high)))


@emits("set", (3, 4), _MODIFIERS, _TYPES)
def _set(w: Writer, o: Operation) -> None:
    if len(o.types) != 2:
        raise w.refuse()
    if o.types[1].endswith("x2"):
        return _set_packed(w, o)
    result = w.keep(_comparison(w, o, *_operands(w, o, o.types[1])))
    combine = o.one_of(*_COMBINES)
    if bool(combine) != (len(o.operands) == 4):
        raise w.refuse(f"{len(o.operands)} operands")
    if combine:
        result = w.keep(f"{result} {_COMBINES[combine]} {w.value(o.operands[3], BOOL)}")
    dtype = DTYPES[o.types[0]]
    if o.types[0] == "bf16":
        one = w.scalar(0x3F80, U16)
    else:
        one = w.scalar(1.0, dtype) if dtype.kind == "f" else _all_ones(w, dtype)
    return w.assign(o.operands[0], f"select({result}, {one}, {w.scalar(0, dtype)})", dtype)


def _all_ones(w: Writer, dtype: DType) -> str:
    return w.scalar(-1 if dtype.kind == "i" else 2 ** (8 * dtype.itemsize) - 1, dtype)


def _set_packed(w: Writer, o: Operation) -> None:
    if o.types[0] not in ("f16x2", "bf16x2", "u32", "b32") or o.one_of(*_COMBINES):
        raise w.refuse()
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(o.types[0], 0xFFFF)
    low, high = (w.keep(f"select({r}, {w.scalar(one, U16)}, {w.scalar(0, U16)})") for r in _halves(w, o))
    w.assign(o.operands[0], f"pack_halves({high}, {low})", U32)


@emits("selp", 4, "", (*BITS, *INTEGERS, *FLOATS))
def _select(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    a, b = (w.value(x, dtype) for x in o.operands[1:3])
    w.assign(o.operands[0], f"select({w.value(o.operands[3], BOOL)}, {a}, {b})", dtype)


@emits("slct", 4, "ftz", ANY)
def _select_by_sign(w: Writer, o: Operation) -> None:
    if len(o.types) != 2 or o.types[1] not in ("s32", "f32"):
        raise w.refuse()
    dtype, by = DTYPES[o.types[0]], DTYPES[o.types[1]]
    a, b = (w.value(x, dtype) for x in o.operands[1:3])
    c = w.value(o.operands[3], by)
    if o.has("ftz"):
        c = w.keep(f"flush({c})")
    w.assign(o.operands[0], f"select({c} >= {w.scalar(0, by)}, {a}, {b})", dtype)
