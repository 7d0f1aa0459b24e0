"""Turns: the places between two barriers at which the warps of a block wait for each other.

The problem: a compiled warp runs alone until it waits. On a GPU, and in the NumPy tier, the warps of a block run side
by side. Some programs rely on that where they should have a barrier, knowingly or not:

    x = s[tid - 1];  ...  s[tid] = y;  __syncthreads();      warp 1 reads what warp 0 has not overwritten yet
    s[tid] = y;      ...  x = s[tid + 1];                    warp 0 reads what warp 1 has written

The idea: a warp that changes from reading shared memory to writing it, or from writing to reading, stops before that
access until the rest of the block has reached it, too; then all continue. A well-written program loses only a little
time. Between two barriers a warp stops once for each kind of access (a bit in its frame records that), so loops
without barriers do not become slower. Kernels without barriers have no turns, because nothing shows where their
phases end.

An access needs no turn if all earlier accesses of the other kind had the same address: it is the thread's own
element. `find_turns` represents addresses as a register and an offset, and follows them on all paths through the
kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from pympsd_server.backends.emulated.ptx.compiled_tier.analysis import space_of
from pympsd_server.backends.emulated.ptx.lowering.control_flow import EXIT, Block
from pympsd_server.backends.emulated.ptx.lowering.ir import Memory, Operation, Register, registers_written

BEFORE_STORE: Final = 1
BEFORE_LOAD: Final = 2
_MAX_TURNS: Final = 64
"""The maximum of turns in a kernel: LLVM has to compile an exit and an entry for each."""
_MAX_ADDRESSES: Final = 8
"""The maximum of addresses known of one kind; more count as an unknown address."""
Access = tuple[int, object, int]
"""The turn that is before accesses of this kind; its base, None of an unknown one; its offset."""


@define
class _State:
    """The accesses that may have happened since the last barrier, and those that certainly have."""

    accesses: set[Access] = field(factory=set)
    taken: int = BEFORE_STORE | BEFORE_LOAD
    """The turns that the warp has taken on every path; all turns where no path leads yet."""


def find_turns(blocks: Sequence[Block], operations: Sequence[list[Operation]], carry: Register) -> dict[int, int]:
    """Return the kinds of turns by the id() of the access that each precedes; none of a kind that has too many.

    `operations` are those of each block, without its terminator.
    """
    if not any(_is_barrier(block) for block in blocks):
        return {}
    turns: dict[int, int] = {}
    states = [_State() for _ in blocks]
    states[0].taken = 0
    work = list(range(len(blocks)))
    while work:
        number = work.pop(0)
        after = _after(operations[number], states[number], carry, turns)
        if _is_barrier(blocks[number]):
            after = _State(taken=0)
        for successor in set(blocks[number].successors) - {EXIT}:
            state = states[successor]
            joined = _State(state.accesses | after.accesses, state.taken & after.taken)
            if joined != state:
                states[successor] = joined
                work.append(successor)
    kinds = Counter(turns.values())
    return {at: kind for at, kind in turns.items() if kinds[kind] <= _MAX_TURNS}


def _is_barrier(block: Block) -> bool:
    return block.terminator is not None and block.terminator.name in ("bar", "barrier")


def _after(operations: list[Operation], before: _State, carry: Register, turns: dict[int, int]) -> _State:
    """Return the state after some operations; note the turns."""
    accesses, taken = set(before.accesses), before.taken
    for operation in operations:
        access = _access_of(operation)
        if access is not None:
            others = {a for a in accesses if a[0] != access[0]}
            if not taken & access[0] and any(a[1] is None or a[1:] != access[1:] for a in others):
                turns[id(operation)] = access[0]
            taken |= turns.get(id(operation), 0)
            accesses.add(access)
            if len(same := accesses - others) > _MAX_ADDRESSES:
                accesses = (accesses - same) | {(access[0], None, 0)}
        written = {register.number for register in registers_written(operation, carry)}
        if written:
            accesses = {(a[0], None, 0) if a[1] in written else a for a in accesses}
    return _State(accesses, taken)


def _access_of(operation: Operation) -> Access | None:
    if operation.name not in ("ld", "ldu", "st") or space_of(operation) != "shared":
        return None
    memory = operation.operands[0] if operation.name == "st" else operation.operands[1]
    if not isinstance(memory, Memory):
        return None
    base = memory.base.number if isinstance(memory.base, Register) else repr(memory.base)
    return BEFORE_STORE if operation.name == "st" else BEFORE_LOAD, base, memory.offset
