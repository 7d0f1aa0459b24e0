"""Large copies are made by several threads, each a slice: one alone moves fewer bytes than device and memory can.

ctypes.memmove lets the interpreter go, so that they really move at the same time. The threads end with the copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
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


class _Helped:
    """A slice for another thread to make; or nobody but the caller, where that thread has not begun."""

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make
        self._takers: list[str] = []
        self._made = False
        self._gate = Lock()
        self._gate.acquire()

    def take(self, who: str) -> bool:
        """Return whether it is theirs: whoever asks first's. Asking again, after Ctrl-C in the midst, is no harm."""
        self._takers.append(who)
        return self._takers[0] == who

    def help(self) -> None:
        """Make it, in a thread of its own, which no Ctrl-C interrupts."""
        if self.take("helper"):
            self._make()
            self._made = True
            self._gate.release()

    def wait(self) -> None:
        """Return when no other thread makes it. (Before Python 3.13 a join that was interrupted waits no more.)"""
        if not self.take("caller"):
            while not self._made:
                self._gate.acquire()


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

    helped = [_Helped(partial(make, *piece)) for piece in pieces[1:]]
    try:
        try:
            for each in helped:
                with suppress(RuntimeError):  # the system has no thread for it
                    Thread(target=each.help, name="copy", daemon=True).start()
            copy(*pieces[0], stop)
            for each, piece in zip(helped, pieces[1:], strict=True):
                if not stop.is_set() and each.take("caller"):
                    copy(*piece, stop)
        except BaseException as error:
            errors.insert(0, error)
        _wait(helped, errors, stop)
    except BaseException as error:  # Ctrl-C just as the wait began
        errors.insert(0, error)
        _wait(helped, errors, stop)
    if errors:
        raise errors[0]


def _wait(helped: list[_Helped], errors: list[BaseException], stop: Event) -> None:
    """Wait for all, whatever interrupts: they read and write the caller's memory, and nobody goes on before."""
    while True:
        try:
            if errors:
                stop.set()
            for each in helped:
                each.wait()
        except BaseException as error:
            errors.insert(0, error)
        else:
            return
