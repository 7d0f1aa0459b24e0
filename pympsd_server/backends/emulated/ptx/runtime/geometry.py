"""The place of each thread in its batch: the same for all batches of one shape."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from pympsd_server.backends.emulated.ptx.runtime.lanes import WARP


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
        # Facts about all threads that hold for every batch of the shape (shuffle patterns).
        self.facts: dict[Hashable, Any] = {}


@lru_cache(maxsize=16)
def geometry(blocks: int, threads_per_block: int) -> Geometry:
    """Return the shape's geometry; shared, never changed."""
    return Geometry(blocks, threads_per_block)
