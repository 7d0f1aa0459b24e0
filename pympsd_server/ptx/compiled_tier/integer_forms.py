"""Integer arithmetic, carries, operations on bits, and the results of calls.

Shift amounts are clamped and zero divisors replaced, because LLVM leaves these cases undefined. If PTX leaves a
result undefined, it is the same as in the NumPy tier, which was recorded on a GPU.
"""

from __future__ import annotations

from typing import Final

from pympsd_server.ptx.compiled_tier.float_forms import write_float
from pympsd_server.ptx.compiled_tier.instruction_table import attempts, call_integer, writes
from pympsd_server.ptx.compiled_tier.ir_text import Shape
from pympsd_server.ptx.compiled_tier.lanes import BITS, FLOATS, is_signed
from pympsd_server.ptx.compiled_tier.memory_text import MemoryText
from pympsd_server.ptx.lowering.ir import Group, Operation
from pympsd_server.ptx.math.integers import PERMUTE_MODES
from pympsd_server.ptx.syntax.tree import Immediate

_INTEGERS: Final = ("u16", "s16", "u32", "s32", "u64", "s64")
_MAX_DIVIDED_AS_DOUBLES: Final = 32


@writes("add sub mul div rem min max abs neg mad")
def _arithmetic(text: MemoryText, operation: Operation) -> None:
    if operation.type.removesuffix("x2") in (*FLOATS, "bf16"):
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
    """Return the low or high half of a product, or for .wide the whole product, and its type."""
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
    """Return a quotient or remainder. Division by zero sets all bits. Vectors of up to 32 bits divide as doubles."""
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
    elif is_signed(type_name):  # because the least number divided by -1 overflows
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
    """Write add.cc, addc, sub.cc, subc, mad.cc or madc. The flag, 0 or 1, is in the kernel's carry register."""
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
    else:  # a difference is the sum of a, the complement of b, and the flag, which is 1 if nothing was borrowed
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
def _add_with_carry(text: MemoryText, operation: Operation) -> None:
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
def _invert(text: MemoryText, operation: Operation) -> None:
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
    value, amount = text.use(operation.operands[1], type_name, shape), text.use(operation.operands[2], "u32", shape)
    name = "shl" if operation.name == "shl" else _right_shift(type_name)
    text.assign(
        operation.operands[0], _shift_by_any(text, shape, name, BITS[type_name], value, amount), type_name, shape
    )


def _right_shift(type_name: str) -> str:
    return "ashr" if is_signed(type_name) else "lshr"


def _shift_by_any(text: MemoryText, shape: Shape, name: str, bits: int, value: str, amount: str) -> str:
    """Return a value shifted by an i32 amount, which may exceed the value's width."""
    kind, word = shape.of(f"i{bits}"), shape.of("i32")
    by = call_integer(text, "umin", shape, 32, amount, shape.constant("i32", bits - 1))
    if bits != 32:
        by = text.cast("zext" if bits > 32 else "trunc", by, word, kind)
    result = text.op(name, kind, value, by)
    if name == "ashr":
        return result
    far = text.op("icmp uge", word, amount, shape.constant("i32", bits))
    return text.choose(shape, far, kind, shape.constant(f"i{bits}", 0), result)


def _pair(text: MemoryText, shape: Shape, high: str, low: str) -> str:
    """Return two words as one 64-bit value."""
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


def _field(text: MemoryText, operation: Operation, shape: Shape) -> list[str]:
    """Return the position and length of a bit field, each at most 255 (see `integers._field_operand`)."""
    word, most = shape.of("i32"), shape.constant("i32", 255)
    numbers = [text.use(v, "u32", shape) for v in operation.inputs[-2:]]
    if BITS[operation.type] == 64:
        return [call_integer(text, "umin", shape, 32, number, most) for number in numbers]
    return [text.op("and", word, number, most) for number in numbers]


@writes("bfi")
def _insert_field(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    bits = BITS[type_name]
    kind, ones = shape.of(f"i{bits}"), shape.constant(f"i{bits}", -1)
    source, target = (text.use(v, type_name, shape) for v in operation.inputs[:2])
    position, length = _field(text, operation, shape)
    field = text.op("xor", kind, _shift_by_any(text, shape, "shl", bits, ones, length), ones)
    mask = _shift_by_any(text, shape, "shl", bits, field, position)
    moved = text.op("and", kind, _shift_by_any(text, shape, "shl", bits, source, position), mask)
    preserved = text.op("and", kind, target, text.op("xor", kind, mask, ones))
    text.assign(operation.operands[0], text.op("or", kind, preserved, moved), type_name, shape)


@writes("bfe")
def _extract_field(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    bits, name = BITS[type_name], _right_shift(type_name)
    word, whole = shape.of("i32"), shape.constant("i32", bits)
    position, length = _field(text, operation, shape)
    above = text.op("sub", word, whole, call_integer(text, "umin", shape, 32, length, whole))
    value = _shift_by_any(text, shape, name, bits, text.use(operation.operands[1], type_name, shape), position)
    value = _shift_by_any(text, shape, "shl", bits, value, above)
    text.assign(operation.operands[0], _shift_by_any(text, shape, name, bits, value, above), type_name, shape)


@writes("prmt")
def _permute(text: MemoryText, operation: Operation) -> None:
    """Write prmt: each nibble of the selector picks a byte, or if its highest bit is set, the byte's sign."""
    shape = text.shape_of(operation.operands[0])
    word, wide = shape.of("i32"), shape.of("i64")
    pair = _pair(text, shape, *(text.use(operation.operands[k], "u32", shape) for k in (2, 1)))
    selector, result = _selector(text, operation, shape), shape.constant("i32", 0)
    for k in range(4):
        nibble = text.op("lshr", word, selector, shape.constant("i32", 4 * k))
        by = text.op("shl", word, text.op("and", word, nibble, shape.constant("i32", 7)), shape.constant("i32", 3))
        byte = text.cast("trunc", text.op("lshr", wide, pair, text.cast("zext", by, word, wide)), wide, word)
        byte = text.op("shl", word, byte, shape.constant("i32", 24))
        signs = text.op("ashr", word, byte, shape.constant("i32", 31))
        takes_sign = text.op("and", word, nibble, shape.constant("i32", 8))
        takes_sign = text.op("icmp ne", word, takes_sign, shape.constant("i32", 0))
        byte = text.choose(shape, takes_sign, word, signs, byte)
        byte = text.op("and", word, byte, shape.constant("i32", 255 << 24))
        byte = text.op("lshr", word, byte, shape.constant("i32", 24 - 8 * k))
        result = text.op("or", word, result, byte)
    text.assign(operation.operands[0], result, "u32", shape)


def _selector(text: MemoryText, operation: Operation, shape: Shape) -> str:
    """Return the selector of prmt. In a mode such as .f4e, the operand's two low bits choose one of four."""
    word, value = shape.of("i32"), text.use(operation.operands[3], "u32", shape)
    if not operation.modifiers:
        return value
    row = text.op("and", word, value, shape.constant("i32", 3))
    selectors = PERMUTE_MODES[operation.modifiers[0]]
    result = shape.constant("i32", selectors[-1])
    for number, selector in enumerate(selectors[:-1]):
        is_row = text.op("icmp eq", word, row, shape.constant("i32", number))
        result = text.choose(shape, is_row, word, shape.constant("i32", selector), result)
    return result


@writes("mul24 mad24")
def _multiply_24(text: MemoryText, operation: Operation) -> None:
    """Write mul24 or mad24: bits 0 to 31 (.lo) or 16 to 47 (.hi) of the product of the operands' low 24 bits."""
    if operation.has("sat"):
        raise text.refuse()
    shape, type_name = text.shape_of(operation.operands[0]), operation.type
    word, wide, signed = shape.of("i32"), shape.of("i64"), is_signed(operation.type)
    factors = [_part(text, shape, text.use(x, type_name, shape), (0, 24), signed) for x in operation.operands[1:3]]
    a, b = (text.cast("sext" if signed else "zext", x, word, wide) for x in factors)
    product = text.op("mul", wide, a, b)
    if operation.has("hi"):
        product = text.op("lshr", wide, product, shape.constant("i64", 16))
    result = text.cast("trunc", product, wide, word)
    if operation.name == "mad24":
        result = text.op("add", word, result, text.use(operation.operands[3], type_name, shape))
    text.assign(operation.operands[0], result, type_name, shape)


@writes("dp4a dp2a")
def _dot(text: MemoryText, operation: Operation) -> None:
    """Write dp4a or dp2a: the sum of a word and four products of bytes, or two products of a half-word and a byte."""
    shape, signs = text.shape_of(operation.operands[0]), [is_signed(name) for name in operation.types]
    a, b, result = (text.use(x, "u32", shape) for x in operation.inputs)
    width, first = (8, 0) if operation.name == "dp4a" else (16, 2 * operation.has("hi"))
    for k in range(32 // width):
        x = _part(text, shape, a, (width * k, width), signs[0])
        y = _part(text, shape, b, (8 * (first + k), 8), signs[1])
        result = text.op("add", shape.of("i32"), result, text.op("mul", shape.of("i32"), x, y))
    text.assign(operation.operands[0], result, "u32", shape)


def _part(text: MemoryText, shape: Shape, value: str, place: tuple[int, int], signed: bool) -> str:
    """Return the bits at a place of a word (the lowest bit, the number of bits), extended to a word."""
    low, width = place
    top = text.op("shl", shape.of("i32"), value, shape.constant("i32", 32 - low - width))
    return text.op("ashr" if signed else "lshr", shape.of("i32"), top, shape.constant("i32", 32 - width))


# --- calls


@attempts("system:function_index")
def _find_function(text: MemoryText, operation: Operation) -> None:
    """Find the index of the function at each lane's address. Escape for other addresses, which are faults."""
    kind, word = text.vector.of("i64"), text.vector.of("i32")
    addresses = text.use(operation.operands[1], "u64", text.vector)
    index, missing = text.vector.constant("i32", 0), text.current()
    functions = (operand.value for operand in operation.operands[2:] if isinstance(operand, Immediate))
    for number, function in enumerate(functions):
        is_there = text.op("icmp eq", kind, addresses, text.vector.constant("i64", function))
        index = text.choose(text.vector, is_there, word, text.vector.constant("i32", number), index)
        remaining = text.op("xor", text.mask_type, text.as_mask(is_there), "-1")
        missing = text.op("and", text.mask_type, missing, remaining)
    text.escape_unless(text.op("icmp eq", text.mask_type, missing, "0"))
    text.assign(operation.operands[0], index, "u32", text.vector)


@writes("system:alloca")
def _allocate_on_stack(text: MemoryText, operation: Operation) -> None:
    """Write alloca: results address and new stack pointer, inputs stack pointer, size and alignment."""
    target, pointer, size, alignment = operation.operands
    if not isinstance(target, Group) or not isinstance(alignment, Immediate):
        raise text.refuse()
    address, stack = target.items
    shape, bits = text.shape_of(stack), BITS[operation.type]
    kind, value = shape.of("i64"), text.use(size, operation.type, shape)
    wide = text.cast("zext", value, shape.of(f"i{bits}"), kind) if bits < 64 else value
    start = _align_up(text, shape, text.use(pointer, "u64", shape), max(16, alignment.value))
    end = _align_up(text, shape, text.op("add", kind, start, wide), 16)
    result = text.cast("trunc", start, kind, shape.of(f"i{bits}")) if bits < 64 else start
    text.assign(address, result, operation.type, shape)
    text.assign(stack, end, "u64", shape)


def _align_up(text: MemoryText, shape: Shape, value: str, alignment: int) -> str:
    up = text.op("add", shape.of("i64"), value, shape.constant("i64", alignment - 1))
    return text.op("and", shape.of("i64"), up, shape.constant("i64", -alignment))
