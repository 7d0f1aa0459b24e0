"""What a context holds: allocations and modules. They go when no context of their client can be at work on them.

A client's contexts share their addresses. What a call is given is checked when it is queued, so nothing goes before
all is done that the client had queued by then, in whichever of its contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import charged
from pympsd_server.backends.cuda.objects.module import CudaModule, loadable
from pympsd_server.backends.interface import BackendError, Completion, Outcome

if TYPE_CHECKING:
    from pympsd_server.backends.cuda.objects.context import CudaContext

ALLOCATION_LIMIT: Final = 1 << 18
"""Allocations one context may hold; each costs the executor some hundred bytes, however small it is."""


class Holdings:
    """Of one context. Used by its client's worker, and at the end by whoever ends the context."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._device = context.device
        self._space = context.space
        self._allocations: dict[int, int] = {}
        """With their sizes."""
        self._retired: set[int] = set()
        self._modules: dict[CudaModule, None] = {}

    @property
    def modules(self) -> tuple[CudaModule, ...]:
        """Those that are loaded."""
        return tuple(self._modules)

    # --- memory

    def allocate(self, count: int) -> int:
        """Return the address of new memory, all zero."""
        self._context.check()
        if count <= 0:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"an allocation of {count} bytes")
        if len(self._allocations) >= ALLOCATION_LIMIT:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, f"a context holds at most {ALLOCATION_LIMIT} allocations")
        self._space.retired.ask()
        address = self._space.allocate(count)
        try:
            self._context.enter(self._allocations, address, count)
        except BackendError:
            self._space.free(address, count)
            raise
        self._device.counters.add("bytes_allocated", count)
        return address

    def free(self, address: int, done: Completion) -> None:
        """Take memory back once the work so far is done; a ruined context's goes when it is destroyed."""
        context = self._context
        if context.outcome.code is not Result.SUCCESS:
            done(context.outcome)
            return
        if address not in self._allocations or address in self._retired:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is no allocation of this context")
        self._retired.add(address)
        try:
            self._when_unused(lambda: self._give_back(address), done)
        except BackendError:
            self._retired.discard(address)
            raise
        self._space.disown(address)  # later calls would come after what it waits for
        self._space.retired.ask()

    def _give_back(self, address: int) -> None:
        count = self._allocations.pop(address, None)  # the context's end may have come first
        self._retired.discard(address)
        if count is not None:
            self._space.free(address, count)

    def _when_unused(self, act: Callable[[], None], done: Completion) -> None:
        """Call ``act`` once all work so far of the client is done, and ``done`` as this context's ``notify`` does."""

        def own(outcome: Outcome) -> None:
            if outcome.code is Result.SUCCESS:
                try:
                    self._space.retired.add(act, self._context)
                except BackendError as error:
                    outcome = Outcome(error.code, error.reason)
            done(outcome)

        self._context.notify(own)

    # --- modules

    def load(self, image: bytes) -> CudaModule:
        """Load PTX, a cubin or a fatbin; this waits for every kernel that runs on the device."""
        self._context.check()
        self._space.retired.ask()
        code, read = loadable(self._device.driver, image)
        charge = charged(read.device_bytes)
        self._space.take(charge, "a module")  # before it is there: to let it go again would have to wait
        try:
            module = CudaModule(self._context, self._device.driver, code, read)
        except BaseException:
            self._space.give(charge)
            raise
        for address, size in module.places.items():
            self._space.own(address, size)
        try:
            self._context.enter(self._modules, module, None)
        except BackendError:
            self._let_go(module)
            raise
        self._device.counters.add("modules_loaded")
        return module

    def unload(self, module: CudaModule) -> None:
        """Let a module go after the work so far; a ruined context's goes when it is destroyed."""
        self._when_unused(lambda: self._drop(module), lambda outcome: None)
        self._disown(module)
        self._space.retired.ask()

    def _drop(self, module: CudaModule) -> None:
        if self._modules.pop(module, module) is None:  # the context's end may have come first
            self._let_go(module)

    def _disown(self, module: CudaModule) -> None:
        for address in module.places:
            self._space.disown(address)

    def _let_go(self, module: CudaModule) -> None:
        self._disown(module)
        charge, left = charged(module.device_bytes), self._device.left_modules
        if left.have_room(charge):
            self._space.give(charge)
            left.add(charge, module.discard)
            return

        def discard() -> None:
            module.discard()
            self._space.give(charge)

        left.add(charge, discard)

    # --- its end

    def give_all_back(self) -> None:
        """Nothing of the context is under way: let go of everything, at once or after other contexts' work."""
        for address in tuple(self._allocations):
            self._space.disown(address)
        for module in self.modules:
            self._disown(module)
        self._space.retired.add(self._free_all, self._context)

    def _free_all(self) -> None:
        for module in self.modules:
            self._drop(module)
        for address in tuple(self._allocations):
            self._give_back(address)
