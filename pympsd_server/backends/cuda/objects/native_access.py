"""The C structures behind contexts, streams and modules, for a native worker."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Array

from attrs import define

from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.module import CudaModule
from pympsd_server.backends.cuda.objects.stream import CudaStream
from pympsd_server.backends.interface import BackendError, Context, Module, Stream
from pympsd_server.native.states import ContextState, DriverCalls, KernelRow, StreamState


@define
class CudaNativeAccess:
    """The native access of one device."""

    calls: DriverCalls
    refused: Callable[[int], BackendError]

    def context_state(self, context: Context) -> ContextState:
        """Return the state of a context."""
        assert isinstance(context, CudaContext)
        return context.queue.native_state

    def stream_state(self, stream: Stream) -> StreamState:
        """Return the state of a stream."""
        assert isinstance(stream, CudaStream)
        return stream.native_state

    def kernel_rows(self, module: Module) -> Array[KernelRow]:
        """Return a row for each function of a module, in their order."""
        assert isinstance(module, CudaModule)
        return module.kernel_rows
