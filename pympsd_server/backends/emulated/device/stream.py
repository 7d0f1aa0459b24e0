"""Streams and events of the emulated device.

A stream turns each request into one work item and submits it to the scheduler, which keeps the stream's order: a copy
or a fill is a `Transfer`, a launch a `KernelRun`, a host function a `HostFunction`, and all else a `Marker`, an item
without work of its own. The stream itself keeps no queue.

- An event stands for the marker that was submitted when it was recorded (`Point`). Waiting for an event submits a
  marker that also comes after the event's. An event that was never recorded counts as passed, as in CUDA.
- A request is checked before its item is submitted: the address range of a copy, the shape of a launch. So only the
  running work can make an item fail, and that error is the context's.
- The checks of a launch depend only on the module and the shape, so each module remembers the shapes that passed.
- If nothing is pending in the stream, a small transfer runs in its caller's thread, so it never queues behind a
  kernel of another client. A large one is left to the scheduler, because its caller has other requests to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.launch_limits import check_launch, check_room, cluster_of
from pympsd_server.backends.emulated.device.module import EmulatedModule, ModuleOwner
from pympsd_server.backends.emulated.memory import transfers
from pympsd_server.backends.emulated.scheduling.kernel_run import KernelRun
from pympsd_server.backends.emulated.scheduling.placement import BlockSize
from pympsd_server.backends.emulated.scheduling.policy import TimeShare
from pympsd_server.backends.emulated.scheduling.scheduler import Scheduler
from pympsd_server.backends.emulated.scheduling.work_item import HostFunction, Marker, Transfer, WorkItem, WorkOwner
from pympsd_server.backends.interface import BackendError, Completion, Copy, Event, Fill, Launch
from pympsd_server.ptx.loading.program import Kernel

_CHECKED_KEPT: Final = 256
"""The maximum number of a module's launch shapes that are remembered as checked."""
_OWN_THREAD_BYTES: Final = 16 << 20
"""The size in bytes of the largest transfer that the calling thread makes itself.

A larger transfer would block the client's other requests for too long.
"""


class StreamOwner(WorkOwner, ModuleOwner, Protocol):
    """The part of a context that its streams use."""

    scheduler: Scheduler

    def notify_after(self, marker: Marker, done: Completion) -> None:
        """Call ``done`` when a marker is passed, or immediately with the sticky error if the context has faulted."""


class EmulatedStream:
    """Work in order. ``blocking`` streams and the legacy default stream wait for each other."""

    def __init__(self, context: StreamOwner, weight: int, blocking: bool, number: int = 0) -> None:
        self._context = context
        self.number = number
        self.time_share = TimeShare(weight)
        self.blocking = blocking
        self.tail: WorkItem | None = None

    def copy(self, copy: Copy, done: Completion | None = None) -> None:
        """Copy bytes between device memory and device or host memory."""
        memory = self._context.memory.accessible
        transfers.check_copy(memory, copy)
        self._transfer(transfers.copy(memory, copy), transfers.cost(copy.extent), "copy", done)

    def fill(self, fill: Fill) -> None:
        """Set elements of device memory to a value."""
        memory = self._context.memory.accessible
        transfers.check_fill(memory, fill)
        self._transfer(transfers.fill(memory, fill), transfers.cost(fill.extent), "fill")

    def _transfer(self, pieces: Iterator[None], cost: int, what: str, done: Completion | None = None) -> None:
        transfer = Transfer(self._context, self, pieces, what)
        if done is not None:
            transfer.callbacks.append(done)
        # If nothing is pending in the stream, the caller copies in its own thread, so it never waits for a kernel.
        self._context.scheduler.submit(transfer, in_own_thread=cost <= _OWN_THREAD_BYTES)

    def launch(self, launch: Launch) -> None:
        """Run a kernel."""
        module, context = launch.module, self._context
        if not isinstance(module, EmulatedModule) or module.owner is not context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the module is of another context")
        shape = (
            launch.function, launch.grid, launch.block, launch.shared_bytes, len(launch.parameters),
            launch.cooperative, launch.cluster,
        )  # fmt: skip
        checked = module.checked.get(shape)
        if checked is None:
            if len(module.checked) >= _CHECKED_KEPT:
                module.checked.clear()
            checked = module.checked[shape] = self._check(module, launch)
        kernel, size, cluster = checked
        workspace = context.memory.borrow_workspace() if launch.cooperative else 0
        run = KernelRun(context, self, self.time_share, module.loaded, kernel, launch, size, cluster, workspace)
        if workspace:
            run.callbacks.append(lambda status: context.memory.return_workspace(workspace, status))
        context.scheduler.submit(run)

    def _check(self, module: EmulatedModule, launch: Launch) -> tuple[Kernel, BlockSize, tuple[int, int, int]]:
        """Return a launch's kernel, the size of a block, and the clusters; raise BackendError if it is not allowed.

        The result depends only on the launch's shape as long as the module is loaded.
        """
        kernel = module.kernel(launch.function)
        grid, block, attributes = launch.grid, launch.block, self._context.properties.attributes
        cluster = cluster_of(kernel, launch.cluster, attributes)
        check_launch(attributes, kernel, grid, block, launch.shared_bytes, len(launch.parameters), cluster)
        size = BlockSize(block[0] * block[1] * block[2], kernel.shared_bytes + launch.shared_bytes)
        check_room(attributes, self._context.placement, size, grid[0] * grid[1] * grid[2], launch.cooperative)
        return kernel, size, cluster

    def record(self, event: Event) -> None:
        """Make the event stand for this point of the stream."""
        own = self._check_event(event)
        marker = self._marker()
        self._context.scheduler.submit(marker)
        own.point.marker = marker

    def wait(self, event: Event) -> None:
        """Make later work wait for the event's point."""
        pending = self._check_event(event).point.marker
        if pending is None:
            self._context.check()
            return
        marker = self._marker()
        marker.also_after = pending
        self._context.scheduler.submit(marker)

    def _marker(self) -> Marker:
        return Marker(self._context, self, self.time_share)

    def _check_event(self, event: Event) -> EmulatedEvent:
        if not isinstance(event, EmulatedEvent) or event.context is not self._context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the event is of another context")
        return event

    def notify(self, done: Completion) -> None:
        """Call ``done`` when all work queued before is done."""
        self._context.notify_after(self._marker(), done)

    def launch_host_function(self, begin: Completion) -> HostFunction:
        """Call ``begin`` when the stream reaches this point; later work waits until the function is finished."""
        function = HostFunction(self._context, self, self._context.scheduler.finish_held)
        function.callbacks.append(begin)
        self._context.scheduler.submit(function)
        return function

    @property
    def idle(self) -> bool:
        """Whether all work queued in the stream is done, and all work of other streams that it would wait for."""
        with self._context.scheduler.lock:
            return all(item.finished for item in self._context.order.predecessors(self))

    def destroy(self) -> None:
        """Do nothing, because the scheduler keeps the stream's work."""


@define(eq=False)
class Point:
    """The work that an event stands for: ``marker`` is the item of its last recording."""

    marker: Marker | None = None


@define(eq=False)
class EmulatedEvent:
    """A point in a stream. Events of other contexts may stand for the same point."""

    context: StreamOwner
    _timing: bool
    point: Point = field(factory=Point)

    def open_in(self, context: StreamOwner) -> EmulatedEvent:
        """Return an event of ``context`` for the same point."""
        return EmulatedEvent(context, False, self.point)

    @property
    def done(self) -> bool:
        """Whether the work before the event is done."""
        marker = self.point.marker
        return marker is None or marker.finished

    def notify(self, done: Completion) -> None:
        """Call ``done`` when the point is passed, with SUCCESS or the sticky error of the event's own context."""
        marker = self.point.marker
        if marker is not None and marker.owner is not self.context:
            # A marker of this context, so that the wait ends with the context, and its error is reported.
            own = Marker(self.context, None, marker.time_share)
            own.also_after, own.is_alone = marker, True
            self.context.notify_after(own, done)
            return
        with self.context.scheduler.lock:
            if marker is not None and not marker.finished:
                marker.callbacks.append(done)
                return
        done(self.context.status)

    def milliseconds_since(self, start: Event) -> float:
        """Return the time between two recorded events, in milliseconds."""
        if not isinstance(start, EmulatedEvent) or start.context is not self.context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the start event is of another context")
        first, last = start.point.marker, self.point.marker
        if first is None or last is None or not (start._timing and self._timing):
            raise BackendError(Result.ERROR_INVALID_HANDLE, "an event was not recorded, or is without timing")
        if not (first.finished and last.finished):
            raise BackendError(Result.ERROR_NOT_READY, "an event is not done yet")
        return (last.finished_at - first.finished_at) / 1e6
