"""One client context on the device's one context: its objects, and its end.

A real GPU has one context of the driver for all clients of an executor, so a client context is only a set of streams,
modules and allocations with a queue of its own (`IssueQueue`) and a place in its client's address space.

The end is the difficult part, because this device can neither stop a kernel nor contain a fault:

    terminate   no more work; wait for the kernels; free memory     LAUNCH_TIMEOUT after END_SECONDS, may be repeated
    abandon     no more work, without waiting; the time begins
    destroy     abandon, then wait until END_SECONDS have passed; free now, or later by the cleanup thread

A context whose kernels do not end in time stays on the device's list as *unfinished*, with all its memory, until they
have ended; the server then ends the executor if nobody else uses it.

`is_quiet` must be true only if no work of the context runs, neither in a stream nor in a call that a worker is making
(`native_state.active`, the queue's lock). All freeing depends on it.

This backend refuses two optional parts of the port, whose capabilities are false. The executor passes the error that
is raised here to the client:

- Virtual memory management (``maps_virtual_memory``). A client's calls are checked against its own allocations, which
  this backend maps itself, so a client cannot be allowed to map memory.
- Conditional nodes of graphs (``evaluates_conditions``). A kernel's cudaGraphSetConditional refers to a graph of the
  driver, but this backend executes a graph node by node and does not create one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.context_resources import ContextResources
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.objects.event import CudaEvent
from pympsd_server.backends.cuda.objects.green_contexts import Partition
from pympsd_server.backends.cuda.objects.module import CudaModule
from pympsd_server.backends.cuda.objects.stream import CudaStream, create_handle
from pympsd_server.backends.cuda.submission.issue_queue import DESTROYED, IssueQueue
from pympsd_server.backends.interface import BackendError, Completion, ContextLimit, Event, Status
from pympsd_server.backends.virtual_memory import MappableMemory


def _refuse_memory(*arguments: Any, **options: Any) -> NoReturn:
    raise BackendError(Result.ERROR_NOT_SUPPORTED, "clients of this device cannot map memory themselves")


class NoVirtualMemory:
    """The memory that a client maps, on a device where it cannot: every call raises BackendError NOT_SUPPORTED."""

    create = import_ = import_peers = publish = map = unmap = set_access = map_peer = unmap_peer = _refuse_memory


class NoConditions:
    """A context without conditional nodes: every call raises BackendError NOT_SUPPORTED."""

    def _refuse_condition(self, *arguments: Any, **options: Any) -> NoReturn:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "graphs on this device have no conditional nodes")

    condition = call = _refuse_condition


CONTEXT_BYTES: Final = 10 << 20
"""The number of bytes charged for a context without allocations: its first streams take 0.55 MiB each."""
STREAM_BYTES: Final = 576 << 10
_STREAMS_INCLUDED: Final = 16
END_SECONDS: Final = 2.0
"""The time in seconds that ending a context waits for its kernels, which cannot be stopped."""
_POLL_SECONDS: Final = 0.0005


class ContextOwner(Protocol):
    """The part of the device that its contexts use when they end."""

    closed: bool

    @property
    def is_faulted(self) -> bool:
        """Whether a fault makes every call of the driver fail."""

    def fault(self, status: Status) -> None:
        """Give every context the sticky error ``status``."""

    def remove(self, context: CudaContext) -> None:
        """Remove a context that has released everything."""


class CudaContext(NoConditions):
    """A client context, created by CudaDevice. Its work goes through ``queue``."""

    mapped: Final[MappableMemory] = NoVirtualMemory()
    share_allocation = _refuse_memory

    def __init__(
        self,
        owner: ContextOwner,
        services: DeviceServices,
        space: ClientSpace,
        partition: Partition,
        level: int,
        context_id: int,
        on_fault: Callable[[Status], None],
    ) -> None:
        self.space = space
        self.partition = partition
        self.id = context_id
        self.charged = 0
        """The number of bytes that the client was charged for the context without its allocations."""
        self.queue = IssueQueue(on_fault, context_id)
        self.queue.set_timed(services.times.timeline is not None)
        self._owner = owner
        self._services = services
        self._level = level
        self._deadline: float | None = None
        """When ``destroy`` stops waiting for kernels, on the monotonic clock; None until the context is abandoned."""
        self._is_ending = False
        self._resources = ContextResources(self.queue, space, services, self)
        self.default_stream = self._stream(blocking=True, priority=0)
        """The legacy default stream."""
        self.queue.set_default(self.default_stream)

    # --- memory and modules

    def allocate(self, count: int) -> int:
        """Return the address of new memory, all zero."""
        return self._resources.allocate(count)

    def free(self, address: int, done: Completion) -> None:
        """Free memory once the work queued before the call is done, or when a faulted context is destroyed."""
        self._resources.free(address, done)

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        with self.space.lock:
            return self.space.budget.free, self.space.budget.total

    def load_module(self, image: bytes) -> CudaModule:
        """Load PTX, a cubin or a fatbin; this waits for every kernel that runs on the device."""
        return self._resources.load(image)

    # --- streams and events

    def create_stream(self, non_blocking: bool, priority: int) -> CudaStream:
        """Return a new stream."""
        self.queue.check()
        charge = STREAM_BYTES if len(self.queue.streams) >= _STREAMS_INCLUDED else 0
        self.space.take(charge, "a stream")
        try:
            return self._stream(not non_blocking, priority, charge)
        except BaseException:
            self.space.give(charge)
            raise

    def _stream(self, blocking: bool, priority: int, charge: int = 0) -> CudaStream:
        create = partial(create_handle, self._services.driver, self.partition, self._level, priority)
        stream = CudaStream(self.queue, self.space, self._services, create, blocking, charge)
        try:
            self.queue.enter(self.queue.streams, stream, None)
        except BackendError:
            stream.release()
            raise
        return stream

    def create_event(self, timing: bool) -> CudaEvent:
        """Return a new event."""
        self.queue.check()
        return CudaEvent(self.queue, self._services, timing)

    def open_event(self, event: Event) -> Event:
        """Raise BackendError NOT_SUPPORTED, because the recordings of an event belong to its own context's queue."""
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "clients of this device cannot share events")

    def notify(self, done: Completion) -> None:
        """Call back when all work queued in all streams before the call is done."""
        self.queue.notify(done)

    def set_limit(self, limit: ContextLimit, count: int) -> None:
        """Raise BackendError NOT_SUPPORTED, because the driver's limits apply to all clients."""
        reason = "all clients of a GPU work in one context of the driver, so a client cannot set its limits"
        raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)

    def take_output(self) -> tuple[bytes, bytes]:
        """Return nothing, because the driver prints the text of kernels on the executor's own standard output."""
        return b"", b""

    def call_after_work(self, act: Callable[[], None]) -> None:
        """Call ``act`` when the device is done with all work queued before the call, in any state of the context."""

        def done(status: Status) -> None:
            if status.code is Result.SUCCESS:
                act()
            else:  # the context has ended, but its kernels may still run
                self._services.cleanup.add(self.is_quiet, act)

        self.notify(done)

    # --- its end

    @property
    def status(self) -> Status:
        """SUCCESS, or the sticky error of a faulted, terminated or destroyed context."""
        return self.queue.status

    def suspect_kernels(self) -> list[str]:
        """Return the names of the kernels launched last in streams that may have unfinished work."""
        names = {
            int(kernel.handle): kernel.layout.name for module in self._resources.modules for kernel in module.kernels
        }
        busy = [
            stream.native_state.last_function for stream in tuple(self.queue.streams) if not stream.is_known_completed
        ]
        return [names[function] for function in busy if function in names]

    def terminate(self, status: Status) -> None:
        """Accept no more work and free the context's memory.

        Raises:
            BackendError: LAUNCH_TIMEOUT if kernels still run after END_SECONDS.
        """
        if self.status.code is Result.SUCCESS:
            self.queue.close(status)
        if not self._wait_until_quiet(time.monotonic() + END_SECONDS):
            reason = f"kernels of the context still run after {END_SECONDS} s; this device cannot stop them"
            raise BackendError(Result.ERROR_LAUNCH_TIMEOUT, reason)
        if not self._owner.is_faulted:
            self._resources.release_all()

    def abandon(self) -> None:
        """Accept no more work, without waiting. ``destroy`` must follow; its END_SECONDS begin with this call."""
        if self._deadline is None:
            self._deadline = time.monotonic() + END_SECONDS
        self.queue.is_destroyed = True
        self.queue.close(DESTROYED)

    def destroy(self) -> None:
        """Accept no more work and free everything once the work has ended; wait at most END_SECONDS."""
        if self._is_ending:
            return
        self._is_ending = True
        self.abandon()
        assert self._deadline is not None
        if self._wait_until_quiet(self._deadline):
            self.release()
        else:
            self._services.cleanup.add(self.is_quiet, self.release)

    @property
    def is_destroyed(self) -> bool:
        """Whether the context was destroyed; the device keeps it until all its work has ended."""
        return self.queue.is_destroyed

    def is_quiet(self) -> bool:
        """Return whether no work of the context is running; true on a faulted device, because all work has ended."""
        # A worker may be making a call that is not counted yet. The lock keeps streams from being released.
        if self.queue.native_state.active or not self.queue.lock.acquire(blocking=False):
            return False
        try:
            streams = tuple(self.queue.streams)
            return all([stream.is_completed() for stream in streams])  # noqa: C419 - each counts its kernels
        except BackendError as error:
            status = Status(error.code, error.reason)
        finally:
            self.queue.lock.release()
        self._owner.fault(status)
        return True

    def is_drained(self) -> bool:
        """Return whether all work of the context has ended: nothing runs, and nothing is held."""
        # Held work of an ended context is never issued.
        holds = self.queue.order.holds and self.status.code is Result.SUCCESS
        return not holds and self.is_quiet()

    def _wait_until_quiet(self, deadline: float) -> bool:
        while not self.is_quiet():
            if time.monotonic() > deadline or self._owner.closed:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def release(self) -> None:
        """Free all resources, once no work runs; on a faulted device the end of the process releases them."""
        if self._owner.is_faulted:
            self._owner.remove(self)
            return
        for stream in tuple(self.queue.streams):
            stream.discard()
        self.queue.order.drop()
        self._resources.release_all()
        self._owner.remove(self)
