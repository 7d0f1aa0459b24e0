"""Block plans: the interface between the tiers that compile blocks and the execution of batches.

A tier turns every block of a kernel into a function. The functions of the NumPy tier take a batch's state, the
threads that run and their live-in registers, and compute all threads together; a compiled tier would take the same.
Neither decides which threads run next. That is the business of `execution.batch`, which sees nothing of a tier but
its functions and, for each block, a plan:

    block 3:  setp.lt.u32 %p, %i, %n;     BlockPlan("branch", target=3, following=4, dtypes=..., ...)
              @%p bra LOOP;               the function returns (p, registers of block 3, registers of block 4)

Divergence, barriers, the meeting of the lanes of a warp, cancelling and the sharing of time follow from the plans
alone, so that they are the same in every tier. A function is called with threads that are all at the beginning of its
block, returns when they have reached its end, and never waits.
"""

from typing import Any

import numpy as np
from attrs import frozen


@frozen
class BarrierPlan:
    """The behaviour of a barrier: `reduction` is popc, and, or, or "" for plain; arrive does not wait."""

    arrive: bool
    reduction: str
    result: int | None
    cluster: bool = False


@frozen
class BlockPlan:
    """The part of a block that the execution of batches sees. `kind` determines what the block's function returns:

    "next": registers of `target`; "branch": (condition, registers of `target`, registers of `following`); "index":
    (index, one tuple of registers per entry of `targets`); "exit": nothing; "trap"; "assert": (message, file, line,
    function) of __assertfail; "barrier": ((number, count or None, predicate or None), registers of `following`).
    `meeting` is the membermask (or the position of its register in live_in) of the lanes that meet first, `warps` how
    many warps meet: 1, or those of a warp group. `in_turn`: an instruction of it takes each thread's time.
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

    @property
    def barrier_reduces(self) -> bool:
        """Whether the block ends at a bar.red."""
        return self.barrier is not None and bool(self.barrier.reduction)
