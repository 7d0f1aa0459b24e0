"""What the native code and Python both read and write of a device's things: src/states.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64
from typing import Final

STREAM_EVENTS: Final = 4
"""CUevents that a worker bounds a stream's unfinished launches by."""


class StreamState(ctypes.Structure):
    """A stream: counts of what was issued and is known to be done. The meaning of each field: src/states.h."""

    _fields_ = (
        ("handle", c_uint64),
        ("word", c_uint64),
        ("issued", c_uint64),
        ("settled", c_uint64),
        ("launched", c_uint64),
        ("last_function", c_uint64),
        ("marked_issued", c_uint64),
        ("seen_of_default", c_uint64),
        ("events", c_uint64 * STREAM_EVENTS),
        ("recorded", c_uint32),
        ("passed", c_uint32),
        ("since_event", c_uint32),
        ("marked", c_uint32),
        ("is_blocking", c_uint32),
        ("is_default", c_uint32),
        ("unseen", c_uint32),
        ("reserved", c_uint32),
    )


class ContextState(ctypes.Structure):
    """A context: whether the native worker may execute its records."""

    _fields_ = (
        ("default_stream", ctypes.POINTER(StreamState)),
        ("closed", c_uint32),
        ("active", c_uint32),
        ("deferred", c_uint32),
        ("held", c_uint32),
        ("unseen", c_uint32),
        ("leaving", c_uint32),
    )


class KernelRow(ctypes.Structure):
    """A function of a module, with what a launch of it may ask for."""

    _fields_ = (
        ("function", c_uint64),
        ("parameter_bytes", c_uint32),
        ("max_threads", c_uint32),
        ("shared_bytes", c_uint32),
        ("dynamic_bytes", c_uint32),
    )


class DriverCalls(ctypes.Structure):
    """The driver's functions by address, its context, and the device's limits for launches."""

    _fields_ = (
        ("context", c_uint64),
        ("set_current", c_uint64),
        ("launch", c_uint64),
        ("write_value", c_uint64),
        ("record_event", c_uint64),
        ("query_event", c_uint64),
        ("grid_limit", c_uint32 * 3),
        ("block_limit", c_uint32 * 3),
        ("threads_limit", c_uint32),
        ("shared_limit", c_uint32),
    )


SHARED_STATES: Final = (StreamState, ContextState, KernelRow, DriverCalls)
"""In the order in which the library tells their sizes."""
