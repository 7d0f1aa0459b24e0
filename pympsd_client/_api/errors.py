"""Error names and descriptions (CUDA driver API, Error Handling). They work always, in a forked child too."""

from __future__ import annotations

from typing import Any

from pympsd_client._arguments.bindings import CUresult
from pympsd_client._arguments.errors import SUCCESS, description_of, name_of
from pympsd_client._arguments.numbers import number

_UNKNOWN = (CUresult.CUDA_ERROR_INVALID_VALUE, None)


def cuGetErrorName(error: Any) -> tuple[Any, ...]:
    """Return a result's name as bytes; INVALID_VALUE and None for a number that is none."""
    name = name_of(number(error))
    return _UNKNOWN if name is None else (SUCCESS, name)


def cuGetErrorString(error: Any) -> tuple[Any, ...]:
    """Return a result's description as bytes; INVALID_VALUE and None for a number that is none."""
    description = description_of(number(error))
    return _UNKNOWN if description is None else (SUCCESS, description)
