"""What kernels print, on this process's standard output and standard error."""

from __future__ import annotations

import os
import select


def write_output(descriptor: int, text: bytes) -> None:
    """Write the text of kernels to file descriptor 1 or 2, as CUDA does; lose it if that is closed or broken."""
    left = memoryview(text)
    try:
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                select.select((), (descriptor,), ())
    except (OSError, ValueError):
        return
