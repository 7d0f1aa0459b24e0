"""Streams of a client: CUDA streams of its own, and the legacy default stream made of one of them.

No client uses the driver's NULL stream, because all clients would share it. A client's default stream is a stream
like any other one; events order it and the blocking streams, as CUDA does for the NULL stream.

An operation is checked in the call, queued under the queue's lock (so that no memory is freed between check and
queue), and issued to the driver immediately, or later if a host function holds it (`submission.submission_order`).
The counts in `native_state` are kept here and by the native worker."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.memory.regions import simplify_copy
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.copies import check_fill, issue_fill, put_copy
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.objects.event import CudaEvent, Recording
from pympsd_server.backends.cuda.objects.green_contexts import Partition
from pympsd_server.backends.cuda.objects.launches import PreparedLaunch
from pympsd_server.backends.cuda.objects.module import CudaModule
from pympsd_server.backends.cuda.submission.issue_queue import IssueQueue, PendingFunction
from pympsd_server.backends.cuda.submission.stream_markers import StreamMarker
from pympsd_server.backends.cuda.submission.submission_order import Step
from pympsd_server.backends.interface import BackendError, Completion, Copy, Event, Fill, Launch, Status
from pympsd_server.native.states import STREAM_EVENTS, StreamState

_LEVELS: Final = 3
"""The number of stream priorities that a client has. A client below normal gets lower ones than a normal client."""
PRIORITIES: Final = (0, 1 - _LEVELS)
"""The lowest and the highest stream priority."""


def create_handle(driver: Driver, partition: Partition, level: int, priority: int) -> Any:
    """Return a new CUstream in a partition; ``level`` is the client's ``Quota.priority``."""
    least, greatest = PRIORITIES
    driver_priority = max(greatest, min(least, priority)) - (0 if level else _LEVELS)
    flags = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
    if partition.green is None:
        return driver.call(cu.cuStreamCreateWithPriority, flags, driver_priority)
    return driver.call(cu.cuGreenCtxStreamCreate, partition.green, flags, driver_priority)


class CudaStream:
    """Work in order. ``blocking`` streams and the default stream wait for each other."""

    def __init__(
        self,
        queue: IssueQueue,
        space: ClientSpace,
        services: DeviceServices,
        create: Callable[[], Any],
        blocking: bool,
        charge: int,
    ) -> None:
        """``create`` returns the CUstream. Raise BackendError if the driver refuses an object for the stream."""
        self.queue = queue
        self.space = space
        self.services = services
        self.context, self.number = queue.id, next(queue.stream_numbers)
        with ExitStack() as undo:
            self.word = services.words.take()
            undo.callback(services.words.give, self.word)
            events = []
            for _ in range(STREAM_EVENTS):
                events.append(services.events.take(False))
                undo.callback(services.events.give, events[-1], False)
            self.handle = create()
            undo.callback(services.driver.call, cu.cuStreamDestroy, self.handle)
            self._resources = undo.pop_all()
        self.native_state = StreamState(handle=int(self.handle), word=self.word.address, is_blocking=blocking)
        """The counts of the stream's work, which a native worker updates too."""
        self.native_state.marked = self.word.value
        self.native_state.events[:] = [int(event) for event in events]
        self._charge = charge
        self._driver = services.driver
        self._started = 0
        self._ended = 0
        """The number of kernels counted as finished in the device's counters; ``_started``: as started."""

    @property
    def blocking(self) -> bool:
        """Whether this stream and the default stream wait for each other."""
        return bool(self.native_state.is_blocking)

    # --- copies and fills: checked and queued under the lock, so that no memory is freed in between

    def copy(self, copy: Copy, done: Completion | None = None) -> None:
        """Copy bytes, then call ``done``."""
        if not copy.extent.bytes:
            if done is not None:
                self.notify(done)
            return
        if not (is_linear := copy.extent.is_linear):
            copy = simplify_copy(copy, self.services.attributes["MAX_PITCH"])
        with self.queue.lock:
            for region in (copy.destination, copy.source):
                count = copy.extent.width if is_linear else region.span(copy.extent)
                if region.host is None:
                    self.space.check(region.base, count)
                elif region.host.nbytes != count:
                    reason = f"the copy spans {count} bytes of host memory, not {region.host.nbytes}"
                    raise BackendError(Result.ERROR_INVALID_VALUE, reason)
            put_copy(self, copy, done)

    def fill(self, fill: Fill) -> None:
        """Set elements of device memory to a value."""
        extent, region = check_fill(fill)
        with self.queue.lock:
            self.space.check(region.base, extent.width if extent.is_linear else region.span(extent))
            if extent.bytes:
                self.put(lambda: issue_fill(self._driver.call, fill, extent, region, self.handle), what="fill")

    # --- kernels

    def launch(self, launch: Launch) -> None:
        """Run a kernel."""
        module = launch.module
        if not isinstance(module, CudaModule) or module.queue is not self.queue:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the module is of another context")
        if launch.cluster != (1, 1, 1):
            reason = "clusters that only the launch asks for (CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)"
            raise BackendError(Result.ERROR_NOT_SUPPORTED, f"{reason} are not supported on this device")
        prepared = PreparedLaunch(module.kernel(launch.function), launch)
        prepared.check(self.services.attributes)
        self.put(lambda: self._launch(prepared), what=prepared.kernel.layout.name)

    def _launch(self, prepared: PreparedLaunch) -> None:
        prepared.issue(self._driver, self.handle)
        self.native_state.last_function = int(prepared.kernel.handle)
        self.native_state.launched += 1

    # --- events and completions

    def record(self, event: Event) -> None:
        """Make the event mark the present end of the stream."""
        own = self._check_event(event)
        recording = Recording(self)

        def issue() -> None:
            self._join()
            recording.marker = self.marker(own.timing)

        recording.step = self.queue.put(self, issue)
        own.recording = recording

    def wait(self, event: Event) -> None:
        """Make later work wait for the position of the event."""
        recording = self._check_event(event).recording
        if recording is None:
            self.queue.check()
            return
        after = (recording.step,) if recording.step is not None else ()
        self.put(lambda: self._wait(recording.marker), after)

    def _wait(self, marker: StreamMarker | None) -> None:
        if marker is not None and not marker.passed:
            self._driver.call(cu.cuStreamWaitEvent, self.handle, marker.event, 0)

    def _check_event(self, event: Event) -> CudaEvent:
        if not isinstance(event, CudaEvent) or event.queue is not self.queue:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the event is of another context")
        return event

    def notify(self, done: Completion) -> None:
        """Call back when all work queued before the call is done."""
        self.queue.put_completing(self, done, self._complete_when_done)

    def _complete_when_done(self, complete: Completion) -> None:
        self._join()
        if self.is_completed():
            complete(Status())
        else:
            self.watch(self.marker(), lambda: complete(Status()))

    def launch_host_function(self, begin: Completion) -> PendingFunction:
        """Call ``begin`` when the stream reaches this point; the stream resumes when the function is finished."""
        function = PendingFunction(self.queue)
        complete = self.queue.completions.add(function.begin_with(begin))
        with self.queue.lock:  # a function that begins immediately must not finish before its step is set
            try:
                function.step = self.queue.put(self, lambda: self._complete_when_done(complete), is_held=True)
            except BackendError:
                if self.queue.completions.take(complete):  # else the context's end has called it
                    raise
        return function

    @property
    def idle(self) -> bool:
        """Whether all work queued in the stream is done, and all work of other streams that it would wait for."""
        queue = self.queue
        with queue.lock:
            if queue.order.find_predecessors(self):
                return False
            if self is queue.default_stream:
                return all(stream.is_completed() for stream in tuple(queue.streams) if stream.blocking)
            if not self.is_completed():
                return False
            return not self.blocking or queue.default_stream is None or queue.default_stream.is_completed()

    def destroy(self) -> None:
        """Destroy the stream; its work runs to its end."""

        def leave() -> None:
            self._join()
            self.queue.native_state.leaving += 1
            self.services.cleanup.try_until(self._try_to_discard)

        self.queue.put(self, leave, on_faulted=lambda status: None)

    def _try_to_discard(self) -> bool:
        """Discard the stream if its work is done; return whether it was discarded. Do not wait for the lock."""
        lock = self.queue.lock
        if not lock.acquire(blocking=False):
            return False
        try:
            if not self.is_completed():
                return False
            self.discard()
            return True
        finally:
            lock.release()

    def discard(self) -> None:
        """Release a stream that runs no work; a second call has no effect."""
        queue = self.queue
        with queue.lock:
            if self not in queue.streams:
                return
            del queue.streams[self]
            self.space.give(self._charge)
            queue.native_state.leaving = max(0, queue.native_state.leaving - 1)
            self.release()

    def release(self) -> None:
        """Release the stream's driver objects; its queue must not contain the stream."""
        self._resources.close()

    # --- issuing; the queue's lock is held

    def put(self, work: Callable[[], None], after: tuple[Step, ...] = (), what: str = "") -> None:
        """Issue work to the driver, now or when the hold on it has ended; raise BackendError on a faulted context.

        ``what``: the name of the work in a timeline; empty if the timeline does not show it.
        """
        times = self.services.times
        submitted = time.perf_counter_ns() if times.timeline is not None else 0

        def issue() -> None:
            self._join()
            self.native_state.issued += 1
            if what:
                times.enclose(self, what, submitted, work)
            else:
                work()
            self._note()

        self.queue.put(self, issue, after)

    def _join(self) -> None:
        """Make this stream's next work wait on the device for the work before it in other streams."""
        default, state = self.queue.default_stream, self.native_state
        if self is default:
            for stream in self.queue.take_unseen():
                if not stream.is_completed():
                    state.issued += 1
                    self._wait(stream.marker())
        elif default is not None and state.is_blocking and state.seen_of_default != default.native_state.issued:
            state.seen_of_default = default.native_state.issued
            if not default.is_completed():
                state.issued += 1
                self._wait(default.marker())
                self._note()

    def _note(self) -> None:
        if self.blocking and self is not self.queue.default_stream:
            self.queue.note_unseen(self)

    def marker(self, timing: bool = False) -> StreamMarker:
        """Record a marker after the work issued before the call."""
        return StreamMarker(self._driver, self.services.events, self.handle, timing)

    def watch(self, marker: StreamMarker, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the device has reached a marker, whatever the state of the context."""
        self.services.watcher.add(self, marker, callback)

    @property
    def is_known_completed(self) -> bool:
        """Whether everything issued is known to be done, without asking the driver."""
        return bool(self.native_state.completed == self.native_state.issued)

    def is_completed(self) -> bool:
        """Ask the driver whether everything issued is done."""
        state = self.native_state
        # Read these first, so that work issued during the query does not count as done.
        launched, issued = state.launched, state.issued
        if state.completed != issued and self._driver.is_done(cu.cuStreamQuery, self.handle):
            state.completed = issued
        completed = bool(state.completed == issued)
        counters = self.services.counters
        if launched != self._started:
            counters.add("kernels_started", launched - self._started)
            self._started = launched
        if completed and launched != self._ended:
            counters.add("kernels_finished", launched - self._ended)
            self._ended = launched
        return completed
