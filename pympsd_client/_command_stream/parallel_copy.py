"""Large copies by several threads, a slice each, because a single thread is slower than the device and the memory.

ctypes.memmove releases the GIL, so the threads copy at the same time. They end with the copy.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Final

PARALLEL_BYTES: Final = 32 << 20
"""The size in bytes of the smallest copy for which several threads are faster."""
MAX_THREADS: Final = 4
_ALIGNMENT: Final = 4096

CopySlice = Callable[[int, int, Event], None]
"""A function that copies ``size`` bytes from ``start`` on, and ends after the present chunk once the event is set."""


def thread_count(count: int) -> int:
    """Return the number of threads for ``count`` bytes: at most half the cores this process may use."""
    if count < PARALLEL_BYTES:
        return 1
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2))


class _Slice:
    """A slice for a helper thread, or for the caller if that thread has not begun."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy = copy
        self._takers: list[str] = []
        self._done = False
        self._gate = Lock()
        self._gate.acquire()

    def take(self, taker: str) -> bool:
        """Return whether ``taker`` was the first to take this slice. The call may be repeated after a Ctrl-C."""
        self._takers.append(taker)
        return self._takers[0] == taker

    def help(self) -> None:
        """Copy the slice; called in a thread of its own, which Ctrl-C does not interrupt."""
        if self.take("helper"):
            self._copy()
            self._done = True
            self._gate.release()

    def wait(self) -> None:
        """Wait until no helper copies the slice. (Not Thread.join, which before Python 3.13 cannot wait again.)"""
        if not self.take("caller"):
            while not self._done:
                self._gate.acquire()


def copy_in_parallel(count: int, threads: int, copy: CopySlice) -> None:
    """Call ``copy`` for all slices, one of them in this thread; return when all are done.

    ``count``: bytes in all. ``threads``: the number of slices. ``copy(start, size, stop)`` copies a slice and ends
    early once ``stop`` is set, which happens after the first error. Raise the first error of any slice; Ctrl-C in
    this thread counts as one. The threads have ended with the slices when this returns or raises, because they use
    the caller's memory.
    """
    length = -(-count // threads // _ALIGNMENT) * _ALIGNMENT
    pieces = [(start, min(length, count - start)) for start in range(0, count, length)]
    stop = Event()
    errors: list[BaseException] = []

    def run(start: int, size: int) -> None:
        try:
            copy(start, size, stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    slices = [_Slice(partial(run, *piece)) for piece in pieces[1:]]
    try:
        try:
            for part in slices:
                with suppress(RuntimeError):  # the system has no thread for it
                    Thread(target=part.help, name="copy", daemon=True).start()
            copy(*pieces[0], stop)
            for part, piece in zip(slices, pieces[1:], strict=True):
                if not stop.is_set() and part.take("caller"):
                    copy(*piece, stop)
        except BaseException as error:
            errors.insert(0, error)
        _wait(slices, errors, stop)
    except BaseException as error:  # Ctrl-C just as the wait began
        errors.insert(0, error)
        _wait(slices, errors, stop)
    if errors:
        raise errors[0]


def _wait(slices: list[_Slice], errors: list[BaseException], stop: Event) -> None:
    """Wait for all slices, even if interrupted: they use the caller's memory, which must not be freed earlier."""
    while True:
        try:
            if errors:
                stop.set()
            for part in slices:
                part.wait()
        except BaseException as error:
            errors.insert(0, error)
        else:
            return
