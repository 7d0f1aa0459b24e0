"""Imported pools of other processes, whose allocations can be mapped but which cannot allocate."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Final

from attrs import define, field

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.shared_handles import SharedHandle
from pympsd_client._command_stream import operations
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.context import Context
from pympsd_client._objects.memory.allocations import allocations
from pympsd_client._objects.memory.imports import ImportedRange, import_range
from pympsd_client._objects.pools.arena import FreePoint
from pympsd_client._objects.pools.pool import Pool, PoolAllocation, PoolKind
from pympsd_client._objects.process import process


@define(eq=False)
class _Chunk:
    """A chunk of the other process's pool, and the number of its blocks that this process has imported."""

    range: ImportedRange
    blocks: int = 0
    freed: set[FreePoint] = field(factory=set)
    """The points at which the last blocks were freed; when all have passed, the memory is unmapped."""


@define(eq=False)
class ImportedBlock(PoolAllocation):
    """An allocation of another process's pool; it may be imported several times."""

    pool: ImportedPool = field(kw_only=True)
    chunk: _Chunk = field(kw_only=True)
    references: int = 1

    def free(self) -> None:
        """Drop the block immediately, because its work is done."""
        self.pool.release(self, None)

    def free_in_order(self, context: Context, stream: int) -> None:
        """Drop the block in stream order, after the earlier work of a stream."""
        self.pool.release(self, FreePoint(context, stream))


class ImportedPool(Pool):
    """A pool of another process. Thread-safe."""

    is_imported = True

    def __init__(self, kind: PoolKind, device: VisibleDevice | None, secret: int) -> None:
        super().__init__(kind, device)
        self._source_secret: Final = secret
        self._chunks: Final[dict[tuple[Context, int], _Chunk]] = {}
        self._importing: Final = RLock()
        self._when_ended: Callable[[Pool], None] | None = None

    def allocate(self, size: int, user: Context, stream: int) -> int:
        """Raise INVALID_VALUE."""
        raise invalid_value("the pool is another process's, and only that process can allocate from it")

    def _context(self, ordinal: int) -> Context:
        device = next((candidate for candidate in process.require().devices if candidate.ordinal == ordinal), None)
        if device is None:
            raise invalid_value("the allocation belongs to a context of a device that is not visible to this process")
        return self.context_on(device)

    def import_block(self, handle: SharedHandle) -> int:
        """Map an allocation that the other process has exported, and return its address; raise CudaError."""
        if handle.pool != self._source_secret:
            raise invalid_value("the allocation belongs to a pool other than the imported one")
        with self._importing:
            context = self._context(handle.ordinal if self.device is None else self.device.ordinal)
            key = context, handle.secret
            chunk = self._chunks.get(key)
            if chunk is None:
                chunk = self._chunks[key] = _Chunk(import_range(context, handle.secret))
            address = chunk.range.start + handle.offset
            block = allocations.get(address)
            if isinstance(block, ImportedBlock) and block.size == handle.size:
                block.references += 1
                return address
            if block is not None or not 0 < handle.size <= chunk.range.size - handle.offset:
                self._drop_unused(key)
                raise invalid_value("the data was changed, or is of an allocation that was freed")
            chunk.blocks += 1
            chunk.freed.clear()
            allocations.any_shared |= self.kind.is_host
            imported = ImportedBlock(address, context, handle.size, pool=self, chunk=chunk, is_host=self.kind.is_host)
            return allocations.add(imported).handle

    def release(self, block: ImportedBlock, point: FreePoint | None) -> None:
        """Undo one import of a block at a point (None means immediately); the last one drops the block."""
        with self._importing:
            block.references -= 1
            if block.references:
                allocations.put_back(block)
                return
            chunk = block.chunk
            chunk.blocks -= 1
            if point is not None:
                chunk.freed.add(point)
            elif not chunk.blocks:
                block.context.call(operations.SYNCHRONIZE_CONTEXT)
            self._unmap_unused()

    def _unmap_unused(self) -> None:
        for key, chunk in tuple(self._chunks.items()):
            if not chunk.blocks and all(point.is_passed() for point in chunk.freed):
                self._drop_unused(key)

    def _drop_unused(self, key: tuple[Context, int]) -> None:
        chunk = self._chunks[key]
        if not chunk.blocks:
            del self._chunks[key]
            chunk.range.unmap()
            for point in chunk.freed:
                point.destroy_event()
            self._end_unused()

    # --- events of streams and contexts

    def before_waiting(self, context: Context, stream: int | None) -> Callable[[bool], None] | None:
        """Return a function that unmaps unused chunks after the wait, or None."""
        if all(chunk.blocks for chunk in self._chunks.values()):
            return None

        def after(done: bool) -> None:
            if done:
                self.after_waiting_for_event(context)

        return after

    def after_waiting_for_event(self, context: Context) -> None:
        """Unmap chunks that have no block in use."""
        with self._importing:
            self._unmap_unused()

    def before_destroying(self, context: Context, stream: int) -> None:
        """Keep a stream's free points as events, because the stream is about to be destroyed."""
        point = FreePoint(context, stream)
        with self._importing:
            for chunk in self._chunks.values():
                if point in chunk.freed:
                    chunk.freed.remove(point)
                    chunk.freed.add(point.as_event())

    def drop(self, context: Context) -> None:
        """Drop the chunks of a closing context, which unmaps them."""
        with self._importing:
            for key in tuple(self._chunks):
                if key[0] is context:
                    del self._chunks[key]
            self._end_unused()

    def destroy(self, when_ended: Callable[[Pool], None]) -> None:
        """Call ``when_ended`` as soon as none of the pool's memory is mapped."""
        with self._importing:
            self._when_ended = when_ended
            self._unmap_unused()
            self._end_unused()

    def _end_unused(self) -> None:
        if self._when_ended is not None and not self._chunks:
            self._when_ended(self)
            self._release_primary()
