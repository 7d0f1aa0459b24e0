"""Reports clients' memory on the device to the owner whenever it changes, and how many kernels were started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from pympsd.wire.executor_messages import MemoryUsed
from pympsd_server.backends.interface import Device

PAUSE_SECONDS: Final = 0.25
"""Seconds between two reports, so that frequent allocations do not make them costly."""
LAUNCH_SECONDS: Final = 1.0
"""Seconds after which the number of launches is looked at: they are counted anyway, and nothing signals one."""


class MemoryReporter:
    """Sends what clients hold if it has changed since the last report; safe to use from several threads."""

    def __init__(self, device: Device, send: Callable[[MemoryUsed], None]) -> None:
        self._device, self._send = device, send
        self._reported: dict[int, int] = {}
        self._counted = 0
        self._lock = threading.Lock()

    def report(self) -> None:
        """Report now."""
        with self._lock:
            held, launches = dict(self._device.memory_used), self._device.trace.get("kernels_started", 0)
            if (held, launches) != (self._reported, self._counted):
                self._send(MemoryUsed(held, launches - self._counted))
                self._reported, self._counted = held, launches

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
