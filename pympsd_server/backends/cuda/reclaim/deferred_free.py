"""Frees deferred until the work that sibling contexts of the same client have queued is done.

One batch is waited for at a time, and what is freed meanwhile joins the next: however much a client frees, no more
markers of its streams are watched. Only the client's worker starts batches, for the driver may block the caller long.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol

from pympsd_server.backends.cuda.driver.calls import call_isolated
from pympsd_server.backends.cuda.reclaim.cleanup_thread import Janitor
from pympsd_server.backends.cuda.submission.completions import Countdown
from pympsd_server.backends.interface import BackendError

Act = Callable[[], None]


class SiblingContext(Protocol):
    """A context, as its client's frees wait for it."""

    def after_work(self, act: Act) -> None:
        """Call ``act`` when the device is done with all work so far, whatever the state of the context."""

    def is_drained(self) -> bool:
        """Whether none of its work is left, neither running nor held."""


class DeferredFree:
    """The deferred frees of one client. Safe to use from several threads."""

    def __init__(self, janitor: Janitor) -> None:
        self.contexts: dict[SiblingContext, None] = {}
        """Those the device has: also destroyed ones that still run. Guarded by the device's lock."""
        self._janitor = janitor
        self._lock = Lock()
        self._waiting: list[Act] = []
        self._has_batch = False
        """A batch waits for the work that was queued when it was started."""
        self._is_tried = False

    def add(self, act: Act, context: SiblingContext) -> None:
        """Call ``act`` when no context but the given one has work left from before; at once if none has."""
        if self._are_drained(context):
            act()
            return
        with self._lock:
            self._waiting.append(act)
            if self._is_tried:
                return
            self._is_tried = True
        self._janitor.try_until(self._try)

    def start_batch(self) -> None:
        """Start to free what waits when the work so far is done. Called by the client's worker."""
        with self._lock:
            if self._has_batch or not self._waiting:
                return
            batch, self._waiting, self._has_batch = self._waiting, [], True
        contexts = tuple(self.contexts)
        left = Countdown(1 + len(contexts), lambda: self._pass(batch))
        for context in contexts:
            try:
                context.after_work(left.one_less)
            except BackendError:  # there is no memory for a marker
                self._janitor.add(context.is_drained, left.one_less)
        left.one_less()

    def _pass(self, batch: list[Act]) -> None:
        with self._lock:
            self._has_batch = False
        # A context may have held very many allocations: not in the thread that calls all completions.
        self._janitor.add(lambda: True, lambda: _do_all(batch))

    def _try(self) -> bool:
        """Free what waits when all contexts of a client are idle, for one whose worker starts no batch."""
        with self._lock:
            waiting, count = self._waiting, len(self._waiting)
            if not count:
                self._is_tried = False
                return True
        if not self._are_drained(None):
            return False
        with self._lock:
            if self._waiting is not waiting:  # the worker has started a batch
                return False
            # What was added since may be used by work that has begun since.
            self._waiting = waiting[count:]
        _do_all(waiting[:count])
        return False

    def _are_drained(self, besides: SiblingContext | None) -> bool:
        return all(each.is_drained() for each in tuple(self.contexts) if each is not besides)


def _do_all(batch: list[Act]) -> None:
    for act in batch:
        call_isolated("a deferred free", act)  # the others must be freed all the same
