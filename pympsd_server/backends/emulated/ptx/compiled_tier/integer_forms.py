"""Integer arithmetic, carries, and operations on bits.

Shift amounts are clamped and zero divisors replaced before LLVM sees them, because they are undefined in LLVM. Where
PTX leaves a result open, it is that of the NumPy tier, which was recorded on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pympsd_server.backends.emulated.ptx.compiled_tier.float_forms import write_float
from pympsd_server.backends.emulated.ptx.compiled_tier.instruction_table import call_integer, writes
from pympsd_server.backends.emulated.ptx.compiled_tier.ir_text import Shape
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import BITS, FLOATS, is_signed
from pympsd_server.backends.emulated.ptx.compiled_tier.memory_text import MemoryText
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Operation
from pympsd_server.backends.emulated.ptx.math.integers import PERMUTATIONS
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

_INTEGERS: Final = ("u16", "s16", "u32", "s32", "u64", "s64")
_MAX_DIVIDED_AS_DOUBLES: Final = 32


@writes("add sub mul div rem min max abs neg mad")
def _arithmetic(text: MemoryText, operation: Operation) -> None:
    if operation.type in FLOATS:
        return write_float(text, operation)
    if operation.type not in _INTEGERS or operation.has("sat") or operation.has("relu"):
        raise text.refuse()
    type_name, shape, name = operation.type, text.shape_of(operation.operands[0]), operation.name
    if operation.has("cc"):
        return _carry(text, operation, shape)
    bits = BITS[type_name]
    kind = shape.of(f"i{bits}")
    x = [text.use(a, type_name, shape) for a in operation.inputs[:2]]
    zero = shape.constant(f"i{bits}", 0)
    if name in ("add", "sub"):
        result = text.op(name, kind, *x)
    elif name in ("mul", "mad"):
        result, type_name = _product(text, operation, shape, x)
        if name == "mad":
            addend = text.use(operation.operands[3], type_name, shape)
            result = text.op("add", shape.of(f"i{BITS[type_name]}"), result, addend)
    elif name in ("min", "max"):
        result = call_integer(text, ("s" if is_signed(type_name) else "u") + name, shape, bits, *x)
    elif name == "neg":
        result = text.op("sub", kind, zero, x[0])
    elif name == "abs":
        result = call_integer(text, "smax", shape, bits, x[0], text.op("sub", kind, zero, x[0]))
    else:
        result = _quotient(text, name, type_name, shape, x)
    return text.assign(operation.operands[0], result, type_name, shape)


def _product(text: MemoryText, operation: Operation, shape: Shape, x: list[str]) -> tuple[str, str]:
    """Return the low or high half of a product, or all of it for .wide, and its type."""
    type_name = operation.type
    bits = BITS[type_name]
    kind, wide = shape.of(f"i{bits}"), shape.of(f"i{2 * bits}")
    if operation.has("lo"):
        return text.op("mul", kind, *x), type_name
    if not (operation.has("wide") or operation.has("hi")) or (bits == 64 and operation.has("wide")):
        raise text.refuse()
    extend = "sext" if is_signed(type_name) else "zext"
    whole = text.op("mul", wide, *(text.cast(extend, v, kind, wide) for v in x))
    if operation.has("wide"):
        return whole, f"{type_name[0]}{2 * bits}"
    high = text.op("lshr", wide, whole, shape.constant(f"i{2 * bits}", bits))
    return text.cast("trunc", high, wide, kind), type_name


def _quotient(text: MemoryText, name: str, type_name: str, shape: Shape, x: list[str]) -> str:
    """Return a quotient or remainder; dividing by zero sets all bits. 32-bit vectors are divided as doubles."""
    bits, (a, b) = BITS[type_name], x
    kind = shape.of(f"i{bits}")
    ones = shape.constant(f"i{bits}", -1)
    none = text.op("icmp eq", kind, b, shape.constant(f"i{bits}", 0))
    safe = text.choose(shape, none, kind, shape.constant(f"i{bits}", 1), b)
    if shape.lanes and bits <= _MAX_DIVIDED_AS_DOUBLES:
        double, wide = shape.of("double"), shape.of("i64")
        extend = "sext" if is_signed(type_name) else "zext"
        halves = [text.cast("sitofp", text.cast(extend, v, kind, wide), wide, double) for v in (a, safe)]
        quotient = text.cast("fptosi", text.op("fdiv", double, *halves), double, wide)
        quotient = text.cast("trunc", quotient, wide, kind)
    elif is_signed(type_name):  # the smallest number divided by -1 overflows
        minus = text.op("icmp eq", kind, b, ones)
        safe = text.choose(shape, minus, kind, shape.constant(f"i{bits}", 1), safe)
        quotient = text.op("sdiv", kind, a, safe)
        opposite = text.op("sub", kind, shape.constant(f"i{bits}", 0), a)
        quotient = text.choose(shape, minus, kind, opposite, quotient)
    else:
        quotient = text.op("udiv", kind, a, safe)
    if name == "rem":
        quotient = text.op("sub", kind, a, text.op("mul", kind, quotient, b))
    return text.choose(shape, none, kind, ones, quotient)


def _carry(text: MemoryText, operation: Operation, shape: Shape) -> None:
    """add.cc, addc, sub.cc, subc, mad.cc, madc: the flag is 0 or 1 in the kernel's carry register."""
    if operation.type not in ("u32", "s32", "u64", "s64"):
        raise text.refuse()
    type_name, bits = "u" + operation.type[1:], BITS[operation.type]
    kind, name = shape.of(f"i{bits}"), operation.name
    if name in ("mad", "madc"):
        a = text.use(operation.operands[3], type_name, shape)
        b, _ = _product(text, operation, shape, [text.use(v, operation.type, shape) for v in operation.inputs[:2]])
    else:
        a, b = (text.use(v, type_name, shape) for v in operation.inputs)
    subtracts, continues = name.startswith("sub"), name.endswith("c")
    if subtracts and not continues:
        total, flag = text.op("sub", kind, a, b), text.op("icmp uge", kind, a, b)
    else:  # a difference is the sum of a, the complement of b, and the flag: 1 if nothing was borrowed
        b = text.op("xor", kind, b, shape.constant(f"i{bits}", -1)) if subtracts else b
        total = text.op("add", kind, a, b)
        flag = text.op("icmp ult", kind, total, a)
    if continues:
        carry = text.use(text.code.carry, "u32", shape)
        carry = text.cast("zext", carry, shape.of("i32"), kind) if bits == 64 else carry
        more = text.op("add", kind, total, carry)
        flag = text.op("or", shape.of("i1"), flag, text.op("icmp ult", kind, more, total))
        total = more
    flag = text.cast("zext", flag, shape.of("i1"), shape.of("i32"))
    text.assign(operation.operands[0], total, type_name, shape)
    if operation.has("cc"):
        text.assign(text.code.carry, flag, "u32", shape)


@writes("addc subc madc")
def _carried(text: MemoryText, operation: Operation) -> None:
    results = [operation.operands[0], *([text.code.carry] if operation.has("cc") else [])]
    _carry(text, operation, text.shape_of(*results))


@writes("sad")
def _difference(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    kind = shape.of(f"i{BITS[type_name]}")
    a, b, c = (text.use(v, type_name, shape) for v in operation.inputs)
    less = text.op(f"icmp {'s' if is_signed(type_name) else 'u'}lt", kind, a, b)
    size = text.choose(shape, less, kind, text.op("sub", kind, b, a), text.op("sub", kind, a, b))
    text.assign(operation.operands[0], text.op("add", kind, c, size), type_name, shape)


@writes("and or xor")
def _logic(text: MemoryText, operation: Operation) -> None:
    target, shape = operation.operands[0], text.shape_of(operation.operands[0])
    if operation.type == "pred":
        truths = [text.predicate(v, shape) for v in operation.inputs]
        return text.assign_predicate(target, text.op(operation.name, shape.of("i1"), *truths), shape)
    values = [text.use(v, operation.type, shape) for v in operation.inputs]
    result = text.op(operation.name, shape.of(f"i{BITS[operation.type]}"), *values)
    return text.assign(target, result, operation.type, shape)


@writes("not cnot")
def _not(text: MemoryText, operation: Operation) -> None:
    target, shape = operation.operands[0], text.shape_of(operation.operands[0])
    if operation.type == "pred":
        truth = text.predicate(operation.operands[1], shape)
        return text.assign_predicate(target, text.op("xor", shape.of("i1"), truth, shape.constant("i1", -1)), shape)
    element = f"i{BITS[operation.type]}"
    kind, value = shape.of(element), text.use(operation.operands[1], operation.type, shape)
    if operation.name == "not":
        result = text.op("xor", kind, value, shape.constant(element, -1))
    else:
        result = text.cast("zext", text.op("icmp eq", kind, value, shape.constant(element, 0)), shape.of("i1"), kind)
    return text.assign(target, result, operation.type, shape)


@writes("shl shr")
def _shift(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    bits = BITS[type_name]
    kind, word = shape.of(f"i{bits}"), shape.of("i32")
    value, amount = text.use(operation.operands[1], type_name, shape), text.use(operation.operands[2], "u32", shape)
    by = call_integer(text, "umin", shape, 32, amount, shape.constant("i32", bits - 1))
    if bits != 32:
        by = text.cast("zext" if bits > 32 else "trunc", by, word, kind)
    arithmetic = operation.name == "shr" and is_signed(type_name)
    result = text.op("shl" if operation.name == "shl" else "ashr" if arithmetic else "lshr", kind, value, by)
    if not arithmetic:
        far = text.op("icmp uge", word, amount, shape.constant("i32", bits))
        result = text.choose(shape, far, kind, shape.constant(f"i{bits}", 0), result)
    text.assign(operation.operands[0], result, type_name, shape)


def _pair(text: MemoryText, shape: Shape, high: str, low: str) -> str:
    """Return two words as one value of 64 bits."""
    word, wide = shape.of("i32"), shape.of("i64")
    above = text.op("shl", wide, text.cast("zext", high, word, wide), shape.constant("i64", 32))
    return text.op("or", wide, above, text.cast("zext", low, word, wide))


@writes("shf")
def _funnel_shift(text: MemoryText, operation: Operation) -> None:
    shape = text.shape_of(operation.operands[0])
    low, high, amount = (text.use(v, "u32", shape) for v in operation.inputs)
    word, wide = shape.of("i32"), shape.of("i64")
    if operation.has("wrap"):
        amount = text.op("and", word, amount, shape.constant("i32", 31))
    else:
        amount = call_integer(text, "umin", shape, 32, amount, shape.constant("i32", 32))
    pair, by = _pair(text, shape, high, low), text.cast("zext", amount, word, wide)
    if operation.has("l"):
        result = text.op("lshr", wide, text.op("shl", wide, pair, by), shape.constant("i64", 32))
    else:
        result = text.op("lshr", wide, pair, by)
    text.assign(operation.operands[0], text.cast("trunc", result, wide, word), "u32", shape)


@writes("lop3")
def _logic_of_three(text: MemoryText, operation: Operation) -> None:
    table = operation.operands[4]
    if operation.modifiers or not isinstance(table, Immediate):
        raise text.refuse()
    shape = text.shape_of(operation.operands[0])
    word, x = shape.of("i32"), [text.use(v, "u32", shape) for v in operation.operands[1:4]]
    opposites = [text.op("xor", word, v, shape.constant("i32", -1)) for v in x]
    result = shape.constant("i32", 0)
    for row in range(8):
        if table.value >> row & 1:
            term = shape.constant("i32", -1)
            for bit, yes, no in zip((4, 2, 1), x, opposites, strict=True):
                term = text.op("and", word, term, yes if row & bit else no)
            result = text.op("or", word, result, term)
    text.assign(operation.operands[0], result, "u32", shape)


@writes("popc clz brev bfind")
def _count_bits(text: MemoryText, operation: Operation) -> None:
    type_name, shape, name = operation.type, text.shape_of(operation.operands[0]), operation.name
    bits = BITS[type_name]
    element, word = f"i{bits}", shape.of("i32")
    kind, value = shape.of(element), text.use(operation.operands[1], type_name, shape)
    if name == "brev":
        reverse = call_integer(text, "bitreverse", shape, bits, value)
        return text.assign(operation.operands[0], reverse, type_name, shape)
    if name == "popc":
        count = call_integer(text, "ctpop", shape, bits, value)
    else:
        if name == "bfind" and is_signed(type_name):
            sign = text.op("ashr", kind, value, shape.constant(element, bits - 1))
            value = text.op("xor", kind, value, sign)
        count = text.call(f"llvm.ctlz.{shape.mangled(element)}", kind, (kind, value), ("i1", "false"))
    if bits == 64:
        count = text.cast("trunc", count, kind, word)
    if name == "bfind":
        none = text.op("icmp eq", kind, value, shape.constant(element, 0))
        if not operation.has("shiftamt"):
            count = text.op("sub", word, shape.constant("i32", bits - 1), count)
        count = text.choose(shape, none, word, shape.constant("i32", -1), count)
    return text.assign(operation.operands[0], count, "u32", shape)


def _field(text: MemoryText, shape: Shape, operands: Sequence[Argument], bits: int) -> tuple[str, str]:
    """Return the position and the length of a field as i64, as an H200 takes numbers above 255."""
    fields = []
    for operand in operands:
        number, most = text.use(operand, "u32", shape), shape.constant("i32", 255)
        kind = shape.of("i32")
        number = (
            text.op("and", kind, number, most) if bits < 64 else call_integer(text, "umin", shape, 32, number, most)
        )
        fields.append(text.cast("zext", number, kind, shape.of("i64")))
    return fields[0], fields[1]


def _bit(text: MemoryText, shape: Shape, number: str) -> str:
    """Return 2**number as i64, 2**63 for more than 63."""
    clamped = call_integer(text, "umin", shape, 64, number, shape.constant("i64", 63))
    return text.op("shl", shape.of("i64"), shape.constant("i64", 1), clamped)


def _is_above_63(text: MemoryText, shape: Shape, number: str) -> str:
    return text.op("icmp ugt", shape.of("i64"), number, shape.constant("i64", 63))


def _ones(text: MemoryText, shape: Shape, length: str) -> str:
    wide = shape.of("i64")
    ones = text.op("sub", wide, _bit(text, shape, length), shape.constant("i64", 1))
    return text.choose(shape, _is_above_63(text, shape, length), wide, shape.constant("i64", -1), ones)


def _widen(text: MemoryText, shape: Shape, operand: Argument, type_name: str) -> str:
    value, extend = text.use(operand, type_name, shape), "sext" if is_signed(type_name) else "zext"
    return text.cast(extend, value, shape.of("i32"), shape.of("i64")) if BITS[type_name] == 32 else value


def _assign_low(text: MemoryText, operation: Operation, value: str, shape: Shape) -> None:
    """Set the result to the low bits of an i64."""
    if BITS[operation.type] == 32:
        value = text.cast("trunc", value, shape.of("i64"), shape.of("i32"))
    text.assign(operation.operands[0], value, operation.type, shape)


@writes("bfi")
def _insert_field(text: MemoryText, operation: Operation) -> None:
    shape, wide = text.shape_of(operation.operands[0]), text.shape_of(operation.operands[0]).of("i64")
    source, target = (_widen(text, shape, operand, operation.type) for operand in operation.inputs[:2])
    position, length = _field(text, shape, operation.inputs[2:], BITS[operation.type])
    by = call_integer(text, "umin", shape, 64, position, shape.constant("i64", 63))
    mask = text.op("shl", wide, _ones(text, shape, length), by)
    mask = text.choose(shape, _is_above_63(text, shape, position), wide, shape.constant("i64", 0), mask)
    kept = text.op("and", wide, target, text.op("xor", wide, mask, shape.constant("i64", -1)))
    moved = text.op("and", wide, text.op("shl", wide, source, by), mask)
    _assign_low(text, operation, text.op("or", wide, kept, moved), shape)


@writes("bfe")
def _extract_field(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    bits, wide, zero = BITS[type_name], shape.of("i64"), shape.constant("i64", 0)
    position, length = _field(text, shape, operation.inputs[1:], bits)
    value, by = _widen(text, shape, operation.inputs[0], type_name), shape.constant("i64", 63)
    by = call_integer(text, "umin", shape, 64, position, by)
    value = text.op("ashr" if is_signed(type_name) else "lshr", wide, value, by)
    if not is_signed(type_name):
        beyond = text.op("icmp uge", wide, position, shape.constant("i64", bits))
        value = text.choose(shape, beyond, wide, zero, value)
    value = text.op("and", wide, value, _ones(text, shape, length))
    if is_signed(type_name):  # beyond the operand lie copies of its sign
        top = _bit(text, shape, text.op("sub", wide, length, shape.constant("i64", 1)))
        top = text.choose(shape, text.op("icmp eq", wide, length, zero), wide, zero, top)
        value = text.op("sub", wide, text.op("xor", wide, value, top), top)
    _assign_low(text, operation, value, shape)


@writes("prmt")
def _permute(text: MemoryText, operation: Operation) -> None:
    shape = text.shape_of(operation.operands[0])
    word, wide = shape.of("i32"), shape.of("i64")
    low, high, selector = (text.use(operand, "u32", shape) for operand in operation.inputs)
    if operation.modifiers:
        number = text.op("and", word, selector, shape.constant("i32", 3))
        selector = shape.constant("i32", 0)
        for index, pattern in enumerate(PERMUTATIONS[operation.modifiers[0]]):
            chosen = text.op("icmp eq", word, number, shape.constant("i32", index))
            selector = text.choose(shape, chosen, word, shape.constant("i32", pattern), selector)
    pair, result = _pair(text, shape, high, low), shape.constant("i32", 0)
    for k in range(4):
        nibble = text.op("lshr", word, selector, shape.constant("i32", 4 * k))
        by = text.op("and", word, text.op("shl", word, nibble, shape.constant("i32", 3)), shape.constant("i32", 56))
        moved = text.op("lshr", wide, pair, text.cast("zext", by, word, wide))
        top = text.op("shl", word, text.cast("trunc", moved, wide, word), shape.constant("i32", 24))
        is_sign = text.op("and", word, nibble, shape.constant("i32", 8))
        is_sign = text.op("icmp ne", word, is_sign, shape.constant("i32", 0))
        sign = text.op("ashr", word, top, shape.constant("i32", 31))
        byte = text.op("lshr", word, text.choose(shape, is_sign, word, sign, top), shape.constant("i32", 24))
        result = text.op("or", word, result, text.op("shl", word, byte, shape.constant("i32", 8 * k)))
    text.assign(operation.operands[0], result, "u32", shape)
