"""Streams and events of the emulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.launch_limits import check_launch, check_room
from pympsd_server.backends.emulated.device.module import EmulatedModule
from pympsd_server.backends.emulated.memory import transfers
from pympsd_server.backends.emulated.ptx.faults import IllegalAddress
from pympsd_server.backends.emulated.scheduling.fair_share import Share
from pympsd_server.backends.emulated.scheduling.kernel_run import KernelRun
from pympsd_server.backends.emulated.scheduling.placement import BlockSize
from pympsd_server.backends.emulated.scheduling.work_item import HostCall, Marker, Operation, Transfer
from pympsd_server.backends.interface import BackendError, Completion, Event, Module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pympsd_server.backends.emulated.device.context import EmulatedContext

_ADDRESS_LIMIT: Final = 1 << 63
_HERE_BYTES: Final = 16 << 20
"""Larger transfers would keep their caller, and with it the client's other calls, for too long."""


class EmulatedStream:
    """Operations in order. ``blocking`` streams and the legacy default stream wait for each other."""

    native_state: Final = None

    def __init__(self, context: EmulatedContext, weight: int, blocking: bool) -> None:
        self._context = context
        self.share = Share(weight)
        self.blocking = blocking
        self.tail: Operation | None = None
        """The last operation that is not finished; guarded by the scheduler's lock."""

    def copy_to_device(self, destination: int, source: memoryview, done: Completion) -> None:
        """Copy host bytes to device memory."""
        self._check(destination, source.nbytes)
        self._transfer(transfers.host_to_device(self._context.reach, destination, source), source.nbytes, done)

    def copy_from_device(self, target: memoryview, source: int, done: Completion) -> None:
        """Copy device memory to host bytes."""
        self._check(source, target.nbytes)
        self._transfer(transfers.device_to_host(self._context.reach, target, source), target.nbytes, done)

    def copy_from_host(self, destination: int, source: memoryview) -> None:
        """Copy to device memory from host memory of ``reach_host``."""
        self._check(destination, source.nbytes)
        self._transfer(transfers.host_to_device(self._context.reach, destination, source), source.nbytes)

    def copy_to_host(self, target: memoryview, source: int) -> None:
        """Copy device memory to host memory of ``reach_host``."""
        self._check(source, target.nbytes)
        self._transfer(transfers.device_to_host(self._context.reach, target, source), target.nbytes)

    def copy_on_device(self, destination: int, source: int, count: int) -> None:
        """Copy inside the device."""
        self._check(destination, count)
        self._check(source, count)
        self._transfer(transfers.device_to_device(self._context.reach, destination, source, count), count)

    def fill(self, destination: int, value: int, width: int, count: int) -> None:
        """Set ``count`` elements of ``width`` bytes; the destination is aligned to the width."""
        if width not in (1, 2, 4) or destination % width:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"a fill of width {width} at {destination:#x}")
        self._check(destination, width * count)
        pattern = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        self._transfer(transfers.fill(self._context.reach, destination, pattern, count), width * count)

    def _check(self, address: int, count: int) -> None:
        if not count:
            return
        if not 0 < count < _ADDRESS_LIMIT or not 0 <= address < _ADDRESS_LIMIT:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"{count} bytes at {address:#x}")
        try:
            self._context.reach.view(address, count)
        except IllegalAddress as error:
            raise BackendError(Result.ERROR_INVALID_VALUE, str(error)) from None

    def _transfer(self, pieces: Iterator[None], size: int, done: Completion | None = None) -> None:
        operation = Transfer(self._context, self, pieces, self._context.cancel)
        if done is not None:
            operation.callbacks.append(done)
        # With nothing pending in the stream the caller copies in its own thread, and never queues behind a kernel.
        self._context.scheduler.submit(operation, here=size <= _HERE_BYTES)

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
        if not isinstance(module, EmulatedModule) or module.context is not self._context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the module is of another context")
        kernel = module.kernel(function)
        check_launch(self._context.facts.attributes, kernel, grid, block, shared_bytes, len(parameters))
        size = BlockSize(block[0] * block[1] * block[2], kernel.shared_bytes + shared_bytes)
        check_room(self._context, size, grid[0] * grid[1] * grid[2], cooperative)
        workspace = self._context.memory.borrow_workspace() if cooperative else 0
        run = KernelRun(
            self._context,
            self,
            module,
            kernel,
            grid,
            block,
            shared_bytes,
            parameters,
            size,
            cooperative,
            workspace,
        )
        if workspace:
            run.callbacks.append(lambda outcome: self._context.memory.return_workspace(workspace, outcome))
        self._context.scheduler.submit(run)

    def record(self, event: Event) -> None:
        """Make the event stand for this point of the stream."""
        own = self._own(event)
        marker = Marker(self._context, self, self.share)
        self._context.scheduler.submit(marker)
        own.marker = marker

    def wait(self, event: Event) -> None:
        """Later work waits for the event's point."""
        awaited = self._own(event).marker
        if awaited is None:
            self._context.check()
            return
        marker = Marker(self._context, self, self.share)
        marker.also_after = awaited
        self._context.scheduler.submit(marker)

    def _own(self, event: Event) -> EmulatedEvent:
        if not isinstance(event, EmulatedEvent) or event.context is not self._context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the event is of another context")
        return event

    def notify(self, done: Completion) -> None:
        """Call back when all work so far is done."""
        self._context.notify_after(Marker(self._context, self, self.share), done)

    def call_host(self, begin: Completion) -> HostCall:
        """Call back when the stream comes here; it goes on when the call is finished."""
        call = HostCall(self._context, self, self.share)
        call.callbacks.append(begin)
        self._context.scheduler.submit(call)
        return call

    @property
    def idle(self) -> bool:
        """Whether all work so far is done, and all that this stream would wait for."""
        with self._context.scheduler.lock:
            return all(operation.finished for operation in self._context.held_up_by(self))

    def destroy(self) -> None:
        """Forget the stream; the scheduler keeps its work."""


class EmulatedEvent:
    """A point in a stream; ``marker`` is the operation it last recorded."""

    def __init__(self, context: EmulatedContext, timing: bool) -> None:
        self.context = context
        self._timing = timing
        self.marker: Marker | None = None

    @property
    def done(self) -> bool:
        """Whether its point is passed."""
        marker = self.marker
        return marker is None or marker.finished

    def notify(self, done: Completion) -> None:
        """Call back when its point is passed."""
        marker = self.marker
        with self.context.scheduler.lock:
            if marker is not None and not marker.finished:
                marker.callbacks.append(done)
                return
        done(self.context.outcome)

    def milliseconds_since(self, start: Event) -> float:
        """Time between two recorded events, in milliseconds."""
        if not isinstance(start, EmulatedEvent) or start.context is not self.context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the start event is of another context")
        first, last = start.marker, self.marker
        if first is None or last is None or not (start._timing and self._timing):
            raise BackendError(Result.ERROR_INVALID_HANDLE, "an event was not recorded, or is without timing")
        if not (first.finished and last.finished):
            raise BackendError(Result.ERROR_NOT_READY, "an event is not done yet")
        return (last.finished_at - first.finished_at) / 1e6
