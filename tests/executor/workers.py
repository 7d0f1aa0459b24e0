"""The kinds of workers that executors have in these tests."""

from __future__ import annotations

import shutil
from typing import Final

import pytest

WORKERS: Final = ("python", "native")


def able(workers: str) -> str:
    """Return a kind of workers, or skip the test that wants native ones where none can be."""
    if workers == "native" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, so there are no native workers")
    return workers
