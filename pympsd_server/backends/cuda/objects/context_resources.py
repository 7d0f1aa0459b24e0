"""Allocations and modules of a context, which are freed when no context of their client can have work that uses them.

A client's contexts share their addresses. The addresses in a request are checked when it is queued, so nothing is
freed until all work that the client had queued before, in any of its contexts, is done.
"""

from collections.abc import Callable
from typing import Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import round_up_to_granules
from pympsd_server.backends.cuda.memory.deferred_free import SiblingContext
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.objects.module import CudaModule, loadable
from pympsd_server.backends.cuda.submission.issue_queue import IssueQueue
from pympsd_server.backends.interface import BackendError, Completion, Status

MAX_ALLOCATIONS: Final = 1 << 18
"""The maximum number of allocations of one context; even a small one costs the executor a few hundred bytes."""


@define(eq=False)
class ContextResources:
    """The resources of one context, for its client's worker, and at the end for the thread that ends the context."""

    _queue: IssueQueue
    _space: ClientSpace
    _services: DeviceServices
    _context: SiblingContext
    _allocations: dict[int, int] = field(factory=dict, init=False)
    """The sizes of the allocations in bytes, by address."""
    _being_freed: set[int] = field(factory=set, init=False)
    _modules: dict[CudaModule, None] = field(factory=dict, init=False)

    @property
    def modules(self) -> tuple[CudaModule, ...]:
        """The loaded modules."""
        return tuple(self._modules)

    # --- memory

    def allocate(self, count: int) -> int:
        """Return the address of new memory, all zero."""
        self._queue.check()
        if count <= 0:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"an allocation of {count} bytes")
        if len(self._allocations) >= MAX_ALLOCATIONS:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"a context holds at most {MAX_ALLOCATIONS} allocations")
        self._space.deferred_free.start_batch()
        address = self._space.allocate(count)
        try:
            self._queue.enter(self._allocations, address, count)
        except BackendError:
            self._space.free(address, count)
            raise
        self._services.counters.add("bytes_allocated", count)
        return address

    def free(self, address: int, done: Completion) -> None:
        """Free memory once the work queued before the call is done, or when a faulted context is destroyed."""
        if self._queue.status.code is not Result.SUCCESS:
            done(self._queue.status)
            return
        if address not in self._allocations or address in self._being_freed:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is not an allocation of this context")
        self._being_freed.add(address)
        try:
            self._call_when_unused(lambda: self._free_now(address), done)
        except BackendError:
            self._being_freed.discard(address)
            raise
        self._space.disown(address)  # work of later requests would not be waited for
        self._space.deferred_free.start_batch()

    def _free_now(self, address: int) -> None:
        count = self._allocations.pop(address, None)  # the context's end may have come first
        self._being_freed.discard(address)
        if count is not None:
            self._space.free(address, count)

    def _call_when_unused(self, act: Callable[[], None], done: Completion) -> None:
        """Call ``done`` when the work queued in this context is done, ``act`` when the client's other work is too."""

        def note_own_work_done(status: Status) -> None:
            if status.code is Result.SUCCESS:
                try:
                    self._space.deferred_free.add(act, self._context)
                except BackendError as error:
                    status = Status(error.code, error.reason)
            done(status)

        self._queue.notify(note_own_work_done)

    # --- modules

    def load(self, image: bytes) -> CudaModule:
        """Load PTX, a cubin or a fatbin; this waits for every kernel that runs on the device."""
        self._queue.check()
        self._space.deferred_free.start_batch()
        code, read = loadable(self._services.driver, image)
        charge = round_up_to_granules(read.device_bytes)
        self._space.take(charge, "a module")  # before it is loaded, because unloading it again would have to wait
        try:
            module = CudaModule(self._queue, self.unload, self._services.driver, code, read)
        except BaseException:
            self._space.give(charge)
            raise
        for address, size in module.variable_ranges.items():
            self._space.own(address, size)
        try:
            self._queue.enter(self._modules, module, None)
        except BackendError:
            self._release(module)
            raise
        self._services.counters.add("modules_loaded")
        return module

    def unload(self, module: CudaModule) -> None:
        """Release a module after the work queued before the call, or when a faulted context is destroyed."""
        self._call_when_unused(lambda: self._drop(module), lambda status: None)
        self._disown(module)
        self._space.deferred_free.start_batch()

    def _drop(self, module: CudaModule) -> None:
        if self._modules.pop(module, module) is None:  # the context's end may have come first
            self._release(module)

    def _disown(self, module: CudaModule) -> None:
        for address in module.variable_ranges:
            self._space.disown(address)

    def _release(self, module: CudaModule) -> None:
        self._disown(module)
        charge, unloaded = round_up_to_granules(module.device_bytes), self._services.unloaded_modules
        if unloaded.has_room(charge):
            self._space.give(charge)
            unloaded.add(charge, module.discard)
            return

        def discard() -> None:
            module.discard()
            self._space.give(charge)

        unloaded.add(charge, discard)

    # --- the context's end

    def release_all(self) -> None:
        """Release everything when other contexts' work allows it; no work of this context may be running."""
        for address in tuple(self._allocations):
            self._space.disown(address)
        for module in self.modules:
            self._disown(module)
        self._space.deferred_free.add(self._free_all, self._context)

    def _free_all(self) -> None:
        for module in self.modules:
            self._drop(module)
        for address in tuple(self._allocations):
            self._free_now(address)
