"""One launched kernel: its blocks run in batches, of which as many are resident as the kernel needs for progress.

A kernel may have millions of blocks. They run in batches, the threads of a batch together as NumPy arrays
(ptx/execution). A block is *resident* from the moment when its batch begins until the batch ends, and takes space on
a multiprocessor of its context for that time (placement.py):

    blocks   0 ........ 63 | 64 ....... 127 | 128 ................ 4095
             batch 1       | batch 2        | not begun
             resident: they run in turn     |

One batch at a time would be enough for most kernels, and is fastest, because its arrays stay in the cache. But blocks
may wait for each other, for a flag that another block sets. So a batch that uses a whole slice without finishing may
be waiting for a block that has not begun. When every resident batch has used a slice in this way, another batch
begins, as long as the context's multiprocessors have space. A GPU has the same limit: blocks can wait for each other
only if all of them fit. A cooperative launch begins with all its blocks, a cluster begins whole.

Beginning a batch takes as long as running thousands of short warps. So a compiled batch that has finished runs the
next blocks of its kernel in the same places, unless another kernel waits for space.

Invariants: blocks begin in the order of their numbers. At least one batch of a kernel that has begun is resident
until the last block has ended. A batch frees its space on the multiprocessors exactly once. When a kernel faults or
is stopped, its batches are dropped with its context, whose placement is then no longer used.
"""

import time
from collections import deque
from math import prod
from typing import Final

from attrs import define, field

from pympsd_server.backends.emulated.scheduling.placement import BlockSize, ResidentBlocks
from pympsd_server.backends.emulated.scheduling.work_item import WorkItem
from pympsd_server.backends.interface import Launch
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.batches.selection import begin_batch, is_undecided, max_blocks, switch_tier
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import Kernel
from pympsd_server.ptx.runtime.batch_state import LaunchSetup

_SWITCH_SECONDS: Final = 0.02
"""The longest time that a batch runs before the next check whether it can continue as machine code."""


@define(eq=False)
class _Resident:
    """A batch of blocks that have begun and not ended."""

    batch: Batch | CompiledBatch
    resident_blocks: ResidentBlocks
    first_block: int
    ask_at: float = 0.0
    """The time.perf_counter() of the next check whether the batch can continue as machine code."""


@define(eq=False, slots=False)
class KernelRun(WorkItem):
    """A launch whose arguments have been checked, as a work item of the scheduler.

    The theory of operation above explains when its batches begin. The compute thread calls ``step``; the properties
    are read under the scheduler's lock.
    """

    _loaded: LoadedModule
    _kernel: Kernel
    _launch: Launch
    _size: BlockSize
    """The threads and shared memory of a block."""
    _cluster: tuple[int, int, int]
    _workspace: int
    """The address of the workspace where the blocks of a cooperative launch synchronise; 0 for other launches."""
    _started_blocks: int = field(default=0, init=False)
    """The number of blocks that have begun."""
    _residents: deque[_Resident] = field(factory=deque, init=False)
    _unfinished_slices: int = field(default=0, init=False)
    """The number of slices in a row that ended without a finished batch."""

    def __attrs_post_init__(self) -> None:
        self.what = self._kernel.name
        self._together = prod(self._cluster)
        launch = self._launch
        self._blocks = prod(launch.grid)
        self._setup = LaunchSetup(
            launch.grid, launch.block, bytes(launch.parameters), launch.shared_bytes, self._workspace, self._cluster
        )

    @property
    def has_begun(self) -> bool:
        """Whether any block has begun."""
        return bool(self._started_blocks)

    @property
    def is_blocked(self) -> bool:
        """Whether none of its blocks is resident and the multiprocessors have no space for one now."""
        return not self._residents and not self.owner.placement.admits(self, self._size)

    @property
    def blocks_together(self) -> int:
        """The number of blocks that must begin together: all of a cooperative launch, those of one cluster, or 1."""
        return self._blocks if self._launch.cooperative else self._together

    def step(self, seconds: float) -> bool:
        """Run the resident batches in turn.

        Args:
            seconds: About how long to run.

        Returns:
            Whether the last block has ended.

        Raises:
            DeviceFault: A thread faulted.
            Cancelled: The context is being destroyed, or has faulted elsewhere.
        """
        self.owner.trace.begin_slice()
        try:
            return self._run(seconds)
        finally:
            self.owner.trace.end_slice()

    def _run(self, seconds: float) -> bool:
        """Run batches for at most ``seconds``; return whether all blocks have finished."""
        if not self._started_blocks:
            self.owner.trace.add("kernels_started")
        deadline = time.perf_counter() + seconds
        while True:
            if self._needs_another_batch():
                self._open()
            if not self._residents:
                break
            remaining = deadline - time.perf_counter()
            if remaining <= 0:
                return False
            # Blocks of a cooperative launch wait for each other, so each batch gets a part of the slice.
            part = seconds / len(self._residents) if self._launch.cooperative else remaining
            self._advance(self._residents[0], min(remaining, part))
        if self._started_blocks < self._blocks:
            return False
        self.owner.trace.add("kernels_finished")
        return True

    def _needs_another_batch(self) -> bool:
        if self._started_blocks == self._blocks:
            return False
        placement = self.owner.placement
        if not self._residents:
            return placement.admits(self, self._size)
        is_stuck = self._unfinished_slices >= len(self._residents) and placement.can_grow()
        return is_stuck and not is_undecided(self._loaded, self._kernel, self._setup)

    def _open(self) -> None:
        self._unfinished_slices = 0
        end = self._started_blocks + self.blocks_together
        while self._started_blocks < end:
            if not self._begin_blocks():
                break
        if self._started_blocks:
            self.owner.placement.mark_begun(self)

    def _begin_blocks(self) -> int:
        """Make the next blocks resident; return their number."""
        maximum = max_blocks(self._kernel, self._setup, together=self._launch.cooperative)
        count = min(max(maximum, self._together), self._blocks - self._started_blocks)
        if self._together > 1:
            # The blocks of a cluster run together, so only whole clusters begin.
            placement = self.owner.placement
            space = placement.free_blocks(self._size) if placement.resident else placement.capacity(self._size)
            count = min(count, space) // self._together * self._together
        resident_blocks = self.owner.placement.place(self._size, count)
        blocks = len(resident_blocks.sm_of_block)
        if blocks:
            batch = begin_batch(
                self._loaded, self._kernel.name, self._setup, self._started_blocks, resident_blocks.sm_of_block
            )
            self._residents.append(_Resident(batch, resident_blocks, self._started_blocks))
            self._count_blocks(blocks)
        return blocks

    def _count_blocks(self, blocks: int) -> None:
        owner, first = self.owner, self._started_blocks
        owner.trace.add_batch(owner.id, self._kernel.name, first, blocks, owner.queue.level)
        self._started_blocks += blocks

    def _advance(self, resident: _Resident, seconds: float) -> None:
        """Run one slice of a batch that is resident; release its blocks if the batch has finished."""
        placement = self.owner.placement
        is_finished, batch = self._run_slice(resident, seconds), resident.batch
        has_continued = isinstance(batch, CompiledBatch) and self._follow_waves(resident, batch)
        if is_finished or has_continued:
            self._unfinished_slices = placement.unfinished_slices = 0
        else:
            self._unfinished_slices += 1
            placement.unfinished_slices += 1
        if not is_finished:
            self._residents.rotate(-1)
            return
        self._residents.popleft()
        placement.release(resident.resident_blocks)
        if isinstance(batch, CompiledBatch):
            batch.keep()

    def _count_waves(self, blocks: int) -> int:
        """Return how many waves of ``blocks`` blocks can follow a batch in its places.

        0 if other kernels wait for space, or if a new batch could be larger.
        """
        placement, waves = self.owner.placement, (self._blocks - self._started_blocks) // blocks
        if not waves or not placement.can_grow():
            return 0
        return waves if blocks == min(max_blocks(self._kernel, self._setup), placement.capacity(self._size)) else 0

    def _follow_waves(self, resident: _Resident, batch: CompiledBatch) -> bool:
        """Note the blocks that a batch has begun by itself; return whether it has begun any."""
        if batch.first_block == resident.first_block:
            return False
        resident.first_block = batch.first_block
        while self._started_blocks <= batch.first_block:
            self._count_blocks(len(resident.resident_blocks.sm_of_block))
        return True

    def _run_slice(self, resident: _Resident, seconds: float) -> bool:
        """Run a batch for some seconds, as machine code as soon as possible; return whether it is finished."""
        now = time.perf_counter()
        deadline, sm_of_block = now + seconds, resident.resident_blocks.sm_of_block
        if isinstance(resident.batch, CompiledBatch):
            resident.batch.add_waves(self._count_waves(len(sm_of_block)), self._started_blocks)
        while not resident.batch.step(min(deadline - now, _SWITCH_SECONDS), self.owner.cancel):
            batch, now = resident.batch, time.perf_counter()
            if isinstance(batch, Batch) and (batch.is_at_exit or now >= resident.ask_at):
                resident.batch = switch_tier(batch, self._loaded, self._setup, resident.first_block, sm_of_block)
                resident.ask_at = now + _SWITCH_SECONDS
            if now >= deadline:
                return False
        return True
