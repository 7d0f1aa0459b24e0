"""The structures that native code and Python share; scripts/generate-docs writes src/states.h from these tables."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64
from typing import Any, Final, NamedTuple

STREAM_EVENTS: Final = 4
"""The number of CUevents that bound a stream's unfinished launches."""


class Type(NamedTuple):
    """A C declaration, with a placeholder for the name, and its type in ctypes."""

    declaration: str
    python: Any


class Field(NamedTuple):
    """A field of a structure and its comment in the header."""

    name: str
    type: Type
    comment: str = ""


U64: Final = Type("uint64_t {}", c_uint64)
U32: Final = Type("uint32_t {}", c_uint32)
ATOMIC: Final = Type("_Atomic uint32_t {}", c_uint32)
AXES: Final = Type("uint32_t {}[3]", c_uint32 * 3)
EVENTS: Final = Type("uint64_t {}[STREAM_EVENTS]", c_uint64 * STREAM_EVENTS)
ADDRESS: Final = Type("void *{}", c_uint64)


def _function(parameters: str) -> Type:
    return Type(f"int (*{{}})({parameters})", c_uint64)


def _types(fields: tuple[Field, ...]) -> list[tuple[str, Any]]:
    return [(each.name, each.type.python) for each in fields]


class StreamState(ctypes.Structure):
    """A stream: the work that was issued and the part of it that is known to be done."""

    fields = (
        Field("handle", U64, "CUstream"),
        Field("word", U64, "address, for host and device, of the 32-bit completion word"),
        Field("issued", U64, "operations given to the driver"),
        Field("settled", U64, "operations known to be done"),
        Field("launched", U64, "kernels among the issued operations"),
        Field("last_function", U64, "CUfunction launched last"),
        Field("marked_issued", U64, "`issued` at the last marker"),
        Field("seen_of_default", U64, "operations of the default stream that this stream waits for"),
        Field("events", EVENTS, "CUevents, recorded in turn after every 128 launches"),
        Field("recorded", U32, "events recorded"),
        Field("passed", U32, "recorded events known to be over"),
        Field("since_event", U32, "launches since the last event"),
        Field("marked", U32, "the last marker: the completion word reaches it after the work before it"),
        Field("is_blocking", U32, "waits for the default stream, which waits for it"),
        Field("is_default", U32),
        Field("unseen", U32, "has work that the default stream does not wait for yet"),
        Field("reserved", U32),
    )
    _fields_ = _types(fields)


class ContextState(ctypes.Structure):
    """A context: whether the native worker may execute its records."""

    fields = (
        Field("default_stream", Type("struct stream_state *{}", ctypes.POINTER(StreamState))),
        Field("closed", ATOMIC, "poisoned or ended: launch nothing more"),
        Field("active", ATOMIC, "the native worker executes a record of it"),
        Field("deferred", ATOMIC, "an error is to be reported by the next call that waits"),
        Field("held", U32, "work is held for a host function: only Python keeps the order"),
        Field("unseen", U32, "streams with `unseen` set"),
        Field("leaving", U32, "destroyed streams that are not known to be done"),
    )
    _fields_ = _types(fields)


class KernelRow(ctypes.Structure):
    """A function of a module and the limits of its launches."""

    fields = (
        Field("function", U64, "CUfunction"),
        Field("parameter_bytes", U32),
        Field("max_threads", U32, "of a block"),
        Field("shared_bytes", U32, "static"),
        Field("dynamic_bytes", U32, "that a launch may ask for"),
    )
    _fields_ = _types(fields)


class DriverCalls(ctypes.Structure):
    """The driver's functions by address, so that the native code needs neither headers nor a device to be tested."""

    fields = (
        Field("context", ADDRESS, "CUcontext, made current in the worker's thread"),
        Field("set_current", _function("void *context")),
        Field(
            "launch",
            _function(
                "void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,\n"
                "                  unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,\n"
                "                  void **parameters, void **extra"
            ),
        ),
        Field("write_value", _function("void *stream, uint64_t address, uint32_t value, unsigned flags")),
        Field("record_event", _function("void *event, void *stream")),
        Field("query_event", _function("void *event")),
        Field("grid_limit", AXES),
        Field("block_limit", AXES),
        Field("threads_limit", U32, "of a block"),
        Field("shared_limit", U32, "static and dynamic bytes of a block"),
    )
    _fields_ = _types(fields)


SHARED_STATES: Final = {
    "stream_state": StreamState,
    "context_state": ContextState,
    "kernel_row": KernelRow,
    "driver_calls": DriverCalls,
}
"""By their names in C, in the order in which the library reports their sizes."""
