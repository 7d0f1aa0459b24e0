"""One piece of work on the emulated device: its completions, its trace, and its order in its context.

The scheduler has no code for kernels or copies. It sees work items, and the part of their contexts in `WorkOwner`:

| item | runs | is finished |
| --- | --- | --- |
| `KernelRun` (in kernel_run.py) | its blocks, in slices on the compute thread | when the last block has ended |
| `Transfer` | pieces of a copy, a fill or a call, on the compute thread or its caller's | after the last piece |
| `HostFunction` | nothing: the client calls the function | when the client reports the end of the call |
| `Marker` (an event, a wait, a notification) | nothing | when its predecessors are |

An item is finished exactly once. Its callbacks are called exactly once, without the scheduler's lock, with SUCCESS or
with the sticky error of its context.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Event as Flag
from typing import ClassVar, Protocol

from attrs import define, field

from pympsd.wire.executor_messages import MAX_BATCH_TRACES, MAX_KERNEL_NAME, BatchTrace
from pympsd_server.backends.budget import Counters
from pympsd_server.backends.emulated.scheduling.placement import Placement
from pympsd_server.backends.emulated.scheduling.policy import ContextQueue, TimeShare
from pympsd_server.backends.interface import Completion, Status
from pympsd_server.ptx.isa.faults import Cancelled


class Trace(Counters):
    """Counters of a device's work, and the latest batches of blocks that began, for tests and operators.

    Any thread may read it. ``Device.trace`` lists the counters' names.
    """

    def __init__(self) -> None:
        super().__init__()
        self._batches: deque[tuple[int, int, str, int, int, int]] = deque(maxlen=MAX_BATCH_TRACES)
        self._busy = 0, 0
        """The nanoseconds in which kernels ran, and the time.perf_counter_ns() when the present slice of a kernel
        began, 0 if none runs. It is one object, which the compute thread replaces and other threads read."""

    def begin_slice(self) -> None:
        """Count the time from now on as time in which a kernel runs, until `end_slice`."""
        self._busy = self._busy[0], time.perf_counter_ns()

    def end_slice(self) -> None:
        """Stop counting time, because the slice of a kernel has ended."""
        self._busy = self.busy_nanoseconds, 0

    @property
    def busy_nanoseconds(self) -> int:
        """The nanoseconds in which kernels have run, including the slice that runs now.

        A slice may be long, because a kernel is translated during its first one.
        """
        total, began = self._busy
        return total + (time.perf_counter_ns() - began if began else 0)

    def raise_to(self, name: str, value: int) -> None:
        """Raise a counter to a value; no effect if it is at least that high."""
        with self._lock:
            self._counters[name] = max(value, self._counters.get(name, 0))

    def add_batch(self, context: int, kernel: str, first_block: int, blocks: int, priority: int) -> None:
        """Count a batch of blocks that begins, and keep it among the latest MAX_BATCH_TRACES.

        Args:
            context: The context's id.
            kernel: The kernel's name.
            first_block: The index of its first block in the grid.
            blocks: How many blocks it has.
            priority: The priority of its stream, 0 to -5.
        """
        with self._lock:
            number = self._counters["batches"] = self._counters.get("batches", 0) + 1
            self._batches.append((number, context, kernel, first_block, blocks, priority))

    @property
    def batches(self) -> tuple[BatchTrace, ...]:
        """The latest batches, oldest first."""
        with self._lock:
            batches = tuple(self._batches)
        return tuple(
            BatchTrace(number, context, kernel[:MAX_KERNEL_NAME], first_block, blocks, priority)
            for number, context, kernel, first_block, blocks, priority in batches
        )


class WorkStream(Protocol):
    """The state that orders the work in a stream. The scheduler's lock guards its fields."""

    blocking: bool
    """Whether the stream and the legacy default stream wait for each other."""
    tail: WorkItem | None
    """The last unfinished item."""
    time_share: TimeShare
    number: int
    """The stream's number in its context; 0 for the default stream."""


class WorkOwner(Protocol):
    """The part of a context that the scheduler uses.

    The scheduler holds its lock when it calls these methods, so they must not wait.
    """

    cancel: Flag
    """An event that is set when running work must stop."""
    queue: ContextQueue
    on_fault: Callable[[Status], None]
    placement: Placement
    id: int
    """The context's id in traces."""
    trace: Trace
    when_at_rest: Callable[[], None] | None
    """The function to call once, when no work of the context runs any more."""

    @property
    def order(self) -> WorkOrder:
        """The order of the context's work."""

    @property
    def status(self) -> Status:
        """SUCCESS, or the sticky error of a faulted context."""

    def check(self) -> None:
        """Raise BackendError with the sticky error of a faulted or destroyed context."""

    def mark_faulted(self, status: Status, by_own_work: bool) -> bool:
        """Store the error and stop the context's kernels; return whether the error is new.

        Args:
            status: The sticky error.
            by_own_work: Whether work of this context faulted. Then its kernels are stopped even on a device whose
                kernels cannot be stopped.
        """


@define(eq=False, slots=False)
class WorkItem:
    """Work that runs in slices once its predecessors are finished.

    The scheduler's lock guards its fields. Subclasses override ``step``, and the class variables if they never run.
    """

    instant: ClassVar = False
    """Whether the item is finished as soon as its predecessors are."""
    is_held: ClassVar = False
    """Whether the item stays unfinished until `Scheduler.finish_held`.

    Its callbacks are called when it is reached.
    """

    owner: WorkOwner
    stream: WorkStream | None
    time_share: TimeShare
    what: str = field(default="", init=False)
    """A kernel's name, or a word for other work; empty if the item takes no time."""
    waiting: int = field(default=0, init=False)
    """The number of unfinished predecessors."""
    successors: list[WorkItem] = field(factory=list, init=False)
    callbacks: list[Completion] = field(factory=list, init=False)
    running: bool = field(default=False, init=False)
    finished: bool = field(default=False, init=False)
    submitted_at: int = field(default=0, init=False)
    """The time.perf_counter_ns() when the item was submitted; 0 without a timeline."""
    began_at: int = field(default=0, init=False)
    """The time.perf_counter_ns() when the item began to run."""
    finished_at: int = field(default=0, init=False)
    """The time.perf_counter_ns() when the item finished."""

    @property
    def queue(self) -> ContextQueue:
        """The ready work of the item's context."""
        return self.owner.queue

    @property
    def has_begun(self) -> bool:
        """Whether the item is a kernel with blocks that have begun.

        A device that cannot stop kernels lets such a kernel run to its end.
        """
        return False

    @property
    def is_blocked(self) -> bool:
        """Whether the item has to wait for space on the multiprocessors."""
        return False

    @property
    def blocked(self) -> bool:
        """The former name of `is_blocked`, for policies that were written for it."""
        return self.is_blocked

    def step(self, seconds: float) -> bool:
        """Run for about this many seconds; return whether the work is finished.

        Raises:
            DeviceFault: The work faulted, which is final for its context.
            Cancelled: The context's ``cancel`` flag was set.
        """
        return True

    def mark_finished(self) -> None:
        """Record the end, and release what the item used. Called once, with the scheduler's lock held."""
        self.running = False
        self.finished = True
        self.finished_at = time.perf_counter_ns()


@define(eq=False, slots=False)
class Marker(WorkItem):
    """A point in a stream that takes no time: an event, a wait for one, or a notification."""

    instant = True
    also_after: WorkItem | None = field(default=None, init=False)
    """A point of another stream that the marker also waits for."""
    is_alone: bool = field(default=False, init=False)
    """Whether the marker waits for nothing else, and does not belong to the order of a stream."""


class HostFunction(WorkItem):
    """Stops its stream while the client runs a host function.

    Its callbacks are called when the stream reaches this item; the stream continues after ``finish``.
    """

    is_held = True
    what = "host function"

    def __init__(self, owner: WorkOwner, stream: WorkStream, finish: Callable[[WorkItem], None]) -> None:
        super().__init__(owner, stream, stream.time_share)
        self._finish = finish

    def finish(self) -> None:
        """Let the stream continue; no effect if its context has ended in between.

        Raises:
            BackendError: INVALID_VALUE if the stream has not reached it.
        """
        self._finish(self)


class Transfer(WorkItem):
    """A copy, a fill or a call, done in pieces so that it never occupies the compute thread for long.

    Each step of the iterator ``pieces`` does one piece of the work; ``what`` names the work in a timeline.
    """

    def __init__(self, owner: WorkOwner, stream: WorkStream, pieces: Iterator[None], what: str) -> None:
        super().__init__(owner, stream, stream.time_share)
        self.what = what
        self._pieces = pieces

    def step(self, seconds: float) -> bool:
        """Do pieces until the time is over; return whether the last one is done. Raise Cancelled."""
        deadline = time.perf_counter() + seconds
        for _ in self._pieces:
            if self.owner.cancel.is_set():
                raise Cancelled
            if time.perf_counter() >= deadline:
                return False
        return True

    def mark_finished(self) -> None:
        """Record the end, and release the host's bytes, because their owner may be waiting for that."""
        super().mark_finished()
        self._pieces = iter(())


@define(eq=False)
class WorkOrder:
    """The unfinished work of one context, in its order. The scheduler's lock guards it, and the streams' tails.

    Order is a graph. A stream keeps only its *tail*, its last unfinished item, and ``_busy`` has the streams with a
    tail. New work comes after the tail of its stream. CUDA's legacy default stream and all blocking streams also wait
    for each other, so an item in one of them comes after the tail of the other, too:

        stream 1 (blocking)      A ──── B
                                   ╲      ╲
        default stream               ╲──── C ──── D      C comes after A and B: B is the tail, and B comes after A
                                                   ╲
        stream 1                                     E    E comes after B and, because stream 1 blocks, after D
        stream 2 (non-blocking)  F                        F comes after nothing
    """

    default_stream: WorkStream
    """The legacy default stream."""
    pending: dict[WorkItem, None] = field(factory=dict, init=False)
    """The unfinished items, in the order of their submission."""
    _busy: dict[WorkStream, None] = field(factory=dict, init=False)
    """The streams that have unfinished items."""

    def append(self, item: WorkItem) -> list[WorkItem]:
        """Append an item to its stream; return the items that it must wait for."""
        stream = item.stream
        if isinstance(item, Marker) and item.also_after is not None:
            before = [] if item.is_alone else self.predecessors(stream)
            before.append(item.also_after)
        else:
            before = self.predecessors(stream)
        self.pending[item] = None
        if stream is not None:
            stream.tail = item
            self._busy[stream] = None
        return before

    def predecessors(self, stream: WorkStream | None) -> list[WorkItem]:
        """Return the unfinished items that new work in a stream (None means all streams) comes after."""
        if stream is None:
            tails: Iterable[WorkItem | None] = [busy.tail for busy in self._busy]
        elif stream is self.default_stream:
            tails = [busy.tail for busy in self._busy if busy.blocking]
        elif stream.blocking:
            tails = (stream.tail, self.default_stream.tail)
        else:
            tails = (stream.tail,)
        return [tail for tail in tails if tail is not None]

    def remove(self, item: WorkItem) -> None:
        """Remove a finished item from its stream and from the context."""
        self.pending.pop(item, None)
        stream = item.stream
        if stream is not None and stream.tail is item:
            stream.tail = None
            self._busy.pop(stream, None)
