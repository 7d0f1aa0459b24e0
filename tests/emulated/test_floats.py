"""Floating-point instructions against exact rational arithmetic and NumPy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd_server.ptx.math import floats as ptx_floats
from tests.emulated.fragments import Array, run_fragment

NEAREST = st.floats(allow_nan=False, allow_infinity=False)
SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def floats(dtype: str, count: int, seed: int) -> Array:
    """Any bit patterns, and edge values."""
    rng = np.random.default_rng(seed)
    size = np.dtype(dtype).itemsize
    bits = rng.integers(0, 2 ** (8 * size) - 1, count, dtype=f"u{size}", endpoint=True).view(dtype)
    info = np.finfo(dtype)
    telling = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal]
    bits[::5] = np.array([telling[(i * 7 + seed) % len(telling)] for i in range(len(bits[::5]))], dtype)
    return bits


def same(actual: Array, expected: Array) -> None:
    """Equal bit by bit, any NaN being as good as another."""
    assert actual.dtype == expected.dtype
    equal = (actual.view(f"u{actual.itemsize}") == expected.view(f"u{actual.itemsize}")) | (
        np.isnan(actual) & np.isnan(expected)
    )
    assert equal.all(), (actual[~equal][:4], expected[~equal][:4])


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "min", "max"])
def test_operations_of_two_floats_match_numpy(name: str, bits: int) -> None:
    dtype = f"f{bits // 8}"
    a, b = floats(dtype, 500, 1), floats(dtype, 500, 2)
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.fmin, "max": np.fmax}
    with np.errstate(all="ignore"):
        expected = functions[name](a, b)
    zeros = (a == 0) & (b == 0)
    actual = run_fragment(f"{name}.f{bits} %d, %a, %b;", dtype, a, b)
    if name in ("min", "max"):
        expected[zeros] = actual[zeros]
        negative = np.signbit(a) | np.signbit(b) if name == "min" else np.signbit(a) & np.signbit(b)
        np.testing.assert_array_equal(np.signbit(actual[zeros]), negative[zeros])
    same(actual, expected)


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("div.rn.f32 %d, %a, %b;", lambda a, b: a / b),
        ("sqrt.rn.f32 %d, %a;", lambda a, b: np.sqrt(a)),
        ("rcp.rn.f32 %d, %a;", lambda a, b: np.float32(1) / a),
        ("neg.f32 %d, %a;", lambda a, b: -a),
        ("abs.f32 %d, %a;", lambda a, b: np.abs(a)),
        ("copysign.f32 %d, %a, %b;", lambda a, b: np.copysign(b, a)),
        ("add.sat.f32 %d, %a, %b;", lambda a, b: np.clip(np.nan_to_num(a + b, posinf=1), 0, 1) + np.float32(0)),
        ("setp.lt.f32 %p, %a, %b; selp.f32 %d, %a, %b, %p;", lambda a, b: np.where(a < b, a, b)),
        ("setp.ne.f32 %p, %a, %b; selp.f32 %d, %a, %b, %p;", lambda a, b: np.where((a < b) | (a > b), a, b)),
        ("setp.geu.f32 %p, %a, %b; selp.f32 %d, %a, %b, %p;", lambda a, b: np.where(~(a < b), a, b)),
        ("setp.nan.f32 %p, %a, %b; selp.f32 %d, 1.0, %b, %p;", lambda a, b: np.where(np.isnan(a + b * 0), 1, b)),
        ("testp.subnormal.f32 %p, %a; selp.f32 %d, %a, %b, %p;", lambda a, b: np.where(subnormal(a), a, b)),
    ],
)
def test_single_precision_operations_match_numpy(text: str, function: object) -> None:
    a, b = floats("f4", 500, 3), floats("f4", 500, 4)
    if "setp.nan" in text:
        b = np.nan_to_num(b, posinf=2, neginf=3)
    with np.errstate(all="ignore"):
        expected = function(a, b).astype("f4")  # type: ignore[operator]
    same(run_fragment(text, "f4", a, b), expected)


def subnormal(x: Array) -> Array:
    small: Array = (x != 0) & (np.abs(x) < np.finfo(np.float32).tiny)
    return small


def test_flush_to_zero() -> None:
    a = np.array([1e-39, -1e-39, 2e-38, -0.0], "f4")
    b = np.array([1.0, 1.0, 0.1, 1.0], "f4")
    actual = run_fragment("mul.ftz.f32 %d, %a, %b;", "f4", a, b)
    same(actual, np.array([0.0, -0.0, 0.0, -0.0], "f4"))


def exactly(value: Fraction, mode: str) -> np.float32:
    """Return a fraction rounded to float32 by integer arithmetic."""
    if value == 0:
        return np.float32(0)
    size, scale = abs(value), -149
    while size >= Fraction(2) ** (scale + 24):
        scale += 1
    whole, fraction = divmod(size / Fraction(2) ** scale, 1)
    up = {"rz": False, "rm": value < 0 and fraction > 0, "rp": value > 0 and fraction > 0}.get(mode)
    if up is None:
        up = fraction > Fraction(1, 2) or (fraction == Fraction(1, 2) and whole % 2 == 1)
    number = float((whole + up) * Fraction(2) ** scale) * (-1 if value < 0 else 1)
    with np.errstate(over="ignore"):
        result = np.float32(number)
    largest = np.finfo(np.float32).max
    if np.isinf(result) and mode in ("rz", "rm" if value > 0 else "rp"):
        return np.float32(largest if value > 0 else -largest)
    return result


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SINGLE, SINGLE, SINGLE), min_size=1, max_size=40))
def test_single_precision_fma_is_rounded_once(cases: list[tuple[float, float, float]]) -> None:
    a, b, c = (np.array(column, "f4") for column in zip(*cases, strict=True))
    with np.errstate(all="ignore"):
        actual = ptx_floats.fma32(a, b, c)
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), actual, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert result == exactly(exact, "rn"), (x, y, z)


def test_single_precision_fma_where_rounding_twice_is_wrong() -> None:
    """Products just next to half-way between two results, beyond the reach of double precision."""
    a = np.array([1 + 2**-23, 1 + 2**-12, 2**-75 * (1 + 2**-23)], "f4")
    b = np.array([2**-24 * (1 - 2**-23), 2**-24 * (1 + 2**-12), 2**-75 * (1 + 2**-20)], "f4")
    c = np.array([1.0, 1.0, 2**-127], "f4")
    for sign in (1, -1):
        actual = run_fragment("fma.rn.f32 %d, %a, %b, %c;", "f4", a * np.float32(sign), b, c)
        for x, y, z, result in zip((sign * a).tolist(), b.tolist(), c.tolist(), actual, strict=True):
            assert result == exactly(Fraction(x) * Fraction(y) + Fraction(z), "rn")


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "mul", "fma", "div"])
def test_directed_rounding_matches_exact_arithmetic(name: str, mode: str) -> None:
    a, b, c = (floats("f4", 300, seed) for seed in (5, 6, 7))
    a, b, c = (np.where(np.isfinite(v), v, np.float32(1.25)) for v in (a, b, c))
    b = np.where(b == 0, np.float32(3), b)
    operands = "%a, %b, %c" if name == "fma" else "%a, %b"
    actual = run_fragment(f"{name}.{mode}.f32 %d, {operands};", "f4", a, b, c)
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), actual, strict=True):
        p, q = Fraction(x), Fraction(y)
        exact = {"add": p + q, "mul": p * q, "fma": p * q + Fraction(z), "div": p / q}[name]
        assert result == exactly(exact, mode), (x, y, z)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NEAREST, NEAREST, NEAREST), min_size=1, max_size=20))
def test_double_precision_fma_is_fused(cases: list[tuple[float, float, float]]) -> None:
    a, b, c = (np.array(column) for column in zip(*cases, strict=True))
    with np.errstate(all="ignore"):
        actual = ptx_floats.fma64(a, b, c)
    for (x, y, z), result in zip(cases, actual.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        try:
            expected = exact.numerator / exact.denominator
        except OverflowError:
            expected = np.inf if exact > 0 else -np.inf
        assert result == expected, (x, y, z)


def test_double_precision_fma_of_the_greatest_numbers_that_cancel() -> None:
    """The exact sum is zero, though the error terms of the product overflow; found by generated programs."""
    greatest = np.finfo("f8").max
    a, b, c = (np.array([value], "f8") for value in (greatest, -1.0, greatest))
    same(run_fragment("fma.rn.f64 %d, %a, %b, %c;", "f8", a, b, c), np.array([0.0]))
    same(run_fragment("fma.rm.f64 %d, %a, %b, %c;", "f8", a, b, c), np.array([-0.0]))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_double_precision_fma_of_a_great_product_and_an_infinity(mode: str) -> None:
    """The product is finite, though beyond all doubles: the sum is the infinity. As an H200 answered."""
    greatest = np.finfo("f8").max
    a, b = np.array([greatest, greatest, -greatest, np.inf]), np.array([greatest, -greatest, greatest, 1.0])
    c = np.array([-np.inf, np.inf, np.inf, -np.inf])
    same(run_fragment(f"fma.{mode}.f64 %d, %a, %b, %c;", "f8", a, b, c), np.array([-np.inf, np.inf, np.inf, np.nan]))


def test_half_precision_pairs() -> None:
    a, b, c = (floats("f2", 512, seed) for seed in (1, 2, 3))
    with np.errstate(all="ignore"):
        total = a + b
        fused = (a.astype("f8") * b + c).astype("f2")
    packed = [v.view("u4") for v in (a, b, c)]
    same(run_fragment("add.f16x2 %d, %a, %b;", "u4", *packed[:2]).view("f2"), total)
    same(run_fragment("fma.rn.f16x2 %d, %a, %b, %c;", "u4", *packed).view("f2"), fused)


def test_brain_floats_round_to_nearest_even() -> None:
    a = floats("f4", 600, 9)
    bits = a.view("u4").astype("u8")
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")
    expected[np.isnan(a)] = 0x7FFF
    np.testing.assert_array_equal(run_fragment("cvt.rn.bf16.f32 %d, %a;", "u2", a), expected)
    back = run_fragment("cvt.f32.bf16 %d, %a;", "f4", expected)
    np.testing.assert_array_equal(back.view("u4"), expected.astype("u4") << 16)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("target", ["s32", "u32", "s64", "u64", "s16", "u8"])
def test_float_to_integer(mode: str, target: str) -> None:
    a = floats("f4", 400, 11)
    a[::3] = np.random.default_rng(1).normal(0, 1000, len(a[::3]))
    bits = int(target[1:])
    size = max(bits, 16)
    actual = run_fragment(f"cvt.{mode}.{target}.f32 %d, %a;", f"{'i' if target[0] == 's' else 'u'}{size // 8}", a)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if target[0] == "s" else (0, 2**bits - 1)
    rounds = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    for x, result in zip(a, actual.tolist(), strict=True):
        if np.isnan(x):
            expected = 0 if bits < 64 else (low if target[0] == "s" else 2**63)
        elif np.isinf(x):
            expected = high if x > 0 else low
        else:
            expected = max(low, min(high, int(rounds(np.float64(x)))))
        assert result == expected, x


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
def test_integer_to_float(mode: str, source: str) -> None:
    size = int(source[1:]) // 8
    rng = np.random.default_rng(4)
    a = rng.integers(0, 2 ** (8 * size) - 1, 300, dtype=f"u{size}", endpoint=True)
    a >>= rng.integers(0, 8 * size, 300).astype(a.dtype)
    a[:4] = [2 ** (8 * size) - 1, 2 ** (8 * size - 1), 0, 1]
    actual = run_fragment(f"cvt.{mode}.f32.{source} %d, %a;", "f4", a)
    given_values = a.view(f"i{size}") if source[0] == "s" else a
    for x, result in zip(given_values.tolist(), actual, strict=True):
        assert result == exactly(Fraction(x), mode), x


def test_transcendental_functions_are_close() -> None:
    a = np.random.default_rng(2).uniform(0.1, 4, 500).astype("f4")
    functions = {"ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh}
    for name, function in functions.items():
        actual = run_fragment(f"{name}.approx.f32 %d, %a;", "f4", a)
        np.testing.assert_allclose(actual, function(a.astype("f8")), rtol=1e-6, atol=1e-7)
    actual = run_fragment("rsqrt.approx.f32 %d, %a;", "f4", a)
    np.testing.assert_allclose(actual, a.astype("f8") ** -0.5, rtol=1e-6)


def test_approximate_division_by_a_great_number_gives_zero() -> None:
    """The reciprocal of a divisor above 2**126 is flushed (PTX ISA, div); as recorded on an H200."""
    a = np.array([1, -1, 2**127, np.inf, 0, 1, 2**126], "f4")
    b = np.array([2**127, 2**127, 2**127, 2**127, -(2**127), np.inf, 2**126], "f4")
    for opcode in ("div.approx.f32", "div.approx.ftz.f32"):
        actual = run_fragment(f"{opcode} %d, %a, %b;", "f4", a, b)
        same(actual, np.array([0, -0.0, 0, np.nan, -0.0, 0, 1], "f4"))


@pytest.mark.parametrize("mode", ["rm", "rp", "rz"])
def test_directed_sums_that_are_flushed_keep_their_sign(mode: str) -> None:
    """A tiny sum is not zero, so that rounding down does not make it -0; as recorded on an H200."""
    a, b = np.array([1e-20, -1e-20], "f4"), np.array([1e-20, 1e-20], "f4")
    actual = run_fragment(f"fma.{mode}.ftz.f32 %d, %a, %b, %c;", "f4", a, b, np.array([-0.0, 0.0], "f4"))
    same(actual, np.array([0.0, -0.0], "f4"))
