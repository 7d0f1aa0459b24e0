"""Where blocks live: the multiprocessors a context may use and how much room each still has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Integers32 = NDArray[np.int32]
_DEFAULTS: Final = {
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
}


@frozen
class BlockSize:
    """What one block of a kernel takes: threads, and shared memory in bytes."""

    threads: int
    shared_bytes: int


@frozen
class Seats:
    """Blocks placed together: for each the id of its multiprocessor."""

    sm_of_block: Integers32
    rows: Integers
    size: BlockSize


class Placement:
    """Room on the multiprocessors of one context. Used by the compute thread alone.

    ``sm_ids`` are the multiprocessors the context is kept to.
    """

    def __init__(self, sm_ids: tuple[int, ...], attributes: Mapping[str, int]) -> None:
        limits = {name: attributes.get(name, value) for name, value in _DEFAULTS.items()}
        self.sm_ids = sm_ids
        self._ids = np.array(sm_ids, np.int32)
        self._limits = tuple(limits.values())
        self._free = np.repeat(np.array([self._limits], np.int64).T, len(sm_ids), axis=1)
        self._in_turn = np.arange(len(sm_ids))
        self._lone: Seats | None = None
        """Blocks that are alone here and not subtracted from the room: most launches come and go like this."""
        self.resident = 0
        self.high_water = 0
        """The most blocks that were resident at once."""
        self.wanting: set[Any] = set()
        """Kernels that have no block resident and found no room; while there are any, nobody grows."""

    def room(self, size: BlockSize) -> int:
        """Return how many blocks of this size fit now."""
        return int(self._room(size).sum())

    def _room(self, size: BlockSize) -> Integers:
        if self._lone is not None:
            self._account(self._lone.rows, self._lone.size, -1)
            self._lone = None
        needed = np.array([[1], [size.threads], [max(1, size.shared_bytes)]], np.int64)
        fitting: Integers = (self._free // needed).min(axis=0)
        return fitting

    def seat(self, size: BlockSize, count: int) -> Seats:
        """Place up to ``count`` blocks, spread over the multiprocessors; the result may hold fewer, even none."""
        if self.resident:
            rows = self._spread(self._room(size), count)
            self._account(rows, size, -1)
            seats = Seats(self._ids[rows], rows, size)
        else:
            seats = self._lone = self._seat_alone(size, count)
        self.resident += len(seats.rows)
        self.high_water = max(self.high_water, self.resident)
        return seats

    def _seat_alone(self, size: BlockSize, count: int) -> Seats:
        blocks, threads, shared_bytes = self._limits
        each = min(blocks, threads // size.threads, shared_bytes // max(1, size.shared_bytes))
        count = min(count, each * len(self.sm_ids))
        if count <= len(self.sm_ids):
            return Seats(self._ids[:count], self._in_turn[:count], size)
        return Seats(np.resize(self._ids, count), np.resize(self._in_turn, count), size)

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
        taken = np.array([[1], [size.threads], [max(1, size.shared_bytes)]], np.int64)
        self._free += sign * taken * blocks

    def leave(self, seats: Seats) -> None:
        """These blocks have ended."""
        if seats is self._lone:
            self._lone = None
        else:
            self._account(seats.rows, seats.size, 1)
        self.resident -= len(seats.rows)
