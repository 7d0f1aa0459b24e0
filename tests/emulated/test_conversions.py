"""Conversions to small floats against exact rational arithmetic, and arithmetic of bf16 and of packed halves."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from tests.emulated.fragments import Array, run_fragment
from tests.emulated.harness import HEADER

HOPPER = HEADER.replace("sm_80", "sm_90")
# Exponent bits, fraction bits, bias, code of the greatest finite number, code of infinity (None: there is none).
FORMATS = {
    "bf16": (8, 7, 127, 0x7F7F, 0x7F80),
    "f16": (5, 10, 15, 0x7BFF, 0x7C00),
    "e4m3": (4, 3, 7, 0x7E, None),
    "e5m2": (5, 2, 15, 0x7B, 0x7C),
    "tf32": (8, 10, 127, 0x3FBFF, 0x3FC00),
}


@cache
def values(name: str) -> list[Fraction]:
    """The finite values from 0 up by their codes, and behind them what the next one would be."""
    _, fraction, bias, greatest, _ = FORMATS[name]

    def value(code: int) -> Fraction:
        exponent, rest = code >> fraction, code & ((1 << fraction) - 1)
        whole = Fraction(rest, 1 << fraction) + (exponent > 0)
        return whole * Fraction(2) ** (max(exponent, 1) - bias)

    return [value(code) for code in range(greatest + 2)]


def round_code(exact: Fraction, name: str, mode: str, saturate: bool = False) -> int:
    """The code of a number in a format, without its sign; `mode` rn, rz, rm, rp, rna."""
    table, (_, _, _, greatest, infinity) = values(name), FORMATS[name]
    size = abs(exact)
    if size >= table[-1]:
        below, halfway, exactly = greatest, 1, False
    else:
        below = bisect_left(table, size)
        exactly = table[below] == size
        below -= not exactly
        middle = (table[below] + table[below + 1]) / 2
        halfway = (size > middle) - (size < middle)
    up = {
        "rn": halfway > 0 or (halfway == 0 and below & 1 == 1),
        "rna": halfway >= 0,
        "rz": False,
        "rm": exact < 0,
        "rp": exact > 0,
    }[mode]
    code = below if exactly or not up else below + 1
    return min(code, greatest) if saturate else infinity if code > greatest and infinity is not None else code


def with_sign(code: int, negative: bool, name: str) -> int:
    exponent, fraction, *_ = FORMATS[name]
    return code | (negative << (exponent + fraction))


def compute_expected(sources: Array, name: str, mode: str, saturate: bool = False) -> list[int]:
    codes = []
    for source in sources.tolist():
        if isinstance(source, float) and np.isinf(source):
            infinity = FORMATS[name][4]
            code = FORMATS[name][3] if saturate or infinity is None else infinity
        else:
            code = round_code(Fraction(source), name, mode, saturate)
        negative = bool(np.signbit(source)) if isinstance(source, float) else source < 0
        codes.append(with_sign(code, negative, name))
    return codes


def some_floats(dtype: str, name: str, seed: int = 7) -> Array:
    """Values of a format, points half-way between, their neighbours, and any others."""
    rng = np.random.default_rng(seed)
    table = values(name)
    chosen = [*rng.integers(0, len(table) - 1, 150).tolist(), 0, 1, len(table) - 2]
    floats = [float(table[at]) for at in chosen] + [float((table[at] + table[at + 1]) / 2) for at in chosen]
    with np.errstate(all="ignore"):
        array = np.array(floats, dtype)
        size = array.itemsize
        near = np.concatenate(
            [array, np.nextafter(array, dtype_of(dtype)(np.inf)), np.nextafter(array, dtype_of(dtype)(0))]
        )
    wild = rng.integers(0, 2 ** (8 * size) - 1, 60, f"u{size}", endpoint=True).view(dtype)
    both = np.concatenate([near, wild[np.isfinite(wild)], np.array([0.0, np.inf], dtype)])
    both = both[~np.isnan(both)]
    return np.where(rng.integers(0, 2, len(both)) == 1, -both, both).astype(dtype)[:1024]


def dtype_of(name: str) -> type[np.generic]:
    return np.dtype(name).type


SOURCES = {"f64": "f8", "f32": "f4", "f16": "f2"}


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", SOURCES)
def test_floats_to_bf16(source: str, mode: str) -> None:
    a = some_floats(SOURCES[source], "f16" if source == "f16" else "bf16")
    actual = run_fragment(f"cvt.{mode}.bf16.{source} %d, %a;", "u2", a, header=HOPPER)
    assert actual.tolist() == compute_expected(a, "bf16", mode)


INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def some_integers(name: str) -> Array:
    bits = int(name[1:])
    rng = np.random.default_rng(bits)
    near = [(1 << k) * odd + delta for k in range(0, bits, 3) for odd in (257, 259, 255, 385) for delta in (-1, 0, 1)]
    drawn = rng.integers(0, 2**bits - 1, 100, "u8", endpoint=True).tolist()
    array = np.array([n % 2**bits for n in [0, 1, 2**bits - 1, 2 ** (bits - 1), *near, *drawn]], f"u{bits // 8}")
    return array.view(f"{'i' if name[0] == 's' else 'u'}{bits // 8}")


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_to_bf16(source: str, mode: str) -> None:
    a = some_integers(source)
    # Of the integers of 8 bits this conversion takes registers of 8 bits only.
    narrow = f".reg .b8 %x; cvt.{source}.{source[0]}16 %x, %a; cvt.{mode}.bf16.{source} %d, %x;"
    body = narrow if source in ("s8", "u8") else f"cvt.{mode}.bf16.{source} %d, %a;"
    actual = run_fragment(body, "u2", a, header=HOPPER)
    assert actual.tolist() == compute_expected(a, "bf16", mode)


@pytest.mark.parametrize(("mode", "function"), [("rni", round), ("rzi", int), ("rmi", "floor"), ("rpi", "ceil")])
@pytest.mark.parametrize("target", INTEGERS)
def test_bf16_to_integers(target: str, mode: str, function: object) -> None:
    bits = np.random.default_rng(3).integers(0, 2**16 - 1, 600, "u2", endpoint=True)
    floats = (bits.astype("u4") << 16).view("f4")
    bits, floats = bits[np.isfinite(floats)], floats[np.isfinite(floats)]
    width = int(target[1:])
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if target[0] == "s" else (0, 2**width - 1)
    whole = [round(Fraction(f)) if mode == "rni" else _whole(Fraction(f), mode) for f in floats.tolist()]
    kind = f"{'i' if target[0] == 's' else 'u'}{width // 8}"
    narrow = f".reg .b8 %x; cvt.{mode}.{target}.bf16 %x, %a; cvt.{target[0]}16.{target} %d, %x;"
    body = f"cvt.{mode}.{target}.bf16 %d, %a;" if width > 8 else narrow
    actual = run_fragment(body, kind if width > 8 else f"{kind[0]}2", bits, header=HOPPER)
    assert actual.tolist() == [min(max(n, low), high) for n in whole]


def _whole(value: Fraction, mode: str) -> int:
    floor = value.numerator // value.denominator
    if mode == "rmi" or (mode == "rzi" and value >= 0):
        return floor
    return -(-value.numerator // value.denominator)


@pytest.mark.parametrize("target", ["f64", "f32", "f16"])
def test_bf16_to_floats(target: str) -> None:
    bits = np.arange(0, 65536, 67, dtype="u2")
    expected = (bits.astype("u4") << 16).view("f4")
    with np.errstate(all="ignore"):
        expected = expected.astype(SOURCES[target])
    rounding = ".rn" if target == "f16" else ""
    actual = run_fragment(f"cvt{rounding}.{target}.bf16 %d, %a;", SOURCES[target], bits, header=HOPPER)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_floats_to_pairs_of_eight_bits(name: str) -> None:
    a = some_floats("f4", name)
    b = np.roll(a, 1)
    actual = run_fragment(f"cvt.rn.satfinite.{name}x2.f32 %d, %a, %b;", "u2", a, b, header=HOPPER)
    reference = [
        high << 8 | low
        for high, low in zip(
            compute_expected(a, name, "rn", True), compute_expected(b, name, "rn", True), strict=True
        )
    ]
    assert actual.tolist() == reference
    actual = run_fragment(f"cvt.rn.satfinite.relu.{name}x2.f32 %d, %a, %b;", "u2", a, b, header=HOPPER)
    assert actual.tolist() == [(0 if n >> 15 else n >> 8) << 8 | (0 if n >> 7 & 1 else n & 255) for n in reference]


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_halves_to_pairs_of_eight_bits(name: str) -> None:
    a = some_floats("f2", name)
    b = np.roll(a, 1)
    packed = a.view("u2").astype("u4") << 16 | b.view("u2")
    actual = run_fragment(f"cvt.rn.satfinite.{name}x2.f16x2 %d, %a;", "u2", packed, header=HOPPER)
    reference = zip(compute_expected(a, name, "rn", True), compute_expected(b, name, "rn", True), strict=True)
    assert actual.tolist() == [high << 8 | low for high, low in reference]


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_pairs_of_eight_bits_to_halves(name: str) -> None:
    codes = np.arange(256, dtype="u2")
    actual = run_fragment(f"cvt.rn.f16x2.{name}x2 %d, %a;", "u4", codes << 8 | codes[::-1], header=HOPPER)
    greatest, infinity = FORMATS[name][3:]

    def value(code: int) -> float:
        size = code & 127
        if size == infinity:
            number = float("inf")
        else:
            number = float("nan") if size > greatest else float(values(name)[size])
        return -number if code >> 7 else number

    expected = np.array([value(code) for code in range(256)], "f2")
    np.testing.assert_array_equal((actual >> 16).astype("u2").view("f2"), expected)
    np.testing.assert_array_equal((actual & 65535).astype("u2").view("f2"), expected[::-1])
    # Numbers keep their sign, and there is one NaN.
    bits = np.where(np.isnan(expected), 0x7FFF, expected.view("u2"))
    assert (actual >> 16).tolist() == bits.tolist()


def test_a_nan_stays_one() -> None:
    a = np.array([np.nan], "f4")
    for name, codes in (("e4m3", {0x7F}), ("e5m2", {0x7D, 0x7E, 0x7F})):
        actual = run_fragment(f"cvt.rn.satfinite.{name}x2.f32 %d, %a, %a;", "u2", a, header=HOPPER)
        assert int(actual[0]) & 127 in codes
    assert np.isnan(run_fragment("cvt.rna.tf32.f32 %d, %a;", "f4", a))[0]


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_floats_to_tf32(mode: str) -> None:
    a = some_floats("f4", "tf32")
    actual = run_fragment(f"cvt.{mode}.tf32.f32 %d, %a;", "u4", a, header=HOPPER)
    assert [int(n) for n in actual] == [code << 13 for code in compute_expected(a, "tf32", mode)]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_bf16_arithmetic_rounds_once(name: str) -> None:
    rng = np.random.default_rng(len(name))
    bits = [rng.integers(0, 2**16 - 1, 700, "u2", endpoint=True) for _ in range(3)]
    floats = [(b.astype("u4") << 16).view("f4") for b in bits]
    keep = np.isfinite(floats[0]) & np.isfinite(floats[1]) & np.isfinite(floats[2])
    # Two of three products are near the least numbers, where a product rounded twice would show.
    bits = [b[keep] for b in bits]
    bits[1][::2] = (bits[1][::2] & 0x807F) | ((128 - (bits[0][::2].astype("i4") >> 7 & 255)) % 200 << 7).astype("u2")
    exact = []
    for a, b, c in zip(*(((x.astype("u4") << 16).view("f4")).tolist() for x in bits), strict=True):
        fa, fb, fc = Fraction(a), Fraction(b), Fraction(c)
        exact.append({"add": fa + fb, "sub": fa - fb, "mul": fa * fb, "fma": fa * fb + fc}[name])
    operands = "%d, %a, %b" + (", %c" if name == "fma" else "")
    arrays = bits if name == "fma" else bits[:2]
    actual = run_fragment(f"{name}.rn.bf16 {operands};", "u2", *arrays, header=HOPPER).tolist()
    expected = [with_sign(round_code(e, "bf16", "rn"), e < 0, "bf16") for e in exact]
    assert [(g & 0x7FFF, bool(g >> 15) and e != 0) for g, e in zip(actual, exact, strict=True)] == [
        (n & 0x7FFF, bool(n >> 15) and e != 0) for n, e in zip(expected, exact, strict=True)
    ]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("name", "function"), [("ex2", np.exp2), ("tanh", np.tanh)])
def test_functions_of_halves(kind: str, name: str, function: np.ufunc) -> None:
    x = np.random.default_rng(5).normal(0, 3, 300).astype("f4")
    bits = x.astype("f2").view("u2") if kind == "f16" else (x.view("u4") >> 16).astype("u2")
    exact = bits.view("f2").astype("f8") if kind == "f16" else (bits.astype("u4") << 16).view("f4").astype("f8")
    ftz = ".ftz" if (kind, name) == ("bf16", "ex2") else ""
    entry = run_fragment(f"{name}.approx{ftz}.{kind} %d, %a;", "u2", bits, header=HOPPER)
    two = run_fragment(
        f"{name}.approx{ftz}.{kind}x2 %d, %a;", "u4", bits.astype("u4") << 16 | np.roll(bits, 1), header=HOPPER
    )
    back = entry.view("f2").astype("f8") if kind == "f16" else (entry.astype("u4") << 16).view("f4").astype("f8")
    np.testing.assert_allclose(back, function(exact), rtol=2**-10 if kind == "f16" else 2**-7)
    assert (two == (entry.astype("u4") << 16 | np.roll(entry, 1))).all()


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_no_number_becomes_zero_or_the_lowest_integer(source: str, bits: int) -> None:
    """Infinities become the ends of the type; of NaN the documents say which (PTX ISA, cvt)."""
    kind = f"f{int(source[1:]) // 8}"
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 2.5, -2.5] * 6, kind)
    values = values.view("u2") if source == "f16" else values
    nan = 1 << (bits - 1) if bits == 64 or source == "f64" else 0
    for sign, lowest, highest in (("s", 1 << (bits - 1), (1 << (bits - 1)) - 1), ("u", 0, (1 << bits) - 1)):
        actual = run_fragment(f"cvt.rzi.{sign}{bits}.{source} %d, %a;", f"u{bits // 8}", values)
        below = (1 << bits) - 2 if sign == "s" else 0
        assert actual.tolist() == [nan, nan, highest, lowest, 2, below] * 6


def test_integers_are_packed_at_the_ends_of_their_type() -> None:
    a = np.array([0, -1, 40000, -40000, 127, 128, 300, -129], "i4")
    b = np.array([5, 70000, -70000, 1, -128, 255, 256, 200], "i4")
    c = np.arange(8, dtype="u4") * 0x1234567
    for kind, low, high in (("s16", -(2**15), 2**15 - 1), ("u16", 0, 2**16 - 1)):
        actual = run_fragment(f"cvt.pack.sat.{kind}.s32 %d, %a, %b;", "u4", a, b)
        x, y = (np.clip(v, low, high).astype("i8") & 0xFFFF for v in (a, b))
        assert actual.tolist() == (x << 16 | y).tolist()
    for kind, low, high in (("s8", -128, 127), ("u8", 0, 255)):
        actual = run_fragment(f"cvt.pack.sat.{kind}.s32.b32 %d, %a, %b, %c;", "u4", a, b, c)
        x, y = (np.clip(v, low, high).astype("i8") & 0xFF for v in (a, b))
        assert actual.tolist() == ((c.astype("i8") << 16 | x << 8 | y) & 0xFFFFFFFF).tolist()
