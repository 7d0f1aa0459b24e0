"""Occupancy of kernels, and launches with attributes (CUDA driver API, Occupancy and Execution Control)."""

from __future__ import annotations

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.entry_point import door
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import DONE, SUCCESS, CudaError, invalid_value
from pympsd_client._arguments.numbers import number, unsigned
from pympsd_client._objects.launch import launch
from pympsd_client._objects.module import function_of
from pympsd_client._objects.occupancy import active_blocks, best_block, dynamic_bytes_by_block

_CACHING_FLAGS: Final = (0, 1)
"""CU_OCCUPANCY_DEFAULT and CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE: caching costs no occupancy since Pascal."""
_ATTRIBUTES: Final = {value: name for name, value in members("CUlaunchAttributeID", "CU_LAUNCH_ATTRIBUTE_").items()}


@door(1)
def cuOccupancyMaxActiveBlocksPerMultiprocessor(func: Any, blockSize: Any, dynamicSMemSize: Any) -> tuple[Any, ...]:
    """Return how many blocks of so many threads and bytes of dynamic shared memory a multiprocessor holds."""
    return SUCCESS, active_blocks(function_of(func), number(blockSize), unsigned(dynamicSMemSize))


@door(1)
def cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    func: Any, blockSize: Any, dynamicSMemSize: Any, flags: Any
) -> tuple[Any, ...]:
    """Return the same; the flags, 0 or DISABLE_CACHING_OVERRIDE, change nothing on these devices."""
    _check_caching(flags)
    return SUCCESS, active_blocks(function_of(func), number(blockSize), unsigned(dynamicSMemSize))


@door(2)
def cuOccupancyMaxPotentialBlockSize(
    func: Any, blockSizeToDynamicSMemSize: Any, dynamicSMemSize: Any, blockSizeLimit: Any
) -> tuple[Any, ...]:
    """Return the blocks of a grid and the threads of a block that fill the context's multiprocessors.

    ``blockSizeToDynamicSMemSize`` is a C function's address (CUoccupancyB2DSize), or None for the constant size.
    """
    needed = dynamic_bytes_by_block(number(blockSizeToDynamicSMemSize), unsigned(dynamicSMemSize))
    return SUCCESS, *best_block(function_of(func), needed, unsigned(blockSizeLimit, 31))


@door(2)
def cuOccupancyMaxPotentialBlockSizeWithFlags(
    func: Any, blockSizeToDynamicSMemSize: Any, dynamicSMemSize: Any, blockSizeLimit: Any, flags: Any
) -> tuple[Any, ...]:
    """Return the same; the flags, 0 or DISABLE_CACHING_OVERRIDE, change nothing on these devices."""
    _check_caching(flags)
    needed = dynamic_bytes_by_block(number(blockSizeToDynamicSMemSize), unsigned(dynamicSMemSize))
    return SUCCESS, *best_block(function_of(func), needed, unsigned(blockSizeLimit, 31))


def _check_caching(flags: Any) -> None:
    if number(flags) not in _CACHING_FLAGS:
        raise invalid_value(f"occupancy flags are 0 or 1 (DISABLE_CACHING_OVERRIDE), not {number(flags)}")


@door()
def cuLaunchCooperativeKernel(
    f: Any,
    gridDimX: Any,
    gridDimY: Any,
    gridDimZ: Any,
    blockDimX: Any,
    blockDimY: Any,
    blockDimZ: Any,
    sharedMemBytes: Any,
    hStream: Any,
    kernelParams: Any,
) -> tuple[Any, ...]:
    """Start a kernel all of whose blocks are resident at once, so that they may wait for each other.

    COOPERATIVE_LAUNCH_TOO_LARGE for more blocks than the context's multiprocessors hold; else as cuLaunchKernel.
    """
    shape = (gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes)
    launch(function_of(f), shape, hStream, kernelParams, 0, cooperative=True)
    return DONE


@door()
def cuLaunchKernelEx(config: Any, f: Any, kernelParams: Any, extra: Any) -> tuple[Any, ...]:
    """Start a kernel by a CUlaunchConfig; of its attributes COOPERATIVE is honoured, others are NOT_SUPPORTED."""
    function = function_of(f)
    if config is None:
        raise invalid_value("cuLaunchKernelEx takes a CUlaunchConfig, not None")
    shape = (
        config.gridDimX, config.gridDimY, config.gridDimZ,
        config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes,
    )  # fmt: skip
    cooperative = _cooperative(config)
    launch(function, shape, config.hStream, kernelParams, extra, cooperative=cooperative)
    return DONE


def _cooperative(config: Any) -> bool:
    """Return whether the launch attributes ask for a cooperative launch; raise for what is not there."""
    cooperative = False
    count, attributes = number(config.numAttrs), list(config.attrs or ())
    if count != len(attributes):
        raise invalid_value(f"there are {len(attributes)} launch attributes and their number is said to be {count}")
    for attribute in attributes:
        name = _ATTRIBUTES.get(number(attribute.id), str(number(attribute.id)))
        if name == "COOPERATIVE":
            cooperative = bool(attribute.value.cooperative)
        elif name != "IGNORE":
            raise CudaError(
                Result.ERROR_NOT_SUPPORTED,
                f"pympsd does not have the launch attribute {name} yet; it has COOPERATIVE and IGNORE",
            )
    return cooperative
