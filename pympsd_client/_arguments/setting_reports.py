"""PYMPSD_EXPLAIN=1: lines on standard error about settings that are wrong.

Imports nothing of cuda.bindings, because `pympsd_client.routing.hook` uses it while that is being imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary.variables import EXPLAIN, Reader, problems

_reported: Final[set[str]] = set()
"""The lines that were written."""


def is_on() -> bool:
    """Return whether all failed calls and wrong settings are explained."""
    return os.environ.get(EXPLAIN, "") not in ("", "0")


def report_settings(environment: Mapping[str, str]) -> None:
    """Write a line for each wrong setting of a client, once, if all is explained."""
    if is_on():
        for problem in problems(environment, Reader.CLIENT).values():
            if problem not in _reported:
                _reported.add(problem)
                write(problem)


def write(sentence: str) -> None:
    """Write a line on standard error."""
    print(f"pympsd: {sentence}", file=sys.stderr, flush=True)
