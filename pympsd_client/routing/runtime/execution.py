"""Streams, events, clusters and execution contexts (CUDA runtime API, chapters of these names).

An execution context is either a device's primary context or a green context.
"""

import ctypes
import struct
from typing import Final

from pympsd_client._api import green_context
from pympsd_client._api.settings import context_id
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects import context as contexts
from pympsd_client._objects import green_context as green
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import Context
from pympsd_client.routing.driver import api
from pympsd_client.routing.runtime.devices import initialize
from pympsd_client.routing.runtime.symbols import kernel_at

_DEFAULT_STREAM: int = 1
"""CU_GREEN_CTX_DEFAULT_STREAM."""
_CONFIG: Final = struct.Struct("=6IQQQI")
"""cudaLaunchConfig_t: grid, block, dynamic shared memory, stream, attributes, their number."""
_DRIVER_CONFIG: Final = struct.Struct("=7I4xQQI4x")
"""The layout of a CUlaunchConfig."""


def _launch_config(address: int) -> ctypes.Array[ctypes.c_char]:
    """Return the CUlaunchConfig of a cudaLaunchConfig_t."""
    check_not_null("the cudaLaunchConfig_t", address)
    *sizes, shared, stream, attributes, count = _CONFIG.unpack(ctypes.string_at(address, _CONFIG.size))
    return ctypes.create_string_buffer(_DRIVER_CONFIG.pack(*sizes, shared, stream, attributes, count))


def active_clusters(function: int, config: int) -> int:
    """Return how many clusters of a launch can be active at the same time; raise INVALID_CLUSTER_SIZE."""
    driver_config = _launch_config(config)
    return int(api.cuOccupancyMaxActiveClusters(kernel_at(function), ctypes.addressof(driver_config)))


def largest_cluster(function: int, config: int) -> int:
    """Return the maximum number of a launch's blocks in a cluster; raise NOT_SUPPORTED without clusters."""
    driver_config = _launch_config(config)
    return int(api.cuOccupancyMaxPotentialClusterSize(kernel_at(function), ctypes.addressof(driver_config)))


def create_default_stream() -> int:
    """Return a new stream of the current context."""
    return int(api.cuStreamCreate(0))


def device_of_stream(stream: int) -> int:
    """Return the device of a stream."""
    return streams.resolve(stream)[0].device.number


def create_event() -> int:
    """Return a new event."""
    return int(api.cuEventCreate(0))


def context_of(handle: int) -> Context:
    """Return the context of an execution context; raise INVALID_CONTEXT."""
    green_context = green.green_contexts.get(handle)
    return contexts.context_of(handle) if green_context is None else green_context.context


def create(description: int, device: int, flags: int) -> int:
    """Return a new green context with the SMs of a description; raise INVALID_VALUE if ``flags`` is not 0."""
    if flags:
        raise invalid_value(f"the flags must be 0, not {flags:#x}")
    initialize(device, 0, 0)
    return green_context.create(description, device, _DEFAULT_STREAM)


def destroy(handle: int) -> None:
    """Destroy a green context; raise INVALID_VALUE for a primary context."""
    if handle not in green.green_contexts:
        raise invalid_value(f"{handle:#x} is not a green context; a device's own context cannot be destroyed")
    green.destroy(handle)


def resource(handle: int, kind: int) -> bytes:
    """Return the SMs of an execution context."""
    return green_context.read_context_resource(context_of(handle).handle, kind)


def device(handle: int) -> int:
    """Return the device of an execution context."""
    return context_of(handle).device.number


def number(handle: int) -> int:
    """Return the id of an execution context, which no other context of this process has or had."""
    return context_id(context_of(handle).handle)


def create_stream(handle: int, flags: int, priority: int) -> int:
    """Return a new stream of an execution context."""
    return streams.create(context_of(handle), flags, priority).handle


def synchronize(handle: int) -> None:
    """Wait for all work of an execution context."""
    context_of(handle).synchronize()


def record_event(handle: int, event: int) -> None:
    """Record an event that stands for the earlier work in all streams of an execution context."""
    green.record(context_of(handle), event)


def wait_event(handle: int, event: int) -> None:
    """Make all existing streams of an execution context wait for an event before their later work."""
    green.wait(context_of(handle), event)
