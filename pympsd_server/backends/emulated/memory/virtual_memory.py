"""Memory without an address of its own, and a client's mappings of it (CUDA driver API, Virtual Memory Management).

The memory consists of shared pages, which are mapped again where a client maps them. They cost nothing until touched.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import Final

from attrs import define, field, frozen

from pympsd.channel.mapping import make_sealed, open_sealed
from pympsd.vocabulary.device_properties import MAPPED_OFFSET, MAPPING_GRANULE, VIRTUAL_OFFSET
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.memory.address_space import AddressSpace
from pympsd_server.backends.emulated.memory.peer_windows import MAX_MAPPINGS
from pympsd_server.backends.interface import BackendError
from pympsd_server.backends.virtual_memory import File, file_name, new_secret


class Storage(ABC):
    """Pages that clients map, freed when their last user leaves. Their creator is the first user. Thread-safe."""

    def __init__(self, size: int, secret: int, freed: Callable[[Storage], None]) -> None:
        """``freed`` is called when the pages are freed."""
        self.size: Final = size
        self.is_of_host = False
        """Whether the pages are host memory, not device memory."""
        self.secret: Final = secret
        """The secret under which processes import the pages; 0 if they cannot be imported."""
        self._on_freed: Final = freed
        self._lock: Final = Lock()
        self._users = 1

    @abstractmethod
    def place(self, space: AddressSpace, address: int) -> None:
        """Map the pages in an address space, not accessible yet. Raises OSError."""

    def duplicate(self) -> int:
        """Return a new descriptor of the pages; raise OSError, or BackendError INVALID_VALUE if they have none."""
        raise _invalid("the memory was not created to be exported")

    def publish(self) -> File:
        """Return the file of the pages. Raises BackendError INVALID_VALUE if they have none."""
        raise _invalid("the memory was not created to be exported")

    def use(self) -> bool:
        """Count one more user, unless the last one has left; return whether it was counted."""
        with self._lock:
            self._users += bool(self._users)
            return bool(self._users)

    def leave(self) -> None:
        """Count one user less; the last one frees the pages."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._close()
        self._on_freed(self)

    @abstractmethod
    def _close(self) -> None:
        """Release the pages in this process."""


class _FilePages(Storage):
    """Pages of a file for which the object has its own descriptor."""

    def __init__(self, file: File, size: int, secret: int, freed: Callable[[Storage], None]) -> None:
        super().__init__(size, secret, freed)
        self._file: Final = file

    def place(self, space: AddressSpace, address: int) -> None:
        """Map the pages in an address space."""
        space.place_file(address, self._file, self.size)

    def _close(self) -> None:
        os.close(self._file.descriptor)


class ExportablePages(_FilePages):
    """The pages of memory that other processes may import, or of host memory, which the program maps."""

    def __init__(self, size: int, is_of_host: bool, freed: Callable[[Storage], None]) -> None:
        """Create the file; raise OSError."""
        secret = new_secret()
        super().__init__(File(make_sealed(file_name(secret), size), secret), size, secret, freed)
        self.is_of_host = is_of_host

    def publish(self) -> File:
        """Return the file."""
        return self._file

    def duplicate(self) -> int:
        """Return a new descriptor of the file."""
        return os.dup(self._file.descriptor)


class PeersPages(_FilePages):
    """The pages of memory on another device."""

    def __init__(self, process: int, file: File, size: int, freed: Callable[[Storage], None]) -> None:
        """Open a file of another executor; raise OSError or ValueError."""
        fd = open_sealed(process, file.descriptor, file_name(file.secret), file.offset + size)
        super().__init__(File(fd, file.secret, file.offset), size, 0, freed)


class WindowPages(Storage):
    """Whole pages of a client's window for one piece of memory without an address, or for a shared allocation.

    A shared allocation begins in the first page.
    """

    def __init__(self, pages: memoryview, file: File, is_shared: bool, freed: Callable[[Storage], None]) -> None:
        """``file``: where other executors find the pages."""
        size = -(-pages.nbytes // MAPPING_GRANULE) * MAPPING_GRANULE
        super().__init__(size, new_secret() if is_shared else 0, freed)
        self._pages: memoryview | None = pages
        self._file: Final = file

    def place(self, space: AddressSpace, address: int) -> None:
        """Map the pages in an address space; the rest of the last granule keeps the space's own pages."""
        assert self._pages is not None
        space.place(address, self._pages, self._file)

    def publish(self) -> File:
        """Return the file; raise BackendError INVALID_VALUE for a shared allocation."""
        # A process that imports a shared allocation must not get the secret of the client's window.
        return super().publish() if self.secret else self._file

    def _close(self) -> None:
        self._pages = None


class Exports:
    """The storage of one device that can be imported, by secret. Safe to use from several threads."""

    def __init__(self) -> None:
        self._by_secret: dict[int, Storage] = {}

    def add(self, storage: Storage) -> None:
        """Add storage, if it can be exported."""
        if storage.secret:
            self._by_secret[storage.secret] = storage

    def remove(self, storage: Storage) -> None:
        """Remove freed storage."""
        self._by_secret.pop(storage.secret, None)

    def use(self, secret: int) -> Storage:
        """Return storage after counting one more user of it, or raise BackendError INVALID_VALUE."""
        storage = self._by_secret.get(secret)
        if storage is None or not storage.use():
            raise _invalid("the descriptor does not refer to memory of this device that is still in use")
        return storage


@define(eq=False)
class EmulatedMemory:
    """A context's handle for storage. The handle is one of the storage's users."""

    storage: Storage
    owner: object
    _released: Callable[[EmulatedMemory], None]
    _is_released: bool = field(default=False, init=False)

    @property
    def size(self) -> int:
        """The size of the memory in bytes."""
        return self.storage.size

    @property
    def is_of_host(self) -> bool:
        """Whether this is host memory."""
        return self.storage.is_of_host

    def export(self) -> int:
        """Return a new descriptor by which another process can import the memory; raise BackendError."""
        try:
            return self.storage.duplicate()
        except OSError as error:
            reason = f"the executor cannot make a descriptor for the memory: {error.strerror}"
            raise BackendError(Result.ERROR_OPERATING_SYSTEM, reason) from None

    def publish(self) -> File:
        """Return the file in which other executors find the memory, or raise BackendError INVALID_VALUE."""
        return self.storage.publish()

    def release(self) -> None:
        """Free the memory as soon as it is not mapped anywhere; a second call has no effect."""
        if not self._is_released:
            self._is_released = True
            self._released(self)
            self.storage.leave()


@frozen(eq=False)
class _Mapping:
    """Storage that one context has mapped at an address."""

    start: int
    storage: Storage
    owner: object

    @property
    def end(self) -> int:
        """The first address after the mapping."""
        return self.start + self.storage.size


@define(eq=False)
class Mappings:
    """The mappings of one client in its address space. The callers hold its lock."""

    space: AddressSpace
    _by_start: dict[int, _Mapping]

    @classmethod
    def of(cls, space: AddressSpace) -> Mappings:
        """Return the empty mappings of a new address space."""
        return cls(space, {})

    def add(self, memory: EmulatedMemory, address: int) -> None:
        """Map memory at an address, or raise BackendError INVALID_VALUE or OUT_OF_MEMORY."""
        mapping = _Mapping(address, memory.storage, memory.owner)
        low, high = self.space.base + VIRTUAL_OFFSET, self.space.base + MAPPED_OFFSET
        if address % MAPPING_GRANULE or not low <= address or mapping.end > high:
            raise _invalid(f"nothing can be mapped at {address:#x}")
        if any(other.start < mapping.end and address < other.end for other in self._by_start.values()):
            raise _invalid(f"something is mapped at {address:#x}, or within {mapping.storage.size} bytes from it")
        if len(self._by_start) >= MAX_MAPPINGS:
            reason = f"a client has at most {MAX_MAPPINGS} mappings; unmap some, or map larger memory"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
        try:
            mapping.storage.place(self.space, address)
        except OSError as error:
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY, f"the system refuses another mapping: {error.strerror}"
            ) from None
        mapping.storage.use()  # the handle counts as another user of the memory
        self._by_start[address] = mapping

    def _find_within(self, address: int, count: int) -> list[_Mapping]:
        """Return the mappings in a range; raise BackendError INVALID_VALUE if it has gaps or cuts one."""
        mappings, at = [], address
        while at < address + count:
            mapping = self._by_start.get(at)
            if mapping is None or mapping.end > address + count:
                raise _invalid(f"{count} bytes at {address:#x} are not whole mappings")
            mappings.append(mapping)
            at = mapping.end
        if not mappings:
            raise _invalid(f"a range of {count} bytes; it must have at least one mapping")
        return mappings

    def remove(self, address: int, count: int) -> list[Storage]:
        """Unmap a range of whole mappings, and return their storage, which the caller must leave without the lock.

        Raise BackendError INVALID_VALUE if the range has gaps or cuts a mapping.
        """
        return [self._remove(mapping) for mapping in self._find_within(address, count)]

    def _remove(self, mapping: _Mapping) -> Storage:
        del self._by_start[mapping.start]
        self.space.set_accessible(mapping.start, mapping.storage.size, False)
        self.space.clear(mapping.start, mapping.storage.size)
        return mapping.storage

    def set_access(self, address: int, count: int, accessible: bool) -> None:
        """Make a range of whole mappings accessible or inaccessible, or raise BackendError INVALID_VALUE."""
        self._find_within(address, count)
        self.space.set_accessible(address, count, accessible)

    def remove_all_of(self, owner: object) -> list[Storage]:
        """Unmap the memory of one context, and return its storage; call `leave` of each without the lock."""
        return [self._remove(mapping) for mapping in tuple(self._by_start.values()) if mapping.owner is owner]


def _invalid(reason: str) -> BackendError:
    return BackendError(Result.ERROR_INVALID_VALUE, reason)
