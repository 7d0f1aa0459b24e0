"""Occupancy of kernels (CUDA driver API, Occupancy)."""

from __future__ import annotations

from typing import Final

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.numbers import unsigned
from pympsd_client._objects import occupancy
from pympsd_client._objects.module import functions

_CACHING_FLAGS: Final = (0, 1)
"""CU_OCCUPANCY_DEFAULT and CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE: caching costs no occupancy since Pascal."""


def active_blocks(function: int, threads: int, dynamic_bytes: int, flags: int = 0) -> int:
    """Return the number of blocks of a size in threads and dynamic shared bytes that a multiprocessor holds.

    The flags, 0 or DISABLE_CACHING_OVERRIDE, change nothing on these devices.
    """
    _check_caching(flags)
    return occupancy.active_blocks(functions.find(function), threads, dynamic_bytes)


def best_block(
    function: int, dynamic_bytes_function: int, dynamic_bytes: int, most_threads: int, flags: int = 0
) -> tuple[int, int]:
    """Return the numbers of blocks and of threads in a block that fill the context's multiprocessors.

    ``blockSizeToDynamicSMemSize`` is a C function's address (CUoccupancyB2DSize), or None for the constant size.
    The flags, 0 or DISABLE_CACHING_OVERRIDE, change nothing on these devices.
    """
    _check_caching(flags)
    needed = occupancy.dynamic_bytes_by_block(dynamic_bytes_function, dynamic_bytes)
    return occupancy.best_block(functions.find(function), needed, unsigned(most_threads, 31))


def _check_caching(flags: int) -> None:
    if flags not in _CACHING_FLAGS:
        raise invalid_value(f"occupancy flags are 0 or 1 (DISABLE_CACHING_OVERRIDE), not {flags}")
