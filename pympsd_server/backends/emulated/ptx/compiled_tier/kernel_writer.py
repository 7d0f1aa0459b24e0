"""Translation of a kernel's operations to text: which escape, how wide vectors are, and which kernels are refused.

The analysis must know which operations escape, because results of escapes are vectors. So each operation is first
written once on trial, with all registers as vectors; if its form refuses it, it escapes. Forms must not depend on the
plan in other ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

from attrs import define, field

from pympsd_server.backends.emulated.ptx.compiled_tier.analysis import (
    WarpPlan,
    analyse,
    group_accesses,
    split_blocks,
)
from pympsd_server.backends.emulated.ptx.compiled_tier.dispatch_text import is_crowded
from pympsd_server.backends.emulated.ptx.compiled_tier.fragment_bank import find_bank
from pympsd_server.backends.emulated.ptx.compiled_tier.instruction_table import Form, write, write_attempt
from pympsd_server.backends.emulated.ptx.compiled_tier.kernel_text import KernelText, Stop
from pympsd_server.backends.emulated.ptx.compiled_tier.lanes import Refused
from pympsd_server.backends.emulated.ptx.compiled_tier.sequences import Sequences, find_sequences
from pympsd_server.backends.emulated.ptx.compiled_tier.turns import find_turns
from pympsd_server.backends.emulated.ptx.compiled_tier.warp_forms import WARP_INSTRUCTIONS
from pympsd_server.backends.emulated.ptx.isa.machine import WARP
from pympsd_server.backends.emulated.ptx.lowering.control_flow import EXIT, build_blocks, without_dead_results
from pympsd_server.backends.emulated.ptx.lowering.ir import Code, Operation, Special

_MAX_ESCAPES: Final = 24
_MAX_BLOCKS: Final = 4000
_SMALL_WIDTH: Final = 8
_HALVES: Final = frozenset({"f16", "f16x2", "e4m3", "e5m2"})
"""The types whose values are converted by way of halves."""


def is_forced(operation: Operation) -> bool:
    """Return whether an instruction escapes although it has a form: never.

    Tests replace it to compare the tiers, and keep no kernels on disk.
    """
    return False


def choose_width(code: Code, block: tuple[int, int, int]) -> int:
    """Return the lanes of a vector: a warp's, or fewer if nothing depends on warps.

    It is 8 for blocks of at most so many threads, 16 if rows have that width.
    """
    is_small = prod(block) <= _SMALL_WIDTH
    if not is_small and (block[0] % WARP == 0 or block[0] % 16):
        return WARP
    if any(map(_needs_warps, code.operations)):
        return WARP
    return _SMALL_WIDTH if is_small else 16


def _needs_warps(operation: Operation) -> bool:
    names = ("%lane", "%warpid", "%nwarpid")
    if any(isinstance(a, Special) and a.name.startswith(names) for a in operation.operands):
        return True
    if operation.name in ("bar", "barrier"):
        return operation.has("warp") or len(operation.operands) != 1
    return operation.name in WARP_INSTRUCTIONS or operation.has("sync")


def write_text(
    code: Code,
    offsets: dict[tuple[str, str], int],
    static_shared: int,
    block: tuple[int, int, int],
    *,
    has_halves: bool,
) -> KernelText:
    """Return the writer of a kernel for blocks of a shape, with its text written.

    `has_halves`: the processor converts between half and float.

    Raises Refused for a kernel that stays in the NumPy tier.
    """
    width = choose_width(code, block)
    rows, linear = block[0] % width == 0, block[1] * block[2] == 1
    whole = block[0] * block[1] * block[2] % width == 0
    probe = KernelText(code, _everything_varies(code), width, whole, offsets, Sequences(), static_shared)
    escapes = _Escapes(probe, has_halves)
    plan = _plan(code, escapes, rows=rows)
    _refuse_hot_escapes(plan, escapes)
    sequences = find_sequences(code, plan, linear=linear)
    if is_crowded(plan):
        sequences = Sequences(sequences.strides)  # first lanes would be variables that live across segments
    text = KernelText(code, plan, width, whole, offsets, sequences, static_shared)
    text.bank = find_bank(code, plan, sequences.certain) if width == WARP else {}
    text.number_of(Stop(0, (), is_entry=True))
    text.module_text = text.write_kernel()
    return text


@define
class _Escapes:
    """Decides which operations escape."""

    probe: KernelText
    has_halves: bool
    _needed: dict[int, bool] = field(factory=dict)
    """The results of earlier calls, by the id() of operations."""
    _forced: dict[int, bool] = field(factory=dict)
    _kept: set[int] = field(factory=set)

    def is_needed(self, operation: Operation) -> bool:
        """Return whether no form writes an operation."""
        if id(operation) not in self._needed:
            is_half = bool(_HALVES & {*operation.types}) and operation.name not in ("ld", "ldu", "st", "mov")
            self._needed[id(operation)] = (is_half and not self.has_halves) or self._is_refused(write, operation)
        return self._needed[id(operation)]

    def has_attempt(self, operation: Operation) -> bool:
        """Return whether an escaping operation is attempted first."""
        return not is_forced(operation) and not self._is_refused(write_attempt, operation)

    def _is_refused(self, form: Form, operation: Operation) -> bool:
        """Return whether a form refuses an operation, when all registers are vectors."""
        try:
            self.probe.begin_accesses(group_accesses([operation], self.probe.code.carry))
            self.probe.index = 0
            form(self.probe, operation)
        except (Refused, KeyError):
            return True
        finally:
            self.probe.lines.clear()
        return False

    def is_escape(self, operation: Operation) -> bool:
        """Return whether an operation escapes, because it has to or is forced to."""
        if self.is_needed(operation):
            return True
        if id(operation) not in self._forced:
            self._forced[id(operation)] = not _reads_special(operation) and is_forced(operation)
        return self._forced[id(operation)] and id(operation) not in self._kept

    def keep(self, operations: Iterable[Operation]) -> None:
        """Force no escape of these operations."""
        self._kept.update(map(id, operations))


def _plan(code: Code, escapes: _Escapes, *, rows: bool) -> WarpPlan:
    """Return the plan of a kernel whose warps take turns, except in blocks that the NumPy tier may take over."""
    blocks = build_blocks(code)
    if len(blocks) > _MAX_BLOCKS:
        raise Refused(f"{len(blocks)} blocks of code; compiled are at most {_MAX_BLOCKS}")
    operations = [without_dead_results(block, blocks, code.carry) for block in blocks]
    plan = analyse(code, split_blocks(blocks, operations, code.carry, escapes.is_escape, {}), rows=rows)
    turns = find_turns(blocks, operations, code.carry)
    ends = [s.terminator if plan.pending[k] else None for k, s in enumerate(plan.segments)]
    number = -1
    for segment, end in zip(plan.segments, ends, strict=True):
        number = segment.origin if segment.origin >= 0 else number
        if end is not None and end.name in ("bar", "barrier"):
            turns = {at: kind for at, kind in turns.items() if at not in map(id, operations[number])}
            escapes.keep(operations[number])
    segments = split_blocks(blocks, operations, code.carry, escapes.is_escape, turns)
    for segment in segments:
        segment.attempts = segment.escapes and escapes.has_attempt(segment.operations[0])
    return analyse(code, segments, rows=rows)


def _everything_varies(code: Code) -> WarpPlan:
    return WarpPlan([], False, [set()], set(range(len(code.register_types))), [set()])


def _refuse_hot_escapes(plan: WarpPlan, escapes: _Escapes) -> None:
    """Refuse a kernel in which the NumPy tier would do most of the work, on few threads at a time."""
    segments = enumerate(plan.segments)
    escaping = [index for index, s in segments if s.escapes and not s.attempts and escapes.is_needed(s.operations[0])]
    ends = {h: e for e, s in enumerate(plan.segments) for h in s.successors if h != EXIT and h <= e}
    hot = [index for index in escaping if any(h <= index <= e for h, e in ends.items())]
    if hot or len(escaping) > _MAX_ESCAPES:
        at = (hot or escaping)[0]
        raise Refused(f"{plan.segments[at].operations[0].opcode} in the NumPy tier")
    for index in escaping:
        operation = plan.segments[index].operations[0]
        if _reads_special(operation):
            raise Refused(f"{operation.opcode} of a special register in the NumPy tier")


def _reads_special(operation: Operation) -> bool:
    return any(isinstance(a, Special) for a in operation.operands)
