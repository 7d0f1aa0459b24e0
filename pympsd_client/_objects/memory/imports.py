"""Memory of other processes, mapped at addresses that this client chooses (IPC handles, imported pools)."""

import os
import re
from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import MAPPING_GRANULE
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context, when_closed
from pympsd_client._objects.memory.shared_pages import map_memory, unmap_memory
from pympsd_client._objects.memory.virtual import virtual_memory
from pympsd_client._objects.own_contexts import own_contexts

_WORD: Final = (1 << 64) - 1
_FILE: Final = re.compile(r"/memfd:pympsd-memory-([0-9a-f]{32}) \(deleted\)")


@frozen(eq=False)
class ImportedRange:
    """Imported memory: ``size`` bytes at ``start``, accessible until they are unmapped or their context closes.

    Imported host memory is mapped in this process, too.
    """

    context: Context
    start: int
    size: int

    def unmap(self) -> None:
        """Unmap the memory and free the addresses; raise CudaError."""
        _ranges.discard(self)
        unmap_memory(self.start)
        try:
            self.context.call(operations.UNMAP_MEMORY, self.start, self.size)
        finally:
            virtual_memory.free_addresses(self.start, self.size)
            own_contexts.close_unneeded(self.context)


_ranges: Final[set[ImportedRange]] = set()


def import_range(context: Context, secret: int) -> ImportedRange:
    """Map the memory that another client has exported or shared under a secret; raise CudaError.

    The error is INVALID_VALUE if the context's device has no memory under this secret.
    """
    handle = context.allocate_handle()
    size, is_of_host = context.query(operations.IMPORT_MEMORY, handle, secret >> 64, secret & _WORD)
    try:
        start = virtual_memory.reserve(context.device.ordinal, size, MAPPING_GRANULE, 0)
        imported = ImportedRange(context, start, size)
        try:
            context.call(operations.MAP_MEMORY, handle, start)
            _ranges.add(imported)
            context.call(operations.SET_ACCESS, start, size, 1)
            if is_of_host:
                map_memory(context, handle, start, size)
        except CudaError:
            if imported in _ranges:
                imported.unmap()
            else:
                virtual_memory.free_addresses(start, size)
            raise
    finally:
        if context.sticky_error is None:
            context.call(operations.RELEASE_MEMORY, handle)  # the mapping keeps the memory alive
    return imported


def secret_of_file(fd: int) -> int | None:
    """Return the secret in the name of an exported memory's file; None for any other file."""
    try:
        match = _FILE.fullmatch(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return None
    return None if match is None else int(match[1], 16)


def _drop(context: Context) -> None:
    for imported in tuple(_ranges):
        if imported.context is context:
            _ranges.discard(imported)
            unmap_memory(imported.start)
            virtual_memory.free_addresses(imported.start, imported.size)


when_closed.append(_drop)
own_contexts.needed.append(lambda context: any(imported.context is context for imported in tuple(_ranges)))
