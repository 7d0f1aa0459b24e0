"""Double-precision arithmetic with rounding towards zero, down or up.

The result to nearest is corrected by one step where the sign of its error says so.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Array, Value
from pympsd_server.backends.emulated.ptx.math.integers import select
from pympsd_server.backends.emulated.ptx.math.rounding import fma64, two_product, two_sum


def extreme(total: Value, *operands: Value) -> Value:
    """Return where error terms may over- or underflow: finite operands, some number very large or small."""
    found = np.bool_(False)
    finite = np.bool_(True)
    for value in (total, *operands):
        size = np.abs(value)
        found = found | (size > 2.0**450) | ((size < 2.0**-450) & (size > 0))
    for value in operands:
        finite = finite & np.isfinite(value)
    return found & finite


def exact_errors(operation: str, total: Value, operands: tuple[Value, ...], error: Value, where: Value) -> Value:
    """Return `error` with the sign of (exact - total) corrected at `where`, by rational arithmetic."""
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
    a, *rest = (Fraction(v) for v in operands)
    if operation == "sqrt":
        return _sign(a - Fraction(total) ** 2) if a > 0 else 0.0
    b = rest[0]
    exact = {"add": a + b, "sub": a - b}.get(operation, a * b)
    if operation == "fma":
        exact += rest[1]
    return _sign(exact - Fraction(total))


def _quotient_error(total: float, a: float, b: float) -> float:
    if b == 0:
        return 0.0
    if total in (np.inf, -np.inf):
        return -1.0 if total > 0 else 1.0
    return _sign(Fraction(a) / Fraction(b) - Fraction(total))


def _sign(value: Fraction) -> float:
    return float((value > 0) - (value < 0))


def directed_double(operation: str, mode: str, *operands: Value) -> Value:
    """Return an f64 add, sub, mul, div, fma, sqrt or rcp rounded by `mode`: at most one step from the nearest."""
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
        # An exact zero sum of opposite terms is -0 when rounding down.
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
        return two_sum(a, -b if operation == "sub" else b)
    total = fma64(a, b, c)
    product, low = two_product(a, b)
    near, rest = two_sum(product, c)
    rest, tail = two_sum(rest, low)
    rest, end = two_sum(near - total, rest)
    return total, rest + (end + tail)


def _root_and_error(a: Value) -> tuple[Value, Value]:
    root = np.sqrt(a)
    return root, fma64(-root, root, a)


def _quotient_and_error(a: Value, b: Value) -> tuple[Value, Value]:
    quotient = a / b
    return quotient, fma64(-quotient, b, a) * np.sign(b)
