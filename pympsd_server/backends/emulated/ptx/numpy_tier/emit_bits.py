"""Logic, shifts and bit-field instructions."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import BOOL, S32, U32, dtype_name, unsigned
from pympsd_server.backends.emulated.ptx.lowering.ir import Both, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import BITS, INTEGERS, dtype_of, emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

_SIGNS = {"and": "&", "or": "|", "xor": "^"}
_WORDS = ("u32", "s32", "u64", "s64")


@emits("and or xor", 3, "", (*BITS, "pred"))
def _logic(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    a, b = (w.value(x, dtype) for x in o.operands[1:])
    w.assign(o.operands[0], f"{a} {_SIGNS[o.name]} {b}", dtype)


@emits("not cnot", 2, "", (*BITS, "pred"))
def _not(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    a = w.value(o.operands[1], dtype)
    if o.name == "not":
        return w.assign(o.operands[0], f"~{a}", dtype)
    if dtype == BOOL:
        raise w.refuse()
    return w.assign(o.operands[0], f"({a} == 0).astype({dtype_name(dtype)})", dtype)


@emits("shl shr", 3, "", (*BITS, *INTEGERS))
def _shift(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    a, amount = w.value(o.operands[1], dtype), o.operands[2]
    width = dtype.itemsize * 8
    if isinstance(amount, Immediate) and 0 <= amount.value < width:
        sign = "<<" if o.name == "shl" else ">>"
        return w.assign(o.operands[0], f"{a} {sign} {w.scalar(amount.value, dtype)}", dtype)
    function = "shift_left" if o.name == "shl" else "shift_right"
    return w.assign(o.operands[0], f"{function}({a}, {w.value(amount, U32)})", dtype)


@emits("shf", 4, "l r wrap clamp", ("b32",))
def _funnel(w: Writer, o: Operation) -> None:
    if o.has("l") == o.has("r") or o.has("wrap") == o.has("clamp"):
        raise w.refuse()
    a, b, c = (w.value(x, U32) for x in o.operands[1:])
    w.assign(o.operands[0], f"funnel_shift({a}, {b}, {c}, {o.has('l')}, {o.has('wrap')})", U32)


@emits("lop3", (5, 6), "or and", ("b32",))
def _lookup(w: Writer, o: Operation) -> None:
    if bool(o.modifiers) != (len(o.operands) == 6) or bool(o.modifiers) != isinstance(o.operands[0], Both):
        raise w.refuse(f"{len(o.operands)} operands")
    table = o.operands[4]
    if not isinstance(table, Immediate):
        raise w.refuse("the table is no constant")
    a, b, c = (w.value(x, U32) for x in o.operands[1:4])
    result = _lookup_expression(table.value & 255, a, b, c, w)
    if not o.modifiers:
        return w.assign(o.operands[0], result, U32)
    name, other = w.keep(result), w.value(o.operands[5], BOOL)
    sign = "|" if o.has("or") else "&"
    return w.assign_both(o.operands[0], name, U32, w.keep(f"({name} != 0) {sign} {other}"))


_SHORT = {
    0x80: "{a} & {b} & {c}",
    0xFE: "{a} | {b} | {c}",
    0x96: "{a} ^ {b} ^ {c}",
    0x6A: "({a} & {b}) ^ {c}",
    0xEA: "({a} & {b}) | {c}",
    0xF8: "{a} | ({b} & {c})",
    0x78: "{a} ^ ({b} & {c})",
    0xCA: "({a} & {b}) | (~{a} & {c})",
    0xE8: "({a} & {b}) | ({a} & {c}) | ({b} & {c})",
    0xC0: "{a} & {b}",
    0xFC: "{a} | {b}",
    0x3C: "{a} ^ {b}",
}


def _lookup_expression(table: int, a: str, b: str, c: str, w: Writer) -> str:
    if table in _SHORT:
        return _SHORT[table].format(a=a, b=b, c=c)
    terms = []
    for row in range(8):
        if table >> row & 1:
            signs = ["" if row & bit else "~" for bit in (4, 2, 1)]
            terms.append(f"({signs[0]}{a} & {signs[1]}{b} & {signs[2]}{c})")
    return " | ".join(terms) or w.scalar(0, U32)


@emits("prmt", 4, "f4e b4e rc8 ecl ecr rc16", ("b32",))
def _permute(w: Writer, o: Operation) -> None:
    a, b, c = (w.value(x, U32) for x in o.operands[1:])
    if o.modifiers:
        return w.assign(o.operands[0], f"permute_mode({a}, {b}, {c}, {o.modifiers[0]!r})", U32)
    return w.assign(o.operands[0], f"permute({a}, {b}, {c})", U32)


@emits("popc clz", 2, "", ("b32", "b64"))
def _count(w: Writer, o: Operation) -> None:
    function = "population" if o.name == "popc" else "leading_zeros"
    w.assign(o.operands[0], f"{function}({w.value(o.operands[1], dtype_of(w, o))})", U32)


@emits("brev", 2, "", ("b32", "b64"))
def _reverse(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    w.assign(o.operands[0], f"reverse({w.value(o.operands[1], dtype)})", dtype)


@emits("bfind", 2, "shiftamt", _WORDS)
def _find(w: Writer, o: Operation) -> None:
    a = w.value(o.operands[1], dtype_of(w, o))
    w.assign(o.operands[0], f"find_highest({a}, {o.has('shiftamt')})", U32)


@emits("bfe", 4, "", _WORDS)
def _extract(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    position, length = (w.value(x, U32) for x in o.operands[2:])
    w.assign(o.operands[0], f"extract({w.value(o.operands[1], dtype)}, {position}, {length})", dtype)


@emits("bfi", 5, "", ("b32", "b64"))
def _insert(w: Writer, o: Operation) -> None:
    dtype = unsigned(dtype_of(w, o))
    a, b = (w.value(x, dtype) for x in o.operands[1:3])
    position, length = (w.value(x, U32) for x in o.operands[3:])
    w.assign(o.operands[0], f"insert({a}, {b}, {position}, {length})", dtype)


@emits("bmsk", 3, "clamp wrap", ("b32",))
def _mask(w: Writer, o: Operation) -> None:
    a, b = (w.value(x, U32) for x in o.operands[1:])
    w.assign(o.operands[0], f"field_mask({a}, {b}, {o.has('wrap')})", U32)


@emits("szext", 3, "clamp wrap", ("u32", "s32"))
def _extend(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    value, length = w.value(o.operands[1], dtype), w.value(o.operands[2], U32)
    w.assign(o.operands[0], f"extend({value}, {length}, {o.has('wrap')})", dtype)


@emits("fns", 4, "", ("b32",))
def _nth(w: Writer, o: Operation) -> None:
    mask, base = (w.value(x, U32) for x in o.operands[1:3])
    w.assign(o.operands[0], f"find_nth_set({mask}, {base}, {w.value(o.operands[3], S32)})", U32)
