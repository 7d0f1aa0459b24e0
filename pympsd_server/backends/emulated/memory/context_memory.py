"""The allocations of one context in its client's memory, within its budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pympsd.vocabulary.device_facts import MAPPED_OFFSET, MAPPING_GRANULE, PINNED_WINDOWS, window_of
from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import charged
from pympsd_server.backends.emulated.device.programs import Facilities, LoadedModule, Program
from pympsd_server.backends.emulated.memory.address_space import AccessibleMemory, AddressSpace
from pympsd_server.backends.emulated.memory.client_space import ClientSpace
from pympsd_server.backends.emulated.memory.peer_windows import File, refusals
from pympsd_server.backends.emulated.memory.virtual_memory import (
    AllocationPages,
    EmulatedMemory,
    PeersPages,
    PhysicalPages,
    Storage,
)
from pympsd_server.backends.emulated.ptx.faults import OutOfMemory
from pympsd_server.backends.interface import BackendError, Outcome
from pympsd_server.backends.virtual_memory import Charge, PhysicalMemory

ALLOCATION_LIMIT: Final = 1 << 18
"""The most allocations of one context; each costs the executor some hundred bytes, however small it is."""
MEMORY_LIMIT: Final = 4096
"""Pieces of memory to map that one client has: each is a mapping of this process, which may have 65,530."""
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
        self._shared: dict[int, tuple[AllocationPages, int]] = {}
        """The pages of shared allocations, and where they begin in these, by address."""
        self._withdrawn: dict[Storage, tuple[int, int]] = {}
        """Where shared allocations were that are freed and still mapped by others."""
        self._linked: dict[int, LoadedModule] = {}
        """Programs' variables, by the id of what `link` returned."""
        self._memories: dict[EmulatedMemory, None] = {}
        self._closed = False

    @property
    def space(self) -> AddressSpace:
        """The client's memory."""
        return self._client.space

    @property
    def accessible(self) -> AccessibleMemory:
        """The part of it that the client's calls can access."""
        return self._client.accessible

    def used_by_client(self) -> int:
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
            self._check_mapping()
            if address not in self._allocations or address in self._deferred:
                raise BackendError(Result.ERROR_INVALID_VALUE, f"{address:#x} is no allocation of this context")
            shared = self._shared.get(address)
            if shared is None:
                held, file, offset = self.space.share(address)
                count = charged(self._allocations[address])
                pages = AllocationPages(held, file, lambda storage: self._unshared(storage, count))
                shared = self._shared[address] = pages, offset
                self._client.exports.add(pages)
        return shared[0].secret, shared[1]

    def _unshared(self, storage: Storage, count: int) -> None:
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
                self._budget.take(self._charged(loaded), "a module")
            except BackendError:
                loaded.unload()
                raise
            for address in loaded.addresses.values():
                self._client.own(address)
            self._linked[id(loaded)] = loaded
        return loaded

    def _charged(self, loaded: LoadedModule) -> int:
        return sum(charged(self.space.size_of(address)) for address in loaded.addresses.values())

    def unlink(self, loaded: LoadedModule) -> None:
        """Free a program's variables, unless the context was closed meanwhile, which freed everything."""
        with self._client.lock:
            if self._linked.pop(id(loaded), None) is not None:
                self._unlink(loaded)

    def _unlink(self, loaded: LoadedModule) -> None:
        self._budget.give(self._charged(loaded))
        for address in loaded.addresses.values():
            self._client.disown(address)
        loaded.unload()

    def create(self, count: int, shareable: bool, charge: Charge | None) -> EmulatedMemory:
        """Return memory without an address, the host's if that is to be charged; BackendError."""
        if not 0 < count < MAPPED_OFFSET or count % MAPPING_GRANULE:
            reason = f"memory of {count} bytes: it has a multiple of {MAPPING_GRANULE}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        with self._client.lock:
            self._check_memories()
            discharge = self._charge(count) if charge is None else charge(count)
            self._client.memories += 1
        freed = partial(self._created_freed, discharge)
        try:
            storage = PhysicalPages(count, shareable, charge is not None, freed)
        except OSError as error:
            freed(None)
            reason = f"the system has no {count} bytes: {error.strerror}"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason) from None
        self._client.exports.add(storage)
        return self._enter(storage)

    def _check_own_space(self) -> None:
        self._check_open()
        if self._client.owned is not None:
            reason = "no memory is mapped where clients share an address space"
            raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)

    def _check_mapping(self) -> None:
        self._check_own_space()
        if len(self._memories) >= ALLOCATION_LIMIT:
            reason = f"a context holds at most {ALLOCATION_LIMIT} pieces of memory"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)

    def _check_memories(self) -> None:
        self._check_mapping()
        if self._client.memories >= MEMORY_LIMIT:
            reason = f"a client has at most {MEMORY_LIMIT} pieces of memory to map; create larger ones"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)

    def _charge(self, count: int) -> Callable[[], None]:
        self._budget.take(count)
        return partial(self._budget.give, count)

    def _created_freed(self, discharge: Callable[[], None], storage: Storage | None) -> None:
        if storage is not None:
            self._client.exports.remove(storage)
        with self._client.lock:
            discharge()
            self._client.memories -= 1

    def _enter(self, storage: Storage) -> EmulatedMemory:
        memory = EmulatedMemory(storage, self, lambda one: self._memories.pop(one, None))
        with self._client.lock:
            closed = self._closed
            if not closed:
                self._memories[memory] = None
        if closed:
            memory.release()
            self._check_open()
        return memory

    def import_(self, secret: int) -> EmulatedMemory:
        """Return memory that a client of this device has exported; BackendError INVALID_VALUE."""
        with self._client.lock:
            self._check_mapping()
        return self._enter(self._client.exports.use(secret))

    def map(self, memory: PhysicalMemory, address: int) -> None:
        """Map memory of one of the client's contexts; BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        assert isinstance(memory, EmulatedMemory)
        with self._client.lock:
            self._check_mapping()
            self._client.mappings.add(memory, address)

    def unmap(self, address: int, count: int) -> None:
        """Unmap a range of whole mappings; BackendError INVALID_VALUE."""
        with self._client.lock:
            self._check_mapping()
            unused = self._client.mappings.remove(address, count)
        for storage in unused:
            storage.leave()

    def set_access(self, address: int, count: int, accessible: bool) -> None:
        """Make a range of whole mappings accessible, or not; BackendError INVALID_VALUE."""
        with self._client.lock:
            self._check_mapping()
            self._client.mappings.set_access(address, count, accessible)

    def publish(self) -> tuple[int, int]:
        """Return the descriptor of the file with the client's allocations, and its secret; BackendError."""
        with self._client.lock:
            self._check_own_space()
            file = self.space.publish()
        return file.descriptor, file.secret

    def map_peer(self, ordinal: int, process: int, descriptor: int, secret: int) -> None:
        """Make what the client has on another device accessible; BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        with self._client.lock:
            self._check_own_space()
            self.space.unmap_peer(self._distance(ordinal))
            with refusals():
                self.space.map_peer(process, File(descriptor, secret), self._distance(ordinal))

    def import_peers(self, process: int, descriptor: int, secret: int, count: int) -> EmulatedMemory:
        """Return memory that the client has created on another device; BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        if not 0 < count < MAPPED_OFFSET or count % MAPPING_GRANULE:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"memory of {count} bytes")
        with self._client.lock:
            self._check_memories()
            self._client.memories += 1
        try:
            with refusals():
                pages = PeersPages(process, File(descriptor, secret), count, self._peers_freed)
        except BackendError:
            self._peers_freed()
            raise
        return self._enter(pages)

    def _peers_freed(self, storage: Storage | None = None) -> None:
        with self._client.lock:
            self._client.memories -= 1

    def unmap_peer(self, ordinal: int) -> None:
        """Undo `map_peer`; BackendError INVALID_VALUE."""
        with self._client.lock:
            self._check_own_space()
            self.space.unmap_peer(self._distance(ordinal))

    def _distance(self, ordinal: int) -> int:
        distance = window_of(ordinal) - self.space.base
        if not distance or ordinal >= PINNED_WINDOWS:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"device {ordinal} is no peer of this one")
        return distance

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
            shared = [self._release(address) for address in tuple(self._allocations)]
            self._deferred.clear()
            self._budget.give(self._overhead)
            unused = self._client.mappings.remove_all_of(self)
            memories, self._memories = tuple(self._memories), {}
        for storage in filter(None, (*unused, *shared)):
            storage.leave()
        for memory in memories:
            memory.release()
