"""Video instructions, against the pseudo-code of the PTX ISA in Python integers.

Where a GPU differs from the ISA, the values are what an H100 answered (see ptx/math/video.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import InvalidPtx
from tests.emulated.fragments import Array, run_fragment
from tests.emulated.test_integers import operands, signed

WORD = 2**32 - 1
TIERS = ("numpy",)  # all of these instructions escape; compiling what is around them takes a minute
TYPES = ("u32", "s32")
COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
OPERATIONS = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    **COMPARISONS,
}
A, B, C = (operands(32, 128, seed) for seed in (4, 5, 6))


def field(value: int, low: int, width: int, kind: str) -> int:
    part = value >> low & (1 << width) - 1
    return signed(part, width) if kind == "s32" else part


def part_of(value: int, selector: str, kind: str) -> int:
    """A register, or a part of one: .b0 to .b3, .h0 and .h1."""
    if not selector:
        return field(value, 0, 32, kind)
    width = {"b": 8, "h": 16}[selector[1]]
    return field(value, int(selector[2]) * width, width, kind)


def clamp(value: int, width: int, kind: str) -> int:
    least = -(1 << width - 1) if kind == "s32" else 0
    return max(least, min(least + (1 << width) - 1, value))


def second(name: str, result: int, c: int, kind: str) -> int:
    other = field(c, 0, 32, kind)
    return {"add": lambda: result + other, "min": lambda: min(result, other), "max": lambda: max(result, other)}[
        name
    ]()


def merge(result: int, c: int, selector: str) -> int:
    width = {"b": 8, "h": 16}[selector[1]]
    mask, low = (1 << width) - 1, int(selector[2]) * width
    return (result & mask) << low | c & ~(mask << low)


def check(text: str, expected: Iterator[int], a: Array = A, b: Array = B, c: Array = C) -> None:
    actual = run_fragment(text, "u4", a, b, c)
    assert actual.tolist() == [value & WORD for value in expected], text


# Scalars.

NARROW = (".b0", ".b1", ".b2", ".b3", ".h0", ".h1")
KEPT = NARROW[:-1]
"""The parts that a result is merged into as the ISA says; .h1 is another on a GPU."""


@pytest.mark.parametrize("name", ["vadd", "vsub", "vabsdiff", "vmin", "vmax"])
@pytest.mark.parametrize("types", list(itertools.product(TYPES, TYPES, TYPES)))
def test_parts_of_registers(name: str, types: tuple[str, str, str]) -> None:
    d, a, b = types
    for left, right in zip((*NARROW, ".b3", ".h0"), (*NARROW[3:], *NARROW[:3], ".b3", ".h0"), strict=True):
        results = [
            OPERATIONS[name](part_of(x, left, a), part_of(y, right, b))
            for x, y in zip(A.tolist(), B.tolist(), strict=True)
        ]
        opcode = f"{name}.{d}.{a}.{b}"
        check(f"{opcode} %d, %a{left}, %b{right};", iter(results))
        check(f"{opcode}.sat %d, %a{left}, %b{right};", (clamp(r, 32, d) for r in results))
        sums = (second("add", clamp(r, 32, d), c, d) for r, c in zip(results, C.tolist(), strict=True))
        check(f"{opcode}.sat.add %d, %a{left}, %b{right}, %c;", sums)
        into = KEPT[len(left + right + name + d) % 5]
        check(
            f"{opcode} %d{into}, %a{left}, %b{right}, %c;",
            (merge(r, c, into) for r, c in zip(results, C.tolist(), strict=True)),
        )


@pytest.mark.parametrize("name", ["vadd", "vsub", "vabsdiff", "vmin", "vmax"])
def test_video_operations_of_whole_registers_match_the_isa(name: str) -> None:
    for d, a, b in itertools.product(TYPES, TYPES, TYPES):
        results = (
            OPERATIONS[name](part_of(x, "", a), part_of(y, "", b))
            for x, y in zip(A.tolist(), B.tolist(), strict=True)
        )
        check(f"{name}.{d}.{a}.{b} %d, %a, %b;", results)


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", TYPES)
def test_extremes_with_a_third_operand(name: str, kind: str) -> None:
    """Of results that are not negative, which all compare alike."""
    results = (
        second(name, part_of(x, ".h0", "u32") + part_of(y, ".b2", "u32"), z, kind)
        for x, y, z in zip(A.tolist(), B.tolist(), C.tolist(), strict=True)
    )
    check(f"vadd.{kind}.u32.u32.{name} %d, %a.h0, %b.b2, %c;", results)


@pytest.mark.parametrize("into", KEPT)
def test_unsigned_saturation_to_a_part(into: str) -> None:
    width = {"b": 8, "h": 16}[into[1]]
    results = (
        merge(clamp(part_of(x, ".h0", "u32") + part_of(y, ".h1", "u32"), width, "u32"), z, into)
        for x, y, z in zip(A.tolist(), B.tolist(), C.tolist(), strict=True)
    )
    check(f"vadd.u32.u32.u32.sat %d{into}, %a.h0, %b.h1, %c;", results)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("kind", TYPES)
def test_video_shifts_match_the_isa(mode: str, kind: str) -> None:
    for left, right in (("", ".b0"), (".b3", ".b1"), (".h1", ".h0"), (".h0", "")):
        for name in ("vshl", "vshr"):
            results = []
            for x, y in zip(A.tolist(), B.tolist(), strict=True):
                value, amount = part_of(x, left, kind), part_of(y, right, "u32")
                amount = min(amount, 32) if mode == "clamp" else amount & 31
                results.append(value << amount if name == "vshl" else value >> amount)
            opcode = f"{name}.{kind}.{kind}.u32"
            check(f"{opcode}.{mode} %d, %a{left}, %b{right};", iter(results))
            sums = (r + z for r, z in zip(results, C.tolist(), strict=True))
            check(f"{opcode}.{mode}.add %d, %a{left}, %b{right}, %c;", sums)
            if name == "vshr":
                check(f"{opcode}.sat.{mode} %d, %a{left}, %b{right};", (clamp(r, 32, kind) for r in results))


@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_video_comparisons_match_the_isa(name: str) -> None:
    for a, b in itertools.product(TYPES, TYPES):
        for left, right in (("", ""), (".b0", ".h1"), (".h0", ".b3")):
            results = [
                int(COMPARISONS[name](part_of(x, left, a), part_of(y, right, b)))
                for x, y in zip(A.tolist(), B.tolist(), strict=True)
            ]
            check(f"vset.{a}.{b}.{name} %d, %a{left}, %b{right};", iter(results))
            pairs = list(zip(results, C.tolist(), strict=True))
            check(f"vset.{a}.{b}.{name}.add %d, %a{left}, %b{right}, %c;", (r + z for r, z in pairs))
            check(f"vset.{a}.{b}.{name} %d.b2, %a{left}, %b{right}, %c;", (merge(r, z, ".b2") for r, z in pairs))


@pytest.mark.parametrize(
    ("signs", "product", "addend"), [("   ", 1, 1), ("-  ", -1, 1), (" - ", -1, 1), ("-- ", 1, 1), ("  -", 1, -1)]
)
def test_multiply_and_add(signs: str, product: int, addend: int) -> None:
    """vmad of half-words, whose products fit: with negated operands, scales and saturation."""
    left, right, third = (sign.strip() for sign in signs)
    for a, b in itertools.product(TYPES, TYPES):
        final = "s32" if "s32" in (a, b) or product < 0 or addend < 0 else "u32"
        for scale, by in (("", 0), (".shr7", 7), (".shr15", 15)):
            c = C >> np.uint32(2)
            totals = [
                (product * part_of(x, ".h0", a) * part_of(y, ".b1", b) + addend * z) >> by
                for x, y, z in zip(A.tolist(), B.tolist(), c.tolist(), strict=True)
            ]
            operands = f"%d, {left}%a.h0, {right}%b.b1, {third}%c;"
            check(f"vmad.{final}.{a}.{b}{scale} {operands}", iter(totals), c=c)
            check(f"vmad.{final}.{a}.{b}.sat{scale} {operands}", (clamp(t, 32, final) for t in totals), c=c)


def test_multiply_and_add_one_more() -> None:
    totals = [
        part_of(x, ".h0", "s32") * part_of(y, ".h1", "s32") + signed(z, 32) + 1
        for x, y, z in zip(A.tolist(), B.tolist(), C.tolist(), strict=True)
    ]
    check("vmad.s32.s32.s32.po %d, %a.h0, %b.h1, %c;", iter(totals))
    check("vmad.s32.s32.s32.po.sat.shr7 %d, %a.h0, %b.h1, %c;", (clamp(t >> 7, 32, "s32") for t in totals))


@pytest.mark.parametrize(
    ("text", "a", "b", "c", "expected"),
    [
        # A sum beyond .u32 is not saturated; one below 0 is.
        ("vadd.u32.u32.u32.sat %d, %a, %b;", 0xFFFFFFFF, 2, 0, 1),
        ("vsub.u32.u32.u32.sat %d, %a, %b;", 1, 2, 0, 0),
        ("vabsdiff.u32.u32.s32.sat %d, %a, %b.b1;", 0xFFFFFFFF, 0xFF00, 0, 0),
        # The upper half of the result is merged into .h1.
        ("vadd.u32.u32.u32 %d.h1, %a.b3, %b.h0, %c;", 0xFF000000, 0xFFF9, 0x8A31, 0x00018A31),
        ("vadd.s32.s32.s32.sat %d.h1, %a.b2, %b.b0, %c;", 0xFF0000, 0xFF, 0xFFFF8A31, 0x8A31),
        # A signed sum that is too small becomes the greatest of a part.
        ("vsub.s32.s32.s32.sat %d.b1, %a.b0, %b.b0, %c;", 0, 1, 0, 0x7F00),
        # Sums are signed when they are compared, the third operand is what dtype says.
        ("vadd.u32.u32.s32.min %d, %a, %b.b1, %c;", 0x80000001, 0xFF00, 0x87CD2771, 0x87CD2771),
        ("vadd.u32.s32.s32.max %d, %a, %b, %c;", 0, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFE),
        # A comparison's .min and .max go by the type of a.
        ("vset.s32.u32.lt.min %d, %a, %b, %c;", 0, 0, 0xA918B6DE, 0xA918B6DE),
        ("vset.u32.s32.lt.min %d, %a, %b, %c;", 0, 0, 0xA918B6DE, 0),
        # Of a shifted value 34 bits count.
        ("vshl.u32.u32.u32.sat.clamp %d, %a, %b;", 0xFF, 32, 0, 0),
        ("vshl.u32.u32.u32.sat.clamp %d, %a, %b;", 1, 32, 0, 0xFFFFFFFF),
        # Whole words are signed in vmad, and so is the third operand.
        ("vmad.u32.u32.u32.sat %d, %a, %b, %c;", 0xFFFFFFFF, 2, 0, 0),
        ("vmad.u32.u32.u32.shr7 %d, %a, %b, %c;", 0xFFFFFF80, 1, 0, 0xFFFFFFFF),
    ],
)
def test_video_operations_differ_from_the_isa_as_on_a_gpu(text: str, a: int, b: int, c: int, expected: int) -> None:
    check(text, iter([expected]), *(np.array([value], "u4") for value in (a, b, c)))


# Two and four lanes.


def lanes_of(text: str, x: int, y: int, z: int) -> int:
    """What an instruction of two or four lanes answers, after the ISA; `text` has %d, %a, %b and %c."""
    opcode, *operands = re.split(r"[ ,;]+", text.strip(" ;"))
    name, *modifiers = opcode.split(".")
    lanes, types = int(name[-1]), [m for m in modifiers if m in TYPES]
    d, a, b = types if len(types) == 3 else ("u32", *types)
    function = OPERATIONS[next((m for m in modifiers if m in COMPARISONS), name[:-1])]
    width = 32 // lanes
    digits = [[int(digit) for digit in reversed(operand[4:])] for operand in operands[:3]]
    everything = x | y << 32
    written = digits[0] or range(lanes)
    left, right = digits[1] or range(lanes), digits[2] or range(lanes, 2 * lanes)
    results = {
        lane: function(
            field(everything, left[lane] * width, width, a), field(everything, right[lane] * width, width, b)
        )
        for lane in written
    }
    if "sat" in modifiers:
        results = {lane: clamp(value, width, d) for lane, value in results.items()}
    if "add" in modifiers:
        return z + sum(results.values())
    parts = (results.get(lane, z >> lane * width) & (1 << width) - 1 for lane in range(lanes))
    return sum(part << lane * width for lane, part in enumerate(parts))


def check_lanes(text: str) -> None:
    operands = zip(A.tolist(), B.tolist(), C.tolist(), strict=True)
    check(text, (lanes_of(text, *values) for values in operands))


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("name", ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"])
def test_video_operations_of_lanes_match_the_isa(name: str, lanes: int) -> None:
    masks, selectors = (["", ".h0", ".h1"], ["", ".h32", ".h13", ".h00"])
    if lanes == 4:
        masks, selectors = (["", ".b0", ".b31", ".b210", ".b320"], ["", ".b7654", ".b0725", ".b1111"])
    turns = itertools.product(masks, selectors, selectors)
    everything = itertools.cycle(turns)
    for d, a, b in itertools.product(TYPES, TYPES, TYPES):
        for tail in ("", ".sat", ".add"):
            mask, left, right = next(everything)
            check_lanes(f"{name}{lanes}.{d}.{a}.{b}{tail} %d{mask}, %a{left}, %b{right}, %c;")
            check_lanes(f"{name}{lanes}.{d}.{a}.{b}{tail} %d, %a, %b, %c;")


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_comparisons_of_lanes(name: str, lanes: int) -> None:
    letter, digits = {2: ("h", "10"), 4: ("b", "3210")}[lanes]
    for a, b in itertools.product(TYPES, TYPES):
        for tail in ("", ".add"):
            check_lanes(f"vset{lanes}.{a}.{b}.{name}{tail} %d, %a, %b, %c;")
            check_lanes(
                f"vset{lanes}.{a}.{b}.{name}{tail} %d.{letter}1, %a.{letter}{digits}, %b.{letter}{digits}, %c;"
            )


def test_sums_of_absolute_differences() -> None:
    """__vsadu2 and __vsadu4."""
    a, b, c = (np.array([value], "u4") for value in (0x00070001, 0x00040003, 1))
    assert run_fragment("vabsdiff2.u32.u32.u32.add %d, %a, %b, %c;", "u4", a, b, c).tolist() == [6]
    assert run_fragment("vabsdiff4.u32.u32.u32.add %d, %a, %b, %c;", "u4", a, b, c).tolist() == [6]


def test_a_guard_keeps_the_old_value() -> None:
    text = "mov.u32 %d, 7; setp.lt.u32 %p, %a, 2; @%p vadd.u32.u32.u32 %d, %a.b0, %a.b0;"
    assert run_fragment(text, "u4", np.arange(4, dtype="u4")).tolist() == [0, 2, 7, 7]


@pytest.mark.parametrize(
    "text",
    [
        "vadd.s32.u32.s32.sat.min %d, %a.h0, %b, %c;",
        "vsub.u32.s32.s32.sat %d.b2, %a, %b.b3, %c;",
        "vabsdiff.u32.s32.u32.max %d, %a, %b, %c;",
        "vshl.s32.s32.u32.sat.clamp %d, %a, %b.b1;",
        "vshr.u32.s32.u32.wrap %d.h1, %a, %b, %c;",
        "vset.s32.u32.lt.max %d, %a, %b, %c;",
        "vmad.u32.u32.u32.sat.shr7 %d, %a.h1, %b, %c;",
        "vmad.s32.s32.u32.shr15 %d, -%a, %b, %c;",
        "vavrg4.s32.u32.s32.sat %d.b31, %a, %b, %c;",
        "vset2.s32.u32.ge.add %d, %a.h03, %b, %c;",
    ],
)
def test_operands_that_all_threads_share(text: str) -> None:
    """Constants, which no thread has to itself, make the same as values of each thread."""
    for a, b, c in itertools.product((3, 0x80FF7F01), (0x1F, 0xFFFE0105), (0, 0x90000001)):
        entry = run_fragment(text, "u4", *(np.array([value], "u4") for value in (a, b, c)))
        shared = re.sub(r"%([abc])", r"%i\1", text).replace("%ia", "%i1").replace("%ib", "%i2").replace("%ic", "%i3")
        constants = f"mov.u32 %i1, {a}; mov.u32 %i2, {b}; mov.u32 %i3, {c}; {shared}"
        assert run_fragment(constants, "u4", A[:1]).tolist() == entry.tolist(), (a, b, c)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vadd.u32.u32 %i1, %i2, %i3;", "3 types"),
        ("vadd.u32.u32.u32 %i1.h1, %i2, %i3;", "third operand"),
        ("vadd.u32.u32.u32.add %i1, %i2, %i3;", "third operand"),
        ("vadd.u32.u32.u32.add %i1.b0, %i2, %i3, %i4;", "a part of a register as the destination, or"),
        ("vadd.u32.u32.u32 %i1, -%i2, %i3;", "negated"),
        ("vadd.u32.u32.u32 %i1, %i2.b4, %i3;", "no part .b4"),
        ("vadd.u32.u32.u32 %i1, %i2.h10, %i3;", "no part .h10"),
        ("vadd.u32.u32.u32 %i1, %i2, %i3, %i4.b0;", "whole register"),
        ("vshl.u32.u32.u32 %i1, %i2, %i3;", "clamp and .wrap"),
        ("vshl.u32.u32.s32.wrap %i1, %i2, %i3;", r"last type is \.u32"),
        ("vset.u32.u32.lt.ge %i1, %i2, %i3;", "one of .eq"),
        ("vset.u32.u32.lt.sat %i1, %i2, %i3;", "modifier .sat"),
        ("vmad.u32.u32.u32 %i1.h0, %i2, %i3, %i4;", "only a and b"),
        ("vmad.s32.u32.u32 %i1, -%i2, %i3, -%i4;", "either the product or c"),
        ("vmad.s32.u32.u32.po %i1, -%i2, %i3, %i4;", "neither with .po"),
        ("vadd2.u32.u32.u32.sat.add %i1, %i2, %i3, %i4;", "exclude"),
        ("vadd2.u32.u32.u32 %i1, %i2, %i3;", "3 operands"),
        ("vadd2.u32.u32.u32 %i1.h01, %i2, %i3, %i4;", "mask"),
        ("vadd2.u32.u32.u32 %i1, %i2.h4, %i3, %i4;", "selector"),
        ("vadd4.u32.u32.u32 %i1, %i2.h10, %i3, %i4;", "selector"),
        ("add.u32 %i1, %i2.b0, %i3;", "operand"),
        ("add.u32 %i1, -%i2, %i3;", "operand"),
    ],
)
def test_impossible_video_instructions_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidPtx, match=words):
        run_fragment(f"{text} mov.u32 %d, 0;", "u4", A)
