"""Launches of kernels (CUDA driver API, Execution Control)."""

from ctypes import string_at
from typing import Any

from pympsd.vocabulary.results import Result
from pympsd.wire.records import MAX_CLUSTER, NO_CLUSTER
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.launch_attributes import HINTS, VALUE_BYTES, name_of, not_there
from pympsd_client._arguments.values import number
from pympsd_client._objects import event as events
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
    """Start a kernel by a CUlaunchConfig with launch attributes.

    The events of PROGRAMMATIC_EVENT and LAUNCH_COMPLETION_EVENT are recorded after the kernel, which is later than
    they may be. INVALID_CLUSTER_SIZE for clusters that the device, or the grid, does not have; INVALID_HANDLE,
    INVALID_VALUE for an event that cannot be recorded; NOT_SUPPORTED for attributes that are neither these nor hints.
    """
    if config is None:
        raise invalid_value("cuLaunchKernelEx takes a CUlaunchConfig, not None")
    shape = (
        config.gridDimX, config.gridDimY, config.gridDimZ,
        config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes,
    )  # fmt: skip
    cooperative, cluster, recorded = _attributes(config)
    launches.launch(number(function), shape, config.hStream, parameters, extra, cooperative, cluster)
    for event in recorded:
        events.record(event, number(config.hStream or 0))


def _attributes(config: Any) -> tuple[bool, tuple[int, int, int], list[int]]:
    """Return whether the launch is cooperative, the size of its clusters, and the events to be recorded with it.

    Raise CudaError for an unsupported attribute.
    """
    cooperative, cluster, recorded = False, NO_CLUSTER, []
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
        elif name == "PROGRAMMATIC_EVENT":
            recorded.append(_event(number(attribute.value.programmaticEvent.event), events.DISABLE_TIMING))
        elif name == "LAUNCH_COMPLETION_EVENT":
            recorded.append(_event(number(attribute.value.launchCompletionEvent.event), 0))
        elif name not in HINTS and any(string_at(int(attribute.value.getPtr()), VALUE_BYTES)):
            raise not_there(name)
    return cooperative, cluster, recorded


def _event(handle: int, required: int) -> int:
    """Return an event that can be recorded by an attribute of a launch; INVALID_HANDLE, INVALID_VALUE."""
    flags = events.events.find(handle).flags
    if flags & events.INTERPROCESS or flags & required != required:
        raise invalid_value(
            "a launch attribute records events without CU_EVENT_INTERPROCESS, and PROGRAMMATIC_EVENT only those with "
            "CU_EVENT_DISABLE_TIMING"
        )
    return handle
