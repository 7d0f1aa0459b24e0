"""The carry flag CC.CF, which instructions with .cc set and addc, subc and madc read, in every order.

A GPU has one flag: after a difference it is 1 if nothing was borrowed. (``carry_orders`` of the corpus is the same on
an H100.)
"""

from __future__ import annotations

import numpy as np
import pytest
from recorded_corpus import KERNELS, module_of

from tests.emulated.fragments import run_fragment
from tests.emulated.test_corpus import outputs_of
from tests.emulated.test_integers import operands, signed

FIRST = ["add.cc", "addc.cc", "sub.cc", "subc.cc", "mad.lo.cc", "mad.hi.cc", "madc.lo.cc", "madc.hi.cc"]
SECOND = ["addc", "subc", "madc.lo", "madc.hi", "addc.cc", "subc.cc", "madc.lo.cc", "madc.hi.cc"]


def execute(name: str, kind: str, flag: int, a: int, b: int, c: int) -> tuple[int, int]:
    """The result of an instruction, and the flag after it."""
    bits, most = int(kind[1:]), 2 ** int(kind[1:]) - 1
    base, *modifiers = name.split(".")
    carry = flag if base.endswith("c") else int(base == "sub")
    if base.startswith("mad"):
        numbers = [signed(v, bits) for v in (a, b)] if kind[0] == "s" else [a, b]
        product = numbers[0] * numbers[1]
        a, b = (product >> bits if "hi" in modifiers else product) & most, c
    elif base.startswith("sub"):
        b = ~b & most
    total = a + b + carry
    return total & most, total >> bits if "cc" in modifiers else flag


def text_of(name: str, kind: str, d: str, a: str, b: str, c: str) -> str:
    return f"{name}.{kind} {d}, {a}, {b}{', ' + c if name.startswith('mad') else ''};"


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_every_order_of_two(kind: str, first: str) -> None:
    bits = int(kind[1:])
    inputs = [operands(bits, 64, seed) for seed in (1, 2, 3)]
    register = "%i1" if bits == 32 else "%w1"
    for second in SECOND:
        before = f"sub.cc.{kind} {register}, %b, %c;" + text_of(first, kind, register, "%a", "%b", "%c")
        chain = before + text_of(second, kind, "%d", register, "%a", "%b")
        results = run_fragment(chain, f"u{bits // 8}", *inputs)
        flags = run_fragment(f"{chain} addc.{kind} %d, 0, 0;", f"u{bits // 8}", *inputs)
        for a, b, c, result, flag in zip(*(x.tolist() for x in (*inputs, results, flags)), strict=True):
            carry = int(b >= c)
            x, carry = execute(first, kind, carry, a, b, c)
            assert (result, flag) == execute(second, kind, carry, x, a, b), (first, second, a, b, c)


def test_the_flag_is_one_if_nothing_was_borrowed() -> None:
    a, b = np.array([3, 5, 5], "u4"), np.array([5, 3, 5], "u4")
    assert run_fragment("sub.cc.u32 %i1, %a, %b; addc.u32 %d, 0, 0;", "u4", a, b).tolist() == [0, 1, 1]
    chain = "sub.cc.u32 %i1, 0, 0; subc.cc.u32 %i1, %a, %b; addc.u32 %d, 0, 0;"
    assert run_fragment(chain, "u4", a, b).tolist() == [0, 1, 1]
    # A subtraction of nothing that borrows from a zero borrows again.
    chain = "sub.cc.u32 %i1, 0, 1; subc.cc.u32 %i1, %a, %b; addc.u32 %d, 0, 0;"
    assert run_fragment(chain, "u4", a, b).tolist() == [0, 1, 0]


def test_a_thread_that_skips_an_instruction_keeps_its_flag() -> None:
    a, b = np.array([1, 2, 3, 4], "u4"), np.array([2, 1, 4, 3], "u4")
    text = (
        "setp.lt.u32 %p, %a, 3; sub.cc.u32 %i1, %a, %b; @%p add.cc.u32 %i1, %a, -1; @!%p add.u32 %i1, %a, -1;"
        "addc.u32 %d, 0, 0;"
    )
    assert run_fragment(text, "u4", a, b).tolist() == [1, 1, 0, 1]


def test_a_flag_survives_a_branch() -> None:
    a, b = np.array([1, 2, 3, 4], "u4"), np.array([2, 1, 4, 3], "u4")
    text = "sub.cc.u32 %i1, %a, %b; setp.lt.u32 %p, %a, 3; @%p bra L; mov.u32 %i2, 5; L: subc.u32 %d, 10, 0;"
    assert run_fragment(text, "u4", a, b).tolist() == [9, 10, 9, 10]


@pytest.mark.parametrize(("high", "low", "divisor"), [(0, 100, 7), (13, 5, 1), (5, 0, 7), (2**63, 1, 2**62 + 3)])
def test_a_long_division_uses_the_carry_flag(high: int, low: int, divisor: int) -> None:
    """A quotient of 128 bits, one bit after the other: each step subtracts and asks the flag."""
    step = (
        "add.cc.u64 %w2, %w2, %w2; addc.cc.u64 %w1, %w1, %w1; addc.cc.u64 %w3, %w3, %w3; addc.u64 %w4, 0, 0;"
        "sub.cc.u64 %w5, %w3, %c; subc.cc.u64 %w4, %w4, 0; addc.u64 %w6, 0, 0; setp.ne.u64 %p, %w6, 0;"
        "@%p mov.u64 %w3, %w5; add.u64 %w2, %w2, %w6;"
    )
    start = "mov.u64 %w1, %a; mov.u64 %w2, %b; mov.u64 %w3, 0;"
    inputs = [np.array([value], "u8") for value in (high, low, divisor)]
    quotient = (high << 64 | low) // divisor
    loop = f"{start} mov.u32 %i1, 0; L: {step} add.u32 %i1, %i1, 1; setp.lt.u32 %q, %i1, 128; @%q bra L;"
    assert run_fragment(f"{loop} mov.u64 %d, %w2;", "u8", *inputs).tolist() == [quotient % 2**64]
    assert run_fragment(f"{loop} mov.u64 %d, %w1;", "u8", *inputs).tolist() == [quotient >> 64]


def test_the_compilers_division() -> None:
    """What NVRTC makes of / and % of __int128, against Python's."""
    inputs = module_of("inputs").contents(KERNELS["divide128"])
    a, b, c = (inputs[name].tolist() for name in "abc")
    actual = outputs_of("divide128")["out"].tolist()
    for i in range(64):
        x, y = a[i] << 64 | b[i], (c[i] << 64 | a[(i + 5) % 64]) >> (i * 3 % 127) | 1
        s, t = signed(x, 128), signed((y >> 1 | 1) * (-1 if i & 1 else 1), 128)
        quotient = abs(s) // abs(t) * (1 if (s < 0) == (t < 0) else -1)
        expected = [x // y, x % y, quotient, s - quotient * t]
        result = [actual[2 * k][i] | actual[2 * k + 1][i] << 64 for k in range(4)]
        assert result == [value % 2**128 for value in expected], (x, y)
