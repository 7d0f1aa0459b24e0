"""One launched kernel: its blocks in batches, as many resident at once as its progress needs and the SMs hold.

A batch that uses its slice without finishing may be waiting for a block that has not begun; then another batch is
opened, as long as the context's multiprocessors have room. That is what a GPU does with blocks, and it lets
kernels whose blocks wait for each other come to an end. A cooperative launch begins with all its blocks.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from attrs import define

from pympsd_server.backends.emulated.device.module import EmulatedModule
from pympsd_server.backends.emulated.device.programs import Batch, Kernel, preferred_blocks
from pympsd_server.backends.emulated.scheduling.placement import BlockSize, Seats
from pympsd_server.backends.emulated.scheduling.work_item import Operation

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.device.context import EmulatedContext
    from pympsd_server.backends.emulated.device.stream import EmulatedStream

Extent = tuple[int, int, int]


@define(eq=False)
class _Resident:
    """Blocks that have begun and not ended."""

    batch: Batch
    seats: Seats


class KernelRun(Operation):
    """A launch whose arguments have been checked."""

    def __init__(
        self,
        context: EmulatedContext,
        stream: EmulatedStream,
        module: EmulatedModule,
        kernel: Kernel,
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        parameters: bytes,
        size: BlockSize,
        cooperative: bool,
        workspace: int,
    ) -> None:
        """``size`` is what a block takes; ``workspace`` the address of a cooperative launch's, which it meets by."""
        super().__init__(context, stream, stream.share)
        self._module, self._kernel = module, kernel
        self._grid, self._block = grid, block
        self._shared_bytes, self._parameters = shared_bytes, parameters
        self._size = size
        self._begun = 0
        self._blocks = grid[0] * grid[1] * grid[2]
        self._cooperative, self._workspace = cooperative, workspace
        self._residents: deque[_Resident] = deque()
        self._fruitless = 0
        """Slices in a row that ended without a finished batch."""

    @property
    def begun(self) -> bool:
        """Whether any block has begun."""
        return bool(self._begun)

    @property
    def blocked(self) -> bool:
        """Whether no block of it is resident and none fits now."""
        return not self._residents and not self.context.placement.admits(self, self._size)

    @property
    def at_once(self) -> int:
        """How many of its blocks must begin together."""
        return self._blocks if self._cooperative else 1

    def step(self, seconds: float) -> bool:
        """Run batches in turn for about so long; return whether the last block has ended."""
        if not self._begun:
            self.context.trace.add("kernels_started")
        deadline = time.perf_counter() + seconds
        while True:
            if self._wants_another():
                self._open()
            if not self._residents:
                break
            left = deadline - time.perf_counter()
            if left <= 0:
                return False
            # Blocks of a cooperative launch wait for each other: none keeps the others from their part of the slice.
            part = seconds / len(self._residents) if self._cooperative else left
            self._advance(self._residents[0], min(left, part))
        if self._begun < self._blocks:
            return False
        self.context.trace.add("kernels_finished")
        return True

    def _wants_another(self) -> bool:
        if self._begun == self._blocks:
            return False
        placement = self.context.placement
        if not self._residents:
            return placement.admits(self, self._size)
        return self._fruitless >= len(self._residents) and placement.lets_grow()

    def _open(self) -> None:
        self._fruitless = 0
        wanted = self._begun + self.at_once
        while self._begun < wanted and (blocks := self._seat()):
            self._begun += blocks
        if self._begun:
            self.context.placement.begun(self)

    def _seat(self) -> int:
        """Make the next blocks resident; return how many."""
        most = preferred_blocks(self._size.threads, self._kernel.local_bytes, together=self._cooperative)
        seats = self.context.placement.seat(self._size, min(most, self._blocks - self._begun))
        blocks = len(seats.sm_of_block)
        if blocks:
            batch = self._module.batch(
                self._kernel,
                self._grid,
                self._block,
                self._parameters,
                self._shared_bytes,
                self._begun,
                seats.sm_of_block,
                self._workspace,
            )
            self._residents.append(_Resident(batch, seats))
            context, name = self.context, self._kernel.name
            context.trace.add_batch(context.serial, name, self._begun, blocks, context.group.level)
        return blocks

    def _advance(self, resident: _Resident, seconds: float) -> None:
        if resident.batch.step(seconds, self.context.cancel):
            self._residents.popleft()
            self.context.placement.leave(resident.seats)
            self._fruitless = self.context.placement.fruitless = 0
        else:
            self._residents.rotate(-1)
            self._fruitless += 1
            self.context.placement.fruitless += 1
