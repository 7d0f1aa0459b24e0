"""The structures that native code and Python share; scripts/generate-docs writes src/states.h from these tables."""

import ctypes
from collections.abc import Callable
from ctypes import Array, c_uint32, c_uint64
from typing import Any, Final, Protocol, runtime_checkable

from pympsd_server.backends.interface import BackendError, Context, Module, Stream

STREAM_EVENTS: Final = 4
"""The number of CUevents that mark a stream's unfinished launches and limit them."""

Type = tuple[str, Any]
"""A C declaration with a placeholder for the name, and the type in ctypes."""
Field = tuple[str, Type, str]
"""A field's name, its type, and its comment in the header."""

U64: Final = ("uint64_t {}", c_uint64)
U32: Final = ("uint32_t {}", c_uint32)
ATOMIC: Final = ("_Atomic uint32_t {}", c_uint32)
AXES: Final = ("uint32_t {}[3]", c_uint32 * 3)
EVENTS: Final = ("uint64_t {}[STREAM_EVENTS]", c_uint64 * STREAM_EVENTS)
ADDRESS: Final = ("void *{}", c_uint64)


def _function(parameters: str) -> Type:
    return (f"int (*{{}})({parameters})", c_uint64)


def _types(fields: tuple[Field, ...]) -> list[tuple[str, Any]]:
    return [(name, python) for name, (_, python), _ in fields]


class StreamState(ctypes.Structure):
    """A stream: how much work was issued, and how much of it is known to be done."""

    fields: Final = (
        ("handle", U64, "CUstream"),
        ("word", U64, "address, for host and device, of the 32-bit completion word"),
        ("issued", U64, "operations given to the driver"),
        ("completed", U64, "operations known to be done"),
        ("launched", U64, "kernels among the issued operations"),
        ("last_function", U64, "CUfunction launched last"),
        ("marked_issued", U64, "`issued` at the last marker"),
        ("seen_of_default", U64, "operations of the default stream that this stream waits for"),
        ("events", EVENTS, "CUevents, recorded in turn after every 128 launches"),
        ("recorded", U32, "events recorded"),
        ("passed", U32, "recorded events known to be over"),
        ("since_event", U32, "launches since the last event"),
        ("marked", U32, "the last marker: the completion word reaches it after the work before it"),
        ("is_blocking", U32, "waits for the default stream, which waits for it"),
        ("is_default", U32, ""),
        ("unseen", U32, "has work that the default stream does not wait for yet"),
        ("reserved", U32, ""),
    )
    _fields_ = _types(fields)


class ContextState(ctypes.Structure):
    """A context: whether the native worker may execute its records."""

    fields: Final = (
        ("default_stream", ("struct stream_state *{}", ctypes.POINTER(StreamState)), ""),
        ("closed", ATOMIC, "faulted or ended: launch nothing more"),
        ("active", ATOMIC, "the native worker executes a record of it"),
        ("deferred", ATOMIC, "an error is to be reported by the next call that waits"),
        ("held", U32, "work is held for a host function, or timed: only Python keeps the order, and the times"),
        ("unseen", U32, "streams with `unseen` set"),
        ("leaving", U32, "destroyed streams that are not known to be done"),
    )
    _fields_ = _types(fields)


class KernelRow(ctypes.Structure):
    """A function of a module, and the limits of its launches."""

    fields: Final = (
        ("function", U64, "CUfunction"),
        ("parameter_bytes", U32, ""),
        ("max_threads", U32, "of a block"),
        ("shared_bytes", U32, "static"),
        ("dynamic_bytes", U32, "that a launch may ask for"),
    )
    _fields_ = _types(fields)


class DriverCalls(ctypes.Structure):
    """The addresses of the driver's functions, so that the native code can be tested without headers or a device."""

    fields: Final = (
        ("context", ADDRESS, "CUcontext, made current in the worker's thread"),
        ("set_current", _function("void *context"), ""),
        (
            "launch",
            _function(
                "void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,\n"
                "                  unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,\n"
                "                  void **parameters, void **extra"
            ),
            "",
        ),
        ("write_value", _function("void *stream, uint64_t address, uint32_t value, unsigned flags"), ""),
        ("record_event", _function("void *event, void *stream"), ""),
        ("query_event", _function("void *event"), ""),
        ("grid_limit", AXES, ""),
        ("block_limit", AXES, ""),
        ("threads_limit", U32, "of a block"),
        ("shared_limit", U32, "static and dynamic bytes of a block"),
    )
    _fields_ = _types(fields)


SHARED_STATES: Final = {
    "stream_state": StreamState,
    "context_state": ContextState,
    "kernel_row": KernelRow,
    "driver_calls": DriverCalls,
}
"""The shared structures by their names in C, in the order in which the library reports their sizes."""


class NativeAccess(Protocol):
    """The C structures behind the port's objects. A structure is freed soon after its object."""

    calls: DriverCalls
    """The addresses of the driver's functions."""
    refused: Callable[[int], BackendError]
    """A function that returns the error for a record that the driver refused with a CUresult.

    It also reacts to that error.
    """

    def context_state(self, context: Context) -> ContextState:
        """Return the state of a context."""

    def stream_state(self, stream: Stream) -> StreamState:
        """Return the state of a stream."""

    def kernel_rows(self, module: Module) -> Array[KernelRow]:
        """Return a row for each function of a module, in their order."""


@runtime_checkable
class NativeDevice(Protocol):
    """A device whose records a native worker can execute."""

    native: NativeAccess
