"""Large copies are made by several threads, each a slice: one alone moves fewer bytes than device and memory can.

ctypes.memmove lets the interpreter go, so that they really move at the same time. The threads end with the copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

SLICED_BYTES: Final = 32 << 20
"""Smaller copies are over before other threads would have begun to matter."""
THREADS_LIMIT: Final = 4
_ALIGNMENT: Final = 4096

Slice = Callable[[int, int, Event], None]
"""Copies ``(start, size)``, and ends early, after what it has begun, once the event is set."""


def thread_count(count: int) -> int:
    """Return how many threads copy ``count`` bytes: half the cores this process may use, for others need some too."""
    if count < SLICED_BYTES:
        return 1
    return max(1, min(THREADS_LIMIT, len(os.sched_getaffinity(0)) // 2))


def in_slices(count: int, threads: int, copy: Slice) -> None:
    """Have ``copy`` make all slices, one in this thread; return when all are made. Raise the first error of any."""
    length = -(-count // threads // _ALIGNMENT) * _ALIGNMENT
    pieces = [(start, min(length, count - start)) for start in range(0, count, length)]
    stop = Event()
    errors: list[BaseException] = []

    def make(start: int, size: int) -> None:
        try:
            copy(start, size, stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    helpers = [Thread(target=make, args=piece, name="copy", daemon=True) for piece in pieces[1:]]
    started: list[Thread] = []
    try:
        for helper, piece in zip(helpers, pieces[1:], strict=True):
            try:
                helper.start()
            except RuntimeError:  # the system has no thread for it
                make(*piece)
            else:
                started.append(helper)
        copy(*pieces[0], stop)
    except BaseException:
        stop.set()
        raise
    finally:
        # They read and write the caller's memory: nobody goes on before they have ended.
        for helper in started:
            helper.join()
    if errors:
        raise errors[0]
