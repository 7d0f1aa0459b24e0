"""One client context on the emulated device: its memory, modules, streams, and all its unfinished work.

A context belongs to one client process, which may have several on a device; they share its address space. The context
decides in which order its own work runs (`WorkOrder`), the scheduler decides when.

The end of a context has three parts that must not be mixed up:

- A *fault* leaves a sticky error. Every later call returns it, and every pending completion is called with it.
- `abandon` and `destroy` end a context that has not faulted in the same way, with CONTEXT_IS_DESTROYED.
- The context's memory and multiprocessors are free only when it is *at rest*, which means that no thread runs one of
  its items. On a device that cannot stop kernels this may be long after `destroy` has returned, and until then the
  device lists the context. Memory is never freed under a running kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from threading import Event as Flag
from typing import Final

from attrs import define, field

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.context_memory import ContextMemory
from pympsd_server.backends.emulated.device.module import EmulatedModule, load
from pympsd_server.backends.emulated.device.stream import EmulatedEvent, EmulatedStream
from pympsd_server.backends.emulated.scheduling.placement import Placement
from pympsd_server.backends.emulated.scheduling.policy import ContextQueue, weight_of_priority
from pympsd_server.backends.emulated.scheduling.scheduler import Scheduler
from pympsd_server.backends.emulated.scheduling.work_item import Marker, Trace, Transfer, WorkOrder
from pympsd_server.backends.interface import BackendError, Completion, Condition, ContextLimit, Event, Status
from pympsd_server.ptx.runtime.facilities import DeviceHeap, Facilities

STOP_TIMEOUT_SECONDS: Final = 2.0
"""The time in seconds that ending a context waits for its kernels, on a device that cannot stop them."""
_DESTROYED = Status(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")


@define(eq=False, slots=False)
class EmulatedContext:
    """A context of one client, created by EmulatedDevice."""

    properties: DeviceProperties
    scheduler: Scheduler
    memory: ContextMemory
    placement: Placement
    id: int
    """The context's id in traces."""
    trace: Trace
    on_fault: Callable[[Status], None]
    _on_destroyed: Callable[[EmulatedContext], None]
    queue: ContextQueue
    cancel: Flag = field(factory=Flag)
    when_at_rest: Callable[[], None] | None = None
    _abandoned: float = 0.0
    """The time at which the context was abandoned, in seconds of the monotonic clock; 0 if it was not."""
    _is_ending: bool = False
    _status: Status = field(factory=Status)
    modules: dict[EmulatedModule, None] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=lambda: count(1))
    """The source of the numbers for new streams."""

    def __attrs_post_init__(self) -> None:
        self._stop_timeout = None if self.properties.stops_kernels else STOP_TIMEOUT_SECONDS
        client = self.memory.client
        self._facilities = Facilities(
            DeviceHeap(self.memory.borrow_heap), ended=self.cancel, client=client, user=client.user
        )
        self.mapped = self.memory.mapped
        self.default_stream = EmulatedStream(self, weight_of_priority(0), blocking=True)
        """The legacy default stream."""
        self.order = WorkOrder(self.default_stream)

    # --- memory

    def allocate(self, count: int) -> int:
        """Return the address of new memory, all zero."""
        self.check()
        address = self.memory.allocate(count)
        self.trace.add("bytes_allocated", count)
        return address

    def free(self, address: int, done: Completion) -> None:
        """Free memory when the work queued before is done; a faulted context keeps it until it is destroyed."""
        if self.status.code is not Result.SUCCESS:
            done(self.status)
            return
        self.memory.defer_free(address)

        def release(status: Status) -> None:
            if status.code is Result.SUCCESS:
                self.memory.finish_free(address)
            done(status)

        self.notify(release)

    def share_allocation(self, address: int) -> tuple[int, int]:
        """Return the secret of an allocation, and its offset in the memory that is imported."""
        self.check()
        return self.memory.share(address)

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total device memory of the client, in bytes."""
        return self.memory.info()

    # --- modules

    def load_module(self, image: bytes) -> EmulatedModule:
        """Load a module from PTX text, or from a fatbin that contains PTX."""
        self.check()
        program = load(image, self.properties.compute_capability, self._facilities.user)
        module = EmulatedModule(self, program, self.memory.link(program, self.properties, self._facilities))
        self.modules[module] = None
        self.trace.add("modules_loaded")
        return module

    # --- streams and events

    def create_stream(self, non_blocking: bool, priority: int) -> EmulatedStream:
        """Return a new stream."""
        self.check()
        return EmulatedStream(self, weight_of_priority(priority), not non_blocking, next(self._numbers))

    def create_event(self, timing: bool) -> EmulatedEvent:
        """Return a new event."""
        self.check()
        return EmulatedEvent(self, timing)

    def open_event(self, event: Event) -> EmulatedEvent:
        """Return an event of this context that stands for an event of another context."""
        self.check()
        assert isinstance(event, EmulatedEvent)
        return event.open_in(self)

    def notify(self, done: Completion) -> None:
        """Call ``done`` when all work that is queued now, in all streams, is done."""
        self.notify_after(Marker(self, None, self.default_stream.time_share), done)

    def notify_after(self, marker: Marker, done: Completion) -> None:
        """Call ``done`` when a marker is passed, or immediately with the sticky error if the context has faulted."""
        marker.callbacks.append(done)
        try:
            self.scheduler.submit(marker)
        except BackendError:
            done(self.status)

    def set_limit(self, limit: ContextLimit, count: int) -> None:
        """Set a limit in bytes; raise BackendError INVALID_VALUE for the heap after a kernel has called malloc."""
        self.check()
        if limit is ContextLimit.PRINT_BYTES:
            self._facilities.output.limit = count
        elif not self._facilities.heap.set_limit(count):
            reason = "the size of the heap cannot change once a kernel has called malloc"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)

    def condition(self, handle: int) -> Condition:
        """Return the condition that kernels set through a conditional handle."""
        return self._facilities.conditions.get_or_create(handle)

    def call(self, stream: EmulatedStream, pieces: Iterator[None]) -> None:
        """Step through ``pieces`` in stream order, in slices of the compute thread."""
        self.scheduler.submit(Transfer(self, stream, pieces, "transfer"))

    def take_output(self) -> tuple[bytes, bytes]:
        """Return the text that kernels have printed since the last call, for standard output and standard error."""
        return self._facilities.output.take()

    # --- its end

    @property
    def status(self) -> Status:
        """The status of the context: SUCCESS, or the sticky error after a fault."""
        return self._status

    def check(self) -> None:
        """Raise BackendError with the sticky error of a faulted or destroyed context."""
        if self._status.code is not Result.SUCCESS:
            raise BackendError(self._status.code, self._status.reason)

    def mark_faulted(self, status: Status, by_own_work: bool) -> bool:
        """Keep the first error, or that the context was destroyed, and stop kernels; return whether the error is new.

        ``by_own_work``: whether the context's own work faulted. Only this ends kernels that cannot be stopped.
        """
        if by_own_work or self.properties.stops_kernels:
            self.cancel.set()
        if self._status.code is not Result.SUCCESS and status is not _DESTROYED:
            return False
        self._status = status
        return True

    def terminate(self, status: Status) -> None:
        """Stop running work, drop waiting work and free all memory; ``status`` is the sticky error.

        Raises:
            BackendError: LAUNCH_TIMEOUT if kernels that cannot be stopped still run after STOP_TIMEOUT_SECONDS.
        """
        self.scheduler.fault(self, status)
        if not self.scheduler.wait_until_at_rest(self, self._stop_timeout):
            reason = f"kernels of the context still run after {STOP_TIMEOUT_SECONDS} s; this device cannot stop them"
            raise BackendError(Result.ERROR_LAUNCH_TIMEOUT, reason)
        self._free_all()

    def abandon(self) -> None:
        """Accept no more work, and stop the work that can be stopped. ``destroy`` must follow, and ends the rest."""
        self._abandoned = self._abandoned or time.monotonic()
        self.scheduler.fault(self, _DESTROYED)

    def destroy(self) -> None:
        """Stop running work and free everything. Return within a few milliseconds; a second call does nothing.

        If kernels cannot be stopped, return after STOP_TIMEOUT_SECONDS at most. Work that still runs then keeps the
        context's memory and multiprocessors until it has ended, or until a call on a closed device.
        """
        self.abandon()
        if self._is_ending:
            return
        self._is_ending = True
        remaining = (
            None if self._stop_timeout is None else max(0.0, self._abandoned + self._stop_timeout - time.monotonic())
        )
        if self.scheduler.wait_until_at_rest(self, remaining):
            self._release()
        else:
            self.scheduler.call_at_rest(self, self._release)

    @property
    def is_destroyed(self) -> bool:
        """Whether the context was destroyed; the device lists it until all its work has ended."""
        return self._status is _DESTROYED

    def _release(self) -> None:
        self._free_all()
        self._on_destroyed(self)

    def _free_all(self) -> None:
        # A completion of earlier work may still try to free memory, and then does nothing.
        self.modules.clear()
        self.memory.close()
