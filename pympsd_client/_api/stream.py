"""Streams and events (CUDA driver API, Stream Management and Event Management)."""

from __future__ import annotations

from typing import Any

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._objects import event, host_function, stream
from pympsd_client._objects.context import current


def create(flags: int, priority: int) -> int:
    """Return a new stream of the current context; flags CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING.

    The priority is clamped to cuCtxGetStreamPriorityRange.
    """
    return stream.create(current(), flags, priority).handle


def wait_event(stream_handle: int, event_handle: int, flags: int) -> None:
    """Make later work of the stream wait for the event (of another device: this call waits)."""
    if flags:
        raise invalid_value(f"cuStreamWaitEvent takes CU_EVENT_WAIT_DEFAULT (0), not {flags}")
    event.make_stream_wait(stream_handle, event_handle)


def add_callback(stream_handle: int, callback: Any, data: Any, flags: int) -> None:
    """Run ``callback(hStream, status, userData)`` as cuLaunchHostFunc does; after an error with its CUresult.

    ``flags`` is 0, else INVALID_VALUE.
    """
    if flags:
        raise invalid_value(f"cuStreamAddCallback takes no flags: 0, not {flags}")
    host_function.add_callback(stream_handle, callback, data)


def priority(handle: int) -> int:
    """Return the stream's priority, clamped as it was at creation."""
    return stream.properties(handle).priority


def flags(handle: int) -> int:
    """Return the flags the stream was created with."""
    return stream.properties(handle).flags


def context(handle: int) -> int:
    """Return the stream's context; the current one for the special streams."""
    return stream.properties(handle).context.handle


def record_event(event_handle: int, stream_handle: int, flags: int) -> None:
    """Record an event as cuEventRecord does; ``flags`` is 0, else INVALID_VALUE."""
    if flags:
        raise invalid_value(f"outside of a capture the flags are CU_EVENT_RECORD_DEFAULT (0), not {flags}")
    event.record(event_handle, stream_handle)


def create_event(flags: int) -> int:
    """Return a new event of the current context.

    NOT_SUPPORTED for CU_EVENT_INTERPROCESS where the device attribute IPC_EVENT_SUPPORTED is 0.
    """
    return event.create(current(), flags).handle
