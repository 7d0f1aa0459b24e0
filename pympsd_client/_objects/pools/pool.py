"""Memory pools (CUDA driver API, Stream Ordered Memory Allocator), and the table of this process's pools.

**The problem.** cuMemAllocAsync and cuMemFreeAsync are called in every step of a training loop. A message to the
executor for each would cost as much as cuMemAlloc.

**The idea.** The client divides memory itself. A pool has an `Arena` in each context, which consists of *chunks*; the
executor gets a message only when a chunk is added or given back. All rules of stream order are kept here:

    chunk     |  block A (in use)  |  freed in stream 1  |  free for all  |
                                      ^ stream 1 may have it immediately; others when stream 1 has passed that point

An allocation tries, in this order:

1. memory that its stream may use;
2. memory with which a query shows that other streams have finished;
3. a new chunk;
4. if the device has no more memory, everything that is free, after making its stream wait for all other streams by
   events.

**When memory becomes free for all.** A call waits for the stream, or for all streams (`before_waiting`); the arena
queries streams; the stream or its context is destroyed. Waiting calls also give chunks above the release threshold
back to the device.

**Invariants**

- ``_bytes_in_use`` counts the bytes of the program's blocks, ``reserved`` the bytes of all chunks. `Pool.used` also
  counts freed blocks whose stream has not reached the free.
- When a stream is destroyed its free points become events, which can be queried afterwards.
- Locks are reentrant, because the finalizer of an object that a call drops may free memory.
- A destroyed pool stays in ``_all`` until the program has freed its last block.

A pool belongs to a device, but its memory belongs to contexts and is freed with them, because the executor accounts
memory to contexts (docs/decisions/014-memory-pools.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Final

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.memory_structs import Location
from pympsd_client._arguments.values import find_by_handle
from pympsd_client._connect.connection import Connection, VisibleDevice
from pympsd_client._objects import event as events
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import Context, before_waiting, context_on, new_handle, when_closed
from pympsd_client._objects.memory.allocations import Allocation, allocations
from pympsd_client._objects.memory.peer_access import is_possible, peer_access
from pympsd_client._objects.pools.arena import Arena, FreePoint, round_up
from pympsd_client._objects.pools.chunks import Chunks, DeviceChunks, ExportedChunks, ProgramChunks
from pympsd_client._objects.process import Primary, process

_ALIGNMENT: Final = 512


@define(eq=False)
class PoolAllocation(Allocation):
    """An allocation from a pool, whose access rights apply to it."""

    pool: Pool = field(kw_only=True)

    def is_accessible_from(self, context: Context) -> bool:
        """Return whether the pool gives access to the context's device."""
        owner = self.pool.device
        pair = (context.device.ordinal, self.context.device.ordinal)
        return owner is None or not is_possible(context.device, owner) or peer_access.is_of(self.pool.handle, pair)

    def is_reached_from(self, context: Context) -> bool:
        """Return whether the context's device is the pool's, or the pool gives it access."""
        return context.device is self.context.device or self.is_accessible_from(context)


@define(eq=False)
class Block(PoolAllocation):
    """An allocation from a pool; ``taken`` is the number of bytes that it occupies in its chunk."""

    taken: int = field(kw_only=True)

    def free(self) -> None:
        """Free the block immediately; cuMemFree requires that its work is done (CUDA programming guide)."""
        self.pool.free(self, None)

    def free_in_order(self, context: Context, stream: int) -> None:
        """Free the block in stream order, after the earlier work of a stream."""
        self.pool.free(self, FreePoint(context, stream))


@frozen
class PoolKind:
    """The kind of memory in a pool: the values of its attributes, and whether it is managed or host memory."""

    allocation_type: int
    location: Location
    is_managed: bool = False
    is_host: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether the CPU can access the memory at the same address."""
        return self.is_managed or self.is_host


class Pool:
    """One pool. Thread-safe.

    Sizes are in bytes. ``reserved`` is the size of the pool's chunks. `used` is the size of the program's blocks and
    of freed blocks whose streams have not reached the free. ``reserved_high`` and `used_high` are the maxima of both.
    ``release_threshold`` is the number of reserved bytes that the pool keeps when a call has waited.
    ``follows_events``, ``is_opportunistic`` and ``adds_dependencies`` are reuse attributes (CUmemPool_attribute).
    """

    is_imported = False
    """Whether the pool is another process's."""

    def __init__(
        self, kind: PoolKind, device: VisibleDevice | None, max_bytes: int = 0, is_exported: bool = False
    ) -> None:
        """Make a pool without chunks.

        ``device``: the device of the memory, or None for the device of each allocation's stream. ``max_bytes``: the
        maximum of ``reserved``, 0 for none. ``is_exported``: whether other processes may import the pool.
        """
        self.handle: Final = new_handle()
        self.secret: Final = int.from_bytes(os.urandom(16), "little") if is_exported else 0
        """The secret with which other processes import the pool; 0 if it is not exported."""
        self.kind: Final = kind
        self.device: Final = device
        self.max_bytes: Final = round_up(max_bytes)
        self.is_default = False
        self.follows_events = self.is_opportunistic = self.adds_dependencies = True
        self.release_threshold = 0
        self.reserved = self.reserved_high = 0
        self._bytes_in_use = self._max_bytes_in_use = 0
        self._when_ended: Callable[[Pool], None] | None = None
        self._primary: Primary | None = None
        """The primary context that the pool has retained, if any."""
        self._arenas: Final[dict[Context, Arena]] = {}
        # Reentrant, because an allocation may destroy a stream, and a waiting call may reclaim memory.
        self._lock: Final = RLock()

    @property
    def used(self) -> int:
        """The bytes of blocks that are in use, or were freed at points that their streams have not reached."""
        with self._lock:
            self._reclaim_all()
            return self._used_bytes()

    def _used_bytes(self) -> int:
        pending = sum(ranges.bytes for arena in self._arenas.values() for ranges in arena.freed.values())
        return self._bytes_in_use + pending

    def _reclaim_all(self) -> None:
        for arena in self._arenas.values():
            arena.reclaim(FreePoint.is_passed)

    @property
    def used_high(self) -> int:
        """The maximum of `used` since `reset_used_high`."""
        with self._lock:
            self._max_bytes_in_use = max(self._max_bytes_in_use, self._used_bytes())
            return self._max_bytes_in_use

    def reset_used_high(self) -> None:
        """Set `used_high` to the bytes that are used now."""
        with self._lock:
            self._max_bytes_in_use = self._used_bytes()

    def reset_reserved_high(self) -> None:
        """Set ``reserved_high`` to the bytes that are reserved now."""
        with self._lock:
            self.reserved_high = self.reserved

    def context_on(self, device: VisibleDevice) -> Context:
        """Return a usable context on a device; if there is none, retain its primary context."""
        try:
            return context_on(device.ordinal)
        except CudaError:
            if self._primary is None:
                primary = process.primary(device.number)
                primary.retain(process.require())
                self._primary = primary
            return context_on(device.ordinal)

    def allocate(self, size: int, user: Context, stream: int) -> int:
        """Return the address of ``size`` bytes for the later work of a stream, or 0 for 0 bytes.

        ``user`` is the stream's context, which may be on a device other than the pool's; ``stream`` is the stream's
        name in records. The memory may have been freed in the same stream a moment ago. Raise OUT_OF_MEMORY if the
        pool's free memory is not enough and the device or the pool's maximum does not allow more.
        """
        user.usable()
        if size == 0:
            return 0
        device = user.device if self.device is None else self.device
        context = user if device.ordinal == user.device.ordinal else self.context_on(device)
        if size > context.device.properties.memory_bytes:
            raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"{size} bytes are more than the device has")
        block_bytes = (size + _ALIGNMENT - 1) & -_ALIGNMENT
        with self._lock:
            arena = self._arenas.get(context)
            if arena is None:
                arena = self._arenas[context] = Arena.of(context, self._source(context))
            point = FreePoint(user, stream)
            start = arena.take(block_bytes, point)
            if start is None:
                start = self._take_with_effort(arena, block_bytes, point)
            self._bytes_in_use += block_bytes
            if self._bytes_in_use > self._max_bytes_in_use:
                self._max_bytes_in_use = self._bytes_in_use
            block = allocations.add(Block(start, context, size, pool=self, taken=block_bytes))
            if self.kind.is_shared:
                block.is_managed, block.is_host = self.kind.is_managed, self.kind.is_host
                allocations.any_shared = True
        return start

    def _source(self, context: Context) -> Chunks:
        if self.secret:
            return ExportedChunks(context, self.kind.is_host)
        return ProgramChunks(context) if self.kind.is_shared else DeviceChunks(context)

    def export(self, block: Block) -> tuple[int, int]:
        """Return the secret of the chunk that contains a block, and the block's offset in bytes; raise CudaError."""
        with self._lock:
            arena = self._arenas[block.context]
            assert isinstance(arena.source, ExportedChunks)
            start, _ = arena.chunk_of(block.handle)
            return arena.source.secret(start), block.handle - start

    def _take_with_effort(self, arena: Arena, size: int, point: FreePoint) -> int:
        """Return the address of ``size`` bytes by steps 2 to 4 in the module's docstring; raise CudaError."""
        if self.is_opportunistic and arena.freed:
            arena.reclaim_some()
            start = arena.take(size, point)
            if start is not None:
                return start
        error = self._grow(arena, size)
        start = arena.take(size, point) if error is None else None
        if start is None and self.adds_dependencies and arena.take_over(point):
            start = arena.take(size, point)
        if start is None:
            raise error or CudaError(Result.ERROR_OUT_OF_MEMORY, f"the pool does not have {size} bytes")
        return start

    def _grow(self, arena: Arena, size: int) -> CudaError | None:
        """Add a chunk to an arena, a smaller one if memory is short; if none can be added, return the error."""
        error: CudaError | None = None
        for chunk in dict.fromkeys((arena.growth(size, self.reserved), round_up(size))):
            if self.max_bytes and self.reserved + chunk > self.max_bytes:
                error = CudaError(
                    Result.ERROR_OUT_OF_MEMORY,
                    f"the pool has {self.reserved} of at most {self.max_bytes} bytes, and needs {chunk} more",
                )
                continue
            try:
                arena.grow(chunk)
            except CudaError as refused:
                if refused.code != Result.ERROR_OUT_OF_MEMORY:
                    raise
                error = refused
                continue
            self.reserved += chunk
            self.reserved_high = max(self.reserved_high, self.reserved)
            return None
        return error

    def free(self, block: Block, point: FreePoint | None) -> None:
        """Free a block at a point of a stream (None means immediately).

        Later work of that stream may use the memory immediately, other streams when the point has passed. No effect
        if the block's context has been closed, which frees the memory.
        """
        with self._lock:
            arena = self._arenas.get(block.context)
            if arena is None:  # the block's context has been closed
                return
            self._bytes_in_use -= block.taken
            if point is not None and point.context is not block.context and point.is_passed():
                point = None
            arena.give(block.handle, block.taken, point)
            if self._when_ended is not None:
                self._end()

    def trim(self, keep: int) -> None:
        """Give free chunks back to the device, but keep at least ``keep`` reserved bytes."""
        with self._lock:
            self._reclaim_all()
            self._release(keep, at_most=True)

    def _release(self, keep: int, at_most: bool = False) -> None:
        for arena in self._arenas.values():
            if self.reserved > keep:
                self.reserved -= arena.release(self.reserved - keep, at_most)

    # --- events of streams and contexts

    def before_waiting(self, context: Context, stream: int | None) -> Callable[[bool], None] | None:
        """Return a function to call after a wait for a stream (None means all streams), or None if it is not needed.

        The function's argument ``done`` is whether the wait was successful. Memory that was freed in the stream is
        set aside before the wait. The function gives it back: to all streams if ``done``, else to its stream as
        before. Memory that is freed during the wait stays with its stream.
        """
        with self._lock:
            reached = [
                (arena, point, arena.freed.pop(point))
                for arena in self._arenas.values()
                for point in tuple(arena.freed)
                if point.context is context and (stream is None or (point.stream == stream and not point.event))
            ]
        if not reached and (context not in self._arenas or self.reserved <= self.release_threshold):
            return None

        def after(done: bool) -> None:
            with self._lock:
                for arena, point, ranges in reached:
                    if arena.context not in self._arenas:
                        continue
                    for start, end in ranges:
                        arena.give(start, end - start, None if done else point)
                    if done:
                        point.destroy_event()
                if done:
                    self._release_some()

        return after

    def after_waiting_for_event(self, context: Context) -> None:
        """Give memory above the release threshold back to the device."""
        with self._lock:
            arena = self._arenas.get(context)
            if arena is not None and self.reserved > self.release_threshold:
                arena.reclaim_some()
                self._release_some()

    def _release_some(self) -> None:
        self._release(self.release_threshold)
        if self._when_ended is not None:
            self._end()

    def before_destroying(self, context: Context, stream: int) -> None:
        """Keep a stream's free point as an event, because the stream is about to be destroyed."""
        point = FreePoint(context, stream)
        with self._lock:
            for arena in self._arenas.values():
                ranges = arena.freed.pop(point, None)
                if ranges is not None:
                    arena.freed[point.as_event()] = ranges

    def drop(self, context: Context) -> None:
        """Drop the memory of a closing context; other memory that was freed in its streams becomes free for all."""
        with self._lock:
            arena = self._arenas.pop(context, None)
            if arena is not None:
                size = sum(end - start for start, end in arena.chunks.items())
                free = arena.free.bytes + sum(ranges.bytes for ranges in arena.freed.values())
                self.reserved -= size
                self._bytes_in_use -= size - free
                arena.source.drop()
            for remaining_arena in self._arenas.values():
                remaining_arena.reclaim(lambda point: point.context is context)

    def destroy(self, when_ended: Callable[[Pool], None]) -> None:
        """Release the pool's memory as soon as no block is in use, and then call ``when_ended``."""
        with self._lock:
            self._when_ended = when_ended
            self._end()

    def _end(self) -> None:
        if not self._bytes_in_use:
            for arena in self._arenas.values():
                if arena.context.sticky_error is None:
                    arena.reclaim_some()
            self._release(0)
        if self._when_ended is not None and not self._bytes_in_use and not self.reserved:
            self._when_ended(self)
            self._release_primary()

    def _release_primary(self) -> None:
        primary, self._primary = self._primary, None
        if primary is not None and process.connection is not None:
            primary.release(process.connection)


class Pools:
    """The pools of this process: the default, the current and the created ones. Thread-safe.

    With a new connection (in a test, or by cuInit after a failure) all earlier pools are forgotten.
    """

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._connection: Connection | None = None
        self._all: dict[int, Pool] = {}
        """All pools by handle, including destroyed ones that have memory in use."""
        self._named: dict[int, Pool] = {}
        """The pools that have not been destroyed, by handle."""
        self._defaults: dict[PoolKind, Pool] = {}
        self._current: dict[PoolKind, Pool] = {}

    def default(self, kind: PoolKind, device: VisibleDevice | None) -> Pool:
        """Return the default pool for memory of a kind."""
        with self._lock:
            self._forget_old_connection()
            pool = self._defaults.get(kind)
            if pool is None:
                pool = self._defaults[kind] = self.add(Pool(kind, device))
                pool.is_default = True
            return pool

    def _forget_old_connection(self) -> None:
        if self._connection is not process.connection:
            for table in (self._all, self._named, self._defaults, self._current):
                table.clear()
            self._connection = process.connection

    def add(self, pool: Pool) -> Pool:
        """Add a pool to the table and return it."""
        with self._lock:
            self._forget_old_connection()
            self._all[pool.handle] = self._named[pool.handle] = pool
        return pool

    def current(self, kind: PoolKind, device: VisibleDevice | None) -> Pool:
        """Return the pool that the program has made current for memory of a kind, else the default one."""
        if self._connection is process.connection and kind in self._current:
            return self._current[kind]
        return self.default(kind, device)

    def set_current(self, kind: PoolKind, pool: Pool) -> None:
        """Make a pool the current one for memory of its kind; raise INVALID_VALUE for another kind."""
        if pool.kind != kind or pool.is_imported:
            reason = "the pool has memory of another location, of another allocation type, or is another process's"
            raise invalid_value(reason)
        self._current[kind] = pool

    def find(self, handle: int) -> Pool:
        """Return the pool of a handle; raise INVALID_VALUE."""
        return find_by_handle(self._named, handle, "a memory pool of this process (destroyed, or never created)")

    def destroy(self, handle: int) -> None:
        """Destroy a pool; its allocations stay until they are freed. Raise INVALID_VALUE for a default one."""
        pool = self.find(handle)
        if pool.is_default:
            raise invalid_value("the default pool of a device cannot be destroyed")
        with self._lock:
            if self._named.pop(handle, None) is None:
                raise invalid_value(f"{handle:#x} is destroyed")
            if self._current.get(pool.kind) is pool:
                del self._current[pool.kind]

        def drop(ended: Pool) -> None:
            self._all.pop(ended.handle, None)
            peer_access.drop(ended.handle)

        pool.destroy(drop)

    # --- events of streams and contexts

    def before_waiting(self, context: Context, stream: int | None) -> Callable[[bool], None] | None:
        """Call `Pool.before_waiting` of every pool; return a function that calls all returned ones, or None."""
        prepared = (pool.before_waiting(context, stream) for pool in tuple(self._all.values()))
        afters = [after_wait for after_wait in prepared if after_wait is not None]

        def after(done: bool) -> None:
            for after_wait in afters:
                after_wait(done)

        return after if afters else None

    def after_waiting_for_event(self, context: Context) -> None:
        """Call `Pool.after_waiting_for_event` of every pool."""
        for pool in tuple(self._all.values()):
            pool.after_waiting_for_event(context)

    def before_destroying(self, context: Context, stream: int) -> None:
        """Call `Pool.before_destroying` of every pool."""
        for pool in tuple(self._all.values()):
            pool.before_destroying(context, stream)

    def drop(self, context: Context) -> None:
        """Call `Pool.drop` of every pool."""
        for pool in tuple(self._all.values()):
            pool.drop(context)


pools: Final = Pools()
before_waiting.append(pools.before_waiting)
events.after_waiting_for_event.append(pools.after_waiting_for_event)
streams.before_destroying.append(pools.before_destroying)
when_closed.append(pools.drop)
