"""What kernels print, on this process's standard output and standard error."""

from __future__ import annotations

import os
import select
from typing import Final


class DeviceOutput:
    """What was printed before the answers of calls that wait, by their sequence numbers.

    The thread that made the call writes it, not the one that read it: a full pipe holds no other thread.
    """

    def __init__(self) -> None:
        self._kept: Final[dict[int, list[tuple[int, bytes]]]] = {}

    def keep(self, sequence: int, descriptor: int, text: bytes, is_expected: bool) -> None:
        """Keep a text for the caller that waits for this answer; lose it if that caller was interrupted."""
        if is_expected:
            self._kept.setdefault(sequence, []).append((descriptor, text))

    def write(self, sequence: int) -> None:
        """Write what came before this answer."""
        for descriptor, text in self._kept.pop(sequence, ()):
            write_output(descriptor, text)


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
