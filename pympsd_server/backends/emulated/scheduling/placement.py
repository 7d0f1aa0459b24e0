"""The choice of multiprocessors for a context: unused ones while they last, then those with the fewest users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from pympsd.vocabulary.occupancy import block_cost, blocks_per_multiprocessor, multiprocessor_room
from pympsd.wire.executor_messages import ContextTrace


@define
class Multiprocessors:
    """The multiprocessors of one device, by id, and the number of limited contexts on each. Its owner locks it."""

    count: int
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._users = [0] * self.count

    def take(self, count: int, among: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the ids for a context limited to ``count``, ascending: those with the fewest users, lowest first.

        0, or at least the number there is, means all of them; such a context counts as a user of none. ``among``:
        the ids of its partition; empty: all.
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
        """Release the multiprocessors of a destroyed context."""
        if self._is_limit(len(ids)):
            for number in ids:
                self._users[number] -= 1

    def _is_limit(self, count: int) -> bool:
        return 0 < count < self.count


Integers = NDArray[np.int64]
Integers32 = NDArray[np.int32]
_PATIENCE: Final = 256
"""Slices in a row without the end of a batch, after which kernels that wait for room are no longer waited for:
resident blocks may be waiting for some that have not begun.
"""

_CAPACITIES_KEPT: Final = 256


@frozen
class BlockSize:
    """What one block of a kernel takes: threads, and shared memory in bytes."""

    threads: int
    shared_bytes: int


@frozen
class ResidentBlocks:
    """Blocks that became resident together: for each the id of its multiprocessor."""

    sm_of_block: Integers32
    rows: Integers
    size: BlockSize


class PendingKernel(Protocol):
    """A kernel that waits for room."""

    @property
    def at_once(self) -> int:
        """The number of its blocks that must begin together."""


class Placement:
    """Room on the multiprocessors of one context. Used by the compute thread alone, but for ``capacity``.

    ``sm_ids`` are the multiprocessors the context is limited to.
    """

    def __init__(self, sm_ids: tuple[int, ...], attributes: Mapping[str, int]) -> None:
        self.sm_ids = sm_ids
        self._attributes = attributes
        self._capacities: dict[tuple[int, int], int] = {}
        """Earlier results: launches come in few shapes."""
        self._ids = np.array(sm_ids, np.int32)
        room = multiprocessor_room(attributes)
        self.slots = room[0] * len(sm_ids)
        """Blocks that can be resident at once, however small."""
        self._free = np.repeat(np.array([room], np.int64).T, len(sm_ids), axis=1)
        self._in_turn = np.arange(len(sm_ids))
        self._only: ResidentBlocks | None = None
        """Blocks that are the only ones, and not subtracted from the room: so are those of most launches."""
        self.resident = 0
        self.high_water = 0
        """The most blocks that were resident at once."""
        self.unfinished_slices = 0
        """Slices in a row that ended without a finished batch."""
        self._wanting: set[PendingKernel] = set()
        """Kernels that have no block resident and found no room; while there are any, no kernel grows."""
        self._gathering: PendingKernel | None = None
        """A kernel that needs room for many blocks at once; until it has it, no other kernel begins."""

    # --- which kernels may begin, and which may grow

    def admits(self, kernel: PendingKernel, size: BlockSize) -> bool:
        """Return whether a kernel without resident blocks may begin; if not, others wait for it."""
        impatient = self.unfinished_slices >= _PATIENCE
        if self._gathering is not None and self._gathering is not kernel and not impatient:
            return False
        if self.resident and self.room(size) < kernel.at_once:
            self._wanting.add(kernel)
            if kernel.at_once > 1 and self._gathering is None:
                self._gathering = kernel
            return False
        self._wanting.discard(kernel)
        return True

    def lets_grow(self) -> bool:
        """Return whether a kernel with resident blocks may begin others that it does not need."""
        return not (self._wanting or self._gathering) or self.unfinished_slices >= _PATIENCE

    def mark_begun(self, kernel: PendingKernel) -> None:
        """Note that a kernel has its first blocks resident."""
        if self._gathering is kernel:
            self._gathering = None

    # --- blocks

    def capacity(self, size: BlockSize) -> int:
        """Return the number of blocks of this size that fit if there are no others."""
        key = size.threads, size.shared_bytes
        capacity = self._capacities.get(key)
        if capacity is None:
            if len(self._capacities) >= _CAPACITIES_KEPT:
                self._capacities.clear()
            capacity = self._capacities[key] = len(self.sm_ids) * blocks_per_multiprocessor(self._attributes, *key)
        return capacity

    def room(self, size: BlockSize) -> int:
        """Return the number of blocks of this size that fit now."""
        return int(self._room(size).sum())

    def _room(self, size: BlockSize) -> Integers:
        if self._only is not None:
            self._account(self._only.rows, self._only.size, -1)
            self._only = None
        cost = self._cost(size)
        taken = cost[:, 0] > 0  # a block without shared memory fits where none is left
        fitting: Integers = (self._free[taken] // cost[taken]).min(axis=0)
        return fitting

    def _cost(self, size: BlockSize) -> Integers:
        return np.array([block_cost(self._attributes, size.threads, size.shared_bytes)], np.int64).T

    def place(self, size: BlockSize, count: int) -> ResidentBlocks:
        """Place up to ``count`` blocks, spread over the multiprocessors; the result may hold fewer, even none."""
        if self.resident:
            rows = self._spread(self._room(size), count)
            self._account(rows, size, -1)
            placed = ResidentBlocks(self._ids[rows], rows, size)
        else:
            placed = self._only = self._place_alone(size, count)
        self.resident += len(placed.rows)
        self.high_water = max(self.high_water, self.resident)
        return placed

    def _place_alone(self, size: BlockSize, count: int) -> ResidentBlocks:
        count = min(count, self.capacity(size))
        if count <= len(self.sm_ids):
            return ResidentBlocks(self._ids[:count], self._in_turn[:count], size)
        return ResidentBlocks(np.resize(self._ids, count), np.resize(self._in_turn, count), size)

    def _spread(self, room: Integers, count: int) -> Integers:
        # The k-th block of every multiprocessor goes before any (k+1)-th; emptier ones go first.
        total = int(room.sum())
        count = min(count, total)
        if count == 0:
            return np.zeros(0, np.int64)
        emptiest = np.argsort(-room, kind="stable")
        rounds = -(-count // int(np.count_nonzero(room)))
        while True:
            capped = np.minimum(room, rounds)
            if int(capped.sum()) >= count:
                break
            rounds += 1
        rows = np.concatenate([emptiest[room[emptiest] > level] for level in range(rounds)])
        return rows[:count]

    def _account(self, rows: Integers, size: BlockSize, sign: int) -> None:
        blocks = np.bincount(rows, minlength=len(self.sm_ids))
        self._free += sign * self._cost(size) * blocks

    def release(self, placed: ResidentBlocks) -> None:
        """Free the room of blocks that have ended."""
        if placed is self._only:
            self._only = None
        else:
            self._account(placed.rows, placed.size, 1)
        self.resident -= len(placed.rows)

    def trace(self, context: int) -> ContextTrace:
        """Return its trace."""
        return ContextTrace(context, self.sm_ids, self.slots, self.high_water)
