"""Who waits for a context's work: each is told once, by the work's end or by the context's."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from pympsd_server.backends.interface import Completion, Outcome


class Promise:
    """A completion that is called once, whoever comes first."""

    __slots__ = ("_done", "_promises")

    def __init__(self, promises: Promises, done: Completion) -> None:
        self._promises = promises
        self._done = done

    def __call__(self, outcome: Outcome) -> None:
        """Tell it, unless it was told."""
        if self._promises.take(self):
            self._done(outcome)


class Promises:
    """Those of one context. Safe to use from several threads; nobody is called under the lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[Promise, None] = {}

    def make(self, done: Completion) -> Promise:
        """Keep a completion until it is told."""
        promise = Promise(self, done)
        with self._lock:
            self._open[promise] = None
        return promise

    def take(self, promise: Promise) -> bool:
        """Return whether a promise is open, and close it."""
        with self._lock:
            return self._open.pop(promise, promise) is None

    def end(self, outcome: Outcome) -> None:
        """Tell all that are open; those made later are told by who makes them."""
        with self._lock:
            waiting = tuple(self._open)
        for promise in waiting:
            promise(outcome)


class Countdown:
    """Calls back when so many have said that they are done. Safe to use from several threads."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        self._lock = Lock()
        self._left = count
        self._act = act

    def one_less(self) -> None:
        """One is done; the last one calls back."""
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._act()
