"""Floating-point arithmetic without fast-math: LLVM may not change any result.

`fma` rounds once. Rounding to nearest is left to the processor, as in NumPy. Packed pairs, bfloat16 and other
roundings of doubles escape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pympsd_server.backends.emulated.ptx.compiled_tier.expressions import (
    Expression,
    LlvmDoubles,
    multiply_add_halves,
    round_directed,
)
from pympsd_server.backends.emulated.ptx.compiled_tier.instruction_table import writes
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import FLOATS
from pympsd_server.backends.emulated.ptx.compiled_tier.memory_text import MemoryText
from pympsd_server.backends.emulated.ptx.lowering.ir import Operation
from pympsd_server.backends.emulated.ptx.math.functions import hyperbolic_tangent, logarithm, power_of_two, sine

_INFIX: Final = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_ROUNDINGS: Final = ("rz", "rm", "rp")
_FLUSHED_INPUTS_ONLY: Final = ("abs", "neg", "min", "max")
_FUNCTIONS: Final[dict[str, Callable[..., Expression]]] = {
    "ex2": power_of_two,
    "lg2": logarithm,
    "sin": sine,
    "cos": partial(sine, quarters=1),
    "tanh": hyperbolic_tangent,
}
_CLASSES: Final = {
    "finite": 0x1F8,
    "infinite": 0x204,
    "number": 0x3FC,
    "notanumber": 3,
    "normal": 0x168,
    "subnormal": 0x90,
}


def write_float(text: MemoryText, operation: Operation) -> None:
    """Write an arithmetic instruction whose type is a float."""
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    name = "fma" if operation.name == "mad" else operation.name
    rounding = operation.one_of(*_ROUNDINGS)
    if operation.one_of("relu", "xorsign") or len(operation.types) != 1 or type_name not in FLOATS:
        raise text.refuse()
    x = [text.use_float(a, type_name, shape) for a in operation.inputs]
    element, kind = FLOATS[type_name], shape.of(FLOATS[type_name])
    if rounding:
        if type_name != "f32" or name not in ("add", "sub", "mul", "fma"):
            raise text.refuse()
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
    text.assign_float(operation.operands[0], result, type_name, shape)


@writes("fma")
def _multiply_add(text: MemoryText, operation: Operation) -> None:
    write_float(text, operation)


@writes("rcp sqrt rsqrt")
def _root(text: MemoryText, operation: Operation) -> None:
    type_name, shape = operation.type, text.shape_of(operation.operands[0])
    if type_name not in ("f32", "f64") or operation.one_of(*_ROUNDINGS):
        raise text.refuse()
    element, kind = FLOATS[type_name], shape.of(FLOATS[type_name])
    value = text.use_float(operation.operands[1], type_name, shape)
    if operation.name != "rcp":
        value = text.intrinsic("sqrt", element, shape, value)
    if operation.name != "sqrt":
        one = text.cast("uitofp", shape.constant("i1", 1), shape.of("i1"), kind)
        value = text.op("fdiv", kind, one, value)
    if operation.has("ftz") and type_name == "f32":
        value = text.flush(value, shape)
    text.assign_float(operation.operands[0], value, type_name, shape)


@writes("ex2 lg2 sin cos tanh")
def _function(text: MemoryText, operation: Operation) -> None:
    shape = text.shape_of(operation.operands[0])
    if operation.type != "f32":
        raise text.refuse()
    value = Expression(text, shape, "float", text.use_float(operation.operands[1], "f32", shape))
    result = _FUNCTIONS[operation.name](LlvmDoubles(), value.cast("fpext", "double"))
    narrow = result.cast("fptrunc", "float")
    # GPUs write this NaN for every NaN.
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
