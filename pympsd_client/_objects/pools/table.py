"""The memory pools of this process: default ones, current ones, those that the program created."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Final

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._connect.connection import Connection, Device
from pympsd_client._objects import event as events
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import Context, before_waiting, when_closed
from pympsd_client._objects.pools.pool import Pool, PoolKind
from pympsd_client._objects.process import process
from pympsd_client._objects.virtual.peer_access import peer_access


class Pools:
    """The pools of this process. Safe for threads."""

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._connection: Connection | None = None
        self._all: dict[int, Pool] = {}
        """Those that have memory, or may get some; also destroyed ones that have some."""
        self._named: dict[int, Pool] = {}
        """By handle, those that are not destroyed."""
        self._defaults: dict[PoolKind, Pool] = {}
        self._current: dict[PoolKind, Pool] = {}

    def default(self, kind: PoolKind, device: Device | None) -> Pool:
        """Return the default pool of memory of a kind."""
        with self._lock:
            self._of_this_connection()
            pool = self._defaults.get(kind)
            if pool is None:
                pool = self._defaults[kind] = self.add(Pool(kind, device))
                pool.is_default = True
            return pool

    def _of_this_connection(self) -> None:
        if self._connection is not process.connection:
            for table in (self._all, self._named, self._defaults, self._current):
                table.clear()
            self._connection = process.connection

    def add(self, pool: Pool) -> Pool:
        """Enter a pool and return it."""
        with self._lock:
            self._of_this_connection()
            self._all[pool.handle] = self._named[pool.handle] = pool
        return pool

    def current(self, kind: PoolKind, device: Device | None) -> Pool:
        """Return the pool of memory of a kind that was made current, else the default one."""
        if self._connection is process.connection and kind in self._current:
            return self._current[kind]
        return self.default(kind, device)

    def set_current(self, kind: PoolKind, pool: Pool) -> None:
        """Make a pool the current one for memory of its kind; INVALID_VALUE for another kind."""
        if pool.kind != kind or pool.is_imported:
            reason = "the pool has memory of another location, of another allocation type, or is another process's"
            raise invalid_value(reason)
        self._current[kind] = pool

    def find(self, handle: int) -> Pool:
        """Return the pool of a handle; INVALID_VALUE."""
        pool = self._named.get(handle)
        if pool is None:
            raise invalid_value(f"{handle:#x} is no memory pool of this process (destroyed, or never created)")
        return pool

    def destroy(self, handle: int) -> None:
        """Destroy a pool; what was allocated from it stays until it is freed. INVALID_VALUE for a default one."""
        pool = self.find(handle)
        if pool.is_default:
            raise invalid_value("the default pool of a device cannot be destroyed")
        with self._lock:
            if self._named.pop(handle, None) is None:
                raise invalid_value(f"{handle:#x} is destroyed")
            if self._current.get(pool.kind) is pool:
                del self._current[pool.kind]
        pool.destroy(self._drop_destroyed)

    def _drop_destroyed(self, pool: Pool) -> None:
        """Drop a destroyed pool that has no memory any more."""
        self._all.pop(pool.handle, None)
        peer_access.drop(pool.handle)

    # --- what happens to streams and contexts

    def before_waiting(self, context: Context, stream: int | None) -> Callable[[bool], None] | None:
        """As in `Pool`, for all of them."""
        found = (pool.before_waiting(context, stream) for pool in tuple(self._all.values()))
        afters = [each for each in found if each is not None]

        def after(done: bool) -> None:
            for each in afters:
                each(done)

        return after if afters else None

    def after_waiting_for_event(self, context: Context) -> None:
        """As in `Pool`, for all of them."""
        for pool in tuple(self._all.values()):
            pool.after_waiting_for_event(context)

    def before_destroying(self, context: Context, stream: int) -> None:
        """As in `Pool`, for all of them."""
        for pool in tuple(self._all.values()):
            pool.before_destroying(context, stream)

    def drop(self, context: Context) -> None:
        """As in `Pool`, for all of them."""
        for pool in tuple(self._all.values()):
            pool.drop(context)


pools: Final = Pools()
before_waiting.append(pools.before_waiting)
events.after_waiting_for_event.append(pools.after_waiting_for_event)
streams.before_destroying.append(pools.before_destroying)
when_closed.append(pools.drop)
