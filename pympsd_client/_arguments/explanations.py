"""PYMPSD_EXPLAIN: lines on standard error about calls that failed and settings that are wrong.

With PYMPSD_EXPLAIN=1 every failed call and every wrong setting is explained, whether the program imports
`pympsd_client` or runs under pympsd-run. With PYMPSD_EXPLAIN=0 none is. Without the variable only
`pympsd_client.routing` writes lines: one for each function that pympsd does not support.

This module does not import cuda.bindings, because `routing.hook` uses it while cuda.bindings is being imported.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary.variables import EXPLAIN, Reader, problems

_NOT_READY: Final = "CUDA_ERROR_NOT_READY"
"""The answer to a query, which is not a failure."""
_explained: Final[set[str]] = set()
"""The functions that have been explained."""
_reported: Final[set[str]] = set()
"""The lines about settings that have been written."""


def is_on() -> bool:
    """Return whether all failed calls and wrong settings are explained."""
    return os.environ.get(EXPLAIN, "") not in ("", "0")


def explain(function: str, result: str, reason: str, *, is_lacking: bool = False) -> None:
    """Write a line about a failed call if PYMPSD_EXPLAIN is on.

    ``is_lacking``: pympsd does not have the function. Without the variable only its first call is explained.
    """
    by_default = is_lacking and os.environ.get(EXPLAIN) != "0" and function not in _explained
    if result == _NOT_READY or not (is_on() or by_default):
        return
    _explained.add(function)
    _write(f"{function}: {result}: {reason}")


def report_settings(environment: Mapping[str, str]) -> None:
    """Write a line for each wrong setting of a client if PYMPSD_EXPLAIN is on, and none of the lines twice."""
    if is_on():
        for problem in problems(environment, Reader.CLIENT).values():
            if problem not in _reported:
                _reported.add(problem)
                _write(problem)


def _write(sentence: str) -> None:
    print(f"pympsd: {sentence}", file=sys.stderr, flush=True)
