"""The part of the port for memory that clients map at addresses of their choice (Virtual Memory Management).

Ranges are of whole granules (`pympsd.vocabulary.device_properties.MAPPING_GRANULE`). All calls raise BackendError
NOT_SUPPORTED without the capability ``maps_virtual_memory``. Addresses and sizes are in bytes.
"""

import os
from collections.abc import Callable
from typing import Final, Protocol

from attrs import frozen

from pympsd.vocabulary.device_properties import PINNED_BITS

TABLE_BYTES: Final = 17 << 20
"""The bytes after the memory in a file that peers map: space for a table of the ranges that the peers may access."""
HOST_FILE_BYTES: Final = (1 << PINNED_BITS) + TABLE_BYTES
"""The size in bytes of the file with all host memory of a client on a device.

The file has pages only where memory was accessed.
"""
Charge = Callable[[int], Callable[[], None]]
"""A function that charges bytes of memory and returns a function that releases the charge.

It raises BackendError OUT_OF_MEMORY if a limit is reached.
"""


@frozen
class File:
    """A file that holds memory, as another executor finds it: /proc/PROCESS/fd/DESCRIPTOR.

    ``secret`` is in the file's name, which proves that the descriptor still refers to that file. The memory begins
    at ``offset`` bytes.

    >>> File(descriptor=7, secret=0x1234)
    File(descriptor=7, secret=4660, offset=0)
    """

    descriptor: int
    secret: int
    offset: int = 0


def file_name(secret: int) -> str:
    """Return the name of a file of memory (memfd_create(2)).

    >>> file_name(0x1234)
    'pympsd-memory-00000000000000000000000000001234'
    """
    return f"pympsd-memory-{secret:032x}"


def new_secret() -> int:
    """Return a random number that nobody can guess; never 0."""
    return int.from_bytes(os.urandom(16), "little") or 1


class PhysicalMemory(Protocol):
    """Memory without an address of its own, as from cuMemCreate.

    It can be mapped at several addresses at the same time, and is freed when it is released and mapped nowhere.
    """

    @property
    def size(self) -> int:
        """The size of the memory in bytes, a multiple of MAPPING_GRANULE."""

    @property
    def is_of_host(self) -> bool:
        """Whether this is host memory, which the program can access too (cuMemCreate at a host location)."""

    def export(self) -> int:
        """Return a new descriptor with which another process can import the memory (cuMemExportToShareableHandle).

        The caller closes it.

        Raises:
            BackendError: INVALID_VALUE unless it was created ``shareable``; OPERATING_SYSTEM without a descriptor.
        """

    def publish(self) -> File:
        """Return the file by which the client's other executors find it (``MappableMemory.import_peers``).

        Raises:
            BackendError: INVALID_VALUE unless its client created it.
        """

    def release(self) -> None:
        """Free the memory as soon as it is not mapped anywhere (cuMemRelease), which may be immediately.

        Existing mappings stay valid.
        """


class MappableMemory(Protocol):
    """Memory that a client creates or imports, and maps; it is released with its context.

    Without ``Capabilities.maps_virtual_memory`` all calls raise BackendError NOT_SUPPORTED.
    """

    def create(self, count: int, shareable: bool, charge: Charge | None = None) -> PhysicalMemory:
        """Return new memory without an address; raise BackendError OUT_OF_MEMORY, INVALID_VALUE, NOT_SUPPORTED.

        ``shareable``: the memory can be exported to other processes. With ``charge`` it is host memory, whose bytes
        ``charge`` counts, and always shareable.
        """

    def import_(self, secret: int) -> PhysicalMemory:
        """Return memory that another context exported, by the secret in its file's name.

        Raises:
            BackendError: INVALID_VALUE if nothing has this secret; NOT_SUPPORTED.
        """

    def publish(self, address: int) -> File:
        """Return a file with a part of the client's memory on the device, which other executors map by `map_peer`.

        Args:
            address: The first address of the device's window, for memory that the client has allocated and mapped,
                or ``Device.host_memory_base``, for host memory that was registered.

        Returns:
            A file whose descriptor the context keeps and closes.

        Raises:
            BackendError: INVALID_VALUE, NOT_SUPPORTED.
        """

    def map_peer(self, address: int, process: int, file: File) -> None:
        """Make a part of the client's memory on another device accessible to its kernels here, at the same addresses.

        Args:
            address: The address that `publish` was called with there.
            process: The PID of the executor that published the part.
            file: The result of that call.

        Raises:
            BackendError: INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED.
        """

    def import_peers(self, process: int, file: File, count: int) -> PhysicalMemory:
        """Return memory of ``count`` bytes that the client has created on another device, and published there.

        Raises:
            BackendError: INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED.
        """

    def unmap_peer(self, address: int) -> None:
        """Undo `map_peer` of an address; no effect if nothing was mapped.

        Raises:
            BackendError: INVALID_VALUE, NOT_SUPPORTED.
        """

    def map(self, memory: PhysicalMemory, address: int) -> None:
        """Map a whole piece of memory at an address (cuMemMap). Accesses fault until ``set_access``.

        Raises:
            BackendError: INVALID_VALUE if the range is not free.
        """

    def unmap(self, address: int, count: int) -> None:
        """Unmap a range of whole mappings (cuMemUnmap), without waiting: work that still accesses it faults.

        Raises:
            BackendError: INVALID_VALUE unless the range consists of whole mappings.
        """

    def set_access(self, address: int, count: int, accessible: bool) -> None:
        """Make a range of whole mappings accessible to the client's kernels, or not (cuMemSetAccess).

        Raises:
            BackendError: INVALID_VALUE unless the range consists of whole mappings.
        """


class MapsMemory(Protocol):
    """The part of a context for memory that clients map or share."""

    @property
    def mapped(self) -> MappableMemory:
        """The memory that the client maps."""

    def share_allocation(self, address: int) -> tuple[int, int]:
        """Return the secret under which an allocation is imported, and its offset in the imported memory, in bytes.

        A freed allocation cannot be imported; its memory stays as long as it is mapped.

        Raises:
            BackendError: INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED.
        """
