"""Floating-point arithmetic without fast-math, so that LLVM does not change any result.

`fma` rounds once. As in NumPy, the processor rounds to nearest. bfloat16 is computed in doubles and rounded once.
Other roundings of doubles escape, and so does .relu.
"""

from __future__ import annotations

from typing import Final

from pympsd_server.ptx.compiled_tier.expressions import (
    Expression,
    bfloat_from_float,
    bfloat_from_sum,
    multiply_add_halves,
    round_directed,
    tf32_from_float,
)
from pympsd_server.ptx.compiled_tier.instruction_table import writes
from pympsd_server.ptx.compiled_tier.ir_text import SCALAR, Shape
from pympsd_server.ptx.compiled_tier.lanes import FLOATS
from pympsd_server.ptx.compiled_tier.memory_text import MemoryText
from pympsd_server.ptx.lowering.ir import Operation
from pympsd_server.ptx.math.functions import FUNCTIONS

_INFIX: Final = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_ROUNDINGS: Final = ("rz", "rm", "rp")
_FLUSHED_INPUTS_ONLY: Final = ("abs", "neg", "min", "max")
_CLASSES: Final = {
    "finite": 0x1F8,
    "infinite": 0x204,
    "number": 0x3FC,
    "notanumber": 3,
    "normal": 0x168,
    "subnormal": 0x90,
}


def write_float(text: MemoryText, operation: Operation) -> None:
    """Write an arithmetic instruction on floats, or on pairs of floats, whose halves are computed separately."""
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    single = type_name.removesuffix("x2")
    text.refuse_if(
        operation.one_of("relu", "xorsign") or len(operation.types) != 1 or single not in (*FLOATS, "bf16")
    )
    compute = _compute_bfloat if single == "bf16" else _compute
    x = [text.use(a, type_name, shape) for a in operation.inputs]
    if single == type_name:
        return text.assign(operation.operands[0], compute(text, operation, shape, x), type_name, shape)
    word, half = shape.of("i32"), shape.of("i16")
    low = compute(text, operation, shape, [text.cast("trunc", v, word, half) for v in x])
    upper = [text.op("lshr", word, v, shape.constant("i32", 16)) for v in x]
    high = compute(text, operation, shape, [text.cast("trunc", v, word, half) for v in upper])
    return text.assign(operation.operands[0], pack_halves(text, shape, high, low), type_name, shape)


def pack_halves(text: MemoryText, shape: Shape, high: str, low: str) -> str:
    """Return two 16-bit values as one 32-bit value."""
    word, half = shape.of("i32"), shape.of("i16")
    above = text.op("shl", word, text.cast("zext", high, half, word), shape.constant("i32", 16))
    return text.op("or", word, above, text.cast("zext", low, half, word))


def _compute(text: MemoryText, operation: Operation, shape: Shape, bits: list[str]) -> str:
    """Return the bits of the result; `bits` are the operands' bits."""
    type_name, rounding = operation.type.removesuffix("x2"), operation.one_of(*_ROUNDINGS)
    name = "fma" if operation.name == "mad" else operation.name
    x = [text.as_float(v, type_name, shape) for v in bits]
    element, kind = FLOATS[type_name], shape.of(FLOATS[type_name])
    if rounding:
        text.refuse_if(type_name != "f32" or name not in ("add", "sub", "mul", "fma"))
        values = [Expression(text, shape, "float", v) for v in x]
        result = round_directed(name, rounding, values, flushes=operation.has("ftz")).name
    elif name in _INFIX:
        result = text.op(_INFIX[name], kind, *x)
    elif name == "fma" and type_name == "f16":
        result = multiply_add_halves([Expression(text, shape, "half", v) for v in x]).name
    elif name == "fma":
        result = text.intrinsic("fma", element, shape, *x)
    elif name in ("min", "max") and len(x) == 2:
        result = text.intrinsic(f"{name}imum" + ("" if operation.has("NaN") else "num"), element, shape, *x)
    elif name == "neg":
        result = text.value(f"fneg {kind} {x[0]}")
    elif name == "abs":
        result = text.intrinsic("fabs", element, shape, x[0])
    else:
        raise text.refuse()
    if operation.has("ftz") and name not in _FLUSHED_INPUTS_ONLY:
        result = text.flush(result, shape, type_name)
    return text.bits_of_float(result, type_name, shape)


def _compute_bfloat(text: MemoryText, operation: Operation, shape: Shape, bits: list[str]) -> str:
    """Return the bits of a bfloat16 result, computed in doubles and rounded once; `bits` are the operands' bits."""
    name, half = operation.name, shape.of("i16")
    text.refuse_if(operation.one_of(*_ROUNDINGS, "ftz", "sat"))
    if name in ("abs", "neg"):
        sign = shape.constant("i16", 0x7FFF if name == "abs" else 0x8000)
        return text.op("and" if name == "abs" else "xor", half, bits[0], sign)
    x = [Expression(text, shape, "float", widen_bfloat(text, shape, v)) for v in bits]
    if name in ("min", "max") and len(x) == 2:
        function = f"{name}imum" + ("" if operation.has("NaN") else "num")
        result = text.intrinsic(function, "float", shape, *(v.name for v in x))
        return bfloat_from_float(Expression(text, shape, "float", result)).name
    a, b, *c = (v.cast("fpext", "double") for v in x)
    terms = {"add": lambda: [a, b], "sub": lambda: [a, b * -1.0], "mul": lambda: [a * b]}
    terms |= dict.fromkeys(("fma", "mad"), lambda: [a * b, *c])
    text.refuse_if(name not in terms)
    return bfloat_from_sum(terms[name]()).name


def widen_bfloat(text: MemoryText, shape: Shape, bits: str) -> str:
    """Convert the bits of a bfloat16 to a float."""
    word = shape.of("i32")
    wide = text.op("shl", word, text.cast("zext", bits, shape.of("i16"), word), shape.constant("i32", 16))
    return text.cast("bitcast", wide, word, shape.of("float"))


def add_small(text: MemoryText, type_name: str, first: str, second: str) -> str:
    """Return the bits of a sum of two small floats, or of two pairs, rounded as in the NumPy tier's atomics."""
    if type_name.endswith("x2"):
        halves = []
        for shift in ("16", "0"):
            shifted = (text.op("lshr", "i32", x, shift) for x in (first, second))
            parts = (text.cast("trunc", x, "i32", "i16") for x in shifted)
            halves.append(add_small(text, type_name.removesuffix("x2"), *parts))
        return pack_halves(text, SCALAR, *halves)
    if type_name == "bf16":
        total = text.op("fadd", "float", *(widen_bfloat(text, SCALAR, x) for x in (first, second)))
        return bfloat_from_float(Expression(text, SCALAR, "float", total)).name
    total = text.op("fadd", "half", *(text.cast("bitcast", x, "i16", "half") for x in (first, second)))
    return text.cast("bitcast", total, "half", "i16")


def write_small_conversion(text: MemoryText, operation: Operation) -> None:
    """Write a conversion of f32 to bf16, tf32 or a pair, or of bf16 to f32. Raises Refused for other types."""
    (to, source), modifiers = operation.types, operation.modifiers
    target, shape = operation.operands[0], text.shape_of(operation.operands[0])
    if (to, source, modifiers) == ("f32", "bf16", ()):
        value = widen_bfloat(text, shape, text.use(operation.operands[1], "bf16", shape))
        return text.assign_float(target, value, "f32", shape)
    is_tf32 = to == "tf32" and len(modifiers) == 1 and modifiers[0] in ("rna", "rn", "rz")
    text.refuse_if(source != "f32" or not (is_tf32 or modifiers == ("rn",)))
    values = [Expression(text, shape, "float", text.use_float(v, "f32", shape)) for v in operation.inputs]
    if is_tf32:
        return text.assign(target, tf32_from_float(values[0], modifiers[0]).name, "b32", shape)
    if to.startswith("bf16"):
        halves = [bfloat_from_float(v).name for v in values]
    else:
        halves = [v.cast("fptrunc", "half").cast("bitcast", "i16").name for v in values]
    return text.assign(target, pack_halves(text, shape, *halves) if len(halves) == 2 else halves[0], to, shape)


@writes("fma")
def _multiply_add(text: MemoryText, operation: Operation) -> None:
    write_float(text, operation)


@writes("rcp sqrt rsqrt")
def _root(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    text.refuse_if(type_name not in ("f32", "f64") or operation.one_of(*_ROUNDINGS))
    element, kind = FLOATS[type_name], shape.of(FLOATS[type_name])
    value = text.use_float(operation.operands[1], type_name, shape)
    if operation.name != "rcp":
        value = text.intrinsic("sqrt", element, shape, value)
    if operation.name != "sqrt":
        unit = text.cast("uitofp", shape.constant("i1", 1), shape.of("i1"), kind)
        value = text.op("fdiv", kind, unit, value)
    if operation.has("ftz") and type_name == "f32":
        value = text.flush(value, shape)
    text.assign_float(operation.operands[0], value, type_name, shape)


@writes("ex2 lg2 sin cos tanh")
def _function(text: MemoryText, operation: Operation) -> None:
    shape = text.shape_of(operation.operands[0])
    text.refuse_if(operation.type != "f32")
    value = Expression(text, shape, "float", text.use_float(operation.operands[1], "f32", shape))
    result = FUNCTIONS[operation.name](Expression.choose, value.cast("fpext", "double"))
    narrow = result.cast("fptrunc", "float")
    # A GPU returns this NaN for every NaN.
    bits = (result == result).choose(narrow.cast("bitcast", "i32"), 0x7FFFFFFF, "i32")
    name = bits.cast("bitcast", "float").name
    name = text.flush(name, shape) if operation.has("ftz") else name
    text.assign_float(operation.operands[0], name, "f32", shape)


@writes("copysign")
def _copy_sign(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    sign, size = (text.use_float(v, type_name, shape) for v in operation.inputs)
    result = text.intrinsic("copysign", FLOATS[type_name], shape, size, sign)
    text.assign_float(operation.operands[0], result, type_name, shape)


@writes("testp")
def _test(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    kind, value = shape.of(FLOATS[type_name]), text.use_float(operation.operands[1], type_name, shape)
    name = f"llvm.is.fpclass.{shape.mangled(FLOATS[type_name])}"
    truth = text.call(name, shape.of("i1"), (kind, value), ("i32", str(_CLASSES[operation.modifiers[0]])))
    text.assign_predicate(operation.operands[0], truth, shape)
