"""Integer instructions against Python's own integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.emulated.fragments import Array, run_fragment
from tests.emulated.harness import HEADER

HOPPER = HEADER.replace("8.0", "8.2").replace("sm_80", "sm_90")

RNG = np.random.default_rng(7)
EDGES = [0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 127, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1]
EDGES += [2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2]


def operands(bits: int, count: int, seed: int) -> Array:
    """Edge values crossed by rotation, then any bits."""
    rng = np.random.default_rng(seed)
    edges = [EDGES[(i * (2 * seed + 3) + seed) % len(EDGES)] for i in range(count // 2)]
    random = rng.integers(0, 2**63, count - len(edges), dtype=np.uint64) * np.uint64(2)
    values = [int(v) & (2**bits - 1) for v in [*edges, *(random >> np.uint64(64 - bits)).tolist()]]
    return np.array(values, dtype=f"u{bits // 8}")


def signed(value: int, bits: int) -> int:
    value &= 2**bits - 1
    return value - 2**bits if value >> (bits - 1) else value


def truncate(a: int, b: int) -> int:
    quotient = abs(a) // abs(b) if b else 1
    return quotient if b and (a < 0) == (b < 0) else -quotient


def rest(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * truncate(a, b)


def clamp(value: int, bits: int) -> int:
    half: int = 2 ** (bits - 1)
    return max(-half, min(half - 1, value))


Rule = Callable[[int, int, int, int], int]
# name -> (kinds of types, what it computes from a, b, c and the width)
TWO: dict[str, tuple[str, Rule]] = {
    "add": ("us", lambda a, b, c, n: a + b),
    "sub": ("us", lambda a, b, c, n: a - b),
    "mul.lo": ("us", lambda a, b, c, n: a * b),
    "mul.hi": ("us", lambda a, b, c, n: (a * b) >> n),
    "div": ("us", lambda a, b, c, n: truncate(a, b)),
    "rem": ("us", lambda a, b, c, n: rest(a, b)),
    "min": ("us", lambda a, b, c, n: min(a, b)),
    "max": ("us", lambda a, b, c, n: max(a, b)),
    "and": ("b", lambda a, b, c, n: a & b),
    "or": ("b", lambda a, b, c, n: a | b),
    "xor": ("b", lambda a, b, c, n: a ^ b),
}
THREE: dict[str, tuple[str, Rule]] = {
    "mad.lo": ("us", lambda a, b, c, n: a * b + c),
    "mad.hi": ("us", lambda a, b, c, n: ((a * b) >> n) + c),
    "sad": ("us", lambda a, b, c, n: c + abs(a - b)),
}


def extend(value: int, length: int) -> int:
    """Sign-extend the low bits of a value."""
    return signed(value & (1 << length) - 1, length) if length else 0


def check(instruction: str, text: str, bits: int, is_signed: bool, rule: Rule, count: int = 200) -> None:
    a, b, c = (operands(bits, count, seed) for seed in (1, 2, 3))
    actual = run_fragment(text, f"u{bits // 8}", a, b, c)
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), actual.tolist(), strict=True):
        inputs = [signed(v, bits) for v in (x, y, z)] if is_signed else [x, y, z]
        assert result == rule(inputs[0], inputs[1], inputs[2], bits) & (2**bits - 1), (instruction, inputs)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", sorted(TWO))
def test_operations_of_two_integers_match_python(name: str, bits: int) -> None:
    kinds, rule = TWO[name]
    for kind in kinds:
        check(name, f"{name}.{kind}{bits} %d, %a, %b;", bits, kind == "s", rule)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", sorted(THREE))
def test_operations_of_three_integers_match_python(name: str, bits: int) -> None:
    kinds, rule = THREE[name]
    for kind in kinds:
        check(name, f"{name}.{kind}{bits} %d, %a, %b, %c;", bits, kind == "s", rule)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("neg.s32 %d, %a;", lambda a, b, c, n: -a),
        ("abs.s32 %d, %a;", lambda a, b, c, n: abs(a)),
        ("add.sat.s32 %d, %a, %b;", lambda a, b, c, n: clamp(a + b, 32)),
        ("sub.sat.s32 %d, %a, %b;", lambda a, b, c, n: clamp(a - b, 32)),
        ("mul24.lo.s32 %d, %a, %b;", lambda a, b, c, n: signed(a, 24) * signed(b, 24)),
        ("mul24.hi.s32 %d, %a, %b;", lambda a, b, c, n: (signed(a, 24) * signed(b, 24)) >> 16),
        ("mad24.lo.s32 %d, %a, %b, %c;", lambda a, b, c, n: signed(a, 24) * signed(b, 24) + c),
        ("slct.s32.s32 %d, %a, %b, %c;", lambda a, b, c, n: a if c >= 0 else b),
        ("szext.wrap.s32 %d, %a, %b;", lambda a, b, c, n: extend(a, b & 31)),
        ("szext.clamp.s32 %d, %a, %b;", lambda a, b, c, n: extend(a, min(b & 2**32 - 1, 32))),
        ("bfind.s32 %d, %a;", lambda a, b, c, n: (~a if a < 0 else a).bit_length() - 1),
        ("setp.lt.s32 %p|%q, %a, %b; selp.b32 %d, %c, 5, %q;", lambda a, b, c, n: c if a >= b else 5),
        (
            "setp.gt.s32 %p, %c, 0; setp.eq.and.s32 %p, %a, %b, %p; selp.b32 %d, 1, 2, %p;",
            lambda a, b, c, n: 1 if a == b and c > 0 else 2,
        ),
        ("set.le.u32.s32 %d, %a, %b;", lambda a, b, c, n: -1 if a <= b else 0),
    ],
)
def test_operations_of_signed_words_match_python(text: str, rule: Rule) -> None:
    check(text, text, 32, True, rule)


def permute(a: int, b: int, c: int) -> int:
    source = (a | b << 32).to_bytes(8, "little")
    word = 0
    for index in range(4):
        nibble = c >> (4 * index) & 15
        byte = source[nibble & 7]
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        word |= byte << (8 * index)
    return word


def extract(a: int, b: int, c: int, width: int) -> int:
    position, length = b & 255, c & 255
    return (a >> position) & ((1 << length) - 1)


def insert(a: int, b: int, c: int) -> int:
    position, length = c & 255, (c >> 8) & 255
    mask = ((1 << length) - 1) << position & 0xFFFFFFFF
    return (b & ~mask) | ((a << position) & mask)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("not.b32 %d, %a;", lambda a, b, c, n: ~a),
        ("cnot.b32 %d, %a;", lambda a, b, c, n: int(a == 0)),
        ("popc.b32 %d, %a;", lambda a, b, c, n: a.bit_count()),
        ("clz.b32 %d, %a;", lambda a, b, c, n: 32 - a.bit_length()),
        ("brev.b32 %d, %a;", lambda a, b, c, n: int(f"{a:032b}"[::-1], 2)),
        ("szext.wrap.u32 %d, %a, %b;", lambda a, b, c, n: a & (1 << (b & 31)) - 1),
        ("szext.clamp.u32 %d, %a, %b;", lambda a, b, c, n: a & (1 << min(b, 32)) - 1),
        ("bfind.u32 %d, %a;", lambda a, b, c, n: a.bit_length() - 1),
        ("bfind.shiftamt.u32 %d, %a;", lambda a, b, c, n: 32 - a.bit_length() if a else -1),
        ("shl.b32 %d, %a, %b;", lambda a, b, c, n: a << b if b < 32 else 0),
        ("shr.u32 %d, %a, %b;", lambda a, b, c, n: a >> min(b, 32)),
        ("shr.s32 %d, %a, %b;", lambda a, b, c, n: signed(a, 32) >> min(b, 31)),
        ("shf.l.wrap.b32 %d, %a, %b, %c;", lambda a, b, c, n: ((b << 32 | a) << (c & 31)) >> 32),
        ("shf.r.wrap.b32 %d, %a, %b, %c;", lambda a, b, c, n: (b << 32 | a) >> (c & 31)),
        ("shf.l.clamp.b32 %d, %a, %b, %c;", lambda a, b, c, n: ((b << 32 | a) << min(c, 32)) >> 32),
        ("shf.r.clamp.b32 %d, %a, %b, %c;", lambda a, b, c, n: (b << 32 | a) >> min(c, 32)),
        ("lop3.b32 %d, %a, %b, %c, 0x1d;", lambda a, b, c, n: 0),
        ("prmt.b32 %d, %a, %b, %c;", lambda a, b, c, n: permute(a, b, c)),
        ("bfe.u32 %d, %a, %b, %c;", extract),
        ("shr.u32 %i1, %c, 8; bfi.b32 %d, %a, %b, %c, %i1;", lambda a, b, c, n: insert(a, b, c)),
        ("dp4a.u32.u32 %d, %a, %b, %c;", lambda a, b, c, n: dot(a, b, c, False, False)),
        ("dp4a.s32.u32 %d, %a, %b, %c;", lambda a, b, c, n: dot(a, b, c, True, False)),
        ("mul.wide.u16 %d, %h1, %h2;", lambda a, b, c, n: (a & 0xFFFF) * (b >> 16)),
    ],
)
def test_operations_of_unsigned_words_match_python(text: str, rule: Rule) -> None:
    if text.startswith("mul.wide"):
        text = "mov.b32 {%h1, _}, %a; mov.b32 {_, %h2}, %b; " + text
    if text.startswith("lop3"):
        rule = lookup(0x1D)
    check(text, text, 32, False, rule)


def lookup(table: int) -> Rule:
    """lop3: bit i of the result is the table's bit at (a_i, b_i, c_i)."""

    def rule(a: int, b: int, c: int, n: int) -> int:
        rows = [(a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1) for i in range(32)]
        return sum((table >> row & 1) << i for i, row in enumerate(rows))

    return rule


@pytest.mark.parametrize("table", range(256))
def test_every_lop3_table(table: int) -> None:
    text = f"lop3.b32 %d, %a, %b, %c, {table};"
    check(text, text, 32, False, lookup(table), 16)


@pytest.mark.parametrize(("word", "combine"), [("or", lambda x, y: x | y), ("and", lambda x, y: x & y)])
def test_a_lop3_with_a_predicate(word: str, combine: Callable[[bool, bool], bool]) -> None:
    a, b = np.array([0, 0, 5, 5], "u4"), np.array([0, 1, 0, 1], "u4")
    text = f"setp.ne.u32 %p, %b, 0; lop3.{word}.b32 %i1|%q, %a, %a, %a, 0x80, %p; selp.u32 %i2, 100, 0, %q;"
    actual = run_fragment(text + " add.u32 %d, %i1, %i2;", "u4", a, b, header=HOPPER)
    expected = [x + 100 * combine(x != 0, y != 0) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert actual.tolist() == expected


@pytest.mark.parametrize("name", ["min", "max"])
def test_min_and_max_with_relu(name: str) -> None:
    rule = {"min": min, "max": max}[name]
    rng = np.random.default_rng(1)
    a, b = rng.integers(-50, 50, (2, 200), "i4")
    actual = run_fragment(f"{name}.relu.s32 %d, %a, %b;", "i4", a, b, header=HOPPER)
    assert actual.tolist() == [max(0, rule(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    c, d = rng.integers(-50, 50, (2, 400), "i2")
    actual = run_fragment(f"{name}.relu.s16x2 %d, %a, %b;", "u4", c.view("u4"), d.view("u4"), header=HOPPER).view(
        "i2"
    )
    assert actual.tolist() == [max(0, rule(x, y)) for x, y in zip(c.tolist(), d.tolist(), strict=True)]


def dot(a: int, b: int, c: int, a_signed: bool, b_signed: bool) -> int:
    total = c
    for index in range(4):
        x, y = a >> (8 * index) & 255, b >> (8 * index) & 255
        total += (signed(x, 8) if a_signed else x) * (signed(y, 8) if b_signed else y)
    return total


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("popc.b64 %i1, %a; cvt.u64.u32 %d, %i1;", lambda a, b, c, n: a.bit_count()),
        ("clz.b64 %i1, %a; cvt.u64.u32 %d, %i1;", lambda a, b, c, n: 64 - a.bit_length()),
        ("brev.b64 %d, %a;", lambda a, b, c, n: int(f"{a:064b}"[::-1], 2)),
        ("mov.b64 {%i1, %i2}, %a; mov.b64 %d, {%i2, %i1};", lambda a, b, c, n: a >> 32 | a << 32),
        ("cvt.u32.u64 %i1, %b; shr.u64 %d, %a, %i1;", lambda a, b, c, n: a >> min(b & 0xFFFFFFFF, 64)),
        ("cvt.s64.s32 %d, %a;", lambda a, b, c, n: signed(a, 32)),
        ("cvt.s64.s8 %d, %a;", lambda a, b, c, n: signed(a, 8)),
        ("cvt.sat.u8.s64 %d, %a;", lambda a, b, c, n: min(255, max(0, signed(a, 64)))),
    ],
)
def test_operations_of_double_words_match_python(text: str, rule: Rule) -> None:
    check(text, text, 64, False, rule)


def test_carry_chain_adds_and_subtracts_128_bits() -> None:
    a, b, c, d = (operands(64, 200, seed) for seed in (1, 2, 3, 4))
    for name, sign in (("add", 1), ("sub", -1)):
        low = run_fragment(f"{name}.cc.u64 %w1, %a, %c; {name}c.u64 %w2, %b, %d; mov.b64 %d, %w1;", "u8", a, b, c, d)
        body = f"{name}.cc.u64 %w1, %a, %c; {name}c.u64 %d, %b, %d;"
        high = run_fragment(body, "u8", a, b, c, d)
        # %d is the fourth input's register as well as the result's: it must be read before it is written.
        for x, y, z, w, lo, hi in zip(*(v.tolist() for v in (a, b, c, d, low, high)), strict=True):
            total = ((y << 64 | x) + sign * (w << 64 | z)) & (2**128 - 1)
            assert (hi << 64 | lo) == total


def test_guarded_instruction_keeps_the_old_value() -> None:
    a, b = operands(32, 100, 1), operands(32, 100, 2)
    actual = run_fragment("mov.u32 %d, %b; setp.lt.u32 %p, %a, %b; @!%p add.u32 %d, %a, 1;", "u4", a, b)
    np.testing.assert_array_equal(actual, np.where(a < b, b, a + np.uint32(1)))


@pytest.mark.parametrize(
    ("text", "value", "position", "length", "expected"),
    [
        ("bfe.u64 %d, %a, %i1, %i2;", 0x26857D500D93AF3E, 0, 0x1108CA37, 0x26857D500D93AF3E),
        ("bfe.u64 %d, %a, %i1, %i2;", 0x3D4EB7D3E6E32E23, 0x3E142610, 0x3E142610, 0),
        ("bfe.u64 %d, %a, %i1, %i2;", 0xFFFFFFFFFFFFFFFF, 2, 0x80000000, 0x3FFFFFFFFFFFFFFF),
        ("bfe.s64 %d, %a, %i1, %i2;", 0x9C2323F45E3A5831, 0x87EECF22, 0x515F23EC, 0xFFFFFFFFFFFFFFFF),
        ("bfe.s64 %d, %a, %i1, %i2;", 0x69DED440A3011EA6, 0xA0AD2F09, 0x188F6D67, 0),
        ("bfi.b64 %d, %a, %d, %i1, %i2;", 0x2B3C8108B639F611, 0x1A6EBF03, 0x595FE1C1, 0x1234),
        ("bfi.b64 %d, %a, %d, %i1, %i2;", 0x16EE62CE62851B9D, 0xAB3EA821, 0x27B2E8CE, 0x1234),
    ],
)
def test_fields_of_64_bits_that_ptx_does_not_allow(
    text: str, value: int, position: int, length: int, expected: int
) -> None:
    """Positions and lengths are 0 to 255; what an H200 answered beyond shows that it looks at all of their bits."""
    level = np.array([value], "u8")
    before = f"mov.b32 %i1, {position:#x}; mov.b32 %i2, {length:#x}; "
    actual = run_fragment(f"mov.u64 %d, 0x1234; {before}{text}", "u8", level)
    assert actual.tolist() == [expected]
