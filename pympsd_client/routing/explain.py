"""The results of failed calls under pympsd-run: kept for last_error, and explained on stderr (`explanations`)."""

import traceback
from collections.abc import Callable
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.conversions import as_cuda_error
from pympsd_client._arguments.error_log import record
from pympsd_client._arguments.errors import CudaError, fail, result_name
from pympsd_client._arguments.explanations import explain, is_on
from pympsd_client.routing.pointers import strip_version

_BY_PYMPSD: Final = frozenset({Result.ERROR_NOT_SUPPORTED, Result.ERROR_UNKNOWN})
"""The results that mean that pympsd lacks a function or has failed; a GPU would not return them."""


class Missing(CudaError):
    """The program called a function that pympsd does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(Result.ERROR_NOT_SUPPORTED, f"pympsd does not have {name} yet")


def make_refusal(name: str) -> Callable[[], None]:
    """Return the replacement for a function that pympsd does not have, which raises `Missing`."""

    def refuse() -> None:
        raise Missing(name)

    return refuse


def result_of(name: str, error: BaseException | None) -> int:
    """Return the result for an exception in a call; explain it, with the function's name without a version."""
    cuda_error = _as_cuda_error(error)
    fail(cuda_error, 0)
    code, result = cuda_error.code, result_name(cuda_error.code)
    record(name, code, result, cuda_error.reason)
    explain(strip_version(name), result, cuda_error.reason, is_lacking=code in _BY_PYMPSD)
    if is_on() and error is not None and cuda_error.code == Result.ERROR_UNKNOWN:
        traceback.print_exception(error)
    return cuda_error.code


def _as_cuda_error(error: BaseException | None) -> CudaError:
    if isinstance(error, CudaError):
        return error
    if isinstance(error, OSError):
        try:
            return as_cuda_error(error)
        except OSError:
            return CudaError(Result.ERROR_OPERATING_SYSTEM, str(error))
    if isinstance(error, (TypeError, ValueError, OverflowError)):
        return CudaError(Result.ERROR_INVALID_VALUE, str(error))
    return CudaError(Result.ERROR_UNKNOWN, f"{type(error).__name__}: {error}")
