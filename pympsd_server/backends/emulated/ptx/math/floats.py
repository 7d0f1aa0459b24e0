"""Comparisons and classes of floats as PTX defines them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Value
from pympsd_server.backends.emulated.ptx.math.integers import select

_SMALLEST = {"f2": 6.103515625e-05, "f4": 2.0**-126, "f8": 2.0**-1022}


def rectify(value: Value) -> Value:
    """.relu: negative numbers become 0."""
    return select(np.isnan(value), value, np.maximum(value, value.dtype.type(0)))


def float_min(a: Value, b: Value) -> Value:
    """Return the smaller operand, the number if one is NaN; -0 is less than +0."""
    result = np.fmin(a, b)
    zeros = (a == 0) & (b == 0)
    return select(zeros, select(np.signbit(a), a, b), result) if zeros.any() else result


def float_max(a: Value, b: Value) -> Value:
    result = np.fmax(a, b)
    zeros = (a == 0) & (b == 0)
    return select(zeros, select(np.signbit(a), b, a), result) if zeros.any() else result


def float_min_nan(a: Value, b: Value) -> Value:
    """min.NaN: NaN if either operand is."""
    return select(np.isnan(a) | np.isnan(b), a + b, float_min(a, b))


def float_max_nan(a: Value, b: Value) -> Value:
    return select(np.isnan(a) | np.isnan(b), a + b, float_max(a, b))


def with_xor_of_signs(function: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    """min/max.xorsign.abs: of the absolute values, with the product's sign."""
    size = function(np.abs(a), np.abs(b))
    return select(np.signbit(a) ^ np.signbit(b), -size, size)


def unordered(a: Value, b: Value) -> Value:
    return np.isnan(a) | np.isnan(b)


def test_finite(x: Value) -> Value:
    return np.isfinite(x)


def test_infinite(x: Value) -> Value:
    return np.isinf(x)


def test_number(x: Value) -> Value:
    return ~np.isnan(x)


def test_notanumber(x: Value) -> Value:
    return np.isnan(x)


def test_normal(x: Value) -> Value:
    """Return which are normal numbers; PTX counts zeros as normal."""
    return np.isfinite(x) & ~test_subnormal(x)


def test_subnormal(x: Value) -> Value:
    return (x != 0) & (np.abs(x) < _SMALLEST[x.dtype.str[1:]])
