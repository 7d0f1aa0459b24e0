"""A set of threads that run together, the values cached for it, and the place of each thread in its batch."""

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.machine import WARP


class Threads:
    """Threads of one batch: `ids` is an int64 index array, or None for all of them.

    Facts about the set (special registers, base addresses) are computed once and kept in `cache`; a loop that does
    not split its group finds them there.
    """

    __slots__ = ("cache", "count", "ids")

    def __init__(self, ids: Array | None, count: int) -> None:
        self.ids = ids
        self.count = count
        self.cache: dict[Hashable, Any] = {}

    def pick(self, value: Value) -> Value:
        """Return the elements of a per-batch array that belong to these threads."""
        return value if self.ids is None or value.ndim == 0 else value.take(self.ids)

    def remember(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the value cached under a key; compute it the first time."""
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
    """Return a uniform value as an array of `count` equal elements; an array as it is."""
    return value if value.ndim else np.full(count, value)


class Geometry:
    """Threads are numbered 0 to count-1, CTA by CTA; every array has one int64 element per thread.

    `thread` is the thread's number in its CTA, `cta` its CTA's in the batch, `warp` and `lane` its place
    among the batch's warps (each CTA begins a new one), `slot` its place among all lanes of those.
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
    """Return the shape's geometry; shared, never changed."""
    return Geometry(blocks, threads_per_block)
