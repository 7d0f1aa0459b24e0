"""PYMPSD_EXPLAIN: lines on standard error about calls that failed; `setting_reports` has those about settings.

With 1 every failed call is explained, whether the program imports `pympsd_client` or runs under pympsd-run. With 0
none is. Without the variable, `pympsd_client.routing` alone writes a line for each function that pympsd does not
support, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import EXPLAIN
from pympsd_client._arguments.errors import CudaError, failed, name_of
from pympsd_client._arguments.setting_reports import is_on, write

_QUIET: Final = frozenset({Result.ERROR_NOT_READY})
"""Answers to a question, no failures."""
_explained: Final[set[str]] = set()
"""The functions that a line was written about."""


def explain(name: str, code: int, reason: str, *, is_lacking: bool = False, result: str = "") -> None:
    """Write a line about a failed call; ``is_lacking``: by default too, once; ``result``: the name of ``code``."""
    by_default = is_lacking and os.environ.get(EXPLAIN) != "0" and name not in _explained
    if code in _QUIET or not (is_on() or by_default):
        return
    _explained.add(name)
    result = result or (name_of(code) or b"").decode() or str(code)
    write(f"{name}: {result}: {reason}")


def failed_call(name: str) -> Callable[[CudaError, int], tuple[Any, ...]]:
    """Return `failed` for the calls of a function, which explains each if all failed calls are explained."""
    if not is_on():
        return failed

    def explained(error: CudaError, outputs: int) -> tuple[Any, ...]:
        explain(name, error.code, error.reason)
        return failed(error, outputs)

    return explained
