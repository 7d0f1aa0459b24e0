"""Completions that a context's work has yet to call: each is called once, by the work's end or the context's."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from attrs import define, field

from pympsd_server.backends.interface import Completion, Status


@define(eq=False)
class PendingCompletion:
    """A completion that is called once: later calls have no effect."""

    _owner: PendingCompletions
    _done: Completion

    def __call__(self, status: Status) -> None:
        """Call it, unless it was called."""
        if self._owner.take(self):
            self._done(status)


@define(eq=False)
class PendingCompletions:
    """The pending completions of one context. Safe to use from several threads; none is called under the lock."""

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
        """Call all that are pending; those added later are called by what adds them."""
        with self._lock:
            waiting = tuple(self._open)
        for pending in waiting:
            pending(status)


class Countdown:
    """Calls back when ``one_less`` was called ``count`` times. Safe to use from several threads."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        self._lock = Lock()
        self._left = count
        self._act = act

    def one_less(self) -> None:
        """Count down; the last call calls back."""
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._act()
