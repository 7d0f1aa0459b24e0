"""Errors: an exception internally, a CUresult and a readable message for callers.

The texts of cuGetErrorString are as recorded from driver 580 on an H200.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from pympsd.errors import CallError
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.error_log import record
from pympsd_client._arguments.explanations import explain, is_on

_TEXT: Final = """
0 no error
1 invalid argument
2 out of memory
3 initialization error
4 driver shutting down
5 profiler disabled while using external profiling tool
6 profiler not initialized: call cudaProfilerInitialize()
7 profiler already started
8 profiler already stopped
34 CUDA driver is a stub library
36 API call is not supported in the installed CUDA driver
46 CUDA-capable device(s) is/are busy or unavailable
100 no CUDA-capable device is detected
101 invalid device ordinal
102 device doesn't have valid Grid license
200 device kernel image is invalid
201 invalid device context
202 context already current
205 mapping of buffer object failed
206 unmapping of buffer object failed
207 array is mapped
208 resource already mapped
209 no kernel image is available for execution on the device
210 resource already acquired
211 resource not mapped
212 resource not mapped as array
213 resource not mapped as pointer
214 uncorrectable ECC error encountered
215 limit is not supported on this architecture
216 exclusive-thread device already in use by a different thread
217 peer access is not supported between these two devices
218 a PTX JIT compilation failed
219 invalid OpenGL or DirectX context
220 uncorrectable NVLink error detected during the execution
221 PTX JIT compiler library not found
222 the provided PTX was compiled with an unsupported toolchain.
223 PTX JIT compilation was disabled
224 the provided execution affinity is not supported
225 the provided PTX contains unsupported call to cudaDeviceSynchronize
226 Invalid access of peer GPU memory over nvlink or a hardware error
300 device kernel image is invalid
301 file not found
302 shared object symbol not found
303 shared object initialization failed
304 OS call failed or operation not supported on this OS
400 invalid resource handle
401 the operation cannot be performed in the present state
402 attempted introspection would be semantically lossy
500 named symbol not found
600 device not ready
700 an illegal memory access was encountered
701 too many resources requested for launch
702 the launch timed out and was terminated
703 launch uses incompatible texturing mode
704 peer access is already enabled
705 peer access has not been enabled
708 cannot set while device is active in this process
709 context is destroyed
710 device-side assert triggered
711 peer mapping resources exhausted
712 part or all of the requested memory range is already mapped
713 pointer does not correspond to a registered memory region
714 hardware stack error
715 an illegal instruction was encountered
716 misaligned address
717 operation not supported on global/shared address space
718 invalid program counter
719 unspecified launch failure
720 too many blocks in cooperative launch
721 tensor memory not completely freed
800 operation not permitted
801 operation not supported
802 system not yet initialized
803 system has unsupported display driver / cuda driver combination
804 forward compatibility was attempted on non supported HW
805 MPS client failed to connect to the MPS control daemon or the MPS server
806 the remote procedural call between the MPS server and the MPS client failed
807 MPS server is not ready to accept new MPS client requests
808 the hardware resources required to create MPS client have been exhausted
809 the hardware resources required to support device connections have been exhausted
810 the MPS client has been terminated by the server
811 is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it
812 unsupported interaction between different versions of CUDA Dynamic Parallelism
900 operation not permitted when stream is capturing
901 operation failed due to a previous error during capture
902 operation would result in a merge of separate capture sequences
903 capture was not ended in the same stream as it began
904 capturing stream has unjoined work
905 dependency created on uncaptured work in another stream
906 operation would make the legacy stream depend on a capturing blocking stream
907 operation not permitted on an event last recorded in a capturing stream
908 attempt to terminate a thread-local capture sequence from another thread
909 wait operation timed out
910 the graph update was not performed because it included changes which violated constraints specific to \
instantiated graph update
911 an async error has occured in external entity outside of CUDA
912 a kernel launch error has occurred due to cluster misconfiguration
913 the function handle is not loaded when calling an API that requires a loaded function
914 one or more resources passed in are not valid resource types for the operation
915 one or more resources are insufficient or non-applicable for the operation
916 an error happened during the key rotation sequence
999 unknown error
"""

ERROR_STRINGS: Final = {
    int(number): text.encode() for number, _, text in (line.partition(" ") for line in _TEXT.strip().splitlines())
}
"""The driver's description of each result, by its number."""
_ROLE: Final = re.compile(r":py:obj:`~?\.?([^`]*)`")


@cache
def _members() -> dict[int, Any]:
    """Return the members of CUresult by number."""
    return {int(member): member for member in bindings.CUresult}


class _Last(threading.local):
    message = ""


_last: Final = _Last()
"""The message of each thread's last failed call."""


class CudaError(CallError):
    """A call failed: ``code`` is the CUresult number; ``reason`` states what was wrong, what is allowed, what to do.

    ``outputs`` are values that callers in C get in spite of the failure; only a few functions have any.
    """

    def __init__(self, code: int, reason: str, outputs: tuple[Any, ...] = ()) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.outputs = outputs

    def copy(self) -> CudaError:
        """Return a copy to raise in another thread; raising the same exception twice would mix the tracebacks."""
        return CudaError(self.code, self.reason)


def invalid_value(reason: str) -> CudaError:
    """Return CUDA_ERROR_INVALID_VALUE with a reason."""
    return CudaError(Result.ERROR_INVALID_VALUE, reason)


def invalid_handle(reason: str) -> CudaError:
    """Return CUDA_ERROR_INVALID_HANDLE with a reason."""
    return CudaError(Result.ERROR_INVALID_HANDLE, reason)


def invalid_context(reason: str) -> CudaError:
    """Return CUDA_ERROR_INVALID_CONTEXT with a reason."""
    return CudaError(Result.ERROR_INVALID_CONTEXT, reason)


def not_supported(reason: str) -> CudaError:
    """Return CUDA_ERROR_NOT_SUPPORTED with a reason, which should name the alternative."""
    return CudaError(Result.ERROR_NOT_SUPPORTED, reason)


def check_no_flags(function: str, flags: int) -> None:
    """Raise INVALID_VALUE unless the flags of a function that takes none are 0."""
    if flags:
        raise invalid_value(f"{function} takes no flags: they must be 0, not {flags:#x}")


def connection_lost(reason: str) -> CudaError:
    """Return CUDA_ERROR_MPS_RPC_FAILURE: the other side has exited, or violates the protocol."""
    return CudaError(Result.ERROR_MPS_RPC_FAILURE, reason)


def result_of(code: int) -> Any:
    """Return the CUresult with a number; CUDA_ERROR_UNKNOWN if the installed cuda-bindings does not have it."""
    return _members().get(code, bindings.CUresult.CUDA_ERROR_UNKNOWN)


def fail(error: CudaError, outputs: int) -> tuple[Any, ...]:
    """Keep the message for `last_error`; return a failed call's result: its CUresult and None for each output."""
    _last.message = error.reason
    return (result_of(error.code), *(None,) * outputs)


def last_error() -> str:
    """Return the message of this thread's last failed call: what was wrong, what is allowed, what to do.

    The text is one line of English, for people and logs; a program decides by the CUresult. It is empty if no call of
    this thread has failed. A successful call does not change it, so ask right after the call that failed. Under
    pympsd-run it is the message of the last routed call.

    >>> from pympsd_client import driver as cuda, last_error
    >>> cuda.cuStreamCreate(99)
    (<CUresult.CUDA_ERROR_NOT_INITIALIZED: 3>, None)
    >>> last_error()
    'call cuInit(0) first: it has not been called, or failed'
    """
    return _last.message


def failure_of(name: str) -> Callable[[CudaError, int], tuple[Any, ...]]:
    """Return a variant of `fail` for one function's calls, which adds them to the log.

    With PYMPSD_EXPLAIN=1 it also explains each on standard error.
    """
    explains = is_on()

    def record_and_fail(error: CudaError, outputs: int) -> tuple[Any, ...]:
        result = result_name(error.code)
        record(name, error.code, result, error.reason)
        if explains:
            explain(name, result, error.reason)
        return fail(error, outputs)

    return record_and_fail


def result_name(code: int) -> str:
    """Return the name of a result, or its number as text if the installed cuda-bindings does not have it."""
    return str(_members()[code].name) if code in _members() else str(code)


def error_name(code: int) -> bytes:
    """Return a result's name as bytes; raise INVALID_VALUE for an unknown number."""
    return str(_member(code).name).encode()


def error_description(code: int) -> bytes:
    """Return the driver's description of a result as bytes; raise INVALID_VALUE for an unknown number.

    For a result that was not recorded, return the first sentence of its documentation, or else its name. This is the
    core function of cuGetErrorString.
    """
    member = _member(code)
    if code in ERROR_STRINGS:
        return ERROR_STRINGS[code]
    text = " ".join(_ROLE.sub(r"\1", member.__doc__ or "").split())
    sentence = text.split(". ", 1)[0].rstrip(".")
    return (sentence or str(member.name)).encode()


def _member(code: int) -> Any:
    if code not in _members():
        raise invalid_value(f"{code} is not a CUresult")
    return _members()[code]
