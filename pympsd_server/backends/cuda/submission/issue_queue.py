"""The work of one context on its way to the driver: its order, its completions, and the error that ends it.

Everything that a context's streams issue goes through `put`, under one reentrant lock: the queue refuses work of a
faulted context, the submission order decides whether the work is issued now or held, and the streams that the default
stream has not waited for yet are noted (`note_unseen`). Completions are kept in `completions`, so that each is called
once: by the thread that watches markers when the work is done, or by `fault` and `close` when the context ends.

Two kinds of threads meet here. Workers issue work and hold `lock`, perhaps for long, because a driver call may block.
The thread that detects a fault must not wait for them, so `fault` takes only `_fault_lock`, which is held for an
instant, sets `closed` for the native worker, and calls the completions. A call that a worker has begun may still
reach the driver; its result is ignored."""

import ctypes
from collections.abc import Callable, Iterable
from itertools import count
from threading import Lock, RLock
from typing import Final, Protocol, TypeVar

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.submission.completions import Countdown, PendingCompletions
from pympsd_server.backends.cuda.submission.stream_markers import StreamMarker
from pympsd_server.backends.cuda.submission.submission_order import OrderedStream, Step, SubmissionOrder
from pympsd_server.backends.interface import BackendError, Completion, Status
from pympsd_server.native.states import ContextState, StreamState

DESTROYED: Final = Status(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class QueuedStream(OrderedStream, Protocol):
    """The part of a stream that the issue queue uses."""

    native_state: StreamState

    @property
    def is_known_completed(self) -> bool:
        """Whether everything issued is known to be done, without asking the driver."""

    def is_completed(self) -> bool:
        """Ask the driver whether everything issued is done."""

    def marker(self) -> StreamMarker:
        """Record a marker after the work issued before the call."""

    def watch(self, marker: StreamMarker, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the device has reached a marker."""

    def discard(self) -> None:
        """Release the stream, which runs no work."""


class IssueQueue:
    """The streams of one context. Work is issued under ``lock``; the device's watcher calls completions."""

    def __init__(self, on_fault: Callable[[Status], None], context_id: int = 0) -> None:
        """``on_fault`` gets the sticky error of a fault; ``context_id`` is the context's id in timelines."""
        self.id = context_id
        self.stream_numbers = count()
        self.lock = RLock()
        self.completions = PendingCompletions()
        self.order = SubmissionOrder(self._refuse_late)
        self.streams: dict[QueuedStream, None] = {}
        self.default_stream: QueuedStream | None = None
        self.native_state = ContextState()
        """The state by which a native worker decides whether it may execute records of the context."""
        self.is_destroyed = False
        self._is_timed = False
        self._on_fault = on_fault
        self.status = Status()
        """The status of the context: SUCCESS, or its sticky error."""
        self._fault_lock = Lock()

    def set_timed(self, timed: bool) -> None:
        """Set whether the context's work is reported to a timeline; while work is reported, only Python issues it."""
        with self.lock:
            self._is_timed = timed
            self._note_held()

    def _note_held(self) -> None:
        self.native_state.held = self.order.holds or self._is_timed

    # --- streams

    def set_default(self, stream: QueuedStream) -> None:
        """Make a stream the legacy default stream."""
        stream.native_state.is_default = 1
        self.default_stream = self.order.default = stream
        self.native_state.default_stream = ctypes.pointer(stream.native_state)

    def enter(self, table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        """Add an object to a table. Raise BackendError if the context was destroyed; the caller then releases it."""
        with self.lock:
            if self.is_destroyed:
                raise BackendError(DESTROYED.code, DESTROYED.reason)
            table[key] = value

    def note_unseen(self, stream: QueuedStream) -> None:
        """Note that a blocking stream has work that the default stream does not wait for yet."""
        if not stream.native_state.unseen:
            stream.native_state.unseen = 1
            self.native_state.unseen += 1

    def take_unseen(self) -> list[QueuedStream]:
        """Return the streams that `note_unseen` was called for; the caller makes the default stream wait for them."""
        if not self.native_state.unseen:
            return []
        unseen = [stream for stream in self.streams if stream.native_state.unseen]
        for stream in unseen:
            stream.native_state.unseen = 0
        self.native_state.unseen = 0
        return unseen

    def notify(self, done: Completion) -> None:
        """Call back when all work queued in all streams before the call is done."""
        self.put_completing(None, done, self._watch_all)

    def _watch_all(self, complete: Completion) -> None:
        busy = [stream for stream in self.streams if not stream.is_completed()]
        if not busy:
            complete(Status())
            return
        countdown = Countdown(len(busy), lambda: complete(Status()))
        for stream in busy:
            stream.watch(stream.marker(), countdown.count_down)

    # --- issuing

    def put(
        self,
        stream: OrderedStream | None,
        issue: Callable[[], None],
        after: Iterable[Step] = (),
        on_faulted: Completion | None = None,
        is_held: bool = False,
        alone: bool = False,
    ) -> Step:
        """Issue work in a stream, now or when the hold on it has ended; raise BackendError on a faulted context.

        If there is an ``on_faulted``, it is called with the sticky error instead. submission_order.py explains
        ``is_held`` and ``alone``.
        """
        step = Step(stream, issue, is_held)
        with self.lock:
            try:
                self.check()
                self.order.submit(step, after, alone)
            except BackendError:
                if on_faulted is None or self.status.code is Result.SUCCESS:
                    raise
                on_faulted(self.status)
            self._note_held()
        return step

    def put_completing(
        self,
        stream: OrderedStream | None,
        done: Completion,
        issue: Callable[[Completion], None],
        after: Iterable[Step] = (),
        alone: bool = False,
    ) -> None:
        """Put work that calls ``done``.

        The end of the context also calls ``done``; if the work is refused, ``done`` is not called.
        """
        complete = self.completions.add(done)
        try:
            self.put(stream, lambda: issue(complete), after, on_faulted=complete, alone=alone)
        except BaseException:
            if self.completions.take(complete):  # else the context's end has called it
                raise

    def release_step(self, step: Step) -> None:
        """Let a held step pass. The caller holds the lock."""
        self.order.release(step)
        self._note_held()

    def _refuse_late(self, error: BackendError) -> None:
        self.fault(
            Status(error.code, f"refused after a host function of the client had delayed the work: {error.reason}")
        )

    # --- the error that closes it

    def check(self) -> None:
        """Raise BackendError with the sticky error of a faulted or destroyed context."""
        if self.status.code is not Result.SUCCESS:
            raise BackendError(self.status.code, self.status.reason)

    def fault(self, status: Status) -> None:
        """Keep the first error, accept no more work, and call all completions, without the lock for issuing work."""
        with self._fault_lock:
            if self.status.code is not Result.SUCCESS:
                return
            self.status = status
        self.native_state.closed = 1
        self._on_fault(status)
        self.completions.end(status)

    def close(self, status: Status) -> None:
        """Accept no more work; all completions, and all later work, get the error ``status``."""
        self.status = status
        self.native_state.closed = 1
        self.completions.end(status)


@define(eq=False)
class PendingFunction:
    """A stream's wait for a function of the client; ``step`` is the step that holds later work."""

    _queue: IssueQueue
    _begun: bool = field(default=False, init=False)
    step: Step | None = field(default=None, init=False)

    def begin_with(self, begin: Completion) -> Completion:
        """Return a completion that notes that the function has begun and then calls ``begin``."""

        def on_begin(status: Status) -> None:
            self._begun = True
            begin(status)

        return on_begin

    def finish(self) -> None:
        """Resume the stream; a second call has no effect. Raise BackendError INVALID_VALUE if it has not begun."""
        queue = self._queue
        with queue.lock:
            # Read it under the lock, because nothing is issued after the context's end.
            if queue.status.code is not Result.SUCCESS:
                return
            if not self._begun or self.step is None:
                raise BackendError(Result.ERROR_INVALID_VALUE, "the host function has not begun")
            queue.release_step(self.step)
