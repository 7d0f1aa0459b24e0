"""Settings of malloc: keep freed memory, because it is needed again at once.

A kernel on the emulated device creates and drops thousands of arrays of some hundred KiB. By default the C library
returns such memory to the system each time and gets it again page by page: a vector addition of 1M floats took 42 ms,
and takes 11 ms with these settings (docs/performance.md).
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 256 << 20
_MAPPED_FROM_BYTES: Final = 32 << 20
"""Larger pieces are mapped one by one; the greatest value that glibc accepts (mallopt(3))."""


def keep_freed_memory() -> None:
    """Set the C library's thresholds; no effect in a library without mallopt."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
