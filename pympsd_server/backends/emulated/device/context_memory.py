"""The allocations of one context in its client's memory, within its budget.

The address space belongs to a client process, the allocations in it to its contexts. `ContextMemory` connects the
two: it charges every allocation to the client's budget, remembers which allocations are the context's, and frees all
of them when the context ends, whatever the program forgot.

Freeing takes two steps, because kernels that were launched earlier may still use the memory. `defer_free` checks the
address and marks it, so that a second free is refused immediately; `finish_free` is called when the work that was
queued before is done. A context that has faulted or ended frees nothing separately: `close` frees everything once the
context is at rest.

    cuMemFree ──▶ defer_free (checked, marked) ──▶ ... earlier kernels end ... ──▶ finish_free (given back)

Shared allocations (cuIpcGetMemHandle) end differently. When the owner frees one, the owner cannot access it any more,
but its pages and addresses stay until the last process has closed its mapping.

Invariants: an allocation is charged to the budget before it exists, and until it is gone, so the sum is never too
small. Every method takes the client's lock; kernels never do. Callbacks that leave shared storage are called without
the lock, because the last user of a storage takes the lock again.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from pympsd.vocabulary.device_properties import MAPPING_GRANULE, DeviceProperties
from pympsd.vocabulary.occupancy import WARP_THREADS, multiprocessor_capacity
from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import GRANULE_BYTES, round_up_to_granules
from pympsd_server.backends.emulated.memory.address_space import AccessibleMemory, AddressSpace
from pympsd_server.backends.emulated.memory.client_space import ClientSpace
from pympsd_server.backends.emulated.memory.mapped_memory import MappedMemory
from pympsd_server.backends.emulated.memory.virtual_memory import Storage, WindowPages
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.ptx.isa.faults import OutOfMemory
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.loading.program import Program
from pympsd_server.ptx.runtime.facilities import Facilities

MAX_ALLOCATIONS: Final = 1 << 18
"""The maximum number of allocations of one context; even a small one costs the executor a few hundred bytes."""
WORKSPACE_BYTES: Final = 8
"""The size in bytes of the workspace of a cooperative launch.

It has two words, a size and the count of the barrier, as the grid synchronisation of cooperative groups expects.
"""


class ContextMemory:
    """The allocations of one context. Calls come from several threads; kernels read the space without the lock."""

    def __init__(self, client: ClientSpace, overhead: int, context: str) -> None:
        """Charge ``overhead`` bytes for the context itself; ``context`` names it in an OUT_OF_MEMORY error."""
        self.client = client
        self._budget = client.budget
        self._overhead = overhead
        with client.lock:
            self._budget.take(overhead, context)
        self._allocations: dict[int, int] = {}
        self._deferred: set[int] = set()
        self._shared: dict[int, tuple[WindowPages, int]] = {}
        """The pages of each shared allocation and the offset in them in bytes, by the allocation's address."""
        self._withdrawn: dict[Storage, tuple[int, int]] = {}
        """The ranges of shared allocations that were freed while others map them."""
        self._linked: dict[int, LoadedModule] = {}
        """The results of `link`, by the results' id()."""
        self._closed = False
        self.mapped: Final = MappedMemory(client, self._check_open)
        """The context's memory that has no address of its own, and its mappings."""

    @property
    def space(self) -> AddressSpace:
        """The client's memory."""
        return self.client.space

    @property
    def accessible(self) -> AccessibleMemory:
        """The part of the client's memory that its calls can access."""
        return self.client.accessible

    def bytes_of_client(self) -> int:
        """Return the bytes that the client holds in all its contexts on the device."""
        return self._budget.used

    def allocate(self, count: int) -> int:
        """Return the address of ``count`` new bytes, or raise BackendError INVALID_VALUE or OUT_OF_MEMORY."""
        if count <= 0:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"an allocation of {count} bytes")
        with self.client.lock:
            self._check_open()
            if len(self._allocations) >= MAX_ALLOCATIONS:
                reason = f"a context holds at most {MAX_ALLOCATIONS} allocations"
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
            self._budget.take(round_up_to_granules(count))
            try:
                address = self._place(count)
            except OutOfMemory as error:
                self._budget.give(round_up_to_granules(count))
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
            self._allocations[address] = count
            self.client.own(address)
        return address

    def _place(self, count: int) -> int:
        """Return the address of new bytes; raise OutOfMemory.

        If they fill at least half of a GPU's page, they begin at the start of a page if possible. Drivers do this,
        too, and some programs divide a large allocation into pages.
        """
        if count >= MAPPING_GRANULE // 2:
            with suppress(OutOfMemory):
                return self.space.allocate(count, MAPPING_GRANULE)
        return self.space.allocate(count)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")

    def defer_free(self, address: int) -> None:
        """Note that an allocation will be freed; raise BackendError INVALID_VALUE if it does not exist (any more)."""
        with self.client.lock:
            if address not in self._allocations or address in self._deferred:
                raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is not an allocation of this context")
            self._deferred.add(address)

    def finish_free(self, address: int) -> None:
        """Free an allocation after ``defer_free``, unless closing the context has freed everything in between."""
        with self.client.lock:
            self._deferred.discard(address)
            # After closing, another client of the same space may have the address.
            unused = self._release(address) if address in self._allocations else None
        if unused is not None:
            unused.leave()

    def _release(self, address: int) -> Storage | None:
        """Free an allocation. If it was shared, return its storage, which the caller must leave without the lock."""
        self.client.disown(address)
        count = self._allocations.pop(address)
        shared = self._shared.pop(address, None)
        if shared is None:
            self.space.free(address)
            self._budget.give(round_up_to_granules(count))
            return None
        self.client.exports.remove(shared[0])
        self._withdrawn[shared[0]] = self.space.withdraw(address)
        return shared[0]

    def share(self, address: int) -> tuple[int, int]:
        """Return the secret of an allocation, and its offset in the imported memory; raise BackendError."""
        with self.client.lock:
            self.mapped.check_room()
            if address not in self._allocations or address in self._deferred:
                raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is not an allocation of this context")
            shared = self._shared.get(address)
            if shared is None:
                memory, file, offset = self.space.share(address)
                count = round_up_to_granules(self._allocations[address])
                pages = WindowPages(
                    memory, file, is_shared=True, freed=lambda storage: self._end_sharing(storage, count)
                )
                shared = self._shared[address] = pages, offset
                self.client.exports.add(pages)
        return shared[0].secret, shared[1]

    def _end_sharing(self, storage: Storage, count: int) -> None:
        with self.client.lock:
            self.space.reclaim(*self._withdrawn.pop(storage))
            self._budget.give(count)

    def borrow_heap(self, count: int) -> int:
        """Return the address of memory for kernels' malloc, which no call can free; 0 if there is not enough."""
        try:
            return self._borrow(count)
        except BackendError:
            return 0

    def borrow_workspace(self) -> int:
        """Return the address of a zeroed workspace for the blocks of a cooperative launch; no call can free it."""
        return self._borrow(WORKSPACE_BYTES)

    def _borrow(self, count: int) -> int:
        address = self.allocate(count)
        self.defer_free(address)
        return address

    def return_workspace(self, address: int, status: Status) -> None:
        """Free the workspace of a launch that has ended; a faulted context keeps it until it is destroyed."""
        if status.code is Result.SUCCESS:
            self.finish_free(address)

    def link(self, program: Program, properties: DeviceProperties, facilities: Facilities) -> LoadedModule:
        """Place a program's variables; raise BackendError OUT_OF_MEMORY if they do not fit."""
        _, threads, _ = multiprocessor_capacity(properties.attributes)
        figures = properties.multiprocessors, facilities, threads // WARP_THREADS
        with self.client.lock:
            self._check_open()
            try:
                loaded = LoadedModule(program, self.space, *figures)
            except OutOfMemory as error:
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
            try:
                self._budget.take(self._charge_of(loaded), "a module")
            except BackendError:
                loaded.unload()
                raise
            for address in loaded.allocations:
                self.client.own(address)
            self._linked[id(loaded)] = loaded
        return loaded

    def place_managed(self, loaded: LoadedModule, addresses: Mapping[str, int], *, is_in_use: bool) -> None:
        """Move managed variables of a program to the client's page-locked memory, and free their earlier place."""
        with self.client.lock:
            self._check_open()
            self._budget.give(self._charge_of(loaded))
            for address in loaded.allocations:
                self.client.disown(address)
            loaded.place_managed(addresses, is_in_use=is_in_use)
            self._budget.take(self._charge_of(loaded), "a module")
            for address in loaded.allocations:
                self.client.own(address)

    def _charge_of(self, loaded: LoadedModule) -> int:
        return sum(round_up_to_granules(self.space.size_of(address)) for address in loaded.allocations)

    def unlink(self, loaded: LoadedModule) -> None:
        """Free a program's variables, unless closing the context has freed everything in between."""
        with self.client.lock:
            if self._linked.pop(id(loaded), None) is not None:
                self._unlink(loaded)

    def _unlink(self, loaded: LoadedModule) -> None:
        self._budget.give(self._charge_of(loaded))
        for address in loaded.allocations:
            self.client.disown(address)
        loaded.unload()

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        with self.client.lock:
            return self._budget.free, self._budget.total

    def close(self) -> None:
        """Free all memory of the context. Later allocations get CONTEXT_IS_DESTROYED; a second call has no effect."""
        with self.client.lock:
            if self._closed:
                return
            self._closed = True
            while self._linked:
                self._unlink(self._linked.popitem()[1])
            shared = filter(None, map(self._release, tuple(self._allocations)))
            unused = [storage.leave for storage in shared]
            self._deferred.clear()
            self._budget.give(self._overhead)
            unused += self.mapped.close()
        for leave in unused:
            leave()


FIXED_OVERHEAD_BYTES: Final = 28 << 20
MULTIPROCESSOR_OVERHEAD_BYTES: Final = 7537 * GRANULE_BYTES
"""The bytes that a context costs for each SM that it may use, in addition to 28 MiB, until it is destroyed.

Measured on an H200 with driver 580 for limits of 10 to 132 SMs: 65 to 514 MiB, within 1 MiB of this sum. So a memory
limit leaves as many pieces of 16 MiB here as on an H200. On other emulated models a context costs the same.
"""
SHARED_CONTEXT_OVERHEAD_BYTES: Final = 8 << 20
"""The bytes that a context costs before Volta, where all clients share the one context of their server."""


def context_overhead(properties: DeviceProperties, multiprocessors: int) -> int:
    """Return the bytes that a context on this number of multiprocessors costs without any allocation."""
    if not properties.is_volta_or_newer:
        return SHARED_CONTEXT_OVERHEAD_BYTES
    return FIXED_OVERHEAD_BYTES + multiprocessors * MULTIPROCESSOR_OVERHEAD_BYTES
