"""Launches of kernels (CUDA driver API, Execution Control)."""

from typing import Any

from pympsd.vocabulary.results import Result
from pympsd.wire.records import MAX_CLUSTER, NO_CLUSTER
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.launch_attributes import HINTS, name_of, not_there
from pympsd_client._arguments.values import number
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._objects import event as events
from pympsd_client._objects.code import launch as launches
from pympsd_client._objects.stream import resolve


def launch(function: Any, shape: tuple[Any, ...], stream: Any, parameters: Any, extra: Any) -> None:
    """Start a kernel without waiting for it; a later call reports its errors.

    Parameters are passed as ``(values, ctypes types)``, as an address or buffer of pointers, or through ``extra`` (an
    address). Raise INVALID_VALUE for an invalid shape, invalid parameters and more threads than the kernel was
    compiled for; INVALID_HANDLE; or the error that made the context unusable earlier.
    """
    launches.launch(number(function), shape, stream, parameters, extra)


def launch_cooperative(function: Any, shape: tuple[Any, ...], stream: Any, parameters: Any) -> None:
    """Start a kernel whose blocks are all resident at the same time, so that they may wait for each other.

    Raise COOPERATIVE_LAUNCH_TOO_LARGE for more blocks than fit the context's multiprocessors, and the errors of
    cuLaunchKernel.
    """
    launches.launch(number(function), shape, stream, parameters, 0, cooperative=True)


def launch_with_attributes(config: Any, function: Any, parameters: Any, extra: Any) -> None:
    """Start a kernel with the shape and the launch attributes of a CUlaunchConfig.

    The events of PROGRAMMATIC_EVENT and LAUNCH_COMPLETION_EVENT are recorded after the kernel, although CUDA allows
    them earlier. Raise

    - INVALID_CLUSTER_SIZE for clusters that do not fit the device or the grid;
    - INVALID_HANDLE, INVALID_VALUE or NOT_SUPPORTED for an event that cannot be recorded;
    - NOT_SUPPORTED for an attribute that is neither supported nor a hint, INVALID_VALUE for a wrong value.
    """
    if config is None:
        raise invalid_value("cuLaunchKernelEx takes a CUlaunchConfig, not None")
    shape = (
        config.gridDimX, config.gridDimY, config.gridDimZ,
        config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes,
    )  # fmt: skip
    cooperative, cluster, recorded = _attributes(config)
    launches.launch(number(function), shape, config.hStream, parameters, extra, cooperative, cluster)
    stream = number(config.hStream or 0)
    if (by := intercepted.by) is not None and any(_is_programmatic(attribute) for attribute in config.attrs or ()):
        by.make_programmatic(*resolve(stream))
    for event in recorded:
        events.record(event, stream)


def _is_programmatic(attribute: Any) -> bool:
    name = name_of(number(attribute.id))
    return name == "PROGRAMMATIC_STREAM_SERIALIZATION" and bool(
        attribute.value.programmaticStreamSerializationAllowed
    )


def _attributes(config: Any) -> tuple[bool, tuple[int, int, int], list[int]]:
    """Return whether the launch is cooperative, its clusters' dimensions, and the events to record with it.

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
            recorded.append(_event(attribute.value.programmaticEvent))
        elif name == "LAUNCH_COMPLETION_EVENT":
            recorded.append(_event(attribute.value.launchCompletionEvent))
        else:
            _check_hint(name, attribute.value)
    return cooperative, cluster, recorded


def _event(value: Any) -> int:
    """Return an event to record with a launch; raise the errors that were recorded on an H100."""
    handle = number(value.event)
    flags = events.events.find(handle).flags
    if number(value.flags):
        raise invalid_value(f"the flags of an event in a launch attribute must be 0, not {number(value.flags):#x}")
    if flags & events.INTERPROCESS or not flags & events.DISABLE_TIMING:
        raise not_supported(
            "a launch can record only events with CU_EVENT_DISABLE_TIMING and without CU_EVENT_INTERPROCESS"
        )
    return handle


def _check_hint(name: str, value: Any) -> None:
    """Raise CudaError for an attribute that is not a hint, and for a value that an H100 refuses."""
    if name not in HINTS:
        raise not_there(name)
    if name == "SYNCHRONIZATION_POLICY":
        raise invalid_value("the synchronization policy is an attribute of streams, not of launches")
    if (
        name == "CLUSTER_SCHEDULING_POLICY_PREFERENCE"
        and not 0 <= number(value.clusterSchedulingPolicyPreference) <= 2
    ):
        raise invalid_value("the preference must be a CUclusterSchedulingPolicy, 0 to 2")
    if name == "PREFERRED_SHARED_MEMORY_CARVEOUT" and not -1 <= number(value.sharedMemCarveout) <= 100:
        raise invalid_value("the carveout must be a percentage, 0 to 100, or -1 for the default")
