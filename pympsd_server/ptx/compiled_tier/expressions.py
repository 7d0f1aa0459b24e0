"""LLVM values with Python's operators, for code that both tiers share or that has many steps.

The functions of math/functions.py take these values, so ex2, lg2, sin, cos and tanh have the same bits in both tiers.
The roundings .rz, .rm and .rp of single precision use the NumPy tier's method: the exact sum, as two doubles, shows
whether the nearest result is on the wrong side.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from attrs import frozen

from pympsd_server.ptx.compiled_tier.ir_text import Shape, Text
from pympsd_server.ptx.isa.datatypes import F64, S64, DType

_INTEGER_NAMES: Final = {"+": "add", "-": "sub", "&": "and", "|": "or", "^": "xor", "<<": "shl", ">>": "ashr"}
_FLOAT_NAMES: Final = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_WIDE: Final = {F64: "double", S64: "i64"}
_SMALLEST_NORMAL: Final = 2.0**-126
_SIGN: Final = -(1 << 31)


@frozen(eq=False, order=False)
class Expression:
    """A value of a kernel with a shape; its `element` is LLVM's name of a type, such as double, i64 or i1."""

    text: Text
    shape: Shape
    element: str
    name: str

    def make(self, value: Any, element: str) -> Expression:
        """Return an expression unchanged, and a number as a constant of this element type."""
        if isinstance(value, Expression):
            return value
        if element in ("double", "float"):  # LLVM writes constants of both types as doubles
            constant = f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
            constant = f"splat ({element} {constant})" if self.shape.lanes else constant
        else:
            constant = self.shape.constant(element, int(value))
        return Expression(self.text, self.shape, element, constant)

    def _act(self, sign: str, left: Any, right: Any) -> Expression:
        names = _FLOAT_NAMES if self.element in ("double", "float") else _INTEGER_NAMES
        operands = [self.make(v, self.element).name for v in (left, right)]
        result = self.text.op(names[sign], self.shape.of(self.element), *operands)
        return Expression(self.text, self.shape, self.element, result)

    def _compare(self, relation: str, other: Any) -> Expression:
        if self.element in ("double", "float"):
            name = f"fcmp o{relation}"
        else:
            name = f"icmp {relation}" if relation == "eq" else f"icmp s{relation}"
        operands = self.name, self.make(other, self.element).name
        return Expression(self.text, self.shape, "i1", self.text.op(name, self.shape.of(self.element), *operands))

    def __add__(self, other: Any) -> Expression:
        return self._act("+", self, other)

    def __sub__(self, other: Any) -> Expression:
        return self._act("-", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return self._act("-", other, self)

    def __mul__(self, other: Any) -> Expression:
        return self._act("*", self, other)

    def __truediv__(self, other: Any) -> Expression:
        return self._act("/", self, other)

    def __and__(self, other: Any) -> Expression:
        return self._act("&", self, other)

    def __or__(self, other: Any) -> Expression:
        return self._act("|", self, other)

    def __xor__(self, other: Any) -> Expression:
        return self._act("^", self, other)

    def __lshift__(self, other: Any) -> Expression:
        return self._act("<<", self, other)

    def __rshift__(self, other: Any) -> Expression:
        return self._act(">>", self, other)

    def __lt__(self, other: Any) -> Expression:
        return self._compare("lt", other)

    def __gt__(self, other: Any) -> Expression:
        return self._compare("gt", other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._compare("eq", other)

    def cast(self, name: str, element: str) -> Expression:
        """Return the value converted to an element type by an instruction such as fpext or trunc."""
        source, target = self.shape.of(self.element), self.shape.of(element)
        return Expression(self.text, self.shape, element, self.text.cast(name, self.name, source, target))

    def view(self, dtype: DType) -> Expression:
        """Return the value's bits as a double or as a 64-bit integer."""
        return self.cast("bitcast", _WIDE[dtype])

    def astype(self, dtype: DType) -> Expression:
        """Return the integer converted to a double."""
        return self.cast("sitofp", _WIDE[dtype])

    def choose(self, yes: Any, no: Any, element: str = "double") -> Expression:
        """Return `yes` where this value is true, else `no`."""
        first, second = self.make(yes, element), self.make(no, element)
        name = self.text.choose(self.shape, self.name, self.shape.of(element), first.name, second.name)
        return Expression(self.text, self.shape, element, name)


def round_directed(name: str, mode: str, values: list[Expression], *, flushes: bool) -> Expression:
    """Return a sum, difference, product or fma of floats, rounded rz, rm or rp; `flushes` is .ftz."""
    x = [value.cast("fpext", "double") for value in values]
    terms = [x[0], x[1] * -1.0 if name == "sub" else x[1]] if name in ("add", "sub") else [x[0] * x[1], *x[2:]]
    high, low = _two_sum(terms) if len(terms) == 2 else (terms[0], terms[0] * 0.0)
    if flushes:  # flush tiny results before rounding them
        tiny = (high < _SMALLEST_NORMAL) & (high > -_SMALLEST_NORMAL)
        tiny = tiny | ((high == _SMALLEST_NORMAL) & (low < 0.0)) | ((high == -_SMALLEST_NORMAL) & (low > 0.0))
        sign = high.cast("bitcast", "i64") & -(1 << 63)
        high, low = tiny.choose(sign.cast("bitcast", "double"), high), tiny.choose(0.0, low)
    near = high.cast("fptrunc", "float")
    back, bits = near.cast("fpext", "double"), near.cast("bitcast", "i32")
    too_high = (back > high) | ((back == high) & (low < 0.0))
    too_low = (high > back) | ((back == high) & (low > 0.0))
    is_zero, is_negative = back == 0.0, bits < 0
    below = is_zero.choose(_SIGN + 1, is_negative.choose(bits + 1, bits - 1, "i32"), "i32")
    above = is_zero.choose(1, is_negative.choose(bits - 1, bits + 1, "i32"), "i32")
    if mode == "rz":
        result = (too_high & (high > 0.0)).choose(below, bits, "i32")
        result = (too_low & (high < 0.0)).choose(above, result, "i32")
    elif mode == "rp":
        result = too_low.choose(above, bits, "i32")
    else:
        result = too_high.choose(below, bits, "i32")
        if len(terms) == 2:  # a sum that is exactly zero is -0, unless both terms are +0
            either = terms[0].cast("bitcast", "i64") | terms[1].cast("bitcast", "i64")
            exact = (high == 0.0) & (low == 0.0) & ((either == 0) ^ -1)
            result = exact.choose(_SIGN, result, "i32")
    return result.cast("bitcast", "float")


def multiply_add_halves(values: list[Expression]) -> Expression:
    """Return a * b + c of halves, rounded once.

    The product is exact in single precision. The sum is rounded to odd, so it is on the right side of the midpoint of
    two halves when it is rounded again.
    """
    a, b, c = (value.cast("fpext", "float") for value in values)
    return _narrow_to_half(*_two_sum([a * b, c]))


def round_to_half(value: Expression) -> Expression:
    """Round a double to a half, in one rounding."""
    near = value.cast("fptrunc", "float")
    return _narrow_to_half(near, value - near.cast("fpext", "double"))


def _narrow_to_half(near: Expression, error: Expression) -> Expression:
    """Round the exact sum of a float and its error to a half."""
    return _round_to_odd(near, error).cast("fptrunc", "half")


def _round_to_odd(near: Expression, error: Expression) -> Expression:
    """Round the exact sum of a float and its error to odd."""
    bits = near.cast("bitcast", "i32")
    away = (error > 0.0) ^ (bits < 0)  # whether the exact sum is farther from zero
    odd = (((error > 0.0) | (error < 0.0)) & ((bits & 1) == 0)).choose(
        away.choose(bits + 1, bits - 1, "i32"), bits, "i32"
    )
    return odd.cast("bitcast", "float")


def bfloat_from_sum(terms: list[Expression]) -> Expression:
    """Round a double, or the exact sum of two, to the bits of a bfloat16, in one rounding."""
    high, low = _two_sum(terms) if len(terms) == 2 else (terms[0], terms[0].make(0.0, "double"))
    near = high.cast("fptrunc", "float")
    return bfloat_from_float(_round_to_odd(near, (high - near.cast("fpext", "double")) + low))


def bfloat_from_float(value: Expression) -> Expression:
    """Round a float to the bits of a bfloat16, to nearest even; NaN becomes 0x7fff."""
    bits = value.cast("bitcast", "i32")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    rounded = ((bits & 0x7FFFFFFF) == 0x7F800000).choose(bits, rounded, "i32")
    return ((value == value).choose(rounded, 0x7FFF0000, "i32") >> 16).cast("trunc", "i16")


def tf32_from_float(value: Expression, mode: str) -> Expression:
    """Round a float to the bits of a tf32. `mode` is rna, rn or rz; NaN becomes 0x7fffffff."""
    bits = value.cast("bitcast", "i32")
    rounded = {"rz": bits, "rna": bits + 0x1000, "rn": bits + 0x0FFF + ((bits >> 13) & 1)}[mode] & ~0x1FFF
    rounded = ((bits & 0x7FFFFFFF) == 0x7F800000).choose(bits, rounded, "i32")
    return (value == value).choose(rounded, 0x7FFFFFFF, "i32")


def _two_sum(terms: list[Expression]) -> tuple[Expression, Expression]:
    """Return (sum, error) of two doubles or floats; together these are the exact sum."""
    a, b = terms
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)
