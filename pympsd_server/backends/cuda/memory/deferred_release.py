"""Capped, deferred release of the memory that exited clients left: it is released when no work runs on the device.

Unregistering host memory and unloading modules wait for every running kernel, and they delay other clients' launches,
so they are done only when the device is idle. On a device that is never idle, the waiting memory would grow without
end, but releasing it would block all clients until the running kernels have ended
(docs/decisions/007-page-locked-memory.md). So each kind has a limit, above which something cheaper happens: shared
memory of new clients is not registered (copies go through slots), and unloaded modules stay charged to their client.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from attrs import define, field

from pympsd_server.backends.cuda.driver.calls import Driver
from pympsd_server.backends.cuda.memory.cleanup_thread import CleanupThread
from pympsd_server.backends.cuda.memory.staging import RegisteredMappings

MAX_SHARED_BYTES: Final = 512 << 20
"""The maximum size in bytes of exited clients' shared memory that stays registered; above it, no other memory is
registered."""
MAX_MODULE_BYTES: Final = 64 << 20
"""The maximum size in bytes of unloaded modules that no client is charged for; above it, modules stay charged until
they are released."""


@define(eq=False)
class DeferredRelease:
    """The objects of one kind that wait to be released. Safe to use from several threads."""

    _cleanup: CleanupThread
    _is_quiet: Callable[[], bool]
    _limit: int
    _lock: Lock = field(factory=Lock, init=False)
    _bytes: int = field(default=0, init=False)

    def has_room(self, count: int) -> bool:
        """Return whether ``count`` more bytes may wait."""
        return self._bytes + count <= self._limit

    def add(self, count: int, release: Callable[[], object]) -> None:
        """Release something of ``count`` bytes when no work runs on the device."""
        self._count(count)

        def act() -> None:
            try:
                release()
            finally:
                self._count(-count)

        self._cleanup.add(self._is_quiet, act)

    def _count(self, count: int) -> None:
        with self._lock:
            self._bytes += count


class ClientMappings(RegisteredMappings):
    """The mappings of one client. If exited clients have left too much, none is registered, and copies use slots."""

    def __init__(self, driver: Driver, exited: DeferredRelease) -> None:
        super().__init__(driver)
        self._exited = exited
        self._registered_bytes = 0

    def _register(self, memory: Any) -> int:
        if not self._exited.has_room(len(memory)):
            return 0
        address = super()._register(memory)
        if address:
            self._registered_bytes += len(memory)
        return address

    def release_later(self) -> None:
        """Unregister all mappings of the client, which has exited, when no work runs on the device."""
        if self._registered_bytes:
            self._exited.add(self._registered_bytes, self.release)
