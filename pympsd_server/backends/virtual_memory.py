"""The part of the port for memory that clients map at addresses of their choice (Virtual Memory Management).

Ranges are of whole granules (`pympsd.vocabulary.device_properties.MAPPING_GRANULE`). BackendError as in the rest of
the port; NOT_SUPPORTED from all without the capability ``maps_virtual_memory``.
"""

from collections.abc import Callable
from typing import Protocol

from attrs import frozen

Charge = Callable[[int], Callable[[], None]]
"""Counts bytes of memory, and returns what counts them no more; BackendError OUT_OF_MEMORY."""


@frozen
class File:
    """A file of memory in a process: its descriptor, the secret in its name, and where in it the memory begins."""

    descriptor: int
    secret: int
    offset: int = 0


class PhysicalMemory(Protocol):
    """Memory without an address of its own."""

    @property
    def size(self) -> int:
        """The size of the memory in bytes."""

    @property
    def is_of_host(self) -> bool:
        """Whether it is the host's, which the program reaches too."""

    def export(self) -> int:
        """Return a new descriptor by which another process can name it; BackendError INVALID_VALUE."""

    def publish(self) -> File:
        """Return where other executors find it; BackendError INVALID_VALUE unless its client created it."""

    def release(self) -> None:
        """Free it once it is mapped nowhere."""


class MapsMemory(Protocol):
    """The part of a context for such memory. It is freed, and unmapped, with the context that created it."""

    def create_memory(self, count: int, shareable: bool, charge: Charge | None = None) -> PhysicalMemory:
        """Return new memory without an address; BackendError OUT_OF_MEMORY, INVALID_VALUE; NOT_SUPPORTED.

        ``shareable``: it can be exported to other processes. With ``charge`` it is the host's, which counts it, and
        always shareable.
        """

    def import_memory(self, secret: int) -> PhysicalMemory:
        """Return memory that was exported under a secret; BackendError INVALID_VALUE, NOT_SUPPORTED."""

    def share_allocation(self, address: int) -> tuple[int, int]:
        """Return the secret under which an allocation is imported, and where it begins in the imported memory.

        BackendError INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED. Once freed it is not imported any more; its memory
        stays as long as it is mapped.
        """

    def publish_window(self) -> File:
        """Return a file with all of the client's allocations on the device, which other executors map by `map_peer`.

        The descriptor stays the context's. BackendError NOT_SUPPORTED.
        """

    def map_peer(self, ordinal: int, process: int, file: File) -> None:
        """Make the allocations of the client on another device accessible to its kernels here, at their addresses.

        BackendError INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED.
        """

    def import_peers_memory(self, process: int, file: File, count: int) -> PhysicalMemory:
        """Return memory of ``count`` bytes that the client has created on another device, and published there.

        BackendError INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED.
        """

    def unmap_peer(self, ordinal: int) -> None:
        """Undo `map_peer`; no effect if nothing was mapped. BackendError NOT_SUPPORTED."""

    def map_memory(self, memory: PhysicalMemory, address: int) -> None:
        """Map all of it at an address, not accessible yet; BackendError INVALID_VALUE if that is not free."""

    def unmap_memory(self, address: int, count: int) -> None:
        """Unmap a range of whole mappings; BackendError INVALID_VALUE. Work that still accesses it faults."""

    def set_access(self, address: int, count: int, accessible: bool) -> None:
        """Make a range of whole mappings accessible, or not; BackendError INVALID_VALUE."""
