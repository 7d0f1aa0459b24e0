"""Compute ex2, lg2, sin, cos and tanh of single precision, with the same bits in every tier and on every machine.

NumPy's functions differ between processors: it chooses loops by the processor's vector units, and calls the C library
if it has no loop. A kernel's results would depend on the machine, and the compiled tier would have to call NumPy. So
the functions are defined here, by a fixed sequence of operations that IEEE 754 defines to the last bit: additions,
subtractions, multiplications and divisions of doubles, none of them fused, comparisons, and operations on the bits of
doubles as integers. A compiler must keep their order, and must not contract a product and a sum.

    x (f32) ──▶ double ──▶ reduced to a small range ──▶ polynomial ──▶ put together ──▶ f32, rounded to nearest

Before a result is rounded to single precision, its relative error is below 2**-31 (for sin and cos: its absolute
error). A GPU's results are less exact. The PTX ISA allows errors of 2**-22 for ex2 and lg2, 2**-20.5 for sin and cos
within 2 pi, and 2**-11 for tanh.

Each function uses only operators, `view` and `astype` of its values, and a function that selects by a condition. So
both tiers use the same text: with NumPy's arrays it computes, with the compiler's values it emits instructions.

- *Rounding to an integer.* Adding _MAGIC (1.5 * 2**52) to a double rounds it to an integer, which is then in the low
  bits of the sum. Subtracting _MAGIC gives the integer as a double. The default rounding is assumed.
- *ex2*: n is the nearest integer, f = x - n; 2**f = 1 + f * P(f), times 2**n, which is made from bits. x is clamped
  to -151 .. 151, because beyond that the result in single precision is 0 or infinity.
- *lg2*: x = 2**e * m with m from sqrt(1/2) to sqrt(2); s = (m - 1) / (m + 1), log2(m) = s * P(s * s).
- *sin, cos*: n * pi/2 is the multiple of pi/2 that is nearest to x. Subtracting it leaves r; pi/2 is in three parts
  whose products with n are exact. The result is r * (1 + z * P(z)) or 1 + z * P(z) with z = r * r, by the quadrant.
  From 2**31 on, a GPU treats every argument as a multiple of 2 pi, because it divides in single precision. So do
  these functions.
- *tanh*: (e - 1) / (e + 1) with e = 2**(2 x / ln 2); below 2**-12 x * (1 - x**2 / 3).

Every NaN becomes 0x7fffffff, as on a GPU. The polynomials interpolate at Chebyshev nodes.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from pympsd_server.ptx.isa.datatypes import F64, S64, Value

_MAGIC: Final = 6755399441055744.0
_EXPONENT_BITS: Final = 52
_EXPONENT_BIAS: Final = 1023
_MAX_POWER: Final = 151.0
_EX2: Final = (
    0.6931471805599453, 0.24022650922288757, 0.055504108839096185, 0.00961805667852464,
    0.001333350238616282, 0.00015461444698568378, 1.529732376068585e-05,
)  # fmt: skip
_LG2: Final = (
    2.8853900817899927, 0.9617966734437803, 0.5770835675908005, 0.4116736655543738, 0.3407139976787235,
)  # fmt: skip
_SIN: Final = (-0.16666666663854385, 0.008333331874358352, -0.0001984008654531298, 2.724990115829898e-06)
_COS: Final = (
    -0.4999999999996388, 0.041666666637386655, -0.0013888885090483243,
    2.4799861913022753e-05, -2.7237114750134194e-07,
)  # fmt: skip
_SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
_FRACTION: Final = (1 << _EXPONENT_BITS) - 1
_TWO_OVER_PI: Final = 0.6366197723675814
_HALF_PI: Final = (1.570796012878418, 3.139164164167596e-07, 6.223372171896613e-14)
_MAX_ANGLE: Final = 2147483648.0
_TWO_OVER_LN2: Final = 2.8853900817779268
_TANH_SMALL: Final = 2.0**-12
_THIRD: Final = 1 / 3
_NAN: Final = np.uint32(0x7FFFFFFF).view(np.float32)


Select = Callable[[Any, Any, Any], Any]
"""A function of (condition, yes, no): returns `yes` where the condition is true, else `no`; both may be constants."""


def power_of_two(select: Select, x: Any) -> Any:
    """Return 2**x of a double, exact for integers; x is first clamped to -151 .. 151."""
    x = select(x < -_MAX_POWER, -_MAX_POWER, x)
    x = select(x > _MAX_POWER, _MAX_POWER, x)
    shifted = x + _MAGIC
    fraction = x - (shifted - _MAGIC)
    scale = (shifted.view(S64) + _EXPONENT_BIAS << _EXPONENT_BITS).view(F64)
    return (fraction * _polynomial(_EX2, fraction) + 1.0) * scale


def logarithm(select: Select, x: Any) -> Any:
    """Return log2(x) of a double that single precision can represent; -inf for zero, NaN for negative numbers."""
    above = x.view(S64) - _SQRT_HALF_BITS
    exponent = (above >> _EXPONENT_BITS).astype(F64)
    mantissa = ((above & _FRACTION) + _SQRT_HALF_BITS).view(F64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    result = s * _polynomial(_LG2, s * s) + exponent
    result = select(x < math.inf, result, x)
    return select(x > 0.0, result, select(x == 0.0, -math.inf, math.nan))


def sine(select: Select, x: Any, quarters: int = 0) -> Any:
    """Return sin(x + quarters * pi/2) of a double; NaN for infinities."""
    x = select((x < _MAX_ANGLE) & (x > -_MAX_ANGLE), x, x * 0.0)
    shifted = x * _TWO_OVER_PI + _MAGIC
    multiple = shifted - _MAGIC
    quadrant = shifted.view(S64) + quarters
    for part in _HALF_PI:
        x = x - multiple * part
    z = x * x
    in_sine = (z * _polynomial(_SIN, z) + 1.0) * x
    in_cosine = z * _polynomial(_COS, z) + 1.0
    size = select((quadrant & 1) == 0, in_sine, in_cosine)
    return (size.view(S64) ^ ((quadrant & 2) << 62)).view(F64)


def hyperbolic_tangent(select: Select, x: Any) -> Any:
    """Return tanh(x) of a double."""
    e = power_of_two(select, x * _TWO_OVER_LN2)
    small = (1.0 - x * x * _THIRD) * x
    return select((x < _TANH_SMALL) & (x > -_TANH_SMALL), small, (e - 1.0) / (e + 1.0))


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    """Return the value of a polynomial by Horner's scheme; the constant coefficient is first."""
    total = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total = (total + coefficient) * x
    return total + coefficients[0]


def _select(condition: Value, yes: Value, no: Value) -> Value:
    selected: Any = np.where(condition, yes, no)
    return selected[()]


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "ex2": power_of_two,
    "lg2": logarithm,
    "sin": sine,
    "cos": partial(sine, quarters=1),
    "tanh": hyperbolic_tangent,
}
"""The function for each instruction."""


def approximate(name: str, x: Value) -> Value:
    """Return ex2, lg2, sin, cos or tanh of float32."""
    return _narrow(FUNCTIONS[name](_select, x.astype(np.float64)))


def _narrow(value: Value) -> Value:
    """Convert doubles to float32, rounded to nearest, and every NaN to a GPU's."""
    narrow: Any = np.where(value == value, value.astype(np.float32), _NAN)
    return narrow[()]
