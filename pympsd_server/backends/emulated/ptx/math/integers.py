"""Integer arithmetic of PTX that NumPy has no single operation for. Values are scalars or 1-d arrays."""

from __future__ import annotations

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import DType, Value, unsigned


def select(condition: Value, yes: Value, no: Value) -> Value:
    """Return per thread `yes` or `no`; a uniform condition keeps uniform values uniform."""
    if condition.ndim == 0:
        return yes if condition else no
    return np.where(condition, yes, no)


def divide(a: Value, b: Value) -> Value:
    """Return the quotient truncated towards zero. By zero, all bits are one, as on the hardware."""
    dtype = a.dtype
    zero = b == 0
    if dtype.kind == "u":
        quotient = a // b
    elif dtype.itemsize <= 4:
        # The quotient of 32-bit integers in double precision never rounds up to the next integer.
        quotient = (a.astype(np.float64) / b).astype(np.int64).astype(dtype)
    else:
        quotient = (a - np.fmod(a, b)) // b
    if not zero.any():
        return quotient
    return select(zero, (~dtype.type(0)).astype(dtype), quotient)


def remainder(a: Value, b: Value) -> Value:
    """Return the remainder with the sign of `a`. By zero, all bits are one, as on the hardware."""
    zero = b == 0
    result = np.fmod(a, b)
    if not zero.any():
        return result
    return select(zero, (~a.dtype.type(0)).astype(a.dtype), result)


def multiply_high(a: Value, b: Value) -> Value:
    """Return the upper half of the product."""
    dtype = a.dtype
    if dtype.itemsize < 8:
        wide = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(8 * dtype.itemsize)).astype(dtype)
    high = _multiply_high_unsigned(a.view(np.uint64), b.view(np.uint64))
    if dtype.kind == "i":
        # Two's complement: subtract the other operand for each negative one.
        high = high - select(a < 0, b.view(np.uint64), np.uint64(0))
        high = high - select(b < 0, a.view(np.uint64), np.uint64(0))
    return high.view(dtype)


def _multiply_high_unsigned(a: Value, b: Value) -> Value:
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    carry = a_low * b_low >> half
    middle = a_high * b_low + carry
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (other >> half)


def multiply_24(a: Value, b: Value, high: bool) -> Value:
    """mul24: the product of the low 24 bits; .lo its low 32 bits, .hi its bits 16 to 47."""
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    up = a.dtype.type(8)
    product = ((a << up) >> up).astype(wide) * ((b << up) >> up).astype(wide)
    if high:
        product = product >> wide(16)
    return product.astype(unsigned(a.dtype)).view(a.dtype)


def add_saturating(a: Value, b: Value, negate: bool = False) -> Value:
    """add.sat.s32 and, with `negate`, sub.sat.s32."""
    wide = a.astype(np.int64) - b if negate else a.astype(np.int64) + b
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)


def absolute_difference(a: Value, b: Value) -> Value:
    return select(a < b, b - a, a - b)


def dot(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool) -> Value:
    """dp4a: the sum of four byte products and c, wrapping."""
    result = c.view(np.uint32) if c.dtype != np.uint32 else c
    for byte in range(4):
        result = result + _byte(a, byte, a_signed) * _byte(b, byte, b_signed)
    return result


def dot_pairs(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool, high: bool) -> Value:
    """dp2a: two 16-bit by 8-bit products (bytes 2 and 3 of b with .hi) and c."""
    result = c.view(np.uint32) if c.dtype != np.uint32 else c
    for half in range(2):
        x = _part(a, 16 * half, 16, a_signed)
        result = result + x * _byte(b, half + 2 * high, b_signed)
    return result


def _byte(value: Value, index: int, signed: bool) -> Value:
    return _part(value, 8 * index, 8, signed)


def _part(value: Value, low: int, width: int, signed: bool) -> Value:
    up = value.view(np.uint32) << np.uint32(32 - low - width)
    if signed:
        return (up.view(np.int32) >> np.int32(32 - width)).view(np.uint32)
    return up >> np.uint32(32 - width)


def shift_left(a: Value, amount: Value) -> Value:
    """shl: amounts of the width or more give 0 (`amount` is uint32)."""
    bits = a.dtype.itemsize * 8
    return _clamped(a << np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype), amount, bits)


def shift_right(a: Value, amount: Value) -> Value:
    """shr: amounts beyond the width give 0, or the sign."""
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else _clamped(shifted, amount, bits)


def _clamped(shifted: Value, amount: Value, bits: int) -> Value:
    return select(amount >= np.uint32(bits), shifted.dtype.type(0), shifted)


def convert_integer(value: Value, dtype: DType, saturate: bool) -> Value:
    """Convert an integer to another type; with `saturate` it is clamped to the range of `dtype`."""
    if saturate:
        low, high = np.iinfo(value.dtype), np.iinfo(dtype)
        value = np.clip(value, max(low.min, high.min), min(low.max, high.max)).astype(value.dtype)
    return value.astype(dtype)
