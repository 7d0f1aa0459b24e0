"""Errors: an exception internally, a CUresult and a readable message for callers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final

from pympsd.errors import CallError
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import CUresult
from pympsd_client._arguments.error_log import record
from pympsd_client._arguments.error_strings import ERROR_STRINGS
from pympsd_client._arguments.explanations import explain, is_on

SUCCESS: Final[Any] = CUresult.CUDA_SUCCESS
DONE: Final[tuple[Any]] = (SUCCESS,)
"""The result of a successful call without outputs."""
_MEMBERS: Final[dict[int, Any]] = {int(member): member for member in CUresult}
_ROLE: Final = re.compile(r":py:obj:`~?\.?([^`]*)`")


class _Last(threading.local):
    message = ""


_last: Final = _Last()
"""Each thread's message of its last failed call."""


class CudaError(CallError):
    """A call failed: ``code`` is the CUresult number; ``reason`` states what was wrong, what is allowed, what to do.

    ``outputs`` are those that C gets in spite of the failure; empty for nearly all functions.
    """

    def __init__(self, code: int, reason: str, outputs: tuple[Any, ...] = ()) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.outputs = outputs

    def again(self) -> CudaError:
        """Return a copy of the error: one exception raised in several threads would mix their tracebacks."""
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
    """Return CUDA_ERROR_NOT_SUPPORTED with a reason, which names what to do instead."""
    return CudaError(Result.ERROR_NOT_SUPPORTED, reason)


def check_no_flags(function: str, flags: int) -> None:
    """Raise INVALID_VALUE unless the flags of a function that takes none are 0."""
    if flags:
        raise invalid_value(f"{function} takes no flags: 0, not {flags:#x}")


def lost(reason: str) -> CudaError:
    """Return CUDA_ERROR_MPS_RPC_FAILURE: the other side has exited, or violates the protocol."""
    return CudaError(Result.ERROR_MPS_RPC_FAILURE, reason)


def result_of(code: int) -> Any:
    """Return the CUresult of a number; CUDA_ERROR_UNKNOWN for one that this cuda-bindings does not have."""
    return _MEMBERS.get(code, CUresult.CUDA_ERROR_UNKNOWN)


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
    """Return `fail` for the calls of a function; it adds each to the log, and with PYMPSD_EXPLAIN explains it."""
    explains = is_on()

    def record_and_fail(error: CudaError, outputs: int) -> tuple[Any, ...]:
        result = result_name(error.code)
        record(name, error.code, result, error.reason)
        if explains:
            explain(name, result, error.reason)
        return fail(error, outputs)

    return record_and_fail


def result_name(code: int) -> str:
    """Return the name of a result, its number as text if this cuda-bindings does not have it."""
    return str(_MEMBERS[code].name) if code in _MEMBERS else str(code)


def error_name(code: int) -> bytes:
    """Return a result's name as bytes; INVALID_VALUE for an unknown number."""
    return str(_member(code).name).encode()


def error_description(code: int) -> bytes:
    """Return the driver's description of a result as bytes; INVALID_VALUE for an unknown number.

    For a result that the recorded driver does not have: the first sentence of its documentation, or its name. The
    core of cuGetErrorString.
    """
    member = _member(code)
    if code in ERROR_STRINGS:
        return ERROR_STRINGS[code]
    text = " ".join(_ROLE.sub(r"\1", member.__doc__ or "").split())
    sentence = text.split(". ", 1)[0].rstrip(".")
    return (sentence or str(member.name)).encode()


def _member(code: int) -> Any:
    if code not in _MEMBERS:
        raise invalid_value(f"{code} is not a CUresult")
    return _MEMBERS[code]
