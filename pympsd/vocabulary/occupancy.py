"""How many blocks of a size one multiprocessor holds: the rule that placement keeps and clients calculate with.

As CUDA's occupancy calculation: blocks, threads in whole warps, and shared memory in whole granules with what the
system keeps of it for each block. Registers do not count: an emulated device has no register file to run out of,
and NUM_REGS is an estimate there. Source: CUDA C++ Programming Guide, Compute Capabilities, technical specifications.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WARP_THREADS: Final = 32
_DEFAULTS: Final = {
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
}
_OLD_GRANULE_BYTES: Final = 256
_GRANULE_BYTES: Final = 128
"""Shared memory comes in these since compute capability 8.0, which is also when the system began to reserve some."""


def multiprocessor_room(attributes: Mapping[str, int]) -> tuple[int, int, int]:
    """Return what one multiprocessor has: blocks, threads, bytes of shared memory.

    ``attributes`` are a device's, by the names of CUdevice_attribute without their prefix.
    """
    blocks, threads, shared_bytes = (attributes.get(name, value) for name, value in _DEFAULTS.items())
    return blocks, threads, shared_bytes


def block_cost(attributes: Mapping[str, int], threads: int, shared_bytes: int) -> tuple[int, int, int]:
    """Return what one block takes of that; ``shared_bytes`` is static and dynamic shared memory together."""
    reserved = attributes.get("RESERVED_SHARED_MEMORY_PER_BLOCK", 0)
    granule = _GRANULE_BYTES if reserved else _OLD_GRANULE_BYTES
    taken = -(-(shared_bytes + reserved) // granule) * granule
    return 1, -(-threads // WARP_THREADS) * WARP_THREADS, taken


def blocks_per_multiprocessor(attributes: Mapping[str, int], threads: int, shared_bytes: int) -> int:
    """Return how many blocks of ``threads`` threads and ``shared_bytes`` one multiprocessor holds; 0: none fits."""
    blocks, room, memory = multiprocessor_room(attributes)
    _, cost, taken = block_cost(attributes, threads, shared_bytes)
    return min(blocks, room // cost, memory // taken if taken else blocks)
