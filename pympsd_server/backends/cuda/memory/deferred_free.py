"""Deferred free: memory and modules are freed when no work of their client can use them any more.

**The problem.** All contexts of a client share one address space on the device, and this backend checks the addresses
of a request when it is queued, not when it runs. If one context frees memory while checked work of another is queued,
the memory must stay until that work is done. Otherwise the work would overwrite the next owner of the addresses,
perhaps another user. Waiting for the work in the call would block the client's worker, and the driver's own cuMemFree
would wait for every kernel of every client.

**The idea.** A free is split in two. In the call, the client loses access to the addresses (`ClientSpace.disown`), so
no later request can name them. The release itself is deferred: first until the freeing context's own work is done
(which also answers the client), then, here, until the work that the client's *other* contexts had queued by then is
done.

**Batches.** Releases wait together. One batch at a time waits for a marker in each context; later releases form
the next batch. However much a client frees, no more than one marker for each of its streams is watched.

    free A --+                         +-- free C, free D (next batch)
    free B --+-- batch 1: markers in contexts 1, 2, 3 ---> released --> batch 2: markers ... ---> released

Only the client's worker starts batches, because recording a marker may block in the driver. In case the worker has
nothing more to do, the cleanup thread also releases the waiting memory when all contexts of the client are drained.

**What must never happen.** A release while a held host function of a sibling could still let older work run
(`is_drained` counts held work), and a release in the thread that calls completions: one context may have had a
quarter of a million allocations.
"""

from collections.abc import Callable
from threading import Lock
from typing import Protocol

from attrs import define, field

from pympsd_server.backends.cuda.driver.calls import call_isolated
from pympsd_server.backends.cuda.memory.cleanup_thread import CleanupThread
from pympsd_server.backends.cuda.submission.completions import Countdown
from pympsd_server.backends.interface import BackendError

Act = Callable[[], None]


class SiblingContext(Protocol):
    """The part of a context that other contexts' frees use to wait for the work of that context."""

    def call_after_work(self, act: Act) -> None:
        """Call ``act`` when the device is done with all work queued before the call, in any state of the context."""

    def is_drained(self) -> bool:
        """Return whether all work of the context has ended: nothing runs, and nothing is held."""


@define(eq=False)
class DeferredFree:
    """The deferred frees of one client. Safe to use from several threads."""

    _cleanup: CleanupThread
    contexts: dict[SiblingContext, None] = field(factory=dict, init=False)
    """The client's contexts, including destroyed ones whose work runs. The device's lock guards it."""
    _lock: Lock = field(factory=Lock, init=False)
    _waiting: list[Act] = field(factory=list, init=False)
    _has_batch: bool = field(default=False, init=False)
    """Whether there is a batch that waits for the work that was queued when the batch was started."""
    _is_tried: bool = field(default=False, init=False)

    def add(self, act: Act, context: SiblingContext) -> None:
        """Call ``act`` when the client's contexts other than ``context`` have finished the work that they had queued.

        If they are drained now, call it immediately.
        """
        if self._are_drained(context):
            act()
            return
        with self._lock:
            self._waiting.append(act)
            if self._is_tried:
                return
            self._is_tried = True
        self._cleanup.try_until(self._try)

    def start_batch(self) -> None:
        """Start a batch, which frees the waiting memory when the work queued before the call is done.

        Only the client's worker calls this.
        """
        with self._lock:
            if self._has_batch or not self._waiting:
                return
            batch, self._waiting, self._has_batch = self._waiting, [], True
        contexts = tuple(self.contexts)
        countdown = Countdown(1 + len(contexts), lambda: self._pass(batch))
        for context in contexts:
            try:
                context.call_after_work(countdown.count_down)
            except BackendError:  # there is no memory for a marker
                self._cleanup.add(context.is_drained, countdown.count_down)
        countdown.count_down()

    def _pass(self, batch: list[Act]) -> None:
        with self._lock:
            self._has_batch = False
        # A context may have had very many allocations; the thread that calls all completions has no time for them.
        self._cleanup.add(lambda: True, lambda: _do_all(batch))

    def _try(self) -> bool:
        """Free the waiting memory if all contexts are drained and the worker starts no batch meanwhile.

        Return True if no memory waits any more.
        """
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
            # A release that was added since may concern memory that newer work uses.
            self._waiting = waiting[count:]
        _do_all(waiting[:count])
        return False

    def _are_drained(self, ignored: SiblingContext | None) -> bool:
        return all(context.is_drained() for context in tuple(self.contexts) if context is not ignored)


def _do_all(batch: list[Act]) -> None:
    for act in batch:
        call_isolated("a deferred free", act)  # an error must not keep the rest from being released
