"""Each thread's last error of the runtime (CUDA runtime API, Error Handling)."""

from __future__ import annotations

import threading
from typing import Final

from pympsd.vocabulary.results import Result


class _Last(threading.local):
    code = 0


_last: Final = _Last()


def keep(code: int) -> int:
    """Keep a result for cudaGetLastError and return it; an answer that work is not complete is no error."""
    if code != Result.ERROR_NOT_READY:
        _last.code = code
    return code


def last() -> int:
    """Return the last error of this thread's calls."""
    return _last.code


def take_last() -> int:
    """Return the last error of this thread's calls, and reset it."""
    code, _last.code = _last.code, 0
    return code
