"""Streams and events (CUDA driver API, Stream Management and Event Management)."""

from __future__ import annotations

from typing import Any, Final

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._command_stream.interception import intercepted
from pympsd_client._objects import event, host_function, stream
from pympsd_client._objects.context import current

_EXTERNAL: Final = 1
"""CU_EVENT_RECORD_EXTERNAL and CU_EVENT_WAIT_EXTERNAL"""


def create(flags: int, priority: int) -> int:
    """Return a new stream of the current context; flags CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING.

    The priority is clamped to cuCtxGetStreamPriorityRange.
    """
    return stream.create(current(), flags, priority).handle


def wait_event(stream_handle: int, event_handle: int, flags: int) -> None:
    """Make later work of the stream wait for the event (of another device: this call waits).

    With CU_EVENT_WAIT_EXTERNAL a capturing stream gets a node that waits; INVALID_VALUE in other streams.
    """
    if not _is_taken(stream_handle, event_handle, flags, is_wait=True):
        event.make_stream_wait(stream_handle, event_handle)


def _is_taken(stream_handle: int, event_handle: int, flags: int, is_wait: bool) -> bool:
    """Return whether a capture has taken a call with an event; INVALID_VALUE for flags."""
    if not flags:
        return False
    name = "CU_EVENT_WAIT" if is_wait else "CU_EVENT_RECORD"
    if flags != _EXTERNAL:
        raise invalid_value(f"the flags are {name}_DEFAULT (0) or {name}_EXTERNAL (1), not {flags}")
    found = event.events.find(event_handle)
    context, its_stream = stream.resolve(stream_handle)
    if (by := intercepted.by) is None or not by.takes_external_event(context, its_stream, found.handle, is_wait):
        raise invalid_value(f"{name}_EXTERNAL is for streams that capture; this one does not")
    return True


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
    """Record an event as cuEventRecord does.

    With CU_EVENT_RECORD_EXTERNAL a capturing stream gets a node that records it; INVALID_VALUE in other streams.
    """
    if not _is_taken(stream_handle, event_handle, flags, is_wait=False):
        event.record(event_handle, stream_handle)


def create_event(flags: int) -> int:
    """Return a new event of the current context.

    NOT_SUPPORTED for CU_EVENT_INTERPROCESS where the device attribute IPC_EVENT_SUPPORTED is 0.
    """
    return event.create(current(), flags).handle
