"""Translate a kernel's operations to text: choose which operations escape, and how wide vectors are.

The analysis needs the operations that escape, because their results are vectors. So each operation is first written
on trial, with all registers as vectors. If its form raises NotCompiled, the operation escapes. A form may depend on
the plan only by the shapes of registers.
"""

from __future__ import annotations

from math import prod
from typing import Final

from attrs import define, field

from pympsd_server.ptx.compiled_tier.ir_text import NotCompiled
from pympsd_server.ptx.compiled_tier.planning.analysis import (
    WarpPlan,
    analyse,
    group_accesses,
    split_blocks,
    word_of_locals,
)
from pympsd_server.ptx.compiled_tier.planning.fragment_bank import find_bank
from pympsd_server.ptx.compiled_tier.planning.sequences import Sequences, find_sequences
from pympsd_server.ptx.compiled_tier.planning.turns import find_turns, uses_turns
from pympsd_server.ptx.compiled_tier.text.dispatch_text import is_crowded
from pympsd_server.ptx.compiled_tier.text.instruction_table import Form, write, write_attempt
from pympsd_server.ptx.compiled_tier.text.kernel_text import KernelText
from pympsd_server.ptx.compiled_tier.text.stop_text import Stop
from pympsd_server.ptx.compiled_tier.text.warp_forms import WARP_INSTRUCTIONS
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.lowering.control_flow import build_blocks, drop_dead_results
from pympsd_server.ptx.lowering.ir import Code, Operation, Special, is_barrier

_MAX_BLOCKS: Final = 4000
_MAX_SEGMENTS: Final = 10_000
_SMALL_WIDTH: Final = 8
_HALVES: Final = frozenset({"f16", "f16x2", "e4m3", "e5m2"})
"""The types that need the processor's conversions of halves."""


def is_forced(operation: Operation) -> bool:
    """Return False: no operation that has a form must escape.

    Tests that compare the tiers replace this function, and store no kernels on disk.
    """
    return False


def choose_width(code: Code, block: tuple[int, int, int]) -> int:
    """Return the number of lanes of a vector: 32, or fewer if no operation depends on warps.

    It is 8 for blocks of at most 8 threads, and 16 if the rows of a block are multiples of 16, but not of 32,
    threads.
    """
    is_small = prod(block) <= _SMALL_WIDTH
    if not is_small and (block[0] % WARP == 0 or block[0] % 16):
        return WARP
    if any(map(_needs_warps, code.operations)):
        return WARP
    return _SMALL_WIDTH if is_small else 16


def threads_bound(code: Code, block: tuple[int, int, int]) -> int:
    """Return the maximum number of threads in a row for which a kernel is compiled: a power of two, or 0 for any."""
    return 1 << (block[0] - 1).bit_length() if uses_turns(code.operations) else 0


def _needs_warps(operation: Operation) -> bool:
    names = ("%lane", "%warpid")
    if any(isinstance(a, Special) and a.name.startswith(names) for a in operation.operands):
        return True
    if is_barrier(operation):
        return operation.has("warp") or len(operation.operands) > 1
    return operation.name in WARP_INSTRUCTIONS or operation.has("sync")


def write_text(
    code: Code,
    offsets: dict[tuple[str, str], int],
    static_shared: int,
    block: tuple[int, int, int],
    *,
    has_halves: bool,
    has_masks: bool,
) -> KernelText:
    """Write a kernel for blocks of a shape, and return its writer.

    `has_halves` is whether the processor can convert between half and float, `has_masks` whether it has mask
    registers for 32 lanes. Raises NotCompiled if the kernel must stay in the NumPy tier.
    """
    width = choose_width(code, block)
    rows, linear = block[0] % width == 0, block[1] * block[2] == 1
    whole = block[0] * block[1] * block[2] % width == 0
    probe = KernelText(code, _plan_all_varying(code), width, whole, has_masks, offsets, Sequences(), static_shared)
    escapes = _Escapes(probe, has_halves)
    places = {key: offset for key, offset in offsets.items() if key[0] == "shared"}
    plan = _plan(code, escapes, places, threads_bound(code, block), rows=rows)
    sequences = find_sequences(code, plan, linear=linear)
    if is_crowded(plan):
        sequences = Sequences(sequences.strides)  # first lanes would live across segments
    text = KernelText(code, plan, width, whole, has_masks, offsets, sequences, static_shared)
    text.bank = find_bank(code, plan, sequences.certain) if width == WARP else {}
    text.word = word_of_locals(plan.segments) if whole else 0
    text.number_of(Stop(0, (), is_entry=True))
    text.module_text = text.write_kernel()
    return text


@define
class _Escapes:
    """The choice of the operations that escape; `probe` writes them on trial."""

    probe: KernelText
    has_halves: bool
    _results: dict[int, bool] = field(factory=dict)
    """The results of `is_escape`, by the id() of operations."""

    def is_escape(self, operation: Operation) -> bool:
        """Return whether an operation escapes, because no form can write it or because a test forces it to."""
        if id(operation) not in self._results:
            is_half = bool(_HALVES & {*operation.types}) and operation.name not in ("ld", "ldu", "st", "mov")
            is_needed = (is_half and not self.has_halves) or self._is_refused(write, operation)
            self._results[id(operation)] = is_needed or is_forced(operation)
        return self._results[id(operation)]

    def has_attempt(self, operation: Operation) -> bool:
        """Return whether an escaping operation is first attempted in machine code (`write_attempt`)."""
        return not is_forced(operation) and not self._is_refused(write_attempt, operation)

    def _is_refused(self, form: Form, operation: Operation) -> bool:
        """Return whether a form refuses an operation if all registers are vectors."""
        try:
            self.probe.begin_accesses(group_accesses([operation], self.probe.code.carry))
            self.probe.index = 0
            form(self.probe, operation)
        except (NotCompiled, KeyError):
            return True
        finally:
            self.probe.lines.clear()
        return False


def _plan(code: Code, escapes: _Escapes, places: dict[tuple[str, str], int], threads: int, *, rows: bool) -> WarpPlan:
    """Return the plan of a kernel, or raise NotCompiled if it is too large. `places`, `threads`: see `find_turns`."""
    blocks = build_blocks(code)
    if len(blocks) > _MAX_BLOCKS:
        raise NotCompiled(f"{len(blocks)} blocks of code; compiled are at most {_MAX_BLOCKS}")
    operations = [drop_dead_results(block, blocks, code.carry) for block in blocks]
    turns = find_turns(blocks, operations, code.carry, places, threads)
    segments = split_blocks(blocks, operations, code.carry, escapes.is_escape, turns)
    if len(segments) > _MAX_SEGMENTS:
        raise NotCompiled(f"{len(segments)} segments of code; compiled are at most {_MAX_SEGMENTS}")
    for segment in segments:
        segment.attempts = segment.escapes and escapes.has_attempt(segment.operations[0])
    return analyse(code, segments, rows=rows)


def _plan_all_varying(code: Code) -> WarpPlan:
    return WarpPlan([], False, [set()], set(range(len(code.register_types))), [set()])
