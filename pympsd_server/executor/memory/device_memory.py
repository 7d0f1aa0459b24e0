"""Reports clients' memory on the device to the owner whenever it changes, and how many kernels were started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from attrs import define, field

from pympsd.wire.executor_messages import MemoryShort, MemoryUsed, RoomMade
from pympsd_server.backends.budget import Shortage
from pympsd_server.backends.interface import Device

PAUSE_SECONDS: Final = 0.25
"""Seconds between two reports, so that frequent allocations do not make them costly."""
LAUNCH_SECONDS: Final = 1.0
"""Seconds after which the number of launches is looked at: they are counted anyway, and nothing signals one."""


@define(eq=False)
class MemoryReporter:
    """Sends what clients hold if it has changed since the last report; safe to use from several threads."""

    _device: Device
    _send: Callable[[MemoryUsed], None]
    _reported: dict[int, int] = field(factory=dict, init=False)
    _counted: int = field(default=0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def report(self) -> None:
        """Report now."""
        with self._lock:
            used, launches = dict(self._device.memory_used), self._device.trace.get("kernels_started", 0)
            if (used, launches) != (self._reported, self._counted):
                self._send(MemoryUsed(used, launches - self._counted))
                self._reported, self._counted = used, launches

    def start(self) -> None:
        """Report from now on, in a separate thread that waits for changes."""
        changed = threading.Event()
        self._device.watch_memory(changed.set)
        threading.Thread(target=self._watch, args=(changed,), name="memory report", daemon=True).start()

    def _watch(self, changed: threading.Event) -> None:
        while True:
            # Without a context there is no launch.
            changed.wait(LAUNCH_SECONDS if self._reported else None)
            changed.clear()
            self.report()
            time.sleep(PAUSE_SECONDS)


MAX_TRIES: Final = 3
"""Others may take the memory that was freed for a client: the owner is asked this often."""
_Taken = TypeVar("_Taken")


@define
class _Waiting:
    """A client's worker that waits for the owner's answer."""

    client: int
    answered: threading.Event = field(factory=threading.Event, init=False)
    freed: bool = field(default=False, init=False)


@define(eq=False)
class Shortages:
    """Used by the clients' workers, which wait in it; the owner's thread passes on the answers.

    ``report`` reports to the owner what clients hold now.
    """

    report: Callable[[], None]
    _send: Callable[[object], None]
    _numbers: count[int] = field(factory=lambda: count(1), init=False)
    _waiting: dict[int, _Waiting] = field(factory=dict, init=False)

    def with_room(self, client: int, take: Callable[[], _Taken]) -> _Taken:
        """Call ``take`` for a client; while it raises Shortage, request memory from the owner and call it again."""
        for _ in range(MAX_TRIES):
            try:
                return take()
            except Shortage as shortage:
                number = next(self._numbers)
                waiting = self._waiting[number] = _Waiting(client)
                self.report()
                self._send(MemoryShort(number, client, shortage.short))
                # The owner answers always: its end is this process's.
                waiting.answered.wait()
                del self._waiting[number]
                if not waiting.freed:
                    raise
        return take()

    def deliver(self, answer: RoomMade) -> None:
        """Resume a worker."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None:
            waiting.freed = answer.freed
            waiting.answered.set()

    def client_left(self, client: int) -> None:
        """Resume a client's worker, with its error."""
        for waiting in tuple(self._waiting.values()):
            if waiting.client == client:
                waiting.answered.set()
