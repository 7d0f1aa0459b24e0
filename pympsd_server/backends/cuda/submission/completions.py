"""Completions that a context's work has yet to call: each is called once, by the work's end or the context's.

`CompletionWords` are words of host memory that streams write marks to. A worker reads them to see the end of work. It
sees that 0.8 us sooner than by querying an event, and never waits for a lock of the driver (decision 004).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Lock
from typing import Final

from attrs import define, field, frozen

from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.interface import Completion, Status


@define(eq=False)
class PendingCompletion:
    """A completion that is called once: later calls have no effect."""

    _owner: PendingCompletions
    _done: Completion

    def __call__(self, status: Status) -> None:
        """Call the completion, unless it has been called already."""
        if self._owner.take(self):
            self._done(status)


@define(eq=False)
class PendingCompletions:
    """The pending completions of one context. Safe to use from several threads; the lock is not held during calls."""

    _lock: Lock = field(factory=Lock, init=False)
    _open: dict[PendingCompletion, None] = field(factory=dict, init=False)

    def add(self, done: Completion) -> PendingCompletion:
        """Keep a completion until it is called."""
        pending = PendingCompletion(self, done)
        with self._lock:
            self._open[pending] = None
        return pending

    def take(self, pending: PendingCompletion) -> bool:
        """Remove a completion; return whether it was pending."""
        with self._lock:
            return self._open.pop(pending, pending) is None

    def end(self, status: Status) -> None:
        """Call all pending completions. Code that adds a completion later must call that completion itself."""
        with self._lock:
            waiting = tuple(self._open)
        for pending in waiting:
            pending(status)


@define(eq=False)
class Countdown:
    """Calls ``act`` when ``count_down`` was called ``remaining`` times. Safe to use from several threads."""

    _remaining: int
    _act: Callable[[], None]
    _lock: Lock = field(factory=Lock, init=False)

    def count_down(self) -> None:
        """Count down; the last call calls back."""
        with self._lock:
            self._remaining -= 1
            last = not self._remaining
        if last:
            self._act()


_APART_BYTES: Final = 64
"""The distance between words: one cache line, because workers poll their words without pause."""
_AREA_BYTES: Final = 65536


@frozen
class CompletionWord:
    """32 bits at an address that host and device share."""

    address: int

    @property
    def value(self) -> int:
        """The mark that was last written to the word."""
        return ctypes.c_uint32.from_address(self.address).value


@define(eq=False)
class CompletionWords:
    """The words of one device, for reuse: a word keeps its value. Safe to use from several threads."""

    _driver: Driver
    _lock: Lock = field(factory=Lock, init=False)
    _free: list[CompletionWord] = field(factory=list, init=False)

    def take(self) -> CompletionWord:
        """Return an unused word; raise BackendError if the driver has no memory for more."""
        with self._lock:
            if not self._free:
                flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
                start = int(self._driver.call(cu.cuMemHostAlloc, _AREA_BYTES, flags))
                ctypes.memset(start, 0, _AREA_BYTES)
                self._free = [CompletionWord(start + offset) for offset in range(0, _AREA_BYTES, _APART_BYTES)]
            return self._free.pop()

    def give(self, word: CompletionWord) -> None:
        """Give back a word when all writes to it are done.

        The memory is kept, because freeing it would wait for kernels.
        """
        with self._lock:
            self._free.append(word)
