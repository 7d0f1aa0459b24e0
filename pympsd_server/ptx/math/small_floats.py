"""Convert the eight-bit floats e4m3 and e5m2, and tf32, to and from their bits."""

from typing import Final

import numpy as np
from attrs import frozen

from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.math.conversion import high_half, low_half, pack_halves
from pympsd_server.ptx.math.integers import select


@frozen(eq=False)
class _Format:
    """A format of eight-bit floats. `values` has the float16 value of each bit pattern."""

    values: Array
    fraction_bits: int
    least_exponent: int
    greatest: float
    nan: int
    positive: Array
    """The finite values from 0 up; a value's index is its bit pattern."""


def _format(fraction_bits: int, bias: int, greatest: float, nan: int, has_infinity: bool) -> _Format:
    codes = np.arange(128)
    exponents, fractions = codes >> fraction_bits, codes & ((1 << fraction_bits) - 1)
    scaled = fractions / 2.0**fraction_bits
    values = np.where(
        exponents == 0, np.ldexp(scaled, 1 - bias), np.ldexp(1 + scaled, np.maximum(exponents, 1) - bias)
    )
    finite = int(np.flatnonzero(values == greatest)[0]) + 1
    values[finite:] = np.nan
    if has_infinity:
        values[finite] = np.inf
    both = np.concatenate([values, -values]).astype(np.float16)
    both.view(np.uint16)[np.isnan(both)] = 0x7FFF  # the only NaN that an H200 returns
    return _Format(both, fraction_bits, 1 - bias, greatest, nan, values[:finite])


_FORMATS: Final = {"e4m3": _format(3, 7, 448.0, 0x7F, False), "e5m2": _format(2, 15, 57344.0, 0x7F, True)}


def half_from_small(bits: Value, name: str) -> Value:
    """Convert the bits of an e4m3 or e5m2 (any unsigned type) to float16, which can represent all of their values."""
    return _FORMATS[name].values[bits.astype(np.int64) & 255]


def small_from_float(value: Value, name: str) -> Value:
    """Convert a float to the bits of an e4m3 or e5m2 (uint16), rounded to nearest even, with .satfinite."""
    form = _FORMATS[name]
    size = np.abs(value.astype(np.float64))
    magnitude = np.minimum(np.where(np.isnan(size), 0.0, size), form.greatest)
    _, exponent = np.frexp(magnitude)
    step = np.ldexp(1.0, np.maximum(exponent - 1, form.least_exponent) - form.fraction_bits)
    rounded = np.minimum(np.rint(magnitude / step) * step, form.greatest)
    code = np.searchsorted(form.positive, rounded).astype(np.uint16)
    code = code | (np.signbit(value).astype(np.uint16) << np.uint16(7))
    return np.where(np.isnan(size), np.uint16(form.nan), code)[()]


def small_pair(high: Value, low: Value, name: str) -> Value:
    """Convert two floats to e4m3x2 or e5m2x2 (uint16)."""
    return (small_from_float(high, name) << np.uint16(8)) | small_from_float(low, name)


def small_pair_from_halves(pair: Value, name: str) -> Value:
    """Convert an f16x2 (uint32) to e4m3x2 or e5m2x2 (uint16)."""
    return small_pair(high_half(pair).view(np.float16), low_half(pair).view(np.float16), name)


def halves_from_small(pair: Value, name: str) -> Value:
    """Convert an e4m3x2 or e5m2x2 (uint16) to f16x2 (uint32)."""
    return pack_halves(half_from_small(pair >> np.uint16(8), name), half_from_small(pair, name))


_CUT: Final = np.uint32(0x1FFF)


def tf32_from_float(value: Value, mode: str) -> Value:
    """Round float32 to tf32, a float32 whose last 13 bits are 0. `mode` is rna, rn or rz.

    NaN becomes canonical, but rna only truncates it (recorded on an H200).
    """
    bits = value.view(np.uint32)
    if mode == "rna":
        bits = bits + np.uint32(0x1000)
    elif mode == "rn":
        bits = bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded = select(np.isinf(value), value.view(np.uint32), bits & ~_CUT)
    return select(np.isnan(value), value.view(np.uint32) & ~_CUT if mode == "rna" else np.uint32(0x7FFFE000), rounded)
