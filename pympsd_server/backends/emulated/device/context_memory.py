"""The allocations of one context in its client's memory, within its budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import GRANULE_BYTES, charged
from pympsd_server.backends.emulated.memory.address_space import AccessibleMemory, AddressSpace
from pympsd_server.backends.emulated.memory.client_space import ClientSpace
from pympsd_server.backends.emulated.memory.mapped_memory import MappedMemory
from pympsd_server.backends.emulated.memory.virtual_memory import Storage, WindowPages
from pympsd_server.backends.emulated.ptx.isa.faults import OutOfMemory
from pympsd_server.backends.emulated.ptx.loading.linking import LoadedModule
from pympsd_server.backends.emulated.ptx.loading.program import Program
from pympsd_server.backends.emulated.ptx.runtime.facilities import Facilities
from pympsd_server.backends.interface import BackendError, Outcome

ALLOCATION_LIMIT: Final = 1 << 18
"""The most allocations of one context; each costs the executor some hundred bytes, however small it is."""
WORKSPACE_BYTES: Final = 8
"""Two words, a size and the barrier's count, as the grid synchronisation of cooperative groups expects them."""


class ContextMemory:
    """The allocations of one context. Calls come from several threads; kernels read the space without the lock."""

    def __init__(self, client: ClientSpace, overhead: int, context: str) -> None:
        """Take the context's own ``overhead`` in bytes; OUT_OF_MEMORY says what ``context`` it was for."""
        self._client = client
        self._budget = client.budget
        self._overhead = overhead
        with client.lock:
            self._budget.take(overhead, context)
        self._allocations: dict[int, int] = {}
        self._deferred: set[int] = set()
        self._shared: dict[int, tuple[WindowPages, int]] = {}
        """The pages of shared allocations, and where they begin in these, by address."""
        self._withdrawn: dict[Storage, tuple[int, int]] = {}
        """Where shared allocations were that are freed and still mapped by others."""
        self._linked: dict[int, LoadedModule] = {}
        """Programs' variables, by the id of what `link` returned."""
        self._closed = False
        self.mapped: Final = MappedMemory(client, self._check_open)
        """Its memory that has no address of its own, and what it maps."""

    @property
    def space(self) -> AddressSpace:
        """The client's memory."""
        return self._client.space

    @property
    def accessible(self) -> AccessibleMemory:
        """The part of it that the client's calls can access."""
        return self._client.accessible

    def bytes_of_client(self) -> int:
        """Return the bytes that its client holds, in all its contexts on the device."""
        return self._budget.used

    def allocate(self, count: int) -> int:
        """Return the address of ``count`` new bytes; BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        if count <= 0:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"an allocation of {count} bytes")
        with self._client.lock:
            self._check_open()
            if len(self._allocations) >= ALLOCATION_LIMIT:
                reason = f"a context holds at most {ALLOCATION_LIMIT} allocations"
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
            self._budget.take(charged(count))
            try:
                address = self.space.allocate(count)
            except OutOfMemory as error:
                self._budget.give(charged(count))
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
            self._allocations[address] = count
            self._client.own(address)
        return address

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")

    def defer_free(self, address: int) -> None:
        """Note that an allocation will be freed; BackendError INVALID_VALUE unless it is one, once."""
        with self._client.lock:
            if address not in self._allocations or address in self._deferred:
                raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is no allocation of this context")
            self._deferred.add(address)

    def finish_free(self, address: int) -> None:
        """Free an allocation of ``defer_free``, unless the context was closed meanwhile, which freed everything."""
        with self._client.lock:
            self._deferred.discard(address)
            # Another client of the same space may have the address by now.
            unused = self._release(address) if address in self._allocations else None
        if unused is not None:
            unused.leave()

    def _release(self, address: int) -> Storage | None:
        """Free an allocation; return what the caller leaves, without the lock, if it was shared."""
        self._client.disown(address)
        count = self._allocations.pop(address)
        shared = self._shared.pop(address, None)
        if shared is None:
            self.space.free(address)
            self._budget.give(charged(count))
            return None
        self._client.exports.remove(shared[0])
        self._withdrawn[shared[0]] = self.space.withdraw(address)
        return shared[0]

    def share(self, address: int) -> tuple[int, int]:
        """Return the secret of an allocation, and where it begins in what is imported; BackendError."""
        with self._client.lock:
            self.mapped.check_room()
            if address not in self._allocations or address in self._deferred:
                raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is no allocation of this context")
            shared = self._shared.get(address)
            if shared is None:
                memory, file, offset = self.space.share(address)
                count = charged(self._allocations[address])
                pages = WindowPages(
                    memory, file, is_shared=True, freed=lambda storage: self._end_sharing(storage, count)
                )
                shared = self._shared[address] = pages, offset
                self._client.exports.add(pages)
        return shared[0].secret, shared[1]

    def _end_sharing(self, storage: Storage, count: int) -> None:
        with self._client.lock:
            self.space.reclaim(*self._withdrawn.pop(storage))
            self._budget.give(count)

    def borrow_heap(self, count: int) -> int:
        """Return the address of memory for kernels' malloc, 0 if there is no room; no call can free it."""
        try:
            return self._borrow(count)
        except BackendError:
            return 0

    def borrow_workspace(self) -> int:
        """Return the address of zeros with which the blocks of a cooperative launch meet; no call can free it."""
        return self._borrow(WORKSPACE_BYTES)

    def _borrow(self, count: int) -> int:
        address = self.allocate(count)
        self.defer_free(address)
        return address

    def return_workspace(self, address: int, outcome: Outcome) -> None:
        """Free the workspace of a launch that has ended; a poisoned context's is freed when it is destroyed."""
        if outcome.code is Result.SUCCESS:
            self.finish_free(address)

    def link(self, program: Program, multiprocessors: int, facilities: Facilities) -> LoadedModule:
        """Place a program's variables; BackendError OUT_OF_MEMORY if they do not fit."""
        with self._client.lock:
            self._check_open()
            try:
                loaded = LoadedModule(program, self.space, multiprocessors, facilities)
            except OutOfMemory as error:
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
            try:
                self._budget.take(self._charge_of(loaded), "a module")
            except BackendError:
                loaded.unload()
                raise
            for address in loaded.allocations:
                self._client.own(address)
            self._linked[id(loaded)] = loaded
        return loaded

    def place_managed(self, loaded: LoadedModule, addresses: Mapping[str, int]) -> None:
        """Move managed variables of a program to the client's page-locked memory, and free where they were."""
        with self._client.lock:
            self._check_open()
            self._budget.give(self._charge_of(loaded))
            for address in loaded.allocations:
                self._client.disown(address)
            loaded.place_managed(addresses)
            self._budget.take(self._charge_of(loaded), "a module")
            for address in loaded.allocations:
                self._client.own(address)

    def _charge_of(self, loaded: LoadedModule) -> int:
        return sum(charged(self.space.size_of(address)) for address in loaded.allocations)

    def unlink(self, loaded: LoadedModule) -> None:
        """Free a program's variables, unless the context was closed meanwhile, which freed everything."""
        with self._client.lock:
            if self._linked.pop(id(loaded), None) is not None:
                self._unlink(loaded)

    def _unlink(self, loaded: LoadedModule) -> None:
        self._budget.give(self._charge_of(loaded))
        for address in loaded.allocations:
            self._client.disown(address)
        loaded.unload()

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        with self._client.lock:
            return self._budget.free, self._budget.total

    def close(self) -> None:
        """Free all its memory, once; a later call gets CONTEXT_IS_DESTROYED."""
        with self._client.lock:
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
"""A context costs 28 MiB and 3.68 MiB for every multiprocessor it may use, until it is destroyed.

Measured on an H200 with driver 580 for limits of 10 to 132 SMs (65 to 514 MiB, on this line within 1 MiB): what a
limit leaves in pieces of 16 MiB is the same here. Other models are made to cost the same.
"""
SHARED_CONTEXT_OVERHEAD_BYTES: Final = 8 << 20
"""What a context costs before Volta, where all clients share the one context of their server."""


def context_overhead(facts: DeviceFacts, multiprocessors: int) -> int:
    """Return the bytes that a context on this number of multiprocessors costs by itself."""
    if not facts.is_volta_or_newer:
        return SHARED_CONTEXT_OVERHEAD_BYTES
    return FIXED_OVERHEAD_BYTES + multiprocessors * MULTIPROCESSOR_OVERHEAD_BYTES
