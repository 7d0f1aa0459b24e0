"""Write instructions that only compute, by the emitters of the NumPy tier.

The emitters (`pympsd_server.ptx.numpy_tier`) write Python expressions with the operands. Here their writer is an
`_Evaluator`, which evaluates each expression immediately. The operands are LLVM values (expressions.py), whose
operators and functions write instructions. So both tiers share the description of an instruction:

    add.ftz.f32    the emitter writes flush(flush(a) + flush(b)); here that is two selections, an fadd, a selection

Functions that depend on elements, or whose NumPy text would be slow as machine code, have a text of their own here
(`_OWN`). An instruction escapes if its expressions contain a name that is not defined here, or a function of NumPy
that LLVM lacks. Instructions that read memory, other threads or the state of the batch therefore escape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any, Final

import numpy as np
from attrs import evolve

from pympsd_server.ptx.compiled_tier.ir_text import NotCompiled, Shape
from pympsd_server.ptx.compiled_tier.text.expressions import Expression, multiply_add_halves
from pympsd_server.ptx.compiled_tier.text.memory_text import MemoryText
from pympsd_server.ptx.isa.datatypes import DTYPE_NAMES, F16, F32, F64, S64, U32, DType, Value, unsigned_of
from pympsd_server.ptx.lowering.ir import Argument, Operation, Register
from pympsd_server.ptx.math import conversion, floats, functions, integers, small_floats
from pympsd_server.ptx.numpy_tier.instruction_table import TABLE, name_of
from pympsd_server.ptx.numpy_tier.writer import Constants, Writer
from pympsd_server.ptx.runtime import calls

_MAX_DIVIDED_AS_DOUBLES: Final = 32
_ARITHMETIC: Final = frozenset({"add", "sub", "mul", "div", "fma", "mad", "neg", "abs", "rcp", "sqrt", "setp"})
"""The instructions whose results do not depend on the bits of a NaN."""


def write_shared(text: MemoryText, operation: Operation) -> None:
    """Write an operation by the NumPy tier's emitter. Raises NotCompiled if it does more than compute."""
    emitter = TABLE.get(name_of(operation))
    carry = [text.code.carry] if operation.has("cc") else []
    if emitter is None or not operation.operands:
        raise text.refuse()
    evaluator = _Evaluator(text, text.shape_of(operation.operands[0], *carry), operation)
    emitter.emit(evaluator, operation)
    text.refuse_if(not evaluator.results)
    guard = operation.guard and operation.guard.register
    # Assign the guard's register last, because every other assignment reads it.
    for target, value in sorted(evaluator.results, key=lambda result: result[0] == guard):
        text.assign_expression(target, value)


class _Evaluator(Writer):
    """A writer for emitters that evaluates expressions instead of writing them; names refer to LLVM values."""

    def __init__(self, text: MemoryText, shape: Shape, operation: Operation) -> None:
        super().__init__(text.code, Constants(), {}, (), operation=operation)
        self._text, self._shape = text, shape
        self._is_arithmetic = operation.name in _ARITHMETIC
        self._values: dict[str, Any] = {}
        self.results: list[tuple[Argument, Expression]] = []

    def keep(self, expression: str) -> str:
        """Evaluate an expression; return a name for its value. Raises NotCompiled for an unknown name."""
        if expression.isidentifier():
            return expression
        try:
            value = eval(_compile(expression), _NAMES, self._values)
        except NameError as error:
            raise NotCompiled(str(error)) from error
        return self._define(value)

    def _define(self, value: Any) -> str:
        name = self.name()
        self._values[name] = value
        return name

    def run(self, statement: str) -> None:
        """Raise NotCompiled, because the instruction has an effect other than its results."""
        raise self._text.refuse(statement)

    def scalar(self, value: float | bool, dtype: DType) -> str:
        """Return a name for a constant."""
        return self._define(dtype.type(value))

    def value(self, operand: Argument, dtype: DType) -> str:
        """Return a name for an operand's bits as `dtype`."""
        number = operand.number if isinstance(operand, Register) and self._is_arithmetic else -1
        raw = self._text.raw.get(number)
        if raw is None or self._text.first or (raw.dtype, raw.shape) != (dtype, self._shape):
            raw = self._text.expression(operand, dtype, self._shape)
        return self._define(raw)

    def assign(self, target: Argument, expression: str, dtype: DType) -> None:
        """Add the value of an expression to the results."""
        value = self._values[self.keep(expression)]
        if not isinstance(value, Expression):
            value = Expression(self._text, self._shape, dtype, "").make(value)
        self.results.append((target, value.view(dtype)))


@lru_cache(maxsize=4096)
def _compile(expression: str) -> CodeType:
    return compile(expression, "<ptx>", "eval")


def _canonicalize(value: Expression) -> Expression:
    result: Expression = floats.canonicalize(value)
    return result if result is value else evolve(result, raw=value.name)


def _divide(a: Expression, b: Expression) -> Value:
    """Return a quotient; division by zero sets all bits. Vectors of up to 32 bits are divided as doubles."""
    none = b == 0
    return none.choose(a.make(-1), _quotient(a, none.choose(b.make(1), b)))


def _remainder(a: Expression, b: Expression) -> Value:
    none = b == 0
    return none.choose(a.make(-1), a - _quotient(a, none.choose(b.make(1), b)) * b)


def _quotient(a: Expression, b: Expression) -> Value:
    if a.shape.lanes and a.bits <= _MAX_DIVIDED_AS_DOUBLES:
        first, second = (v.astype(S64).astype(F64) for v in (a, b))
        return (first / second).cast("fptosi", S64).astype(a.dtype)
    if a.dtype.kind == "u":
        return a.replace(a.dtype, a.text.op("udiv", a.kind, a.name, b.name))
    minus = b == -1  # because the least number divided by -1 overflows
    quotient = a.text.op("sdiv", a.kind, a.name, minus.choose(b.make(1), b).name)
    return minus.choose(-a, a.replace(a.dtype, quotient))


def _multiply_high(a: Expression, b: Expression) -> Expression:
    """Return the upper half of a product of twice the width, up to 128 bits."""
    wide, extend = a.shape.of(f"i{2 * a.bits}"), "sext" if a.dtype.kind == "i" else "zext"
    product = a.text.op("mul", wide, *(a.text.cast(extend, x.name, a.kind, wide) for x in (a, b)))
    high = a.text.op("lshr", wide, product, a.shape.constant(f"i{2 * a.bits}", a.bits))
    return a.replace(a.dtype, a.text.cast("trunc", high, wide, a.kind))


def _leading_zeros(value: Expression) -> Value:
    name = f"llvm.ctlz.{value.shape.mangled(value.element)}"
    count = value.text.call(name, value.kind, (value.kind, value.name), ("i1", "false"))
    return value.replace(value.dtype, count).view(unsigned_of(value.dtype)).astype(U32)


def _float_to_integer(value: Expression, dtype: DType, mode: str) -> Value:
    special = 64 in (value.bits, 8 * dtype.itemsize)
    value = value.astype(F32) if value.dtype == F16 else value  # LLVM 22 converts NaN of vectors of halves to -32768
    whole: Expression = value if mode == "rzi" else conversion.to_integral(value, mode)  # fpto.i truncates anyway
    result = value.replace(dtype, "")
    name = f"llvm.fpto{'s' if dtype.kind == 'i' else 'u'}i.sat."
    name += f"{value.shape.mangled(result.element)}.{value.shape.mangled(value.element)}"
    result = value.replace(dtype, value.text.call(name, result.kind, (value.kind, whole.name)))
    # With 64 bits on either side NaN becomes the highest bit, otherwise 0.
    return np.isnan(value).choose(result.make(1 << (result.bits - 1)), result) if special else result


def _intrinsic(name: str) -> Callable[..., Expression]:
    """Return a function that writes an intrinsic whose values have the same type."""

    def call(first: Expression, *others: Any) -> Expression:
        names = [first.make(x).name for x in (first, *others)]
        return first.replace(first.dtype, first.text.intrinsic(name, first.element, first.shape, *names))

    return call


_OWN: Final[dict[str, Any]] = {
    "canonicalize": _canonicalize,
    "divide": _divide,
    "remainder": _remainder,
    "multiply_high": _multiply_high,
    "leading_zeros": _leading_zeros,
    "reverse": _intrinsic("bitreverse"),
    "float_to_integer": _float_to_integer,
    "fma16": multiply_add_halves,
    **dict.fromkeys(("fma32", "fma64"), _intrinsic("fma")),
    **{f"float_{f}": _intrinsic(f"{f}imumnum") for f in ("min", "max")},
    **{f"float_{f}_nan": _intrinsic(f"{f}imum") for f in ("min", "max")},
}
_UNWRITTEN: Final = ("round_directed_double", "small_pair", "small_pair_from_halves", "halves_from_small")
"""The functions without a text for LLVM, because they depend on elements or use tables."""


def _list_names() -> dict[str, Any]:
    """Return the names that expressions may contain.

    Functions of video instructions are left out, because they are rare and long.
    """
    names: dict[str, Any] = (
        {"np": np} | DTYPE_NAMES | {f"{n}_t": np.dtype(scalar) for n, scalar in DTYPE_NAMES.items()}
    )
    for module in (conversion, floats, functions, integers, small_floats):
        names.update({name: value for name, value in vars(module).items() if callable(value)})
    names.update({f.__name__: f for f in (calls.address_in_block, calls.align_up, calls.rank_of_address)})
    return {name: value for name, value in (names | _OWN).items() if name not in _UNWRITTEN}


_NAMES: Final = _list_names()
