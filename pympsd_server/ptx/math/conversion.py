"""Convert values between types (cvt), also from and to bfloat16, which NumPy does not have."""

import numpy as np

from pympsd_server.ptx.isa.datatypes import DType, Value
from pympsd_server.ptx.math.floats import narrow, rectify, round_to_odd
from pympsd_server.ptx.math.integers import select

_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def float_to_integer(value: Value, dtype: DType, mode: str) -> Value:
    """cvt.rzi.s32.f32 and similar: convert a float to an integer, clamped to the range of its type.

    NaN becomes 0, but from f64 or to 64 bits it becomes the integer whose only set bit is the highest (PTX ISA, cvt).
    """
    limits = np.iinfo(dtype)
    special = value.dtype.itemsize == 8 or dtype.itemsize == 8
    missing = dtype.type(limits.min if dtype.kind == "i" else 1 << (8 * dtype.itemsize - 1)) if special else 0
    rounded = _TO_INTEGRAL[mode](value.astype(np.float64) if value.dtype.itemsize < 8 else value)
    high = rounded >= float(limits.max) if dtype.itemsize < 8 else rounded >= 2.0 ** (63 + (dtype.kind == "u"))
    low = rounded <= float(limits.min)
    odd = high | low | np.isnan(rounded)
    if not odd.any():
        return rounded.astype(dtype)
    safe = select(odd, np.float64(0), rounded).astype(dtype)
    result = select(high, dtype.type(limits.max), select(low, dtype.type(limits.min), safe))
    return select(np.isnan(rounded), dtype.type(missing), result)


def to_integral(value: Value, mode: str) -> Value:
    """cvt.rni.f32.f32 and similar: round a float to a whole number."""
    return _TO_INTEGRAL[mode](value)


def integer_to_float(value: Value, dtype: DType, mode: str) -> Value:
    """Convert integers to a float type, rounding by `mode`."""
    if mode in ("", "rn"):
        return value.astype(dtype)
    if dtype.itemsize == 8:
        nearest = value.astype(np.float64)
        if value.dtype.itemsize < 8:
            return nearest
        # A 64-bit integer, rounded rz, rm or rp.
        exact = value.astype(np.longdouble)
        high, low = nearest > exact, nearest < exact
        if mode == "rz":
            return select(select(exact > 0, high, low), np.nextafter(nearest, 0.0), nearest)
        wrong, towards = (high, -np.inf) if mode == "rm" else (low, np.inf)
        return select(wrong, np.nextafter(nearest, towards), nearest)
    return narrow(double_to_odd(value), dtype, mode)


def double_to_odd(value: Value) -> Value:
    """Convert integers to doubles, rounded to odd if they do not fit in 53 bits."""
    wide = value.astype(np.float64)
    return _integer_to_odd(value, wide) if value.dtype.itemsize == 8 else wide


def _integer_to_odd(value: Value, wide: Value) -> Value:
    """Convert a 64-bit integer to a double, rounded to odd: the last bit is set if lower bits were cut off."""
    size = np.abs(value.astype(np.float64))
    sticky = value.dtype.type(0x7FF)
    cut = (value & sticky) != 0
    truncated = (value & ~sticky) | select(cut, value.dtype.type(0x800), value.dtype.type(0))
    # Below 2**53 the double is exact.
    return select(size < 2.0**53, wide, truncated.astype(np.float64))


def float_to_float(value: Value, dtype: DType, mode: str) -> Value:
    """Convert floats to another float type, rounding by `mode`."""
    if {value.dtype.itemsize, dtype.itemsize} == {2, 8}:
        value = value + value.dtype.type(-0.0)  # makes a signaling NaN quiet, which NumPy's conversion does not
    if dtype.itemsize >= value.dtype.itemsize or mode in ("", "rn"):
        return value.astype(dtype)
    return narrow(value.astype(np.float64), dtype, mode)


def float_from_bfloat(bits: Value) -> Value:
    """Convert bfloat16 bits (uint16) to float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bfloat_from_float(value: Value, mode: str = "rn") -> Value:
    """Convert float32, or float64 that was rounded to odd, to bfloat16 bits (uint16). NaN becomes 0x7fff."""
    if value.dtype.itemsize == 8:
        near = value.astype(np.float32)
        value = round_to_odd(near, value - near.astype(np.float64))
    bits = value.view(np.uint32)
    if mode == "rn":
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    elif mode == "rz":
        rounded = bits
    else:
        away = np.signbit(value) == np.bool_(mode == "rm")
        rounded = bits + select(away, np.uint32(0xFFFF), np.uint32(0))
    rounded = select(np.isinf(value), bits, rounded)
    return select(np.isnan(value), np.uint16(0x7FFF), (rounded >> np.uint32(16)).astype(np.uint16))


def bfloat_from_double(value: Value, mode: str) -> Value:
    """Convert float64 to bfloat16 bits (uint16), rounded once. A NaN keeps its upper bits."""
    nan = value.astype(np.float32).view(np.uint32) >> np.uint32(16)
    return select(np.isnan(value), nan.astype(np.uint16), bfloat_from_float(value, mode))


def pack_halves(high: Value, low: Value) -> Value:
    """Return two 16-bit values as one 32-bit value."""
    return (high.view(np.uint16).astype(np.uint32) << np.uint32(16)) | low.view(np.uint16).astype(np.uint32)


def pack_integers(high: Value, low: Value, above: Value | None) -> Value:
    """cvt.pack: return two 16-bit integers as 32 bits, or two 8-bit integers below the low half of `above`."""
    bits = 8 * low.dtype.itemsize
    high, low = (v.view(f"u{v.dtype.itemsize}").astype(np.uint32) for v in (high, low))
    pair = (high << np.uint32(bits)) | low
    return pair if above is None else pair | (above << np.uint32(2 * bits))


def rectify_halves(pair: Value) -> Value:
    """.relu of an f16x2: replace negative numbers by 0."""
    return pack_halves(*(rectify(part(pair).view(np.float16)) for part in (high_half, low_half)))


def low_half(value: Value) -> Value:
    """Return the lower 16 bits of 32-bit values as uint16."""
    return value.astype(np.uint16)


def high_half(value: Value) -> Value:
    """Return the upper 16 bits of 32-bit values as uint16."""
    return (value >> np.uint32(16)).astype(np.uint16)
