"""Multiprocessors: which ones a context may use, and which of them have space for a kernel's blocks.

`Multiprocessors` chooses those of a limited context: unused ones as long as there are any, then those with the fewest
users. `Placement` then counts, for each multiprocessor of one context, the blocks, threads, registers and bytes of
shared memory that are free, as the occupancy rules of CUDA do (`pympsd.vocabulary.occupancy`). It chooses a
multiprocessor for each new block, the emptiest first, so that four blocks get four multiprocessors.

Contexts do not share space with each other: each sees its multiprocessors as if it were alone. They share time.
Within a context three rules keep kernels from blocking each other for ever:

- A kernel without resident blocks that finds no space waits. While it waits, no other kernel of the context grows, so
  it gets the space that becomes free.
- A kernel that needs many blocks together (a cluster, a cooperative launch) reserves space: until it has enough, no
  other kernel begins. Otherwise small kernels would take each free place before there are enough.
- Both rules end after _MAX_SLICES_WAITED slices in which no batch has ended. The resident blocks then probably wait
  for blocks that have not begun, and holding these back would be a deadlock.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from pympsd.vocabulary.occupancy import block_cost, blocks_per_multiprocessor, multiprocessor_capacity
from pympsd.wire.executor_messages import ContextTrace


@define
class Multiprocessors:
    """The multiprocessors of one device, by id, and the number of limited contexts on each.

    It is not safe to use from several threads: its owner locks it.

    >>> multiprocessors = Multiprocessors(4)
    >>> multiprocessors.take(2), multiprocessors.take(2), multiprocessors.take(4)
    ((0, 1), (2, 3), (0, 1, 2, 3))
    """

    count: int
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._users = [0] * self.count

    def take(self, count: int, among: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the ids for a context limited to ``count``, ascending: those with the fewest users, lowest first.

        Args:
            count: How many. 0, or as many as there are, means all; the context then does not count as a user of any.
            among: The ids of the context's partition; empty for all.
        """
        every = among or range(self.count)
        count = count if 0 < count < len(every) else len(every)
        if not self._is_limit(count):
            return tuple(every)
        fewest = sorted(every, key=lambda number: (self._users[number], number))[:count]
        for number in fewest:
            self._users[number] += 1
        return tuple(sorted(fewest))

    def give(self, ids: tuple[int, ...]) -> None:
        """Release the multiprocessors of a destroyed context.

        Args:
            ids: The result of `take` for it.
        """
        if self._is_limit(len(ids)):
            for number in ids:
                self._users[number] -= 1

    def _is_limit(self, count: int) -> bool:
        return 0 < count < self.count


Integers = NDArray[np.int64]
Integers32 = NDArray[np.int32]
_MAX_SLICES_WAITED: Final = 256
"""The number of slices in a row without a finished batch, after which no space is reserved for a waiting kernel."""

_CAPACITIES_KEPT: Final = 256


@frozen
class BlockSize:
    """The resources that one block of a kernel needs: its threads, and its shared memory in bytes.

    ``shared_bytes`` includes both static and dynamic shared memory.
    """

    threads: int
    shared_bytes: int


@frozen
class ResidentBlocks:
    """Blocks that became resident together, until `Placement.release`.

    For each block, ``sm_of_block`` has the id of its multiprocessor, as the kernel reads it (%smid), and ``rows`` the
    index of the multiprocessor in ``Placement.sm_ids``.
    """

    sm_of_block: Integers32
    rows: Integers
    size: BlockSize


class PendingKernel(Protocol):
    """A kernel that has no resident blocks yet, as `Placement.admits` sees it."""

    @property
    def blocks_together(self) -> int:
        """The number of blocks that must begin together: more than 1 for clusters and cooperative launches."""


class Placement:
    """Free space on the multiprocessors of one context, ``sm_ids``.

    Only the compute thread uses it, except ``capacity``, which any thread may call.
    """

    def __init__(
        self, sm_ids: tuple[int, ...], attributes: Mapping[str, int], visible_ids: tuple[int, ...] | None = None
    ) -> None:
        """``visible_ids``: the ids that kernels read for ``sm_ids``; None if they are the same."""
        self.sm_ids = sm_ids
        self._attributes = attributes
        self._capacities: dict[tuple[int, int], int] = {}
        """Results of `capacity`, kept because launches come in few shapes."""
        self._ids = np.array(sm_ids if visible_ids is None else visible_ids, np.int32)
        capacity = multiprocessor_capacity(attributes)
        self.slots = capacity[0] * len(sm_ids)
        """The number of blocks that can be resident together, however small they are."""
        self._free = np.repeat(np.array([capacity], np.int64).T, len(sm_ids), axis=1)
        self._in_turn = np.arange(len(sm_ids))
        self._only: ResidentBlocks | None = None
        """The resident blocks if one `place` placed them all, as is usual. They are not subtracted from _free."""
        self._free_counts: dict[BlockSize, int] = {}
        """The results of `free_blocks` since blocks began or ended last. Blocked kernels ask in every slice."""
        self.resident = 0
        self.high_water = 0
        """The largest number of blocks that were resident together."""
        self.unfinished_slices = 0
        """The number of slices in a row that ended without a finished batch."""
        self._waiting: set[PendingKernel] = set()
        """Kernels without resident blocks that found no space. While there are any, no kernel grows."""
        self._reserving: PendingKernel | None = None
        """A kernel that needs space for many blocks together. Until the space is free, no other kernel begins."""

    # --- which kernels may begin, and which may grow

    def admits(self, kernel: PendingKernel, size: BlockSize) -> bool:
        """Return whether a kernel without resident blocks may begin now.

        If it may not, it is remembered as waiting; until it begins, no other kernel of the context grows.

        Args:
            kernel: The kernel.
            size: The size of its blocks.
        """
        is_overdue = self.unfinished_slices >= _MAX_SLICES_WAITED
        if self._reserving is not None and self._reserving is not kernel and not is_overdue:
            return False
        if self.resident and self.free_blocks(size) < kernel.blocks_together:
            self._waiting.add(kernel)
            if kernel.blocks_together > 1 and self._reserving is None:
                self._reserving = kernel
            return False
        self._waiting.discard(kernel)
        return True

    def can_grow(self) -> bool:
        """Return whether a kernel may begin blocks in addition to its resident ones.

        It may not while another kernel waits for space, unless that has lasted for _MAX_SLICES_WAITED slices.
        """
        return not (self._waiting or self._reserving) or self.unfinished_slices >= _MAX_SLICES_WAITED

    def mark_begun(self, kernel: PendingKernel) -> None:
        """Record that the first blocks of a kernel are resident, so it reserves no space any more."""
        if self._reserving is kernel:
            self._reserving = None

    # --- blocks

    def capacity(self, size: BlockSize) -> int:
        """Return the number of blocks of this size that would fit if no others were resident."""
        key = size.threads, size.shared_bytes
        capacity = self._capacities.get(key)
        if capacity is None:
            if len(self._capacities) >= _CAPACITIES_KEPT:
                self._capacities.clear()
            capacity = self._capacities[key] = len(self.sm_ids) * blocks_per_multiprocessor(self._attributes, *key)
        return capacity

    def free_blocks(self, size: BlockSize) -> int:
        """Return the number of blocks of this size that fit next to the resident ones."""
        count = self._free_counts.get(size)
        if count is None:
            count = self._free_counts[size] = int(self._free_blocks_by_row(size).sum())
        return count

    def _free_blocks_by_row(self, size: BlockSize) -> Integers:
        if self._only is not None:
            self._account(self._only.rows, self._only.size, -1)
            self._only = None
        cost = self._cost(size)
        uses_resource = cost[:, 0] > 0  # a block without shared memory fits where none is left
        fitting: Integers = (self._free[uses_resource] // cost[uses_resource]).min(axis=0)
        return fitting

    def _cost(self, size: BlockSize) -> Integers:
        return np.array([block_cost(self._attributes, size.threads, size.shared_bytes)], np.int64).T

    def place(self, size: BlockSize, count: int) -> ResidentBlocks:
        """Make blocks resident, spread over the multiprocessors: the emptiest first.

        Args:
            size: The size of a block.
            count: The number of blocks to begin.

        Returns:
            The blocks that fit: ``count`` of them, or fewer, possibly none.
        """
        self._free_counts.clear()
        if self.resident:
            rows = self._spread(self._free_blocks_by_row(size), count)
            self._account(rows, size, -1)
            resident_blocks = ResidentBlocks(self._ids[rows], rows, size)
        else:
            resident_blocks = self._only = self._place_alone(size, count)
        self.resident += len(resident_blocks.rows)
        self.high_water = max(self.high_water, self.resident)
        return resident_blocks

    def _place_alone(self, size: BlockSize, count: int) -> ResidentBlocks:
        count = min(count, self.capacity(size))
        if count <= len(self.sm_ids):
            return ResidentBlocks(self._ids[:count], self._in_turn[:count], size)
        return ResidentBlocks(np.resize(self._ids, count), np.resize(self._in_turn, count), size)

    def _spread(self, free_blocks: Integers, count: int) -> Integers:
        # The k-th block of every multiprocessor goes before any (k+1)-th; emptier ones go first.
        total = int(free_blocks.sum())
        count = min(count, total)
        if count == 0:
            return np.zeros(0, np.int64)
        emptiest = np.argsort(-free_blocks, kind="stable")
        rounds = -(-count // int(np.count_nonzero(free_blocks)))
        while True:
            capped = np.minimum(free_blocks, rounds)
            if int(capped.sum()) >= count:
                break
            rounds += 1
        rows = np.concatenate([emptiest[free_blocks[emptiest] > level] for level in range(rounds)])
        return rows[:count]

    def _account(self, rows: Integers, size: BlockSize, sign: int) -> None:
        blocks = np.bincount(rows, minlength=len(self.sm_ids))
        self._free += sign * self._cost(size) * blocks

    def release(self, resident_blocks: ResidentBlocks) -> None:
        """Free the space of blocks that have ended.

        Args:
            resident_blocks: The result of `place`, which is released as a whole, once.
        """
        self._free_counts.clear()
        if resident_blocks is self._only:
            self._only = None
        else:
            self._account(resident_blocks.rows, resident_blocks.size, 1)
        self.resident -= len(resident_blocks.rows)

    def trace(self, context: int) -> ContextTrace:
        """Return the context's SMs, and the maximum number of blocks that were resident on them at the same time.

        Args:
            context: The id under which the trace lists the context.
        """
        return ContextTrace(context, self.sm_ids, self.slots, self.high_water)
