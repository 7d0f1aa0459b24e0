"""Write logic, shifts and bit-field instructions."""

from pympsd_server.ptx.isa.datatypes import BOOL, S32, U32, dtype_name, unsigned_of
from pympsd_server.ptx.lowering.ir import Both, Operation
from pympsd_server.ptx.numpy_tier.instruction_table import BITS, INTEGERS, dtype_of, emits
from pympsd_server.ptx.numpy_tier.writer import Writer
from pympsd_server.ptx.syntax.tree import Immediate

_SIGNS = {"and": "&", "or": "|", "xor": "^"}
_WORDS = ("u32", "s32", "u64", "s64")


@emits("and or xor", 3, "", (*BITS, "pred"))
def _logic(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    a, b = writer.values(operation.inputs, dtype)
    writer.set_result(f"{a} {_SIGNS[operation.name]} {b}", dtype)


@emits("not cnot", 2, "", (*BITS, "pred"))
def _not(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    a = writer.input(1, dtype)
    if operation.name == "not":
        return writer.set_result(f"~{a}", dtype)
    writer.refuse_if(dtype == BOOL)
    return writer.set_result(f"({a} == 0).astype({dtype_name(dtype)})", dtype)


@emits("shl shr", 3, "", (*BITS, *INTEGERS))
def _shift(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    a, amount = writer.input(1, dtype), operation.operands[2]
    width = dtype.itemsize * 8
    if isinstance(amount, Immediate) and 0 <= amount.value < width:
        sign = "<<" if operation.name == "shl" else ">>"
        return writer.set_result(f"{a} {sign} {writer.scalar(amount.value, dtype)}", dtype)
    function = "shift_left" if operation.name == "shl" else "shift_right"
    return writer.set_result(f"{function}({a}, {writer.value(amount, U32)})", dtype)


@emits("shf", 4, "l r wrap clamp", ("b32",))
def _funnel(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(operation.has("l") == operation.has("r") or operation.has("wrap") == operation.has("clamp"))
    a, b, c = writer.values(operation.inputs, U32)
    writer.set_result(f"funnel_shift({a}, {b}, {c}, {operation.has('l')}, {operation.has('wrap')})", U32)


@emits("lop3", (5, 6), "or and", ("b32",))
def _lookup(writer: Writer, operation: Operation) -> None:
    has_predicate = bool(operation.modifiers)
    writer.refuse_count_if(has_predicate != (len(operation.operands) == 6))
    writer.refuse_count_if(has_predicate != isinstance(operation.operands[0], Both))
    table = operation.operands[4]
    if not isinstance(table, Immediate):
        raise writer.refuse("the table is not a constant")
    a, b, c = writer.values(operation.operands[1:4], U32)
    result = _lookup_expression(table.value & 255, a, b, c, writer)
    if not operation.modifiers:
        return writer.set_result(result, U32)
    name, second = writer.keep(result), writer.input(5, BOOL)
    sign = "|" if operation.has("or") else "&"
    return writer.assign_both(operation.operands[0], name, writer.keep(f"({name} != 0) {sign} {second}"))


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


def _lookup_expression(table: int, a: str, b: str, c: str, writer: Writer) -> str:
    if table in _SHORT:
        return _SHORT[table].format(a=a, b=b, c=c)
    terms = []
    for row in range(8):
        if table >> row & 1:
            signs = ["" if row & bit else "~" for bit in (4, 2, 1)]
            terms.append(f"({signs[0]}{a} & {signs[1]}{b} & {signs[2]}{c})")
    return " | ".join(terms) or writer.scalar(0, U32)


@emits("prmt", 4, "f4e b4e rc8 ecl ecr rc16", ("b32",))
def _permute(writer: Writer, operation: Operation) -> None:
    a, b, c = writer.values(operation.inputs, U32)
    if operation.modifiers:
        return writer.set_result(f"permute_mode({a}, {b}, {c}, {operation.modifiers[0]!r})", U32)
    return writer.set_result(f"permute({a}, {b}, {c})", U32)


@emits("popc clz", 2, "", ("b32", "b64"))
def _count(writer: Writer, operation: Operation) -> None:
    function = "population" if operation.name == "popc" else "leading_zeros"
    writer.set_result(f"{function}({writer.input(1, dtype_of(writer, operation))})", U32)


@emits("brev", 2, "", ("b32", "b64"))
def _reverse(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    writer.set_result(f"reverse({writer.input(1, dtype)})", dtype)


@emits("bfind", 2, "shiftamt", _WORDS)
def _find(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    plain, most = writer.input(1, dtype), 8 * dtype.itemsize - 1
    if dtype.kind == "i":  # the highest bit that differs from the sign
        plain = writer.keep(f"{plain} ^ ({plain} >> {writer.scalar(most, dtype)})")
    zeros = f"leading_zeros({plain})"
    if operation.has("shiftamt"):
        none = writer.scalar(2**32 - 1, U32)
        return writer.set_result(f"select({plain} != 0, {zeros}, {none})", U32)
    return writer.set_result(f"{writer.scalar(most, U32)} - {zeros}", U32)


@emits("bfe", 4, "", _WORDS)
def _extract(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    position, length = writer.values(operation.operands[2:], U32)
    writer.set_result(f"extract({writer.input(1, dtype)}, {position}, {length})", dtype)


@emits("bfi", 5, "", ("b32", "b64"))
def _insert(writer: Writer, operation: Operation) -> None:
    dtype = unsigned_of(dtype_of(writer, operation))
    a, b = writer.values(operation.operands[1:3], dtype)
    position, length = writer.values(operation.operands[3:], U32)
    writer.set_result(f"insert({a}, {b}, {position}, {length})", dtype)


@emits("bmsk", 3, "clamp wrap", ("b32",))
def _mask(writer: Writer, operation: Operation) -> None:
    a, b = writer.values(operation.inputs, U32)
    writer.set_result(f"field_mask({a}, {b}, {operation.has('wrap')})", U32)


@emits("szext", 3, "clamp wrap", ("u32", "s32"))
def _extend(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    value, length = writer.input(1, dtype), writer.input(2, U32)
    writer.set_result(f"extend({value}, {length}, {operation.has('wrap')})", dtype)


@emits("fns", 4, "", ("b32",))
def _nth(writer: Writer, operation: Operation) -> None:
    mask, base = writer.values(operation.operands[1:3], U32)
    writer.set_result(f"find_nth_set({mask}, {base}, {writer.input(3, S32)})", U32)
