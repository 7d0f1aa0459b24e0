"""Occupancy: the number of resident blocks of a kernel on a context's multiprocessors (CUDA driver API, Occupancy).

The executor computes with the same functions (`pympsd.vocabulary.occupancy`), so both get the same results.
"""

import ctypes
from collections.abc import Callable
from typing import Final

from pympsd.vocabulary.occupancy import (
    MAX_CLUSTER_BLOCKS,
    MAX_PORTABLE_CLUSTER_BLOCKS,
    REGISTERS_OF_A_WARP,
    WARP_THREADS,
    available_shared_bytes,
    blocks_per_multiprocessor,
)
from pympsd.vocabulary.occupancy import active_clusters as clusters
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.launch_attributes import LaunchConfig
from pympsd_client._objects.code.module import Function

_TO_DYNAMIC_BYTES: Final = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)
"""The type CUoccupancyB2DSize: a function from a block's threads to its dynamic shared memory in bytes."""


def active_blocks(function: Function, threads: int, dynamic_bytes: int) -> int:
    """Return how many blocks of ``threads`` threads fit one multiprocessor; raise INVALID_VALUE for 0 threads."""
    function.context.usable()
    if threads < 1:
        raise invalid_value(f"a block must have at least 1 thread, not {threads}")
    properties, attributes = function.context.device.properties.attributes, function.attributes
    max_threads = min(
        attributes.get("MAX_THREADS_PER_BLOCK", threads), properties.get("MAX_THREADS_PER_BLOCK", threads)
    )
    if threads > max_threads or dynamic_bytes > attributes.get("MAX_DYNAMIC_SHARED_SIZE_BYTES", dynamic_bytes):
        return 0
    shared_bytes = attributes.get("SHARED_SIZE_BYTES", 0) + dynamic_bytes
    return blocks_per_multiprocessor(properties, threads, shared_bytes, attributes.get(REGISTERS_OF_A_WARP, 0))


def available_dynamic_bytes(function: Function, blocks: int, threads: int) -> int:
    """Return how many dynamic shared bytes each block can have with ``blocks`` of them on one multiprocessor.

    Raise INVALID_VALUE if so many blocks do not fit.
    """
    if blocks < 1 or not 1 <= blocks <= active_blocks(function, threads, 0):
        raise invalid_value(f"no multiprocessor holds {blocks} blocks of {threads} threads of {function.layout.name}")
    attributes = function.attributes
    available = available_shared_bytes(function.context.device.properties.attributes, blocks)
    static = attributes.get("SHARED_SIZE_BYTES", 0)
    return max(0, min(available - static, attributes.get("MAX_DYNAMIC_SHARED_SIZE_BYTES", available)))


def _max_blocks(function: Function) -> int:
    """Return the maximum number of blocks of a kernel's clusters."""
    is_larger = function.attributes.get("NON_PORTABLE_CLUSTER_SIZE_ALLOWED")
    return MAX_CLUSTER_BLOCKS if is_larger else MAX_PORTABLE_CLUSTER_BLOCKS


def largest_cluster(function: Function, config: LaunchConfig) -> int:
    """Return the maximum number of a launch's blocks in one cluster.

    Raise NOT_SUPPORTED if the device has no clusters, INVALID_CLUSTER_SIZE if no cluster of these blocks fits.
    """
    sizes = [_max_blocks(function)]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    largest = next((size for size in sizes if _clusters(function, config, size)), None)
    if largest is None:
        raise _bad_cluster("no cluster of these blocks fits the device")
    return largest


def active_clusters(function: Function, config: LaunchConfig) -> int:
    """Return the number of clusters that can be active at the same time.

    Raise NOT_SUPPORTED if the device has no clusters, INVALID_CLUSTER_SIZE for dimensions that are not allowed.
    """
    x, y, z = config.cluster
    size = x * y * z
    maximum = _max_blocks(function)
    if not 1 <= size <= maximum:
        raise _bad_cluster(f"a cluster has 1 to {maximum} blocks here, not {size}")
    if any(count % cluster_count for count, cluster_count in zip(config.grid, config.cluster, strict=True)):
        raise _bad_cluster(f"a grid of {config.grid} blocks is not a multiple of clusters of {config.cluster}")
    return _clusters(function, config, size)


def check_cluster(function: Function, shape: tuple[int, ...], cluster: tuple[int, int, int]) -> None:
    """Raise CudaError unless at least one cluster of a launch can be active; see `active_clusters`."""
    gx, gy, gz, bx, by, bz, shared_bytes = map(int, shape)
    if not active_clusters(function, LaunchConfig((gx, gy, gz), (bx, by, bz), shared_bytes, cluster)):
        raise _bad_cluster(f"no cluster of {cluster} blocks fits the context's multiprocessors")


def _clusters(function: Function, config: LaunchConfig, size: int) -> int:
    properties = function.context.device.properties
    if properties.compute_capability < (9, 0):
        raise not_supported(f"{properties.name} has no clusters of blocks")
    x, y, z = config.block
    blocks = active_blocks(function, x * y * z, config.shared_bytes)
    return clusters(function.context.usable().multiprocessors, blocks, size)


def _bad_cluster(reason: str) -> CudaError:
    return CudaError(Result.ERROR_INVALID_CLUSTER_SIZE, reason)


def best_block(function: Function, dynamic_bytes: Callable[[int], int], max_threads: int) -> tuple[int, int]:
    """Return (blocks of a grid that fills the context's multiprocessors, threads of a block).

    The block is the largest one with which a multiprocessor has the most threads. ``max_threads``: the maximum number
    of threads per block, or 0 for no maximum.
    """
    properties, attributes = function.context.device.properties.attributes, function.attributes
    bound = min(attributes.get("MAX_THREADS_PER_BLOCK", 1024), properties.get("MAX_THREADS_PER_BLOCK", 1024))
    bound = min(max_threads, bound) if max_threads else bound
    sizes = [bound, *range(bound - bound % WARP_THREADS, 0, -WARP_THREADS)]
    blocks = {threads: active_blocks(function, threads, dynamic_bytes(threads)) for threads in sizes}
    best = max(blocks, key=lambda threads: (blocks[threads] * threads, threads))
    if not blocks[best]:
        raise invalid_value(f"no block of {function.layout.name} fits a multiprocessor with so much shared memory")
    return blocks[best] * function.context.usable().multiprocessors, best


def dynamic_bytes_by_block(pointer: int, constant: int) -> Callable[[int], int]:
    """Return a function from a block's threads to its dynamic shared bytes: the program's own, or a constant one."""
    if not pointer:
        return lambda threads: constant
    call = _TO_DYNAMIC_BYTES(pointer)
    return lambda threads: int(call(threads))


def check_cooperative(function: Function, shape: tuple[int, ...]) -> None:
    """Raise COOPERATIVE_LAUNCH_TOO_LARGE unless all blocks of a launch can be resident at the same time.

    Raise NOT_SUPPORTED on a device without cooperative launches.
    """
    properties = function.context.device.properties
    if not properties.attributes.get("COOPERATIVE_LAUNCH"):
        raise not_supported(f"{properties.name} has no cooperative launches")
    x, y, z, *block, shared_bytes = shape
    blocks = active_blocks(function, block[0] * block[1] * block[2], shared_bytes)
    count = function.context.usable().multiprocessors
    if x * y * z > blocks * count:
        raise CudaError(
            Result.ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            f"{x * y * z} blocks of {function.layout.name}; a cooperative launch here has at most {blocks * count}, "
            f"{blocks} on each of the context's {count} multiprocessors",
        )
