"""What routed calls that failed say: the result, kept for last_error, and a line on stderr.

Each does with PYMPSD_EXPLAIN=1, and none with 0. Where it is not set a function says once what pympsd does not
support, or that pympsd itself has failed.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.entry_point import exhausted
from pympsd_client._arguments.errors import CudaError, failed, name_of

SWITCH: Final = "PYMPSD_EXPLAIN"
_QUIET: Final = frozenset({Result.ERROR_NOT_READY})
"""Answers to a question, no failures."""
_BY_PYMPSD: Final = frozenset({Result.ERROR_NOT_SUPPORTED, Result.ERROR_UNKNOWN})
"""Results of programs that run on a GPU."""
_said: Final[set[str]] = set()


class Missing(CudaError):
    """The program called a function that pympsd does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(Result.ERROR_NOT_SUPPORTED, f"pympsd does not have {name} yet")


def refusing(name: str) -> Callable[[], None]:
    """Return what stands in place of a function that pympsd does not have."""

    def refuse() -> None:
        raise Missing(name)

    return refuse


def is_on() -> bool:
    """Return whether all failed calls are explained."""
    return os.environ.get(SWITCH, "") not in ("", "0")


def result_of(name: str, error: BaseException | None) -> int:
    """Return the result of a call that raised; explain it."""
    known = _as_cuda_error(error)
    failed(known, 0)
    say(name, known.code, known.reason, is_lacking=known.code in _BY_PYMPSD)
    if is_on() and error is not None and known.code == Result.ERROR_UNKNOWN:
        traceback.print_exception(error)
    return known.code


def say(name: str, code: int, reason: str, *, is_lacking: bool = False, result: str = "") -> None:
    """Write a line about a failed call; ``is_lacking``: by default too, once; ``result``: the name of ``code``."""
    by_default = is_lacking and os.environ.get(SWITCH) != "0" and name not in _said
    if code in _QUIET or not (is_on() or by_default):
        return
    _said.add(name)
    result = result or (name_of(code) or b"").decode() or str(code)
    print(f"pympsd: {name}: {result}: {reason}", file=sys.stderr, flush=True)


def _as_cuda_error(error: BaseException | None) -> CudaError:
    if isinstance(error, CudaError):
        return error
    if isinstance(error, OSError):
        try:
            return exhausted(error)
        except OSError:
            return CudaError(Result.ERROR_OPERATING_SYSTEM, str(error))
    if isinstance(error, (TypeError, ValueError, OverflowError)):
        return CudaError(Result.ERROR_INVALID_VALUE, str(error))
    return CudaError(Result.ERROR_UNKNOWN, f"{type(error).__name__}: {error}")
