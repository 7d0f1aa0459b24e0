"""Keep registers of matrices in memory, where the functions for matrix instructions use them.

The problem: a product of matrices has 24 registers as operands, and a program unrolls 2,000 products. If each product
copied its registers to memory and back, the kernel would have 20 MB of LLVM's text, and take a minute to compile.

The idea: all registers of an operand are next to each other in one part of the warp's frame, the *bank*, and an
instruction gets the address of the first. LLVM keeps vectors that live across calls in memory anyway, and a warp that
stops does not need to save them. Thousands of registers share the few places that are needed at a time: a group of
registers has a place only while one of them lives, from the first to the last operation in the order of the text.

    wmma.load.a {%r1, %r2}   bank 0, 128       call load(bank + 0)
    wmma.mma {%r5, %r6}...   bank 256, 384     call product(bank + 0, ..., bank + 256)
    wmma.load.a {%r7, %r8}   bank 0, 128       %r1 and %r2 are not read after the product

A register is not in the bank if lanes that are pending may need its old value, or if it is read before it is set. It
has a variable of its own, like any other register.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd_server.ptx.compiled_tier.planning.analysis import WarpPlan
from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.lowering.control_flow import EXIT
from pympsd_server.ptx.lowering.ir import Code, Group, Operation, Register, registers_read, registers_written

_NAMES: Final = frozenset({"mma", "wmma", "ldmatrix", "stmatrix"})
Span = tuple[int, int]
"""The positions of the first and the last operation between which a register lives."""


def find_bank(code: Code, plan: WarpPlan, excluded: set[int]) -> dict[int, int]:
    """Return the offset of each register in the bank, in bytes. The `excluded` registers are not in it."""
    excluded_registers = set().union(excluded, plan.segments[0].live_in, *plan.blend)
    groups: list[tuple[int, ...]] = []
    owned: set[int] = set()
    for operation in _operations(plan):
        for group in _groups_of(operation):
            is_new = len(set(group)) == len(group) and owned.isdisjoint(group)
            if is_new and excluded_registers.isdisjoint(group) and plan.varying.issuperset(group):
                groups.append(group)
                owned.update(group)
    spans = _find_spans(code, plan, owned) if groups else {}
    return _place(code, groups, spans)


def size_of_bank(code: Code, bank: dict[int, int]) -> int:
    """Return the size of a bank in bytes; ``bank`` has the offset of each register."""
    return max((place + _nbytes(code, number) for number, place in bank.items()), default=0)


def _nbytes(code: Code, number: int) -> int:
    return WARP * DTYPES[code.register_types[number]].itemsize


def _operations(plan: WarpPlan) -> Iterator[Operation]:
    return (operation for segment in plan.segments for operation in segment.operations if operation.name in _NAMES)


def _groups_of(operation: Operation) -> Iterator[tuple[int, ...]]:
    for operand in operation.operands:
        if isinstance(operand, Group) and all(isinstance(item, Register) for item in operand.items):
            yield tuple(item.number for item in operand.items if isinstance(item, Register))


def _find_spans(code: Code, plan: WarpPlan, numbers: set[int]) -> dict[int, Span]:
    """Return the spans of registers. They include the ends of segments at which a register lives."""
    spans: dict[int, Span] = {}
    position = 0

    def note(used: set[int]) -> None:
        for number in used & numbers:
            first, last = spans.get(number, (position, position))
            spans[number] = min(first, position), max(last, position)

    for segment in plan.segments:
        note(set(segment.live_in))
        for operation in [*segment.operations, *([segment.terminator] if segment.terminator else [])]:
            position += 1
            used = (*registers_read(operation, code.carry), *registers_written(operation, code.carry))
            note({register.number for register in used})
        position += 1
        note(set().union(*(plan.segments[k].live_in for k in segment.successors if k != EXIT)))
    return spans


def _place(code: Code, groups: list[tuple[int, ...]], spans: dict[int, Span]) -> dict[int, int]:
    """Return the offsets of registers: each group gets the lowest place that is free during its span."""
    bank: dict[int, int] = {}
    intervals: list[tuple[int, int, int]] = []
    ordered = sorted((min(spans[n][0] for n in group), group) for group in groups)
    for begin, group in ordered:
        intervals = sorted(entry for entry in intervals if entry[2] >= begin)
        size, place = sum(_nbytes(code, number) for number in group), 0
        for start, end, _ in intervals:
            if place + size <= start:
                break
            place = max(place, end)
        intervals.append((place, place + size, max(spans[n][1] for n in group)))
        for number in group:
            bank[number] = place
            place += _nbytes(code, number)
    return bank
