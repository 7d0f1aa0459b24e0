"""Compute floating-point operations that NumPy does not round as PTX requires.

All use the same method: compute in double precision, round the exact result "to odd" (set the last bit if anything
was cut off), then round once to the result's type. See Boldo and Melquiond, "Emulation of FMA and correctly rounded
sums: proved algorithms using rounding to odd", 2008.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from pympsd_server.ptx.isa.datatypes import Array, DType, Value, signed_of
from pympsd_server.ptx.math.integers import select

_TINY = {2: np.float16(6.104e-05), 4: np.float32(2.0**-126), 8: np.float64(2.0**-1022)}
_SPLITTER = np.float64(2**27 + 1)
_HALF_WAY = np.uint32(0x80000000)
_CANONICAL_NAN: dict[int, Value] = {2: np.uint16(0x7FFF), 4: np.uint32(0x7FFFFFFF)}
"""The bits of the only NaN that a GPU computes, by size in bytes. A NaN of 8 bytes keeps the bits of an operand."""


def flush(value: Value) -> Value:
    """.ftz: replace subnormal numbers by zeros of the same sign."""
    small = np.abs(value) < _TINY[value.dtype.itemsize]
    return select(small, np.copysign(value.dtype.type(0), value), value) if small.any() else value


def canonicalize(value: Value) -> Value:
    """Replace each NaN of float16 and float32 by the canonical NaN, as arithmetic on a GPU does."""
    is_nan = np.isnan(value)
    if value.dtype.itemsize not in _CANONICAL_NAN or not is_nan.any():
        return value
    nan = _CANONICAL_NAN[value.dtype.itemsize]
    return select(is_nan, nan, value.view(nan.dtype)).view(value.dtype)


def absolute(value: Value) -> Value:
    """abs: clear the sign; NaN keeps its own."""
    return select(np.isnan(value), value, np.absolute(value))


def negative(value: Value) -> Value:
    """neg: invert the sign; NaN keeps its own."""
    return select(np.isnan(value), value, -value)


def upper_word(value: Value) -> Value:
    """Return doubles whose lower 32 bits are 0: rcp and rsqrt.approx.ftz.f64 read and write only the upper ones."""
    return (value.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def divide_approx(a: Value, b: Value) -> Value:
    """div.approx: divide, where a divisor above 2**126 has a reciprocal of 0 (PTX ISA, div)."""
    return select(np.abs(b) > 2.0**126, a * np.copysign(b.dtype.type(0), b), a / b)


def saturate(value: Value) -> Value:
    """.sat: clamp floats to 0..1; -0 and NaN become +0."""
    return select(value > 0, np.fmin(value, value.dtype.type(1)), value.dtype.type(0))


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """Return (sum, error), with exactly a + b = sum + error."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def _split(a: Value) -> tuple[Value, Value]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """Return (product, error), with exactly a * b = product + error."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _step(value: Value, away: Value) -> Value:
    """Return the next float away from zero, or the next one towards it."""
    bits = value.view(signed_of(value.dtype))
    return (bits + select(away, bits.dtype.type(1), bits.dtype.type(-1))).view(value.dtype)


def round_to_odd(total: Value, error: Value) -> Value:
    """Return `total + error`, whose nearest float is `total`, rounded to odd."""
    bits = total.view(signed_of(total.dtype))
    fix = ((bits & bits.dtype.type(1)) == 0) & ((error < 0) | (error > 0))
    return select(fix, _step(total, (error > 0) ^ (bits < 0)), total)


def add_to_odd(a: Value, b: Value) -> Value:
    """Return the sum of two doubles, rounded to odd."""
    return round_to_odd(*two_sum(a, b))


def add_to_odd_float(a: Value, b: Value) -> Value:
    """Return the sum of two doubles as float32, rounded to odd."""
    total, error = two_sum(a, b)
    near = total.astype(np.float32)
    return round_to_odd(near, (total - near.astype(np.float64)) + error)


def fma32(a: Value, b: Value, c: Value) -> Value:
    """Return a * b + c of float32, rounded once."""
    product = a.astype(np.float64) * b
    total = product + c
    if total.ndim == 0:
        return add_to_odd(product, c.astype(np.float64)).astype(np.float32)
    # `total` is rounded to 53 bits. A second rounding can differ only if it is exactly between two float32.
    low = total.view(np.uint32)[::2] << np.uint32(3)
    if (low == _HALF_WAY).any():
        return add_to_odd(product, c.astype(np.float64)).astype(np.float32)
    # Subnormal float32 have their midpoints at other bits; the processor's underflow flag reports these results.
    try:
        with np.errstate(under="raise"):
            return total.astype(np.float32)
    except FloatingPointError:
        return add_to_odd(product, c.astype(np.float64)).astype(np.float32)


def fma16(a: Value, b: Value, c: Value) -> Value:
    """Return a * b + c of float16, rounded once: rounding the sum to double first does not change the result."""
    return (a.astype(np.float64) * b + c).astype(np.float16)


def fma64(a: Value, b: Value, c: Value) -> Value:
    """Return a * b + c of float64, rounded once."""
    plain = a * b + c
    # The exact product of finite numbers is finite even if `a * b` overflows, so an infinite `c` is the result.
    plain = select(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, plain)
    high, low = two_product(a, b)
    middle, error = two_sum(c, low)
    top, between = two_sum(high, middle)
    fused = top + round_to_odd(*two_sum(error, between))
    # Take the plain sum for zeros, because it has the right sign, and for infinities and NaN, which have no error
    # terms. Error terms of the largest numbers overflow.
    simple = (fused == 0) | ~np.isfinite(fused) | ~np.isfinite(plain) | (a == 0) | (b == 0)
    result = select(simple, plain, fused)
    size = np.abs(high)
    extreme = (size > 2.0**1000) | (size < 2.0**-900) | (np.abs(a) > 2.0**990) | (np.abs(b) > 2.0**990)
    extreme = extreme | (np.abs(c) > 2.0**1000)
    awkward = extreme & np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    if awkward.any():
        result = _fma64_exact(a, b, c, result, awkward)
    return result


def _fma64_exact(a: Value, b: Value, c: Value, result: Value, where: Value) -> Value:
    """Return `result`, in which the elements at `where` are replaced by a * b + c in rational arithmetic."""
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape)
    x, y, z, selected = (np.broadcast_to(v, shape).reshape(-1) for v in (a, b, c, where))
    out = np.broadcast_to(result, shape).reshape(-1).copy()
    for at in np.flatnonzero(selected).tolist():
        exact = Fraction(float(x[at])) * Fraction(float(y[at])) + Fraction(float(z[at]))
        if exact == 0:
            continue
        try:
            out[at] = exact.numerator / exact.denominator
        except OverflowError:
            out[at] = np.inf if exact > 0 else -np.inf
        if out[at] == 0:
            out[at] = np.copysign(0.0, 1 if exact > 0 else -1)
    return out.reshape(shape) if shape else out[0]


def narrow(value: Value, dtype: DType, mode: str) -> Value:
    """Convert a double to a narrower float, rounded rn, rz, rm (down) or rp (up).

    If the double is inexact it must be rounded to odd, so that the result is rounded correctly.
    """
    nearest = value.astype(dtype)
    if mode in ("", "rn"):
        return nearest
    back = nearest.astype(np.float64)
    too_high, too_low = back > value, back < value
    if mode == "rz":
        wrong = select(value > 0, too_high, too_low)
        return select(wrong, _step(nearest, np.bool_(False)), nearest)
    is_negative = np.signbit(nearest)
    wrong, away = (too_high, is_negative) if mode == "rm" else (too_low, ~is_negative)
    return select(wrong, _step(nearest, away), nearest)


def round_directed(operation: str, mode: str, ftz: bool, a: Value, b: Value, c: Value | None = None) -> Value:
    """Return an f32 add, sub, mul, div or fma rounded by `mode`.

    `ftz` flushes results that are tiny after rounding, as if floats had any exponent (recorded on an H200).
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    if operation == "fma":
        assert c is not None
        total = add_to_odd(x * y, c.astype(np.float64))
    elif operation in ("add", "sub"):
        total = add_to_odd(x, -y if operation == "sub" else y)
    else:
        # A product is exact. A quotient is never so close to an f32 that its double rounds to that f32.
        total = x * y if operation == "mul" else x / y
    result = narrow(total, np.dtype("f4"), mode)
    if ftz:
        is_tiny = np.abs(narrow(total * 2.0**64, np.dtype("f4"), mode)) < 2.0 ** (64 - 126)
        result = select(is_tiny, np.copysign(np.float32(0), result), result)
    if mode == "rm" and operation in ("add", "sub", "fma"):
        # When rounding down, a sum that is exactly zero is -0, unless both terms are +0.
        first, second = (x, -y if operation == "sub" else y) if c is None else (x * y, c.astype(np.float64))
        plus = (first.view(np.int64) | second.view(np.int64)) == 0
        result = select((total == 0) & ~plus, np.float32(-0.0), result)
    return result


def rectify(value: Value) -> Value:
    """.relu: replace negative numbers and -0 by +0."""
    return select(value <= 0, value.dtype.type(0), value)


def _replace_nan(result: Value, a: Value, b: Value) -> Value:
    """Return a minimum or maximum; if one operand is NaN, the other one. NumPy returns NaN for a signaling NaN."""
    is_nan = np.isnan(result)
    return select(is_nan, select(np.isnan(a), b, a), result) if is_nan.any() else result


def float_min(a: Value, b: Value) -> Value:
    """min: return the smaller operand; if one is NaN, the other one. -0 is less than +0."""
    result = np.fmin(a, b)
    zeros = (a == 0) & (b == 0)
    result = select(zeros, select(np.signbit(a), a, b), result) if zeros.any() else result
    return _replace_nan(result, a, b)


def float_max(a: Value, b: Value) -> Value:
    """max: return the greater operand; if one is NaN, the other one. +0 is greater than -0."""
    result = np.fmax(a, b)
    zeros = (a == 0) & (b == 0)
    result = select(zeros, select(np.signbit(a), b, a), result) if zeros.any() else result
    return _replace_nan(result, a, b)


def float_min_nan(a: Value, b: Value) -> Value:
    """min.NaN: return the smaller operand, or NaN if either operand is NaN."""
    return select(np.isnan(a) | np.isnan(b), a + b, float_min(a, b))


def float_max_nan(a: Value, b: Value) -> Value:
    """max.NaN: return the greater operand, or NaN if either operand is NaN."""
    return select(np.isnan(a) | np.isnan(b), a + b, float_max(a, b))


def with_xor_of_signs(function: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    """min/max.xorsign.abs: apply `function` to the absolute values, and give the result the product's sign."""
    size = function(np.abs(a), np.abs(b))
    return select(np.signbit(a) ^ np.signbit(b), -size, size)


def is_unordered(a: Value, b: Value) -> Value:
    """Return, for each element, whether one of two values is NaN."""
    return np.isnan(a) | np.isnan(b)


def is_subnormal(x: Value) -> Value:
    """Return, for each element, whether it is a subnormal number."""
    return (x != 0) & (np.abs(x) < _TINY[x.dtype.itemsize])


def extreme(total: Value, *operands: Value) -> Value:
    """Return, for each element, whether error terms may over- or underflow.

    They may if all operands are finite, and an operand or the total is very large or very small.
    """
    extreme = np.bool_(False)
    finite = np.bool_(True)
    for value in (total, *operands):
        size = np.abs(value)
        extreme = extreme | (size > 2.0**450) | ((size < 2.0**-450) & (size > 0))
    for value in operands:
        finite = finite & np.isfinite(value)
    return extreme & finite


def exact_errors(operation: str, total: Value, operands: tuple[Value, ...], error: Value, where: Value) -> Value:
    """Return `error`; at `where` its elements are replaced by the sign of (exact - total).

    The sign is computed in rational arithmetic.
    """
    shape = np.broadcast_shapes(total.shape, *(v.shape for v in operands))
    flat: list[Array] = [np.broadcast_to(v, shape).reshape(-1) for v in (total, error, where, *operands)]
    out = flat[1].copy()
    for at in np.flatnonzero(flat[2]).tolist():
        out[at] = _error_sign(operation, float(flat[0][at]), *(float(v[at]) for v in flat[3:]))
    return out.reshape(shape) if shape else out[0]


def _error_sign(operation: str, total: float, *operands: float) -> float:
    if operation in ("div", "rcp"):
        return _quotient_error(total, *(operands if operation == "div" else (1.0, *operands)))
    if total in (np.inf, -np.inf):
        return -1.0 if total > 0 else 1.0
    a, *remaining = (Fraction(v) for v in operands)
    if operation == "sqrt":
        return _sign(a - Fraction(total) ** 2) if a > 0 else 0.0
    b = remaining[0]
    exact = {"add": a + b, "sub": a - b}.get(operation, a * b)
    if operation == "fma":
        exact += remaining[1]
    return _sign(exact - Fraction(total))


def _quotient_error(total: float, a: float, b: float) -> float:
    if b == 0:
        return 0.0
    if total in (np.inf, -np.inf):
        return -1.0 if total > 0 else 1.0
    return _sign(Fraction(a) / Fraction(b) - Fraction(total))


def _sign(value: Fraction) -> float:
    return float((value > 0) - (value < 0))


def round_directed_double(operation: str, mode: str, *operands: Value) -> Value:
    """Return an f64 add, sub, mul, div, fma, sqrt or rcp rounded by `mode`: the nearest double or one next to it."""
    total, error = _nearest_and_error(operation, *operands)
    awkward = extreme(total, *operands)
    if awkward.any():
        error = exact_errors(operation, total, operands, error, awkward)
    if mode == "rz":
        wrong, towards = select(total > 0, error < 0, error > 0), np.float64(0)
    elif mode == "rm":
        wrong, towards = error < 0, np.float64(-np.inf)
    else:
        wrong, towards = error > 0, np.float64(np.inf)
    result = select(wrong & (np.isfinite(total) | awkward), np.nextafter(total, towards), total)
    if mode == "rm" and operation in ("add", "sub", "fma"):
        # When rounding down, a sum of opposite terms that is exactly zero is -0.
        second = -operands[1] if operation == "sub" else operands[1]
        first, second = (operands[0], second) if operation != "fma" else (operands[0] * second, operands[2])
        both = (first == 0) & (second == 0) & ~np.signbit(first) & ~np.signbit(second)
        result = select((total == 0) & (error == 0) & ~both, np.float64(-0.0), result)
    return result


def _nearest_and_error(
    operation: str, a: Value, b: Value | None = None, c: Value | None = None
) -> tuple[Value, Value]:
    """Return the result rounded to nearest, and a number with the sign of (exact - rounded)."""
    if b is None:
        return _root_and_error(a) if operation == "sqrt" else _quotient_and_error(np.float64(1), a)
    if operation == "mul":
        return two_product(a, b)
    if operation == "div":
        return _quotient_and_error(a, b)
    if c is None:
        return two_sum(a, negative(b) if operation == "sub" else b)
    total = fma64(a, b, c)
    product, low = two_product(a, b)
    near, error = two_sum(product, c)
    error, tail = two_sum(error, low)
    error, end = two_sum(near - total, error)
    return total, error + (end + tail)


def _root_and_error(a: Value) -> tuple[Value, Value]:
    root = np.sqrt(a)
    return root, fma64(-root, root, a)


def _quotient_and_error(a: Value, b: Value) -> tuple[Value, Value]:
    quotient = a / b
    return quotient, fma64(-quotient, b, a) * np.sign(b)
