"""Launches of kernels (CUDA driver API, Execution Control)."""

from typing import Any

from pympsd.vocabulary.results import Result
from pympsd.wire.records import MAX_CLUSTER, NO_CLUSTER
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.launch_attributes import name_of, not_there
from pympsd_client._arguments.values import number
from pympsd_client._objects.code import launch as launches


def launch(function: Any, shape: tuple[Any, ...], stream: Any, parameters: Any, extra: Any) -> None:
    """Start a kernel without waiting for it; a later call reports its errors.

    Parameters as ``(values, ctypes types)``, as an address or buffer of pointers, or through ``extra`` (an address).
    INVALID_VALUE for an invalid shape or parameters and for more threads than the kernel was built for,
    INVALID_HANDLE, or the error that made the context unusable earlier.
    """
    launches.launch(number(function), shape, stream, parameters, extra)


def launch_cooperative(function: Any, shape: tuple[Any, ...], stream: Any, parameters: Any) -> None:
    """Start a kernel whose blocks are all resident at the same time, so that they may wait for each other.

    COOPERATIVE_LAUNCH_TOO_LARGE for more blocks than the context's multiprocessors hold; else as cuLaunchKernel.
    """
    launches.launch(number(function), shape, stream, parameters, 0, cooperative=True)


def launch_with_attributes(config: Any, function: Any, parameters: Any, extra: Any) -> None:
    """Start a kernel by a CUlaunchConfig with the attributes COOPERATIVE and CLUSTER_DIMENSION.

    INVALID_CLUSTER_SIZE for clusters that the device, or the grid, does not have; NOT_SUPPORTED for other attributes.
    """
    if config is None:
        raise invalid_value("cuLaunchKernelEx takes a CUlaunchConfig, not None")
    shape = (
        config.gridDimX, config.gridDimY, config.gridDimZ,
        config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes,
    )  # fmt: skip
    cooperative, cluster = _attributes(config)
    launches.launch(number(function), shape, config.hStream, parameters, extra, cooperative, cluster)


def _attributes(config: Any) -> tuple[bool, tuple[int, int, int]]:
    """Return whether the launch attributes ask for a cooperative launch, and for which clusters.

    Raise CudaError for an unsupported one.
    """
    cooperative, cluster = False, NO_CLUSTER
    count, attributes = number(config.numAttrs), list(config.attrs or ())
    if count != len(attributes):
        raise invalid_value(f"there are {len(attributes)} launch attributes, but numAttrs is {count}")
    for attribute in attributes:
        name = name_of(number(attribute.id))
        if name == "COOPERATIVE":
            cooperative = bool(attribute.value.cooperative)
        elif name == "CLUSTER_DIMENSION":
            size = attribute.value.clusterDim
            cluster = number(size.x), number(size.y), number(size.z)
            if not all(1 <= size <= MAX_CLUSTER for size in cluster):
                raise CudaError(Result.ERROR_INVALID_CLUSTER_SIZE, f"a cluster has 1 block or more, not {cluster}")
        elif name != "IGNORE":
            raise not_there(name, "COOPERATIVE, CLUSTER_DIMENSION and IGNORE")
    return cooperative, cluster
