"""Streams of a client: CUDA streams of its own, and the legacy default stream made of one of them.

No client uses the driver's NULL stream, for that is every client's. A client's default stream is a stream like the
others; what CUDA orders by itself between it and the blocking streams is ordered here by events.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import cu
from pympsd_server.backends.cuda.memory.copies import from_device, from_host, on_device, to_device, to_host
from pympsd_server.backends.cuda.objects.event import CudaEvent, Mark
from pympsd_server.backends.cuda.objects.module import CudaModule
from pympsd_server.backends.cuda.submission.launches import Launch
from pympsd_server.backends.cuda.submission.stream_markers import Point
from pympsd_server.backends.cuda.submission.submission_order import Step
from pympsd_server.backends.interface import BackendError, Completion, Event, Module, Outcome
from pympsd_server.native.states import STREAM_EVENTS, StreamState

if TYPE_CHECKING:
    from pympsd_server.backends.cuda.objects.context import CudaContext


class CudaStream:
    """Work in order. ``blocking`` streams and the default stream wait for each other."""

    def __init__(self, context: CudaContext, level: int, priority: int, blocking: bool, charge: int) -> None:
        """``level`` is its client's, as Quota.priority; BackendError when the driver refuses what it needs."""
        self.context = context
        device = context.device
        with ExitStack() as undo:
            self.word = device.words.take()
            undo.callback(device.words.give, self.word)
            events = []
            for _ in range(STREAM_EVENTS):
                events.append(device.events.take(False))
                undo.callback(device.events.give, events[-1], False)
            self.handle = device.make_stream(context.share, level, priority)
            undo.callback(device.driver.call, cu.cuStreamDestroy, self.handle)
            self._things = undo.pop_all()
        self.native_state = StreamState(handle=int(self.handle), word=self.word.address, is_blocking=blocking)
        """The counts of its work, which a native worker keeps too."""
        self.native_state.marked = self.word.value
        self.native_state.events[:] = [int(event) for event in events]
        self._charge = charge
        self._driver = device.driver
        self._started = 0
        self._ended = 0
        """Kernels that were counted as started, and as ended."""

    @property
    def blocking(self) -> bool:
        """Whether it and the default stream wait for each other."""
        return bool(self.native_state.is_blocking)

    # --- copies and fills: checked and queued under the lock, so that what is taken away between is not met

    def copy_to_device(self, destination: int, source: memoryview, done: Completion) -> None:
        """Copy host bytes to device memory."""
        with self.context.lock:
            self.context.space.check(destination, source.nbytes)
            to_device(self, destination, source, done)

    def copy_from_device(self, target: memoryview, source: int, done: Completion) -> None:
        """Copy device memory to host bytes."""
        with self.context.lock:
            self.context.space.check(source, target.nbytes)
            from_device(self, target, source, done)

    def copy_from_host(self, destination: int, source: memoryview) -> None:
        """Copy to device memory from host memory of ``reach_host``."""
        with self.context.lock:
            self.context.space.check(destination, source.nbytes)
            from_host(self, destination, source)

    def copy_to_host(self, target: memoryview, source: int) -> None:
        """Copy device memory to host memory of ``reach_host``."""
        with self.context.lock:
            self.context.space.check(source, target.nbytes)
            to_host(self, target, source)

    def copy_on_device(self, destination: int, source: int, count: int) -> None:
        """Copy inside the device."""
        with self.context.lock:
            self.context.space.check(destination, count)
            self.context.space.check(source, count)
            if count and destination != source:
                on_device(self, destination, source, count)

    def fill(self, destination: int, value: int, width: int, count: int) -> None:
        """Set ``count`` elements of ``width`` bytes; the destination is aligned to the width."""
        functions = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}
        if width not in functions or destination % width:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"a fill of width {width} at {destination:#x}")
        pattern = value & ((1 << 8 * width) - 1)
        with self.context.lock:
            self.context.space.check(destination, width * count)
            if count:
                self.put(lambda: self._driver.call(functions[width], destination, pattern, count, self.handle))

    # --- kernels

    def launch(
        self,
        module: Module,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: bytes,
        cooperative: bool = False,
    ) -> None:
        """Run a kernel."""
        if not isinstance(module, CudaModule) or module.context is not self.context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the module is of another context")
        launch = Launch(module.kernel(function), grid, block, shared_bytes, parameters, cooperative)
        launch.check(self.context.device.facts.attributes)
        self.put(lambda: self._launch(launch))

    def _launch(self, launch: Launch) -> None:
        launch.issue(self._driver, self.handle)
        self.native_state.last_function = int(launch.kernel.handle)
        self.native_state.launched += 1

    # --- events and completions

    def record(self, event: Event) -> None:
        """Make the event stand for this point of the stream."""
        own = self._own(event)
        mark = Mark(self)

        def issue() -> None:
            self._join()
            mark.point = self.point(own.timing)

        mark.step = self.context.put(self, issue)
        own.mark = mark

    def wait(self, event: Event) -> None:
        """Later work waits for the event's point."""
        mark = self._own(event).mark
        if mark is None:
            self.context.check()
            return
        self.put(lambda: self._wait(mark.point), after=(mark.step,) if mark.step is not None else ())

    def _wait(self, point: Point | None) -> None:
        if point is not None and not point.passed:
            self._driver.call(cu.cuStreamWaitEvent, self.handle, point.event, 0)

    def _own(self, event: Event) -> CudaEvent:
        if not isinstance(event, CudaEvent) or event.context is not self.context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the event is of another context")
        return event

    def notify(self, done: Completion) -> None:
        """Call back when all work so far is done."""
        self.context.put_told(self, done, self.tell_when_done)

    def tell_when_done(self, tell: Completion) -> None:
        """Call back when what is issued so far is done; at once when it is. Called while issuing."""
        self._join()
        if self.is_settled():
            tell(Outcome())
        else:
            self.watch(self.point(), lambda: tell(Outcome()))

    def call_host(self, begin: Completion) -> CudaHostCall:
        """Call back when the stream comes here; it goes on when the call is finished."""
        call = CudaHostCall(self.context)
        tell = self.context.promises.make(call.begun_before(begin))
        with self.context.lock:  # who is told at once must not finish it before it is known
            try:
                call.step = self.context.put(self, lambda: self.tell_when_done(tell), held=True)
            except BackendError:
                if self.context.promises.take(tell):  # else it was told of the context's end
                    raise
        return call

    @property
    def idle(self) -> bool:
        """Whether all work so far is done, and all that this stream would wait for."""
        context = self.context
        with context.lock:
            if context.order.before(self):
                return False
            if self is context.default_stream:
                return all(stream.is_settled() for stream in tuple(context.streams) if stream.blocking)
            return self.is_settled() and (not self.blocking or context.default_stream.is_settled())

    def destroy(self) -> None:
        """Forget the stream; its work goes on to its end."""

        def leave() -> None:
            self._join()
            self.context.native_state.leaving += 1
            self.context.device.janitor.try_until(self._goes)

        self.context.put(self, leave, on_ruined=lambda outcome: None)

    def _goes(self) -> bool:
        """Give the handle back if nothing of it is under way; waits for no worker, whom the driver may keep long."""
        lock = self.context.lock
        if not lock.acquire(blocking=False):
            return False
        try:
            if not self.is_settled():
                return False
            self.discard()
            return True
        finally:
            lock.release()

    def discard(self) -> None:
        """Give the handle back; nothing of it is under way."""
        with self.context.lock:
            if self.context.forget_stream(self, self._charge):
                self.context.native_state.leaving = max(0, self.context.native_state.leaving - 1)
                self.give_back()

    def give_back(self) -> None:
        """Give back what the driver gave; the context does not know the stream."""
        self._things.close()

    # --- issuing; the context's lock is held

    def put(self, work: Callable[[], None], after: tuple[Step, ...] = ()) -> None:
        """Give work to the driver, now or once what holds it is passed; BackendError on a ruined context."""

        def issue() -> None:
            self._join()
            self.native_state.issued += 1
            work()
            self._note()

        self.context.put(self, issue, after)

    def _join(self) -> None:
        """Have the device do before this stream's next work what comes before it in others."""
        context, default, state = self.context, self.context.default_stream, self.native_state
        if self is default:
            for stream in context.take_unseen():
                if not stream.is_settled():
                    state.issued += 1
                    self._wait(stream.point())
        elif state.is_blocking and state.seen_of_default != default.native_state.issued:
            state.seen_of_default = default.native_state.issued
            if not default.is_settled():
                state.issued += 1
                self._wait(default.point())
                self._note()

    def _note(self) -> None:
        if self.blocking and self is not self.context.default_stream:
            self.context.note_unseen(self)

    def point(self, timing: bool = False) -> Point:
        """Record a point behind what is issued so far."""
        return Point(self._driver, self.context.device.events, self.handle, timing)

    def watch(self, point: Point, passed: Callable[[], None]) -> None:
        """Have ``passed`` called when the device has come to a point, whatever became of the context."""
        self.context.device.watch.add(self, point, passed)

    @property
    def known_settled(self) -> bool:
        """Whether everything issued is known to be done, without asking."""
        return bool(self.native_state.settled == self.native_state.issued)

    def is_settled(self) -> bool:
        """Whether everything that was issued is done."""
        state = self.native_state
        # In this order: what is issued meanwhile is not taken for done.
        launched, issued = state.launched, state.issued
        if state.settled != issued and self._driver.is_done(cu.cuStreamQuery, self.handle):
            state.settled = issued
        settled = bool(state.settled == issued)
        self._count(launched, settled)
        return settled

    def _count(self, launched: int, settled: bool) -> None:
        counters = self.context.device.counters
        if launched != self._started:
            counters.add("kernels_started", launched - self._started)
            self._started = launched
        if settled and launched != self._ended:
            counters.add("kernels_finished", launched - self._ended)
            self._ended = launched


class CudaHostCall:
    """A stream's wait for something outside of the device."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._begun = False
        self.step: Step | None = None

    def begun_before(self, begin: Completion) -> Completion:
        """Return the completion that notes that it has begun, and then says so."""

        def told(outcome: Outcome) -> None:
            self._begun = True
            begin(outcome)

        return told

    def finish(self) -> None:
        """The stream goes on. A second time nothing happens; BackendError INVALID_VALUE before it has begun."""
        context = self._context
        with context.lock:
            if context.outcome.code is not Result.SUCCESS:  # asked under the lock: after its end nothing is issued
                return
            if not self._begun or self.step is None:
                raise BackendError(Result.ERROR_INVALID_VALUE, "the call to the host has not begun")
            context.release_step(self.step)
