"""Find the values that a frame already has when its warp comes to a stop, so that they need not be saved again.

The problem: an unrolled kernel (a sorting network, a blocked factorisation) has a hundred barriers, and addresses
that it computes once live across all of them. At each barrier every live register is saved, and loaded when the warp
continues. A block's only warp does not stop and comes directly. Where the two ways meet, LLVM must choose between two
values for each register. It needed 4 s for 110 stops.

The idea, for kernels with many stops: a warp loads its registers from its frame even if it does not stop, so that no
ways meet (`comes_by_frame`). And a register that was not set since it was saved or loaded is not saved again:

    a = ...      bar (saves a, b)      b = ...      bar (saves b)      bar (saves nothing)

`find_saved` follows registers on all ways through the kernel: from a segment to its successors and to the segments
that may be pending during it. Each warp has its own frame, a register has one place in it, and whole vectors are
saved and loaded, so it does not matter which lanes run.

Entries are segments at which no warp stops, but at which a warp that the NumPy tier has begun may continue.
"""

from __future__ import annotations

from typing import Final

from pympsd_server.ptx.compiled_tier.planning.analysis import CodeSegment, WarpPlan, is_left_whole
from pympsd_server.ptx.lowering.control_flow import EXIT
from pympsd_server.ptx.lowering.ir import Register, is_barrier, registers_in, registers_written

_MAX_DIRECT_STOPS: Final = 4
"""The maximum number of barriers and turns in a kernel whose warps may continue without loading their frames."""
_MAX_ENTRIES: Final = 16


def has_many_stops(plan: WarpPlan) -> bool:
    """Return whether a kernel has more than _MAX_DIRECT_STOPS barriers and turns."""
    return sum(is_barrier(segment.terminator) + bool(segment.turn) for segment in plan.segments) > _MAX_DIRECT_STOPS


def comes_by_frame(plan: WarpPlan, segment: int) -> bool:
    """Return whether a warp loads its frame at a segment after a barrier or a turn, even if it has not stopped there.

    At the header of a loop it does not, because that would bypass the check of the loop's fuel.
    """
    return has_many_stops(plan) and segment not in plan.weights


def find_entries(plan: WarpPlan) -> list[int]:
    """Return the segments after loops, at which threads in the NumPy tier wait for others (continuation.py)."""
    headers = [k for k in plan.weights if plan.segments[k].origin >= 0]
    behind = set().union(*(plan.pending[k] for k in headers)) - set(headers)
    entries = sorted(k for k in behind if plan.segments[k].origin >= 0)
    return entries if len(entries) <= _MAX_ENTRIES else []


def find_saved(plan: WarpPlan, carry: Register) -> list[tuple[frozenset[int], frozenset[int]]]:
    """Return, for each segment, the registers whose values the frame has at its beginning and at its end."""
    segments, targets = plan.segments, [_ways_from(plan, number) for number in range(len(plan.segments))]
    written = [_list_written(segment, carry) for segment in segments]
    before = [set(segment.live_in) for segment in segments]  # loaded from the frame at a stop
    before[0] = set()
    for segment in segments:
        if is_barrier(segment.terminator) and segment.following not in (None, EXIT):
            assert segment.following is not None
            before[segment.following] -= _results_of_barrier(segment)
    work = list(range(len(segments)))
    while work:
        number = work.pop()
        after = _find_saved_behind_turn(plan, number, before[number]) - written[number]
        for target in targets[number]:
            if not before[target] <= after:
                before[target] &= after
                work.append(target)
    ends = (_find_saved_behind_turn(plan, k, saved) - written[k] for k, saved in enumerate(before))
    return [(frozenset(b), frozenset(e)) for b, e in zip(before, ends, strict=True)]


def _ways_from(plan: WarpPlan, number: int) -> set[int]:
    """Return the segments to which a warp goes directly from a segment, without loading its frame."""
    segment = plan.segments[number]
    if segment.escapes or is_left_whole(segment.terminator):
        return {number + 1} if segment.attempts else set()
    ways = {*segment.successors, *plan.pending[number]} - {EXIT}
    if is_barrier(segment.terminator):
        ways = {k for k in ways if not comes_by_frame(plan, k)}
    return ways


def _find_saved_behind_turn(plan: WarpPlan, number: int, saved: set[int]) -> set[int]:
    segment = plan.segments[number]
    return set(segment.live_in) if segment.turn and comes_by_frame(plan, number) else saved


def _list_written(segment: CodeSegment, carry: Register) -> set[int]:
    operations = [*segment.operations, *([] if segment.terminator is None else [segment.terminator])]
    return {r.number for operation in operations for r in registers_written(operation, carry)}


def _results_of_barrier(segment: CodeSegment) -> set[int]:
    assert segment.terminator is not None
    has_result = segment.terminator.has("red")
    return {r.number for r in registers_in(segment.terminator.operands[0])} if has_result else set()
