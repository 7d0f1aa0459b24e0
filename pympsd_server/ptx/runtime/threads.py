"""Define sets of threads that run together, the values cached for a set, and each thread's place in its batch."""

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.machine import WARP


class Threads:
    """A set of threads of one batch. `ids` is an int64 array of their numbers, or None for all threads.

    Values that depend only on the set, such as special registers and base addresses, are computed once and kept in
    `cache`. As long as a loop does not split its group, each pass finds them there.
    """

    __slots__ = ("cache", "count", "ids")

    def __init__(self, ids: Array | None, count: int) -> None:
        self.ids = ids
        self.count = count
        self.cache: dict[Hashable, Any] = {}

    def pick(self, value: Value) -> Value:
        """Return these threads' elements of an array that has an element for each thread of the batch."""
        return value if self.ids is None or value.ndim == 0 else value.take(self.ids)

    def remember(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the value cached under a key; compute it at the first call."""
        value = self.cache.get(key)
        if value is None:
            value = self.cache[key] = compute()
        return value

    def indices(self) -> Array:
        """Return the numbers of the threads in their batch."""
        if self.ids is None:
            indices: Array = self.remember("indices", lambda: np.arange(self.count))
            return indices
        return self.ids


def spread(value: Value, count: int) -> Array:
    """Return a uniform value as an array of `count` equal elements, and an array unchanged."""
    return value if value.ndim else np.full(count, value)


class Geometry:
    """The place of each thread in a batch of CTAs. Threads are numbered from 0, CTA by CTA.

    Every array has an int64 element for each thread:

    - `thread`: its number in its CTA, and `cta`: the CTA's number in the batch;
    - `warp`: its warp's number in the batch (each CTA begins a new warp), and `lane`: its lane in the warp;
    - `slot`: its lane's number among the lanes of all warps.
    """

    def __init__(self, blocks: int, threads_per_block: int) -> None:
        self.blocks = blocks
        self.threads_per_block = threads_per_block
        self.count = blocks * threads_per_block
        self.warps_per_block = -(-threads_per_block // WARP)
        self.warps = blocks * self.warps_per_block
        self.whole_warps = threads_per_block % WARP == 0
        self.thread = np.tile(np.arange(threads_per_block), blocks)
        self.cta = np.repeat(np.arange(blocks), threads_per_block)
        self.warp = self.cta * self.warps_per_block + self.thread // WARP
        self.lane = self.thread % WARP
        self.slot = self.warp * WARP + self.lane


@lru_cache(maxsize=16)
def geometry(blocks: int, threads_per_block: int) -> Geometry:
    """Return the geometry of a batch. Batches of the same shape share it, so its arrays must not be changed."""
    return Geometry(blocks, threads_per_block)
