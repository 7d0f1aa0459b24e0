"""What every door has in common: errors become results, and a program that runs natively goes to the driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from pympsd.channel.descriptors import EXHAUSTED, explain
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, failed
from pympsd_client._objects.process import here
from pympsd_client._objects.thread_local import mine

Door = Callable[..., tuple[Any, ...]]
_NOT_PERMITTED: Final = (
    "a host function or stream callback makes no CUDA calls; let it set a flag, and another thread make the call"
)


def door(outputs: int = 0) -> Callable[[Door], Door]:
    """Make a function a driver call: it returns ``(CUresult, output, ...)``, on failure with None for each output."""

    def make(function: Door) -> Door:
        name = function.__name__

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
            if here.native is not None:
                result: tuple[Any, ...] = getattr(here.native, name)(*arguments, **keywords)
                return result
            if here.calls_back and mine.in_host_function:
                return failed(CudaError(Result.ERROR_NOT_PERMITTED, _NOT_PERMITTED), outputs)
            try:
                return function(*arguments, **keywords)
            except CudaError as error:
                return failed(error, outputs)
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                reason = f"this process is out of file descriptors: {explain(error)}"
                return failed(CudaError(Result.ERROR_OPERATING_SYSTEM, reason), outputs)

        return call

    return make
