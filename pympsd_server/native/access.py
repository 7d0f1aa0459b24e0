"""What a native worker needs of a backend to execute records without Python; a device may offer it."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Array
from typing import Protocol, runtime_checkable

from pympsd_server.backends.interface import BackendError, Context, Module, Stream
from pympsd_server.native.states import ContextState, DriverCalls, KernelRow, StreamState


class NativeAccess(Protocol):
    """The C structures behind the port's objects. The states end soon after the objects do."""

    calls: DriverCalls
    """The driver's functions by address."""
    refused: Callable[[int], BackendError]
    """Return the error for a record that the driver refused with a CUresult, and do what it calls for."""

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
