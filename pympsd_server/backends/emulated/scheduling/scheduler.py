"""The compute thread of one emulated device, and the order of all work on it.

Work is operations with predecessors. Operations whose predecessors are finished run in slices on the compute
thread, or, when a caller's own copy is ready at once, in the caller's thread. One lock guards the graph; it is
never held while something runs or somebody is told.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.ptx.faults import Cancelled, DeviceFault
from pympsd_server.backends.emulated.scheduling.fair_share import Turns
from pympsd_server.backends.emulated.scheduling.work_item import Operation
from pympsd_server.backends.interface import BackendError, Outcome

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.device.context import EmulatedContext

SLICE_SECONDS: Final = 0.001
Calls = list[Callable[[], None]]


class Scheduler:
    """Runs operations; every context of the device hands them in here."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._rested = threading.Condition(self.lock)
        self._turns = Turns()
        self._closing = False
        self.slices = 0
        self._thread = threading.Thread(target=self._compute, name="compute", daemon=True)
        self._thread.start()

    # --- handing in

    def submit(self, operation: Operation, *, here: bool = False) -> None:
        """Take an operation in stream order; its stream and context say what it waits for.

        ``here``: run it in this thread when nothing holds it up. Raise BackendError on a ruined context.
        """
        calls: Calls = []
        with self.lock:
            operation.context.check()
            predecessors = operation.context.order(operation)
            self._enter(operation, predecessors)
            run_here = here and operation.waiting == 0
            if run_here:
                operation.running = True
            elif operation.waiting == 0:
                self._make_ready(operation, calls)
        _make(calls)
        if run_here:
            self._run_to_end(operation)

    def _enter(self, operation: Operation, predecessors: Iterable[Operation]) -> None:
        operation.context.pending[operation] = None
        for predecessor in predecessors:
            if not predecessor.finished:
                predecessor.successors.append(operation)
                operation.waiting += 1

    def _make_ready(self, operation: Operation, calls: Calls) -> None:
        if operation.instant:
            self._finish(operation, calls)
        elif operation.held:
            _tell(operation, calls)
        else:
            self._turns.add(operation)
            self._work.notify()

    # --- running

    def _run_to_end(self, operation: Operation) -> None:
        fault: Outcome | None = None
        try:
            while not operation.step(1.0):
                pass
        except Cancelled:
            pass
        except Exception as error:
            fault = _outcome_of(error)
        self._after(operation, True, fault, None)

    def _compute(self) -> None:
        while (operation := self._next()) is not None:
            began = time.perf_counter_ns()
            finished, fault = True, None
            try:
                finished = operation.step(SLICE_SECONDS)
            except Cancelled:
                pass
            except Exception as error:  # whatever a kernel provokes is its context's trouble, not the device's
                fault = _outcome_of(error)
            self._after(operation, finished, fault, time.perf_counter_ns() - began)

    def _next(self) -> Operation | None:
        with self.lock:
            while not self._closing:
                turn = self._turns.next()
                if turn is not None:
                    assert isinstance(turn, Operation)
                    turn.running = True
                    self.slices += 1
                    return turn
                self._work.wait()
        return None

    def _after(self, operation: Operation, finished: bool, fault: Outcome | None, used: int | None) -> None:
        # ``used``: nanoseconds of the compute thread; None when a caller ran it in its own thread.
        calls: Calls = []
        with self.lock:
            context = operation.context
            operation.running = False
            if fault is not None:
                alone = fault.code is Result.ERROR_OUT_OF_MEMORY
                self._ruin(context, fault, calls, faulted=True, alone=alone)
            if used is not None:
                self._turns.charge(operation, used)
            if context.outcome.code is not Result.SUCCESS:
                self._after_the_end(operation, finished, calls)
            elif finished:
                if used is not None:
                    self._turns.remove(operation)
                self._finish(operation, calls)
        _make(calls)

    def _after_the_end(self, operation: Operation, finished: bool, calls: Calls) -> None:
        # Its turns were dropped when the context was ruined, except those of kernels that cannot be stopped.
        context = operation.context
        has_turns = operation in context.group.ready
        if finished and has_turns:
            self._turns.remove(operation)
        if finished and (has_turns or self._goes_on(operation)):
            self._finish(operation, calls)
        elif self._goes_on(operation) and not has_turns:
            self._turns.add(operation)  # it began in the very slice in which the context ended
        self._flush(context, calls)
        self._rested.notify_all()

    def _finish(self, first: Operation, calls: Calls) -> None:
        todo = deque((first,))
        while todo:
            operation = todo.popleft()
            operation.mark_finished()
            operation.context.forget(operation)
            _tell(operation, calls)
            successors, operation.successors = operation.successors, []
            for successor in successors:
                successor.waiting -= 1
                if successor.waiting == 0 and not successor.finished:
                    if successor.instant:
                        todo.append(successor)
                    else:
                        self._make_ready(successor, calls)

    def finish_held(self, operation: Operation) -> None:
        """Let the work after a held operation go on; BackendError INVALID_VALUE when its turn has not come."""
        calls: Calls = []
        with self.lock:
            if operation.finished:
                return
            if operation.waiting:
                raise BackendError(Result.ERROR_INVALID_VALUE, "the stream has not come to this host function")
            self._finish(operation, calls)
        _make(calls)

    # --- ending contexts

    def ruin(self, context: EmulatedContext, outcome: Outcome) -> None:
        """Give a context up: what runs is stopped if that can be, what waits is dropped, all are told the outcome."""
        calls: Calls = []
        with self.lock:
            self._ruin(context, outcome, calls)
            self._flush(context, calls)
        _make(calls)

    def _ruin(
        self, context: EmulatedContext, outcome: Outcome, calls: Calls, *, faulted: bool = False, alone: bool = False
    ) -> None:
        """``faulted``: by its own work, of which nothing goes on then.

        ``alone``: it is no fault of the device, whatever its neighbours would have to do with one.
        """
        new = context.give_up(outcome, faulted)
        if new and outcome.code is not Result.ERROR_CONTEXT_IS_DESTROYED and not alone:
            calls.append(lambda: context.on_fault(outcome))
        unstoppable = [operation for operation in context.pending if self._goes_on(operation)]
        self._turns.drop(context.group)
        for operation in unstoppable:
            self._turns.add(operation)

    def _goes_on(self, operation: Operation) -> bool:
        """Whether a kernel of a context that was given up runs to its end: it has begun and cannot be stopped."""
        return operation.begun and not operation.context.cancel.is_set() and not self._closing

    def _flush(self, context: EmulatedContext, calls: Calls) -> None:
        # Whoever runs an operation finishes it: until then its host bytes and device memory are in use.
        for operation in [each for each in context.pending if not each.running and not self._goes_on(each)]:
            operation.mark_finished()
            operation.successors.clear()
            context.forget(operation)
            _tell(operation, calls)
        if not context.pending and context.when_at_rest is not None:
            calls.append(context.when_at_rest)
            context.when_at_rest = None

    def wait_until_at_rest(self, context: EmulatedContext, seconds: float | None) -> bool:
        """Return whether nothing of a ruined or destroyed context runs, waiting so long for it at most.

        Where kernels can be stopped that takes a few milliseconds, for the cancel flag is set: None, no limit.
        """
        with self.lock:
            return self._rested.wait_for(lambda: not context.pending, seconds)

    def call_at_rest(self, context: EmulatedContext, act: Callable[[], None]) -> None:
        """Call ``act``, now or from the compute thread, when nothing of a ruined or destroyed context runs."""
        with self.lock:
            if context.pending:
                context.when_at_rest = act
                return
        act()

    def close(self) -> None:
        """End the compute thread after its slice."""
        with self.lock:
            self._closing = True
            self._work.notify_all()
        self._thread.join()


def _tell(operation: Operation, calls: Calls) -> None:
    callbacks, operation.callbacks = operation.callbacks, []
    outcome = operation.context.outcome
    for callback in callbacks:
        calls.append(lambda callback=callback: callback(outcome))  # type: ignore[misc]


def _make(calls: Calls) -> None:
    for call in calls:
        try:
            call()
        except Exception:  # a defect of whoever is told; the compute thread has other clients to serve
            traceback.print_exc()


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, MemoryError):
        # Half a kernel cannot be taken back: its context is lost, and no other.
        return Outcome(Result.ERROR_OUT_OF_MEMORY, f"the emulated device has no host memory left: {error}")
    if isinstance(error, DeviceFault):
        try:
            return Outcome(Result(error.code), str(error))
        except ValueError:
            return Outcome(Result.ERROR_LAUNCH_FAILED, str(error))
    return Outcome(Result.ERROR_LAUNCH_FAILED, f"the emulated device failed: {type(error).__name__}: {error}")
