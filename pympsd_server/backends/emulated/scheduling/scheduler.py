"""The compute thread of one emulated device, and the order of all work on it.

The problem: many clients share one device. A kernel may run for a microsecond or forever, streams wait for events of
other streams and contexts, host functions hold streams until a client answers, and any context can fault or end at
any moment. This must never delay another client for longer than its fair share.

The idea: all work is one graph. An item is *waiting* while it has unfinished predecessors, then *ready*, then it runs
in slices of SLICE_SECONDS, then it is *finished* and releases its successors:

    submit ──▶ waiting ──▶ ready ◀──▶ running ──▶ finished ──▶ its successors: waiting - 1
                 │ instant items (markers) skip these ▲
                 └────────────────────────────────────┘

A policy (policy.py, by default fair shares) chooses among the ready items. The compute thread runs a slice of the
chosen item and asks the policy again. A kernel is therefore preempted every millisecond without its help. A small
copy that need not wait runs in its caller's thread, so that it never queues behind kernels.

Example: two clients each launch a kernel of 10 ms. Both are ready; the compute thread runs them alternately, and both
finish after about 20 ms. A third client's cuMemcpy of 4 KiB does not wait for either.

Invariants:

- One lock guards the graph, the policy, and the fields of items and streams. The lock is never held while an item
  runs or a callback is called: callbacks are collected in a list of calls, and made after the lock is released.
- Only the thread that runs an item finishes it. Until then the item's device memory and host bytes count as in use.
  So an ended context is at rest, and its memory can be freed, only when none of its items runs
  (`wait_until_at_rest`).
- A fault belongs to a context. Its waiting and ready items are finished with the sticky error without being run,
  except kernels that have begun on a device that cannot stop kernels. Successors in other contexts continue.
- An exception of a kernel or a callback never ends the compute thread. Only a defect in a policy does. The executor
  then exits, because a device on which nothing runs any more must not look alive.
"""

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Timeline
from pympsd_server.backends.emulated.scheduling.fair_share import FairQueue
from pympsd_server.backends.emulated.scheduling.policy import Policy
from pympsd_server.backends.emulated.scheduling.work_item import WorkItem, WorkOwner
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.ptx.isa.faults import Cancelled, DeviceFault

SLICE_SECONDS: Final = 0.001
Calls = list[Callable[[], None]]


class Scheduler:
    """Runs the work items of all contexts of a device."""

    def __init__(self, policy: Policy | None = None) -> None:
        """``policy`` chooses the work that runs; None means fair shares."""
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._rested = threading.Condition(self.lock)
        self._ready: Policy = policy or FairQueue()
        self._closing = False
        self.slices = 0
        self.timeline: Timeline | None = None
        self._thread = threading.Thread(target=self._compute_or_end, name="compute", daemon=True)
        self._thread.start()

    # --- submission

    def submit(self, item: WorkItem, *, in_own_thread: bool = False) -> None:
        """Accept an item in stream order, after the items that its owner's `WorkOrder` returns.

        ``in_own_thread``: run the item in the caller's thread if it need not wait. Raise BackendError if the context
        has faulted.
        """
        calls: Calls = []
        if self.timeline is not None:
            item.submitted_at = time.perf_counter_ns()
        with self.lock:
            item.owner.check()
            for predecessor in item.owner.order.append(item):
                if not predecessor.finished:
                    predecessor.successors.append(item)
                    item.waiting += 1
            runs_here = in_own_thread and item.waiting == 0
            if runs_here:
                item.running = True
            elif item.waiting == 0:
                self._make_ready(item, calls)
        _call_each(calls)
        if runs_here:
            self._run_to_end(item)

    def _make_ready(self, item: WorkItem, calls: Calls) -> None:
        if item.instant:
            self._finish(item, calls)
        elif item.is_held:
            item.began_at = time.perf_counter_ns()
            _queue_callbacks(item, calls)
        else:
            self._ready.add(item)
            self._work.notify()

    # --- running

    def _run_to_end(self, item: WorkItem) -> None:
        fault: Status | None = None
        item.began_at = time.perf_counter_ns()
        try:
            while not item.step(1.0):
                pass
        except Cancelled:
            pass
        except Exception as error:
            fault = _status_of(error)
        self._note_after_run(item, True, fault, None)

    def _compute_or_end(self) -> None:
        try:
            self._compute()
        except Exception:  # a policy's defect, after which nothing would run any more, without a report
            traceback.print_exc()
            os._exit(os.EX_SOFTWARE)

    def _compute(self) -> None:
        """Run the ready work, one slice after the other, until the scheduler is closed."""
        while (item := self._next()) is not None:
            began = time.perf_counter_ns()
            item.began_at = item.began_at or began
            finished, fault = True, None
            try:
                finished = item.step(SLICE_SECONDS)
            except Cancelled:
                pass
            except Exception as error:  # a kernel's error faults its context, not the device
                fault = _status_of(error)
            ended = time.perf_counter_ns()
            if (timeline := self.timeline) is not None:
                timeline.ran(item.owner.id, item.what, began, ended)
            self._note_after_run(item, finished, fault, ended - began)
            del item  # so that a waiting thread keeps nothing of a client alive

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

    def _note_after_run(self, item: WorkItem, finished: bool, fault: Status | None, used: int | None) -> None:
        """Account for a slice that an item has run, and finish the item or fault its context if necessary."""
        # ``used``: nanoseconds of the compute thread; None if the caller's thread ran the item.
        calls: Calls = []
        with self.lock:
            owner = item.owner
            item.running = False
            if fault is not None:
                quietly = fault.code is Result.ERROR_OUT_OF_MEMORY
                self._fault(owner, fault, calls, by_own_work=True, quietly=quietly)
            if used is not None:
                self._ready.charge(item, used)
            if owner.status.code is not Result.SUCCESS:
                self._note_end(item, finished, calls)
            elif finished:
                if used is not None:
                    self._ready.remove(item)
                self._finish(item, calls)
        _call_each(calls)

    def _note_end(self, item: WorkItem, finished: bool, calls: Calls) -> None:
        # Ready work was dropped when the context faulted, except kernels that cannot be stopped.
        owner = item.owner
        is_ready = item in owner.queue.ready
        if finished and is_ready:
            self._ready.remove(item)
        if finished and (is_ready or self._is_unstoppable(item)):
            self._finish(item, calls)
        elif self._is_unstoppable(item) and not is_ready:
            self._ready.add(item)  # it began in the slice in which the context ended
        self._flush(owner, calls)
        self._rested.notify_all()

    def _finish(self, first: WorkItem, calls: Calls) -> None:
        """Mark an item as finished, and make ready the successors that waited only for it."""
        todo = deque((first,))
        while todo:
            item = todo.popleft()
            item.mark_finished()
            self._report(item)
            item.owner.order.remove(item)
            _queue_callbacks(item, calls)
            successors, item.successors = item.successors, []
            for successor in successors:
                successor.waiting -= 1
                if successor.waiting == 0 and not successor.finished:
                    if successor.instant:
                        todo.append(successor)
                    else:
                        self._make_ready(successor, calls)

    def _report(self, item: WorkItem) -> None:
        if self.timeline is not None and item.what and item.stream is not None:
            # Stopped work may not have begun, and work from before the timeline has no time of submission.
            began = item.began_at or item.finished_at
            submitted = item.submitted_at or began
            number = item.stream.number
            self.timeline.note_finished(item.owner.id, number, item.what, submitted, began, item.finished_at)

    def finish_held(self, item: WorkItem) -> None:
        """Finish a held item, such as a host function that the client has reported as done.

        A second call has no effect.

        Raises:
            BackendError: INVALID_VALUE if its stream has not reached the item.
        """
        calls: Calls = []
        with self.lock:
            if item.finished:
                return
            if item.waiting:
                raise BackendError(Result.ERROR_INVALID_VALUE, "the stream has not reached this host function")
            self._finish(item, calls)
        _call_each(calls)

    # --- ending contexts

    def fault(self, owner: WorkOwner, status: Status) -> None:
        """Give a context a sticky error.

        The context's running work is stopped if the device can do that, its queued work is dropped, and all its
        completions are called with the error.

        Args:
            owner: The context.
            status: The error, which later calls in the context return.
        """
        calls: Calls = []
        with self.lock:
            self._fault(owner, status, calls)
            self._flush(owner, calls)
        _call_each(calls)

    def _fault(
        self, owner: WorkOwner, status: Status, calls: Calls, *, by_own_work: bool = False, quietly: bool = False
    ) -> None:
        """Give a context a sticky error.

        ``by_own_work``: whether the context's own work faulted, so that all of it is stopped. ``quietly``: do not
        call ``on_fault``, because it is not a fault of a GPU.
        """
        is_new = owner.mark_faulted(status, by_own_work)
        if is_new and status.code is not Result.ERROR_CONTEXT_IS_DESTROYED and not quietly:
            calls.append(lambda: owner.on_fault(status))
        unstoppable = [item for item in owner.order.pending if self._is_unstoppable(item)]
        self._ready.drop(owner.queue)
        for item in unstoppable:
            self._ready.add(item)

    def _is_unstoppable(self, item: WorkItem) -> bool:
        """Return whether an item runs to its end after a fault, because it has begun and cannot be stopped."""
        return item.has_begun and not item.owner.cancel.is_set() and not self._closing

    def _flush(self, owner: WorkOwner, calls: Calls) -> None:
        """End the unfinished work of a faulted or ended context, except items that run or cannot be stopped."""
        # Running items are left to their thread, because their host bytes and device memory are in use until then.
        ended = [item for item in owner.order.pending if not item.running and not self._is_unstoppable(item)]
        for item in ended:
            # All are marked before the first is reported: one may wait for another through another context's event.
            item.mark_finished()
        for item in ended:
            self._report(item)
            successors, item.successors = item.successors, []
            owner.order.remove(item)
            _queue_callbacks(item, calls)
            for successor in successors:
                if successor.owner is not owner:  # another context waits for an event of this one
                    successor.waiting -= 1
                    if successor.waiting == 0 and not successor.finished:
                        self._make_ready(successor, calls)
        if not owner.order.pending and owner.when_at_rest is not None:
            calls.append(owner.when_at_rest)
            owner.when_at_rest = None

    def wait_until_at_rest(self, owner: WorkOwner, seconds: float | None) -> bool:
        """Wait until no work of a faulted or destroyed context runs; return False if that takes too long.

        If kernels can be stopped, this takes a few milliseconds, because the cancel flag is set. ``seconds`` is the
        longest wait; None for no limit.
        """
        with self.lock:
            return self._rested.wait_for(lambda: not owner.order.pending, seconds)

    def call_at_rest(self, owner: WorkOwner, act: Callable[[], None]) -> None:
        """Call a function as soon as no work of a faulted or destroyed context runs.

        Args:
            owner: The context.
            act: Called once: immediately if nothing runs, and otherwise from the compute thread. It must not wait.
        """
        with self.lock:
            if owner.order.pending:
                owner.when_at_rest = act
                return
        act()

    def close(self) -> None:
        """End the compute thread after its present slice, and wait for it. Queued work does not run after that."""
        with self.lock:
            self._closing = True
            self._work.notify_all()
        self._thread.join()


def _queue_callbacks(item: WorkItem, calls: Calls) -> None:
    callbacks, item.callbacks = item.callbacks, []
    status = item.owner.status
    for callback in callbacks:
        calls.append(lambda callback=callback: callback(status))  # type: ignore[misc]


def _call_each(calls: Calls) -> None:
    for call in calls:
        try:
            call()
        except Exception:  # a defect of the callback must not keep other clients from being served
            traceback.print_exc()


def _status_of(error: Exception) -> Status:
    if isinstance(error, MemoryError):
        # Half a kernel cannot be undone, so its context is lost, but no other.
        return Status(Result.ERROR_OUT_OF_MEMORY, f"the emulated device has no host memory left: {error}")
    if isinstance(error, BackendError):
        return Status(error.code, error.reason)
    if isinstance(error, DeviceFault):
        return Status(error.code, str(error))
    return Status(Result.ERROR_LAUNCH_FAILED, f"the emulated device failed: {type(error).__name__}: {error}")
