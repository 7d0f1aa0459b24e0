"""Define block plans: the interface between the NumPy tier, which translates blocks, and the execution of batches.

The NumPy tier turns every block of a kernel into a function. It takes a batch's state, the threads that run and their
live-in registers, and computes all of these threads together. It does not decide which threads run next:
`execution.batch` does, and of each block it uses only the function and a plan:

    block 3:  setp.lt.u32 %p, %i, %n;     BlockPlan("branch", target=3, following=4, dtypes=..., ...)
              @%p bra LOOP;               the function returns (p, registers of block 3, registers of block 4)

Plans alone determine how threads diverge, wait at barriers and meet in a warp, and when a batch can be cancelled. A
function is called with threads that are all at the beginning of its block. It returns when they have reached the end,
and never waits.
"""

from typing import Any

import numpy as np
from attrs import frozen


@frozen
class BarrierPlan:
    """The behaviour of a barrier. `reduction` is "popc", "and", "or" or "". With `arrive` the threads do not wait."""

    arrive: bool
    reduction: str
    result: int | None
    cluster: bool = False


@frozen
class BlockPlan:
    """The part of a block that the execution of batches uses.

    `kind` determines what the block's function returns:

    - "next": registers of `target`;
    - "branch": (condition, registers of `target`, registers of `following`);
    - "index": (index, one tuple of registers per entry of `targets`);
    - "exit" and "trap": nothing;
    - "assert": (message, file, line, function) of __assertfail;
    - "barrier": ((number, count or None, predicate or None), registers of `following`).

    `meeting` is the membermask (or the position of its register in live_in) of the lanes that must meet before the
    block. `warps` is how many warps meet: 1, or GROUP_WARPS. `in_turn` is true if the block runs a copy for one
    thread after another, which may take long. `joins` is true if the block has shuffles
    or votes without .sync, which lanes execute after they have joined again, as on GPUs before Volta.
    """

    kind: str
    target: int
    following: int
    targets: tuple[int, ...]
    live_in: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    meeting: int | np.uint32 | None
    weight: int
    barrier: BarrierPlan | None
    warps: int = 1
    in_turn: bool = False
    joins: bool = False

    @property
    def barrier_reduces(self) -> bool:
        """Whether the block ends at a bar.red."""
        return self.barrier is not None and bool(self.barrier.reduction)
