"""Memory of one context that has no address of its own, its mappings, and its client's memory on other devices.

A client creates or imports memory, maps it at addresses of its choice, and releases it. `MappedMemory` checks these
calls, their limits and their charges; `virtual_memory.Mappings` has the mappings of all contexts of the client.
"""

import mmap
from collections.abc import Callable
from functools import partial
from typing import Final

from pympsd.channel.descriptors import explain
from pympsd.vocabulary.device_properties import (
    MAPPED_OFFSET,
    MAPPING_GRANULE,
    PINNED_WINDOWS,
    mapped_window_of,
    ordinal_of,
    window_of,
)
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.memory.client_space import ClientSpace
from pympsd_server.backends.emulated.memory.peer_windows import map_errors
from pympsd_server.backends.emulated.memory.virtual_memory import (
    EmulatedMemory,
    ExportablePages,
    PeersPages,
    Storage,
    WindowPages,
)
from pympsd_server.backends.interface import BackendError
from pympsd_server.backends.virtual_memory import Charge, File, PhysicalMemory
from pympsd_server.ptx.isa.faults import OutOfMemory

MAX_HANDLES: Final = 1 << 18
"""The maximum number of handles of memory in one context."""
MAX_MEMORIES: Final = 4096
"""The maximum number of pieces of memory of one client. An exportable piece takes a descriptor of this process."""


class MappedMemory:
    """Memory of one context that its client maps. Calls come from several threads."""

    def __init__(self, client: ClientSpace, check_open: Callable[[], None]) -> None:
        """``check_open`` raises BackendError once the context is closed."""
        self._client: Final = client
        self._check_open: Final = check_open
        self._memories: dict[EmulatedMemory, None] = {}

    def create(self, count: int, shareable: bool, charge: Charge | None = None) -> EmulatedMemory:
        """Return memory without an address, or raise BackendError. With ``charge`` it is host memory."""
        _check_size(count)
        is_of_host = charge is not None
        with self._client.lock:
            self._check_memories()
            discharge = self._charge(count) if charge is None else charge(count)
            try:
                if shareable or is_of_host:
                    storage = self._exportable(count, is_of_host, discharge)
                else:
                    storage = self._allocate_in_window(count, discharge)
            except BackendError:
                discharge()
                raise
            self._client.memories += 1
        self._client.exports.add(storage)
        return self._enter(storage)

    def _charge(self, count: int) -> Callable[[], None]:
        self._client.budget.take(count)
        return partial(self._client.budget.give, count)

    def _exportable(self, count: int, is_of_host: bool, discharge: Callable[[], None]) -> Storage:
        try:
            return ExportablePages(count, is_of_host, partial(self._handle_freed, discharge))
        except OSError as error:
            reason = f"no file for {count} bytes of memory: {explain(error)}"
            raise BackendError(Result.ERROR_OPERATING_SYSTEM, reason) from None

    def _allocate_in_window(self, count: int, discharge: Callable[[], None]) -> Storage:
        space = self._client.space
        try:
            address = space.allocate(count, mmap.PAGESIZE)
        except OutOfMemory as error:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
        pages, file, _ = space.share(address)
        withdrawn = space.withdraw(address)

        def free() -> None:
            space.reclaim(*withdrawn)
            discharge()

        return WindowPages(pages, file, is_shared=False, freed=partial(self._handle_freed, free))

    def _handle_freed(self, discharge: Callable[[], None], storage: Storage) -> None:
        self._client.exports.remove(storage)
        with self._client.lock:
            discharge()
            self._client.memories -= 1

    def _check_own_space(self) -> None:
        self._check_open()
        if self._client.owned is not None:
            reason = "clients that share an address space cannot map memory"
            raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)

    def check_room(self) -> None:
        """Raise BackendError unless the context is open, can map memory, and may hold more of it."""
        self._check_own_space()
        if len(self._memories) >= MAX_HANDLES:
            reason = f"a context holds at most {MAX_HANDLES} pieces of memory"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)

    def _check_memories(self) -> None:
        self.check_room()
        if self._client.memories >= MAX_MEMORIES:
            reason = f"a client has at most {MAX_MEMORIES} pieces of memory to map; create larger ones"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)

    def _enter(self, storage: Storage) -> EmulatedMemory:
        memory = EmulatedMemory(storage, self, lambda released: self._memories.pop(released, None))
        try:
            with self._client.lock:
                self._check_open()
                self._memories[memory] = None
        except BackendError:
            memory.release()
            raise
        return memory

    def import_(self, secret: int) -> EmulatedMemory:
        """Return memory that a client of this device has exported, or raise BackendError INVALID_VALUE."""
        with self._client.lock:
            self.check_room()
        return self._enter(self._client.exports.use(secret))

    def map(self, memory: PhysicalMemory, address: int) -> None:
        """Map memory of one of the client's contexts, or raise BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        assert isinstance(memory, EmulatedMemory)
        with self._client.lock:
            self.check_room()
            self._client.mappings.add(memory, address)

    def unmap(self, address: int, count: int) -> None:
        """Unmap a range of whole mappings, or raise BackendError INVALID_VALUE."""
        with self._client.lock:
            self.check_room()
            unused = self._client.mappings.remove(address, count)
        for storage in unused:
            storage.leave()

    def set_access(self, address: int, count: int, accessible: bool) -> None:
        """Make a range of whole mappings accessible or inaccessible, or raise BackendError INVALID_VALUE."""
        with self._client.lock:
            self.check_room()
            self._client.mappings.set_access(address, count, accessible)

    def publish(self, address: int) -> File:
        """Return the file with the client's allocations, or its host memory, or raise BackendError INVALID_VALUE."""
        with self._client.lock:
            self._check_own_space()
            with map_errors():
                return self._client.space.publish(address)

    def map_peer(self, address: int, process: int, file: File) -> None:
        """Make a client's memory on another device accessible, or raise BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        with self._client.lock:
            self._check_own_space()
            distance = self._distance(address)
            self._client.space.unmap_peer(distance)
            with map_errors():
                self._client.space.map_peer(process, file, distance)

    def import_peers(self, process: int, file: File, count: int) -> EmulatedMemory:
        """Return memory that the client has created on another device; BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        _check_size(count)
        with self._client.lock:
            self._check_memories()
            with map_errors():
                pages = PeersPages(process, file, count, partial(self._handle_freed, lambda: None))
            self._client.memories += 1
        return self._enter(pages)

    def unmap_peer(self, address: int) -> None:
        """Undo `map_peer`, or raise BackendError INVALID_VALUE."""
        with self._client.lock:
            self._check_own_space()
            self._client.space.unmap_peer(self._distance(address))

    def _distance(self, address: int) -> int:
        ordinal, base = ordinal_of(address), self._client.space.base
        is_part = address in (window_of(ordinal), mapped_window_of(ordinal))
        if not is_part or not 0 <= ordinal < PINNED_WINDOWS or base == window_of(ordinal):
            reason = f"{address:#x} is not where memory of another device begins"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        return address - base

    def close(self) -> list[Callable[[], None]]:
        """Unmap all memory. The caller holds the client's lock, and calls the returned functions without it."""
        unused = [storage.leave for storage in self._client.mappings.remove_all_of(self)]
        return unused + [memory.release for memory in tuple(self._memories)]  # others may release some in between


def _check_size(count: int) -> None:
    if not 0 < count < MAPPED_OFFSET or count % MAPPING_GRANULE:
        reason = f"memory of {count} bytes; it must be a multiple of {MAPPING_GRANULE}, below {MAPPED_OFFSET}"
        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
