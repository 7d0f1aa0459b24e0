"""Capped, deferred release of what departed clients left: released when no work runs on the device.

On a device that is never idle for an instant it would grow without end, and to release it all the same would block
all clients until the running kernels have ended (docs/decisions/007-page-locked-memory.md).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from pympsd_server.backends.cuda.driver.calls import Driver
from pympsd_server.backends.cuda.memory.staging import RegisteredMappings
from pympsd_server.backends.cuda.reclaim.cleanup_thread import Janitor

SHARED_LIMIT: Final = 512 << 20
"""Bytes of shared memory of departed clients that stay registered; past it no more is registered for others."""
MODULES_LIMIT: Final = 64 << 20
"""Bytes of unloaded modules that no client is charged for; past it each stays charged until it is released."""


class DeferredRelease:
    """What waits of one kind. Safe to use from several threads."""

    def __init__(self, janitor: Janitor, is_quiet: Callable[[], bool], limit: int) -> None:
        self._janitor = janitor
        self._is_quiet = is_quiet
        self._limit = limit
        self._lock = Lock()
        self._bytes = 0

    def has_room(self, count: int) -> bool:
        """Whether ``count`` more bytes may wait."""
        return self._bytes + count <= self._limit

    def add(self, count: int, release: Callable[[], object]) -> None:
        """Release something of ``count`` bytes when no work runs on the device."""
        self._count(count)

        def act() -> None:
            try:
                release()
            finally:
                self._count(-count)

        self._janitor.add(self._is_quiet, act)

    def _count(self, count: int) -> None:
        with self._lock:
            self._bytes += count


class ClientMappings(RegisteredMappings):
    """Those of one client; not registered while departed clients have left too much: slots are used then."""

    def __init__(self, driver: Driver, departed: DeferredRelease) -> None:
        super().__init__(driver)
        self._departed = departed
        self._registered_bytes = 0

    def _register(self, memory: Any) -> int:
        if not self._departed.has_room(len(memory)):
            return 0
        address = super()._register(memory)
        if address:
            self._registered_bytes += len(memory)
        return address

    def release_later(self) -> None:
        """Unregister all when no work runs on the device: the client has departed."""
        if self._registered_bytes:
            self._departed.add(self._registered_bytes, self.release)
