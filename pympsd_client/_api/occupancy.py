"""Occupancy of kernels (CUDA driver API, Occupancy)."""

from typing import Any, Final

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.launch_attributes import LaunchConfig, launch_config
from pympsd_client._arguments.values import read_unsigned
from pympsd_client._objects.code import occupancy
from pympsd_client._objects.code.library import function_of
from pympsd_client._objects.code.module import Function
from pympsd_client._objects.context import require_context

_CACHING_FLAGS: Final = (0, 1)
"""CU_OCCUPANCY_DEFAULT and CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE, the same since Pascal."""


def active_blocks(function: int, threads: int, dynamic_bytes: int, flags: int = 0) -> int:
    """Return how many blocks with these threads and dynamic shared bytes fit one multiprocessor.

    The flags, 0 or DISABLE_CACHING_OVERRIDE, have no effect on these devices.
    """
    _check_caching(flags)
    return occupancy.active_blocks(_find(function), threads, dynamic_bytes)


def best_block(
    function: int, dynamic_bytes_function: int, dynamic_bytes: int, most_threads: int, flags: int = 0
) -> tuple[int, int]:
    """Return the number of blocks, and of threads in each, that fill the context's multiprocessors.

    ``blockSizeToDynamicSMemSize`` is a C function's address (CUoccupancyB2DSize), or None for the constant size.
    The flags, 0 or DISABLE_CACHING_OVERRIDE, have no effect on these devices.
    """
    _check_caching(flags)
    bytes_by_block = occupancy.dynamic_bytes_by_block(dynamic_bytes_function, dynamic_bytes)
    return occupancy.best_block(_find(function), bytes_by_block, read_unsigned(most_threads, 31))


def available_dynamic_bytes(function: int, blocks: int, threads: int) -> int:
    """Return how many dynamic shared bytes a block can have if ``numBlocks`` of them must fit one multiprocessor.

    Raise INVALID_VALUE if so many blocks of ``blockSize`` threads never fit.
    """
    return occupancy.available_dynamic_bytes(_find(function), blocks, threads)


def largest_cluster(function: int, config: Any) -> int:
    """Return the maximum number of blocks in a cluster; raise NOT_SUPPORTED on a device without clusters."""
    return occupancy.largest_cluster(_find(function), _config(config))


def active_clusters(function: int, config: Any) -> int:
    """Return the number of clusters that can be active at the same time; raise INVALID_CLUSTER_SIZE."""
    return occupancy.active_clusters(_find(function), _config(config))


def _find(function: int) -> Function:
    require_context()
    return function_of(function)


def _config(argument: Any) -> LaunchConfig:
    config = launch_config(argument)
    if config is None:
        raise invalid_value("the launch configuration is NULL")
    return config


def _check_caching(flags: int) -> None:
    if flags not in _CACHING_FLAGS:
        raise invalid_value(f"occupancy flags must be 0 or 1 (DISABLE_CACHING_OVERRIDE), not {flags}")
