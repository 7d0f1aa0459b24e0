"""One launched kernel: its blocks in batches, as many resident as its progress needs and the SMs hold.

A batch that uses its slice without finishing may be waiting for a block that has not begun; then another batch is
opened, as long as the context's multiprocessors have room. A GPU does the same, and it lets kernels
whose blocks wait for each other finish. A cooperative launch begins with all its blocks.
"""

from __future__ import annotations

import time
from collections import deque

from attrs import define

from pympsd_server.backends.emulated.ptx.execution.batch import Batch, blocks_per_batch
from pympsd_server.backends.emulated.ptx.loading.linking import LoadedModule
from pympsd_server.backends.emulated.ptx.loading.program import Kernel
from pympsd_server.backends.emulated.scheduling.placement import BlockSize, ResidentBlocks
from pympsd_server.backends.emulated.scheduling.work_item import WorkItem, WorkOwner, WorkStream
from pympsd_server.backends.interface import Launch


@define(eq=False)
class _Resident:
    """Blocks that have begun and not ended."""

    batch: Batch
    placed: ResidentBlocks


class KernelRun(WorkItem):
    """A launch whose arguments have been checked."""

    def __init__(
        self,
        owner: WorkOwner,
        stream: WorkStream,
        loaded: LoadedModule,
        kernel: Kernel,
        launch: Launch,
        size: BlockSize,
        cluster: tuple[int, int, int],
        workspace: int,
    ) -> None:
        """``size`` is what a block takes; ``workspace`` the address by which the blocks of a cooperative one meet."""
        super().__init__(owner, stream, stream.time_share)
        self._loaded, self._kernel, self._launch = loaded, kernel, launch
        self.what = kernel.name
        self._size, self._workspace = size, workspace
        self._cluster = cluster
        self._together = cluster[0] * cluster[1] * cluster[2]
        self._begun = 0
        self._blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self._residents: deque[_Resident] = deque()
        self._unfinished_slices = 0
        """Slices in a row that ended without a finished batch."""

    @property
    def begun(self) -> bool:
        """Whether any block has begun."""
        return bool(self._begun)

    @property
    def blocked(self) -> bool:
        """Whether no block of it is resident and none fits now."""
        return not self._residents and not self.owner.placement.admits(self, self._size)

    @property
    def at_once(self) -> int:
        """The number of its blocks that must begin together."""
        return self._blocks if self._launch.cooperative else self._together

    def step(self, seconds: float) -> bool:
        """Run batches in turn for about this time; return whether the last block has ended."""
        if not self._begun:
            self.owner.trace.add("kernels_started")
        deadline = time.perf_counter() + seconds
        while True:
            if self._wants_another():
                self._open()
            if not self._residents:
                break
            remaining = deadline - time.perf_counter()
            if remaining <= 0:
                return False
            # Blocks of a cooperative launch wait for each other: each gets its part of the slice.
            part = seconds / len(self._residents) if self._launch.cooperative else remaining
            self._advance(self._residents[0], min(remaining, part))
        if self._begun < self._blocks:
            return False
        self.owner.trace.add("kernels_finished")
        return True

    def _wants_another(self) -> bool:
        if self._begun == self._blocks:
            return False
        placement = self.owner.placement
        if not self._residents:
            return placement.admits(self, self._size)
        return self._unfinished_slices >= len(self._residents) and placement.lets_grow()

    def _open(self) -> None:
        self._unfinished_slices = 0
        end = self._begun + self.at_once
        while self._begun < end and (blocks := self._begin_blocks()):
            self._begun += blocks
        if self._begun:
            self.owner.placement.mark_begun(self)

    def _begin_blocks(self) -> int:
        """Make the next blocks resident; return their number."""
        most = blocks_per_batch(self._size.threads, self._kernel.local_bytes, together=self._launch.cooperative)
        count = min(max(most, self._together), self._blocks - self._begun)
        if self._together > 1:
            # The blocks of a cluster run together: only whole ones begin.
            placement = self.owner.placement
            room = placement.room(self._size) if placement.resident else placement.capacity(self._size)
            count = min(count, room) // self._together * self._together
        placed = self.owner.placement.place(self._size, count)
        blocks = len(placed.sm_of_block)
        if blocks:
            launch = self._launch
            batch = Batch(
                self._loaded,
                self._kernel.name,
                launch.grid,
                launch.block,
                launch.parameters,
                launch.shared_bytes,
                self._begun,
                placed.sm_of_block,
                self._workspace,
                self._cluster,
            )
            self._residents.append(_Resident(batch, placed))
            owner, name = self.owner, self._kernel.name
            owner.trace.add_batch(owner.serial, name, self._begun, blocks, owner.queue.level)
        return blocks

    def _advance(self, resident: _Resident, seconds: float) -> None:
        if resident.batch.step(seconds, self.owner.cancel):
            self._residents.popleft()
            self.owner.placement.release(resident.placed)
            self._unfinished_slices = self.owner.placement.unfinished_slices = 0
        else:
            self._residents.rotate(-1)
            self._unfinished_slices += 1
            self.owner.placement.unfinished_slices += 1
