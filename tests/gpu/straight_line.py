"""Random straight-line programs over registers of every type, for comparing two devices bit by bit.

A program is one kernel: each thread loads its registers, runs some instructions of the table, now and then under a
predicate, and stores its registers. A buffer is a row of 64 words of 8 bytes for every register, a word a thread.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from attrs import frozen

from tests.gpu.instruction_table import INSTRUCTIONS, KINDS, NEVER_GUARDED, PREDICATES, Kind

THREADS = 64
LENGTH = 18
GUARDED = 0.2
"""The share of instructions under a predicate."""
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
Array = np.ndarray[Any, Any]
REGISTERS = [(name, kind) for kind in KINDS.values() for name in kind.names]
ROWS = len(REGISTERS) + PREDICATES
_ROW_BYTES = 8 * THREADS
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48}
"""The bits of each float type's infinity: what is greater, but for the sign, is a NaN."""
_SIGNED = re.compile(r"cvt\.\w+\.f\d\d\.s\d\d (%\w+),")
_UNSIGNED = re.compile(r"cvt\.\w+\.u\d\d\.f\d\d %\w+, (%\w+);")
"""A float of a signed integer, and an unsigned integer of that: ptxas 13.0 makes one conversion of the two, by which
-1 becomes the greatest number and not 0, as the manual has it. No program has both."""
_SCALES = {"float16": 8.0, "bfloat16": 100.0, "float32": 100.0, "float64": 1000.0}


@frozen
class Program:
    """A kernel's text, and the buffer of what its registers hold at the start."""

    name: str
    ptx: str
    inputs: Array


def program(name: str, rng: np.random.Generator) -> Program:
    """Return a random program."""
    lines: list[str] = []
    signed: set[str] = set()
    for choice in rng.integers(len(INSTRUCTIONS), size=LENGTH):
        entry = INSTRUCTIONS[choice]
        before, text = with_registers(entry, rng)
        is_guarded = "!" not in entry and rng.random() < GUARDED
        guard = f"@%p{rng.integers(PREDICATES)} " if is_guarded else ""
        if (there_and_back := _UNSIGNED.match(text)) and there_and_back[1] in signed:
            continue
        if match := _SIGNED.match(text):
            signed.add(match[1])
        lines += [*before, text if entry.startswith(NEVER_GUARDED) else guard + text]
    inputs = np.zeros((ROWS, THREADS), np.uint64)
    for row, (_, kind) in enumerate(REGISTERS):
        inputs[row] = _values(kind, rng)
    return Program(name, kernel(name, lines), inputs)


def with_registers(instruction: str, rng: np.random.Generator) -> tuple[list[str], str]:
    """Return the instructions in an entry's brackets, and the entry itself, with registers chosen."""
    before: list[str] = []

    def add_brackets(match: re.Match[str]) -> str:
        letter, number, name, other = match.groups()
        held = f"%x{letter}{len(before)}"
        before.append(f"{name} {held}, %{letter}{number}, {other};")
        return held

    def choose(match: re.Match[str]) -> str:
        letter = match[1].lower()
        count = PREDICATES if letter == "p" else KINDS[letter].count if letter in KINDS else 0
        return f"%{letter}{rng.integers(count)}" if count else match[0]

    # Two destinations of one instruction must differ.
    text = re.sub(
        r"\{%([WH]), %\1\}", lambda result: f"{{%{result[1].lower()}0, %{result[1].lower()}1}}", instruction
    )
    text = re.sub(r"%([A-Za-z])\b", choose, text).replace("@table", str(rng.integers(256)))
    text = re.sub(r"%([a-z])(\d)\[(\S+) (\S+)\]", add_brackets, text)
    return before, text.replace("!", ";\n  ") + ";"


def kernel(name: str, lines: list[str]) -> str:
    """Return the kernel around instructions."""
    declared = " ".join(f".reg .{kind.register} %{kind.letter}<{kind.count}>;" for kind in KINDS.values())
    return "\n".join(
        [
            f".visible .entry {name}(.param .u64 p_in, .param .u64 p_out)",
            f"{{ {declared} .reg .pred %p<{PREDICATES}>;",
            ".reg .b32 %t; .reg .b64 %u, %in, %out, %at; .reg .b16 %v;",
            ".reg .b16 %xh<2>; .reg .b32 %xw<2>; .reg .b64 %xd<2>;",
            "ld.param.u64 %in, [p_in]; ld.param.u64 %out, [p_out];",
            "mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 8; add.s64 %in, %in, %at; add.s64 %out, %out, %at;",
            *(
                f"ld.global.b{kind.bits} %{register}, [%in+{_ROW_BYTES * row}];"
                for row, (register, kind) in enumerate(REGISTERS)
            ),
            *(f"setp.gt.s32 %p{number}, %w{number}, 0;" for number in range(PREDICATES)),
            *lines,
            *(
                f"st.global.b{kind.bits} [%out+{_ROW_BYTES * row}], %{register};"
                for row, (register, kind) in enumerate(REGISTERS)
            ),
            *(_store_predicate(number) for number in range(PREDICATES)),
            "ret; }",
        ]
    )


def _store_predicate(number: int) -> str:
    place = _ROW_BYTES * (len(REGISTERS) + number)
    return f"selp.b32 %t, 1, 0, %p{number}; st.global.b32 [%out+{place}], %t;"


def differing(left: Array, right: Array) -> list[tuple[str, int]]:
    """Return where two output buffers differ, as (register, thread); any NaN is as good as another."""
    rows = REGISTERS + [(f"p{number}", KINDS["w"]) for number in range(PREDICATES)]
    differences = []
    for (name, kind), first, second in zip(rows, left, right, strict=True):
        same = first == second
        if kind.dtype in _INFINITY:
            magnitude, infinity = np.uint64((1 << (kind.bits - 1)) - 1), np.uint64(_INFINITY[kind.dtype])
            same |= ((first & magnitude) > infinity) & ((second & magnitude) > infinity)
        differences += [(name, int(thread)) for thread in np.flatnonzero(~same)]
    return differences


def row_of(register: str) -> int:
    """Return a register's row."""
    names = [name for name, _ in REGISTERS] + [f"p{number}" for number in range(PREDICATES)]
    return names.index(register)


def _values(kind: Kind, rng: np.random.Generator) -> Array:
    """Return a register's bits in every thread: random ones, special values, and for floats ordinary numbers."""
    values = rng.integers(0, 1 << 32, THREADS, dtype=np.uint64) << np.uint64(32)
    values = (values | rng.integers(0, 1 << 32, THREADS, dtype=np.uint64)) >> np.uint64(64 - kind.bits)
    top = 1 << (kind.bits - 1)
    telling = [0, 1, 2, 2 * top - 1, top, top - 1, 7, kind.bits - 1]
    if kind.dtype in _INFINITY:
        infinity = _INFINITY[kind.dtype]
        telling = [0, top, infinity, infinity | top, infinity - 1, 1, infinity | infinity >> 1 | 1, top | 1]
        values[THREADS // 2 :] = _bits_of(rng.normal(0, _SCALES[kind.dtype], THREADS // 2), kind)
    values[::4] = rng.choice(np.array(telling, np.uint64), THREADS // 4)
    return values


def _bits_of(values: Array, kind: Kind) -> Array:
    if kind.dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint64)
    return values.astype(kind.dtype).view(f"uint{kind.bits}").astype(np.uint64)
