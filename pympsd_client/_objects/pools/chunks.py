"""The sources of pools' memory: the device, pages that the CPU can access too, or memory for export."""

import os
from typing import Final, Protocol

from attrs import field, frozen

from pympsd.vocabulary.device_properties import MAPPING_GRANULE
from pympsd.wire.records import MEMORY_OF_HOST, MEMORY_SHAREABLE
from pympsd_client._arguments.errors import CudaError, connection_lost
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context
from pympsd_client._objects.memory.allocations import Allocation, allocate_unlisted
from pympsd_client._objects.memory.imports import secret_of_file
from pympsd_client._objects.memory.shared_pages import SharedPages, export_memory, map_memory, share, unmap_memory
from pympsd_client._objects.memory.virtual import virtual_memory

CHUNK_BYTES: Final = MAPPING_GRANULE
"""The sizes of chunks are multiples of this."""


class Chunks(Protocol):
    """The chunks of one pool in one context."""

    def add(self, size: int) -> int:
        """Return the start of a new chunk; raise CudaError."""

    def remove(self, start: int, size: int) -> None:
        """Free a chunk when the context's earlier work is done; raise CudaError."""

    def drop(self) -> None:
        """Drop all chunks when their context closes."""


@frozen(eq=False)
class DeviceChunks:
    """Chunks of device memory."""

    context: Context

    def add(self, size: int) -> int:
        """Allocate a chunk."""
        return allocate_unlisted(self.context, size)

    def remove(self, start: int, size: int) -> None:
        """Free a chunk."""
        Allocation(start, self.context, size).free_in_order(self.context, 0)

    def drop(self) -> None:
        """Do nothing, because the executor frees the chunks with the context."""


@frozen(eq=False)
class ProgramChunks:
    """Chunks of managed and host memory, which the CPU can access too."""

    _context: Context
    _pages: dict[int, SharedPages] = field(factory=dict, init=False)

    def add(self, size: int) -> int:
        """Map a chunk in both processes."""
        pages = share(self._context, size)
        self._pages[pages.address] = pages
        return pages.address

    def remove(self, start: int, size: int) -> None:
        """Unmap a chunk."""
        self._pages.pop(start).close()

    def drop(self) -> None:
        """Unmap all chunks, which do not belong to the context."""
        for pages in self._pages.values():
            pages.close()


@frozen(eq=False)
class ExportedChunks:
    """Chunks of device or host memory that other processes can import."""

    _context: Context
    _is_host: bool
    _handles: dict[int, int] = field(factory=dict, init=False)
    _sizes: dict[int, int] = field(factory=dict, init=False)
    _secrets: dict[int, int] = field(factory=dict, init=False)

    def add(self, size: int) -> int:
        """Create a chunk and map it."""
        context, handle = self._context, self._context.allocate_handle()
        start = virtual_memory.reserve(context.device.ordinal, size, MAPPING_GRANULE, 0)
        flags = MEMORY_SHAREABLE | MEMORY_OF_HOST if self._is_host else MEMORY_SHAREABLE
        try:
            context.call(operations.CREATE_MEMORY, handle, size, flags)
            context.call(operations.MAP_MEMORY, handle, start)
        except CudaError:
            virtual_memory.free_addresses(start, size)
            raise
        self._handles[start], self._sizes[start] = handle, size
        try:
            context.call(operations.SET_ACCESS, start, size, 1)
            if self._is_host:
                map_memory(context, handle, start, size)
        except CudaError:
            self.remove(start, size)
            raise
        return start

    def remove(self, start: int, size: int) -> None:
        """Unmap a chunk and release it; its memory exists as long as another process has it mapped."""
        context = self._context
        context.call(operations.SYNCHRONIZE_CONTEXT)  # because unmapping, unlike freeing, does not wait for work
        unmap_memory(start)
        context.call(operations.UNMAP_MEMORY, start, size)
        context.call(operations.RELEASE_MEMORY, self._handles.pop(start))
        self._secrets.pop(start, None)
        virtual_memory.free_addresses(start, self._sizes.pop(start))

    def secret(self, start: int) -> int:
        """Return the secret with which other processes import a chunk; raise CudaError."""
        secret = self._secrets.get(start)
        if secret is None:
            fd = export_memory(self._context, self._handles[start])
            try:
                secret = secret_of_file(fd)
            finally:
                os.close(fd)
            if secret is None:
                raise connection_lost("the executor sent a descriptor of something else")
            self._secrets[start] = secret
        return secret

    def drop(self) -> None:
        """Free the addresses of all chunks; the executor unmaps the chunks with the context."""
        for start, size in self._sizes.items():
            unmap_memory(start)
            virtual_memory.free_addresses(start, size)
