"""What every door has in common: errors become results, and a program that runs natively goes to the driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pympsd_client._errors import CudaError, failed
from pympsd_client._process import here

Door = Callable[..., tuple[Any, ...]]


def door(outputs: int = 0) -> Callable[[Door], Door]:
    """Make a function a driver call: it returns ``(CUresult, output, ...)``, on failure with None for each output."""

    def make(function: Door) -> Door:
        name = function.__name__

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> tuple[Any, ...]:
            if here.native is not None:
                result: tuple[Any, ...] = getattr(here.native, name)(*arguments, **keywords)
                return result
            try:
                return function(*arguments, **keywords)
            except CudaError as error:
                return failed(error, outputs)

        return call

    return make
