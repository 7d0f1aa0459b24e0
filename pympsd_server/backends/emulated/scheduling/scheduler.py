"""The compute thread of one emulated device, and the order of all work on it.

Work items have predecessors. Items whose predecessors are finished run in slices on the compute thread, or, if a
caller's own copy is ready at once, in the caller's thread. One lock guards the graph; it is never held while an item
runs or a callback is called.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.ptx.isa.faults import Cancelled, DeviceFault
from pympsd_server.backends.emulated.scheduling.fair_share import FairQueue
from pympsd_server.backends.emulated.scheduling.policy import Policy
from pympsd_server.backends.emulated.scheduling.work_item import WorkItem, WorkOwner
from pympsd_server.backends.interface import BackendError, Outcome, Timeline

SLICE_SECONDS: Final = 0.001
Calls = list[Callable[[], None]]


class Scheduler:
    """Runs the work items of all contexts of a device."""

    def __init__(self, policy: Policy | None = None) -> None:
        """``policy``: fair shares by default."""
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._rested = threading.Condition(self.lock)
        self._ready: Policy = policy or FairQueue()
        self._closing = False
        """Whether the compute thread runs an item."""
        self.slices = 0
        self.timeline: Timeline | None = None
        self._thread = threading.Thread(target=self._compute_or_end, name="compute", daemon=True)
        self._thread.start()

    # --- submission

    def submit(self, item: WorkItem, *, in_own_thread: bool = False) -> None:
        """Accept an item in stream order; its owner says what it waits for.

        ``in_own_thread``: run it in this thread if it need not wait. Raise BackendError on a poisoned context.
        """
        calls: Calls = []
        if self.timeline is not None:
            item.submitted_at = time.perf_counter_ns()
        with self.lock:
            item.owner.check()
            predecessors = item.owner.order(item)
            self._enter(item, predecessors)
            runs_here = in_own_thread and item.waiting == 0
            if runs_here:
                item.running = True
            elif item.waiting == 0:
                self._make_ready(item, calls)
        _call_each(calls)
        if runs_here:
            self._run_to_end(item)

    def _enter(self, item: WorkItem, predecessors: Iterable[WorkItem]) -> None:
        item.owner.pending[item] = None
        for predecessor in predecessors:
            if not predecessor.finished:
                predecessor.successors.append(item)
                item.waiting += 1

    def _make_ready(self, item: WorkItem, calls: Calls) -> None:
        if item.instant:
            self._finish(item, calls)
        elif item.held:
            item.began_at = time.perf_counter_ns()
            _queue_callbacks(item, calls)
        else:
            self._ready.add(item)
            self._work.notify()

    # --- running

    def _run_to_end(self, item: WorkItem) -> None:
        fault: Outcome | None = None
        item.began_at = time.perf_counter_ns()
        try:
            while not item.step(1.0):
                pass
        except Cancelled:
            pass
        except Exception as error:
            fault = _outcome_of(error)
        self._after(item, True, fault, None)

    def _compute_or_end(self) -> None:
        try:
            self._compute()
        except Exception:  # a policy's defect: nothing would run any more, without a report
            traceback.print_exc()
            os._exit(os.EX_SOFTWARE)

    def _compute(self) -> None:
        while (item := self._next()) is not None:
            began = time.perf_counter_ns()
            item.began_at = item.began_at or began
            finished, fault = True, None
            try:
                finished = item.step(SLICE_SECONDS)
            except Cancelled:
                pass
            except Exception as error:  # an error of a kernel is its context's, not the device's
                fault = _outcome_of(error)
            ended = time.perf_counter_ns()
            if (timeline := self.timeline) is not None:
                timeline.ran(item.owner.serial, item.what, began, ended)
            self._after(item, finished, fault, ended - began)

    def _next(self) -> WorkItem | None:
        with self.lock:
            while not self._closing:
                work = self._ready.next()
                if work is not None:
                    assert isinstance(work, WorkItem)
                    work.running = True
                    self.slices += 1
                    return work
                self._work.wait()
        return None

    def _after(self, item: WorkItem, finished: bool, fault: Outcome | None, used: int | None) -> None:
        # ``used``: nanoseconds of the compute thread; None if a caller ran it in its own thread.
        calls: Calls = []
        with self.lock:
            owner = item.owner
            item.running = False
            if fault is not None:
                alone = fault.code is Result.ERROR_OUT_OF_MEMORY
                self._poison(owner, fault, calls, faulted=True, alone=alone)
            if used is not None:
                self._ready.charge(item, used)
            if owner.outcome.code is not Result.SUCCESS:
                self._after_the_end(item, finished, calls)
            elif finished:
                if used is not None:
                    self._ready.remove(item)
                self._finish(item, calls)
        _call_each(calls)

    def _after_the_end(self, item: WorkItem, finished: bool, calls: Calls) -> None:
        # Ready work was dropped when the context was poisoned, except kernels that cannot be stopped.
        owner = item.owner
        is_ready = item in owner.queue.ready
        if finished and is_ready:
            self._ready.remove(item)
        if finished and (is_ready or self._is_unstoppable(item)):
            self._finish(item, calls)
        elif self._is_unstoppable(item) and not is_ready:
            self._ready.add(item)  # it began in the very slice in which the context ended
        self._flush(owner, calls)
        self._rested.notify_all()

    def _finish(self, first: WorkItem, calls: Calls) -> None:
        todo = deque((first,))
        while todo:
            item = todo.popleft()
            item.mark_finished()
            self._tell(item)
            item.owner.remove(item)
            _queue_callbacks(item, calls)
            successors, item.successors = item.successors, []
            for successor in successors:
                successor.waiting -= 1
                if successor.waiting == 0 and not successor.finished:
                    if successor.instant:
                        todo.append(successor)
                    else:
                        self._make_ready(successor, calls)

    def _tell(self, item: WorkItem) -> None:
        if self.timeline is not None and item.what and item.stream is not None:
            # What was stopped may not have begun; what came before the timeline has no time of submission.
            began = item.began_at or item.finished_at
            submitted = item.submitted_at or began
            number = item.stream.number
            self.timeline.finished(item.owner.serial, number, item.what, submitted, began, item.finished_at)

    def _release(self, item: WorkItem, calls: Calls) -> None:
        item.waiting -= 1
        if item.waiting == 0 and not item.finished:
            self._make_ready(item, calls)

    def finish_held(self, item: WorkItem) -> None:
        """Finish a held item; no effect a second time, BackendError INVALID_VALUE if it was not reached."""
        calls: Calls = []
        with self.lock:
            if item.finished:
                return
            if item.waiting:
                raise BackendError(Result.ERROR_INVALID_VALUE, "the stream has not come to this host function")
            self._finish(item, calls)
        _call_each(calls)

    # --- ending contexts

    def poison(self, owner: WorkOwner, outcome: Outcome) -> None:
        """Poison a context: stop what runs if possible, drop what waits, call all completions with the outcome."""
        calls: Calls = []
        with self.lock:
            self._poison(owner, outcome, calls)
            self._flush(owner, calls)
        _call_each(calls)

    def _poison(
        self, owner: WorkOwner, outcome: Outcome, calls: Calls, *, faulted: bool = False, alone: bool = False
    ) -> None:
        """``faulted``: by its own work, all of which is then stopped.

        ``alone``: it is not a fault of the device, so ``on_fault`` is not called.
        """
        new = owner.poison(outcome, faulted)
        if new and outcome.code is not Result.ERROR_CONTEXT_IS_DESTROYED and not alone:
            calls.append(lambda: owner.on_fault(outcome))
        unstoppable = [item for item in owner.pending if self._is_unstoppable(item)]
        self._ready.drop(owner.queue)
        for item in unstoppable:
            self._ready.add(item)

    def _is_unstoppable(self, item: WorkItem) -> bool:
        """Return whether a kernel of a poisoned context runs to its end: it has begun and cannot be stopped."""
        return item.begun and not item.owner.cancel.is_set() and not self._closing

    def _flush(self, owner: WorkOwner, calls: Calls) -> None:
        # The thread that runs an item finishes it: until then its host bytes and device memory are in use.
        for item in [each for each in owner.pending if not each.running and not self._is_unstoppable(each)]:
            item.mark_finished()
            self._tell(item)
            successors, item.successors = item.successors, []
            owner.remove(item)
            _queue_callbacks(item, calls)
            for successor in successors:
                if successor.owner is not owner:  # another context waits for an event of this one
                    self._release(successor, calls)
        if not owner.pending and owner.when_at_rest is not None:
            calls.append(owner.when_at_rest)
            owner.when_at_rest = None

    def wait_until_at_rest(self, owner: WorkOwner, seconds: float | None) -> bool:
        """Return whether nothing of a poisoned or destroyed context runs, waiting at most this time.

        If kernels can be stopped this takes a few milliseconds, for the cancel flag is set: None, no limit.
        """
        with self.lock:
            return self._rested.wait_for(lambda: not owner.pending, seconds)

    def call_at_rest(self, owner: WorkOwner, act: Callable[[], None]) -> None:
        """Call ``act``, now or from the compute thread, when nothing of a poisoned or destroyed context runs."""
        with self.lock:
            if owner.pending:
                owner.when_at_rest = act
                return
        act()

    def close(self) -> None:
        """End the compute thread after its slice."""
        with self.lock:
            self._closing = True
            self._work.notify_all()
        self._thread.join()


def _queue_callbacks(item: WorkItem, calls: Calls) -> None:
    callbacks, item.callbacks = item.callbacks, []
    outcome = item.owner.outcome
    for callback in callbacks:
        calls.append(lambda callback=callback: callback(outcome))  # type: ignore[misc]


def _call_each(calls: Calls) -> None:
    for call in calls:
        try:
            call()
        except Exception:  # a defect of the callback; the compute thread has other clients to serve
            traceback.print_exc()


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, MemoryError):
        # Half a kernel cannot be undone: its context is lost, and no other.
        return Outcome(Result.ERROR_OUT_OF_MEMORY, f"the emulated device has no host memory left: {error}")
    if isinstance(error, BackendError):
        return Outcome(error.code, error.reason)
    if isinstance(error, DeviceFault):
        return Outcome(Result(error.code), str(error))
    return Outcome(Result.ERROR_LAUNCH_FAILED, f"the emulated device failed: {type(error).__name__}: {error}")
