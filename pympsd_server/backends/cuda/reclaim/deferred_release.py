"""What clients leave that is let go of when nothing is under way on the device: so much of it may be at most.

On a device that is never idle for an instant it would grow without end, and to let go all the same would hold up all
clients until the kernels that run have ended (docs/decisions/007-page-locked-memory.md).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from pympsd_server.backends.cuda.driver.calls import Driver
from pympsd_server.backends.cuda.memory.staging import Registered
from pympsd_server.backends.cuda.reclaim.janitor import Janitor

SHARED_LIMIT: Final = 512 << 20
"""Bytes of shared memory of clients that have gone that stay registered; past it no more is registered for others."""
MODULES_LIMIT: Final = 64 << 20
"""Bytes of unloaded modules that nobody is charged for; past it each stays its client's until it is gone."""


class Leftovers:
    """What waits of one kind. Safe to use from several threads."""

    def __init__(self, janitor: Janitor, is_quiet: Callable[[], bool], limit: int) -> None:
        self._janitor = janitor
        self._is_quiet = is_quiet
        self._limit = limit
        self._lock = Lock()
        self._bytes = 0

    def have_room(self, count: int) -> bool:
        """Whether so much more may be left."""
        return self._bytes + count <= self._limit

    def add(self, count: int, let_go: Callable[[], object]) -> None:
        """Have something let go of when nothing is under way."""
        self._count(count)

        def go() -> None:
            try:
                let_go()
            finally:
                self._count(-count)

        self._janitor.add(self._is_quiet, go)

    def _count(self, count: int) -> None:
        with self._lock:
            self._bytes += count


class SharedMemory(Registered):
    """Of one client; not registered while those who have gone have left too much, so that slots are used."""

    def __init__(self, driver: Driver, left: Leftovers) -> None:
        super().__init__(driver)
        self._left = left
        self._registered_bytes = 0

    def _register(self, memory: Any) -> int:
        if not self._left.have_room(len(memory)):
            return 0
        address = super()._register(memory)
        if address:
            self._registered_bytes += len(memory)
        return address

    def leave(self) -> None:
        """The client has gone."""
        if self._registered_bytes:
            self._left.add(self._registered_bytes, self.release)
