"""The C structures behind contexts, streams and modules, for a native worker."""

import ctypes
from collections.abc import Callable, Mapping
from ctypes import Array
from typing import Final

from attrs import define

from pympsd_server.backends.cuda.driver.calls import Driver
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.module import CudaModule
from pympsd_server.backends.cuda.objects.stream import CudaStream
from pympsd_server.backends.interface import BackendError, Context, Module, Stream
from pympsd_server.native.states import ContextState, DriverCalls, KernelRow, StreamState

_LIBRARY: Final = "libcuda.so.1"
_CAN_WRITE: Final = "CAN_USE_64_BIT_STREAM_MEM_OPS"
"""The attribute for the second form of these operations. Present drivers report CAN_USE_STREAM_MEM_OPS_V1, the
attribute for the first form, as 0."""


def native_calls(driver: Driver, attributes: Mapping[str, int]) -> DriverCalls | None:
    """Return the driver's functions that a native worker calls.

    Return None if the driver lacks one, or if its streams cannot write memory: such writes end the worker's waits.
    """
    if not attributes.get(_CAN_WRITE, 0):
        return None
    try:
        library = ctypes.CDLL(_LIBRARY)
        # The _v2 function, which cuda.h names without the suffix.
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            for name in (
                "cuCtxSetCurrent",
                "cuLaunchKernel",
                "cuStreamWriteValue32_v2",
                "cuEventRecord",
                "cuEventQuery",
            )
        ]
    except (OSError, AttributeError):
        return None
    set_current, launch, write_value, record_event, query_event = addresses
    calls = DriverCalls(
        context=driver.context,
        set_current=set_current,
        launch=launch,
        write_value=write_value,
        record_event=record_event,
        query_event=query_event,
        threads_limit=attributes["MAX_THREADS_PER_BLOCK"],
        shared_limit=attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"],
    )
    for index, axis in enumerate("XYZ"):
        calls.grid_limit[index] = attributes[f"MAX_GRID_DIM_{axis}"]
        calls.block_limit[index] = attributes[f"MAX_BLOCK_DIM_{axis}"]
    return calls


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
