"""The number of blocks that one multiprocessor holds, for placement and for the clients' occupancy functions.

CUDA's occupancy calculation counts blocks, threads in whole warps, shared memory in whole granules including the part
that the system reserves for each block, and, on real devices, registers. An emulated device has no register file, and
NUM_REGS is an estimate there. Source: CUDA C++ Programming Guide, Compute Capabilities, technical specifications;
cuda_occupancy.h for the allocation of registers.
"""

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
"""The granule of shared memory on devices that reserve shared memory for the system (compute capability 8.0 on)."""
_REGISTER_GRANULE: Final = 256
_PARTITIONS: Final = 4
"""The number of parts of a multiprocessor's register file; a warp's registers lie in one of them."""
REGISTERS_OF_A_WARP: Final = "REGISTERS_OF_A_WARP"
"""An additional function attribute, present only if registers limit the function's occupancy."""


def warp_registers(registers: int) -> int:
    """Return how many registers each warp of a kernel takes.

    Args:
        registers: How many registers each of its threads has.
    """
    return -(-registers * WARP_THREADS // _REGISTER_GRANULE) * _REGISTER_GRANULE


def multiprocessor_capacity(attributes: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the capacity of one multiprocessor: blocks, threads, bytes of shared memory.

    ``attributes`` are a device's, by the names of CUdevice_attribute without their prefix.
    """
    blocks, threads, shared_bytes = (attributes.get(name, value) for name, value in _DEFAULTS.items())
    return blocks, threads, shared_bytes


def block_cost(attributes: Mapping[str, int], threads: int, shared_bytes: int) -> tuple[int, int, int]:
    """Return what one block takes of that capacity; ``shared_bytes`` is its static and dynamic shared memory."""
    reserved = attributes.get("RESERVED_SHARED_MEMORY_PER_BLOCK", 0)
    granule = _GRANULE_BYTES if reserved else _OLD_GRANULE_BYTES
    allocated_bytes = -(-(shared_bytes + reserved) // granule) * granule
    return 1, -(-threads // WARP_THREADS) * WARP_THREADS, allocated_bytes


def available_shared_bytes(attributes: Mapping[str, int], blocks: int) -> int:
    """Return the shared memory that each of ``blocks`` blocks on one multiprocessor can have."""
    _, _, memory = multiprocessor_capacity(attributes)
    reserved = attributes.get("RESERVED_SHARED_MEMORY_PER_BLOCK", 0)
    granule = _GRANULE_BYTES if reserved else _OLD_GRANULE_BYTES
    return memory // blocks // granule * granule - reserved


_MAX_CLUSTERS: Final = 8
"""The maximum number of clusters of one block on one multiprocessor."""
_CLUSTER_GROUPS: Final = (16, 16, 16, 16, 16, 16, 14, 14)
"""The sizes of groups of an H200's 132 multiprocessors; the blocks of a cluster are placed within one group. For
clusters of up to 8 blocks of 32 to 1,024 threads, these sizes give the numbers that cuOccupancyMaxActiveClusters was
recorded to return."""
_ALL_MULTIPROCESSORS: Final = 132
PORTABLE_CLUSTER: Final = 8
LARGEST_CLUSTER: Final = 16
"""The maximum number of blocks in a cluster: on every device with clusters, and on Hopper if a kernel allows it."""


def active_clusters(multiprocessors: int, blocks: int, size: int) -> int:
    """Return the number of clusters of ``size`` blocks that can be active, if a multiprocessor holds ``blocks``."""
    cluster_blocks = min(blocks, _MAX_CLUSTERS)
    if size <= 2:
        return multiprocessors * cluster_blocks // size
    groups = (group * multiprocessors // _ALL_MULTIPROCESSORS for group in _CLUSTER_GROUPS)
    return sum(group * cluster_blocks // size for group in groups)


def blocks_per_multiprocessor(
    attributes: Mapping[str, int], threads: int, shared_bytes: int, warp_registers: int = 0
) -> int:
    """Return the number of blocks of ``threads`` threads and ``shared_bytes`` that one multiprocessor holds.

    ``warp_registers``: the registers that each warp takes; 0 if registers do not limit.
    """
    blocks, room, memory = multiprocessor_capacity(attributes)
    _, cost, block_bytes = block_cost(attributes, threads, shared_bytes)
    if warp_registers:
        file = attributes.get("MAX_REGISTERS_PER_MULTIPROCESSOR", 65536)
        warps = file // _PARTITIONS // warp_registers * _PARTITIONS
        blocks = min(blocks, warps // (cost // WARP_THREADS))
    return min(blocks, room // cost, memory // block_bytes if block_bytes else blocks)
