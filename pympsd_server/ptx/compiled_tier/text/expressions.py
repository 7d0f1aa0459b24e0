"""Give LLVM values the operators and functions of NumPy's arrays, so that one text serves both tiers.

The NumPy tier's emitters write Python expressions, such as `multiply_high(v1, v2) + v3`. If v1 to v3 are arrays, the
expressions compute; with the values of this module, they write instructions (shared_forms.py). NumPy calls an
operand's `__array_ufunc__` for its functions and operators, also for those in the functions of
`pympsd_server.ptx.math`:

    v1 + np.uint32(7)       %v3 = add <32 x i32> %v1, splat (i32 7)
    np.minimum(v1, v2)      %v4 = call <32 x i32> @llvm.umin.v32i32(<32 x i32> %v1, ...)

These functions must not depend on elements (`if a[0] == 0`). Only `any` has a result: True, because it selects
between a short way and a way that is always right. A function of NumPy that is not in the tables here raises
NotCompiled, so that the instruction escapes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.lib.mixins import NDArrayOperatorsMixin

from pympsd_server.ptx.compiled_tier.ir_text import NotCompiled, Shape, Text
from pympsd_server.ptx.isa.datatypes import BOOL, F16, F32, F64, DType, signed_of
from pympsd_server.ptx.math.floats import round_to_odd, two_sum

_ELEMENTS: Final = {BOOL: "i1", F16: "half", F32: "float", F64: "double"}
_ELEMENTS.update({np.dtype(f"{kind}{size}"): f"i{8 * size}" for kind in "ui" for size in (1, 2, 4, 8)})
_OPERATORS: Final = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "div", np.bitwise_and: "and",
    np.bitwise_or: "or", np.bitwise_xor: "xor", np.left_shift: "shl",
}  # fmt: skip
_RELATIONS: Final = {
    np.equal: "eq", np.not_equal: "ne", np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge",
}  # fmt: skip
_OF_FLOATS: Final = {
    np.absolute: "fabs", np.sqrt: "sqrt", np.rint: "roundeven", np.trunc: "trunc", np.floor: "floor", np.ceil: "ceil",
    np.copysign: "copysign", np.fmin: "minimumnum", np.fmax: "maximumnum",
}  # fmt: skip
_OF_INTEGERS: Final = {np.minimum: "min", np.maximum: "max", np.bitwise_count: "ctpop"}
_COMPOSED: Final[dict[np.ufunc, Callable[[Any], Any]]] = {
    np.isnan: lambda x: x != x,
    np.isinf: lambda x: abs(x) == math.inf,
    np.isfinite: lambda x: abs(x) < math.inf,
    np.signbit: lambda x: x.view(signed_of(x.dtype)) < 0,
    np.invert: lambda x: x ^ x.make(-1),
    np.absolute: lambda x: np.maximum(x, -x) if x.dtype.kind == "i" else x,
}


@frozen(eq=False)
class Expression(NDArrayOperatorsMixin):
    """A value of a kernel with a shape: floats, integers or truths (i1). `name` is its name in LLVM's text.

    `raw` is the name of the value before its NaN were made canonical, if they were.
    """

    text: Text
    shape: Shape
    dtype: DType
    name: str
    raw: str = ""
    ndim = 1

    @property
    def bits(self) -> int:
        """The number of bits of an element."""
        return 1 if self.dtype.kind == "b" else 8 * self.dtype.itemsize

    @property
    def element(self) -> str:
        """The element's type in LLVM."""
        return _ELEMENTS[self.dtype]

    @property
    def kind(self) -> str:
        """The value's type in LLVM."""
        return self.shape.of(_ELEMENTS[self.dtype])

    def replace(self, dtype: DType, name: str) -> Expression:
        """Return an expression for another value with the same shape."""
        return Expression(self.text, self.shape, dtype, name)

    def make(self, value: Any, dtype: DType | None = None) -> Expression:
        """Convert a number or another expression to a dtype, by default this expression's."""
        dtype = dtype or self.dtype
        if isinstance(value, Expression):
            return value.astype(dtype)
        if dtype.kind == "f":  # LLVM writes constants of the type float as doubles
            code, prefix = ("e", "0xH") if dtype == F16 else ("d", "0x")
            constant = prefix + struct.pack(f">{code}", dtype.type(value)).hex().upper()
            name = f"splat ({_ELEMENTS[dtype]} {constant})" if self.shape.lanes else constant
        else:
            mask = 1 if dtype == BOOL else (1 << 8 * dtype.itemsize) - 1
            name = self.shape.constant(_ELEMENTS[dtype], int(value) & mask)
        return self.replace(dtype, name)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any) -> Any:
        """Write a function of NumPy, or an operator, with at least one expression among its operands.

        Raises NotCompiled for other functions than those in the tables.
        """
        types: list[Any] = [x.dtype if hasattr(x, "dtype") else type(x) for x in inputs]
        *dtypes, result = _resolve(function, *types)
        x = [self.make(value, dtype) for value, dtype in zip(inputs, dtypes, strict=True)]
        first, names, is_float = x[0], [value.name for value in x], dtypes[0].kind == "f"
        sign = "s" if dtypes[0].kind == "i" else "u"
        if function in _RELATIONS:
            order = "u" if function is np.not_equal else "o"
            prefix = f"fcmp {order}" if is_float else "icmp " + sign * (function not in (np.equal, np.not_equal))
            return self.replace(BOOL, self.text.op(prefix + _RELATIONS[function], first.kind, *names))
        if function in _OPERATORS:
            name = self.text.op("f" * is_float + _OPERATORS[function], first.kind, *names)
        elif function is np.right_shift:
            name = self.text.op("ashr" if sign == "s" else "lshr", first.kind, *names)
        elif function is np.negative:
            name = self.text.value(f"fneg {first.kind} {names[0]}") if is_float else (first.make(0) - first).name
        elif is_float and function in _OF_FLOATS:
            name = self.text.intrinsic(_OF_FLOATS[function], first.element, self.shape, *names)
        elif not is_float and function in _OF_INTEGERS:
            prefix = "" if function is np.bitwise_count else sign
            name = self.text.intrinsic(prefix + _OF_INTEGERS[function], first.element, self.shape, *names)
        elif function in _COMPOSED:
            return _COMPOSED[function](first)
        else:
            raise NotCompiled(f"{function.__name__} has no text of LLVM")
        return self.replace(dtypes[0], name).astype(result)

    def __array_function__(self, function: Callable[..., Any], types: Any, inputs: Any, options: Any) -> Any:
        """Write `np.where` as a selection. Raises NotCompiled for other functions."""
        if function is not np.where:
            raise NotCompiled(f"{function.__name__} has no text of LLVM")
        condition, yes, no = inputs
        return condition.choose(yes, no)

    def __getitem__(self, index: tuple[()]) -> Expression:
        """Return the expression itself, as an array without dimensions does for the index ()."""
        return self

    def any(self) -> bool:
        """Return True, because some element may be true."""
        return True

    def choose(self, yes: Any, no: Any) -> Expression:
        """Return `yes` where this expression is true, else `no`."""
        dtype = np.result_type(*(x.dtype if isinstance(x, Expression) else x for x in (yes, no)))
        first, second = self.make(yes, dtype), self.make(no, dtype)
        return self.replace(dtype, self.text.choose(self.shape, self.name, first.kind, first.name, second.name))

    def cast(self, name: str, dtype: Any) -> Expression:
        """Return the value converted to a dtype by an instruction such as fptrunc."""
        dtype = np.dtype(dtype)
        return self.replace(dtype, self.text.cast(name, self.name, self.kind, self.shape.of(_ELEMENTS[dtype])))

    def view(self, dtype: Any) -> Expression:
        """Return the value's bits as another type of the same width."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        return self.cast("bitcast", dtype) if "f" in (self.dtype.kind, dtype.kind) else self.replace(dtype, self.name)

    def astype(self, dtype: Any) -> Expression:
        """Return the value converted to a dtype as by NumPy; floats are rounded to nearest."""
        dtype = np.dtype(dtype)
        source, target, size = self.dtype.kind, dtype.kind, dtype.itemsize - self.dtype.itemsize
        if dtype == self.dtype:
            return self
        if target == "b":
            truth: Expression = self != 0
            return truth
        if source == target == "f":
            if (self.dtype, dtype) == (F64, F16):
                return round_to_half(self)
            return self.cast("fptrunc" if size < 0 else "fpext", dtype)
        if dtype == F16:  # rounds once: all integers up to 2 ** 24 are floats, and larger ones become infinite halves
            return self.astype(F32).cast("fptrunc", dtype)
        if target == "f":
            return self.cast("sitofp" if source == "i" else "uitofp", dtype)
        if source == "f":
            return self.cast("fptosi" if target == "i" else "fptoui", dtype)
        if source != "b" and size <= 0:
            return self.cast("trunc", dtype) if size else self.view(dtype)
        return self.cast("sext" if source == "i" else "zext", dtype)


@lru_cache(maxsize=1024)
def _resolve(function: np.ufunc, *types: Any) -> tuple[DType, ...]:
    """Return the dtypes to which a function converts its operands, followed by the dtype of its result."""
    return function.resolve_dtypes((*types, *[None] * function.nout))


def multiply_add_halves(a: Expression, b: Expression, c: Expression) -> Expression:
    """Return a * b + c of halves, rounded once.

    The product is exact in single precision. The sum is rounded to odd, so it is on the right side of the midpoint of
    two halves when it is rounded again.
    """
    return _narrow_to_half(*two_sum(a.astype(F32) * b.astype(F32), c.astype(F32)))


def round_to_half(value: Expression) -> Expression:
    """Round a double to a half, in one rounding."""
    near = value.astype(F32)
    return _narrow_to_half(near, value - near.astype(F64))


def _narrow_to_half(near: Expression, error: Expression) -> Expression:
    """Round the exact sum of a float and its error to a half."""
    odd: Expression = round_to_odd(near, error)
    return odd.cast("fptrunc", F16)
