"""The limits of a launch: the device's and the kernel's own."""

from collections.abc import Mapping

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.scheduling.placement import BlockSize, Placement
from pympsd_server.backends.interface import BackendError
from pympsd_server.ptx.loading.program import Kernel

_DEFAULTS = {
    "MAX_GRID_DIM_X": 2147483647,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
}


_ALONE = (1, 1, 1)
MAX_CLUSTER_BLOCKS = 8
"""The maximum number of blocks in a cluster that every device with clusters allows."""


def attribute_of(attributes: Mapping[str, int], name: str) -> int:
    """Return a device attribute. If the machine's description lacks it, return the value that all devices have."""
    return attributes.get(name, _DEFAULTS[name])


def max_shared_bytes(attributes: Mapping[str, int]) -> int:
    """Return the maximum shared memory of a block in bytes, including the part for which a kernel must opt in."""
    plain = attribute_of(attributes, "MAX_SHARED_MEMORY_PER_BLOCK")
    return max(plain, attributes.get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", 0))


def check_launch(
    attributes: Mapping[str, int],
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    parameter_bytes: int,
    cluster: tuple[int, int, int],
) -> None:
    """Raise BackendError INVALID_VALUE for a launch that the device or the kernel does not accept."""
    for what, extent in (("GRID", grid), ("BLOCK", block)):
        for axis, value in zip("XYZ", extent, strict=True):
            maximum = attribute_of(attributes, f"MAX_{what}_DIM_{axis}")
            if not 1 <= value <= maximum:
                raise _invalid(f"{what.lower()} dimension {axis.lower()} is {value}: 1 to {maximum} are allowed")
    if any(count % size for count, size in zip(grid, cluster, strict=True)):
        raise _invalid(f"{kernel.name} runs in clusters of {cluster} blocks: the grid {grid} is not a multiple")
    if (blocks := cluster[0] * cluster[1] * cluster[2]) > MAX_CLUSTER_BLOCKS:
        raise _invalid(f"{kernel.name} runs in clusters of {blocks} blocks; {MAX_CLUSTER_BLOCKS} are allowed")
    threads = block[0] * block[1] * block[2]
    if threads > (maximum := attribute_of(attributes, "MAX_THREADS_PER_BLOCK")):
        raise _invalid(f"{threads} threads per block; at most {maximum} are allowed")
    if kernel.shared_bytes + shared_bytes > (maximum := max_shared_bytes(attributes)):
        raise _invalid(f"{kernel.shared_bytes + shared_bytes} bytes of shared memory in a block, there are {maximum}")
    if parameter_bytes != kernel.parameter_bytes:
        raise _invalid(f"{kernel.name} takes {kernel.parameter_bytes} bytes of parameters, not {parameter_bytes}")
    if kernel.required_block is not None and block != kernel.required_block:
        raise _invalid(f"{kernel.name} was compiled for blocks of exactly {kernel.required_block}, not {block}")
    if threads > kernel.max_threads_per_block:
        raise _invalid(f"{kernel.name} takes at most {kernel.max_threads_per_block} threads per block, not {threads}")


def cluster_of(
    kernel: Kernel, requested: tuple[int, int, int], attributes: Mapping[str, int]
) -> tuple[int, int, int]:
    """Return the size of the clusters that a kernel runs in: what it was compiled for, else what the launch asks for.

    Raises:
        BackendError: INVALID_CLUSTER_SIZE if the sizes differ; NOT_SUPPORTED on a device without clusters.
    """
    if requested in (_ALONE, kernel.cluster):
        return kernel.cluster
    if kernel.cluster != _ALONE:
        reason = f"{kernel.name} was compiled for clusters of {kernel.cluster} blocks, not {requested}"
        raise BackendError(Result.ERROR_INVALID_CLUSTER_SIZE, reason)
    if attributes.get("COMPUTE_CAPABILITY_MAJOR", 0) < 9:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "clusters of blocks need compute capability 9.0")
    return requested


def check_room(
    attributes: Mapping[str, int], placement: Placement, size: BlockSize, blocks: int, cooperative: bool
) -> None:
    """Check that the multiprocessors of a context have space for a launch of ``blocks`` blocks.

    Raises:
        BackendError: LAUNCH_OUT_OF_RESOURCES if no multiprocessor has space for a block. For a cooperative launch,
            NOT_SUPPORTED if the device lacks these, COOPERATIVE_LAUNCH_TOO_LARGE if not all blocks fit together.
    """
    if cooperative and not attributes.get("COOPERATIVE_LAUNCH", 0):
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "this device does not have cooperative launches")
    maximum = placement.capacity(size)
    if maximum and not (cooperative and blocks > maximum):
        return
    what = f"blocks of {size.threads} threads and {size.shared_bytes} bytes of shared memory"
    if not maximum:
        raise BackendError(Result.ERROR_LAUNCH_OUT_OF_RESOURCES, f"no multiprocessor has space for {what}")
    raise BackendError(
        Result.ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        f"a cooperative launch of {blocks} {what}: "
        f"the context's {len(placement.sm_ids)} multiprocessors hold {maximum}",
    )


def _invalid(reason: str) -> BackendError:
    return BackendError(Result.ERROR_INVALID_VALUE, reason)
