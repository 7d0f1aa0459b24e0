"""Calls of the CUDA driver: they return its values and raise its errors as BackendError; some errors are final."""

import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from cuda.bindings import driver as _driver  # type: ignore[import-not-found,import-untyped,unused-ignore]  # no stubs

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Status

cu: Final[Any] = _driver
"""The module ``cuda.bindings.driver``; the rest of this backend makes its calls through ``Driver.call``."""

NOT_READY: Final = int(Result.ERROR_NOT_READY)
_STICKY_ERRORS: Final = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})
"""CUresult numbers after which every call in the process fails. According to the CUDA driver API they leave the
process in an inconsistent state, or require that it is relaunched."""


def describe(code: int) -> tuple[str, str]:
    """Return the name and the description of a CUresult."""
    try:
        result = cu.CUresult(code)
        name, text = cu.cuGetErrorName(result)[1], cu.cuGetErrorString(result)[1]
    except (ValueError, RuntimeError):
        return f"CUresult {code}", "unknown"
    return (name or b"?").decode(), (text or b"?").decode()


def failure(code: int, what: str) -> BackendError:
    """Return the BackendError for a CUresult; ``what`` is the call that failed."""
    name, text = describe(code)
    try:
        result = Result(code)
    except ValueError:
        result = Result.ERROR_LAUNCH_FAILED if code in _STICKY_ERRORS else Result.ERROR_UNKNOWN
    return BackendError(result, f"{what}: {name}: {text}")


def plain_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the driver without a context; return its value or a tuple of values. Raise BackendError if it fails."""
    code, *values = function(*arguments)
    if int(code):
        raise failure(int(code), getattr(function, "__name__", "a driver call"))
    return values[0] if len(values) == 1 else tuple(values)


class Driver:
    """The driver with one context, which becomes current in every thread that makes calls."""

    def __init__(self, context: Any, on_fault: Callable[[Status], None]) -> None:
        self._context = context
        self._on_fault = on_fault
        self._thread = threading.local()

    @property
    def context(self) -> int:
        """The CUcontext."""
        return int(self._context)

    def enter(self) -> None:
        """Make the context current in this thread, once."""
        if not hasattr(self._thread, "entered"):
            plain_call(cu.cuCtxSetCurrent, self._context)
            self._thread.entered = True

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function; return its value, or its values as a tuple. Raise BackendError if it fails."""
        self.enter()
        code, *values = function(*arguments)
        if int(code):
            raise self.handle_failure(int(code), getattr(function, "__name__", "a driver call"))
        return values[0] if len(values) == 1 else tuple(values)

    def is_done(self, query: Callable[..., Any], handle: Any) -> bool:
        """Return whether cuStreamQuery or cuEventQuery finds the work done."""
        self.enter()
        code = int(query(handle)[0])
        if code == NOT_READY:
            return False
        if code:
            raise self.handle_failure(code, getattr(query, "__name__", "a query"))
        return True

    def handle_failure(self, code: int, what: str) -> BackendError:
        """Return the error for a call that failed with a CUresult; report the error if it faults the device."""
        error = failure(code, what)
        if code in _STICKY_ERRORS:
            self._on_fault(Status(error.code, error.reason))
        return error


def report_internal_error(where: str, error: Exception) -> None:
    """Report an exception that should never have been raised."""
    text = "".join(traceback.format_exception(error)).rstrip()
    with suppress(OSError, ValueError):  # standard error may be closed
        print(f"pympsd executor: internal error in {where}, continuing: {text}", file=sys.stderr, flush=True)


def call_isolated(where: str, act: Callable[[], None]) -> None:
    """Call a function of one client so that its errors do not affect others; report any but a BackendError."""
    try:
        act()
    except BackendError:
        pass
    except Exception as error:
        report_internal_error(where, error)
