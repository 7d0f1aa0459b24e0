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


def report_memory(device: Device, send: Callable[[MemoryUsed], None]) -> None:
    """Start reporting, in a separate thread that waits for changes."""
    changed = threading.Event()
    device.watch_memory(changed.set)
    threading.Thread(target=_report, args=(device, send, changed), name="memory report", daemon=True).start()


def _report(device: Device, send: Callable[[MemoryUsed], None], changed: threading.Event) -> None:
    reported: dict[int, int] = {}
    counted = 0
    while True:
        # Without a context there is no launch.
        changed.wait(LAUNCH_SECONDS if reported else None)
        changed.clear()
        held, launches = dict(device.memory_used), device.trace.get("kernels_started", 0)
        if (held, launches) != (reported, counted):
            send(MemoryUsed(held, launches - counted))
            reported, counted = held, launches
        time.sleep(PAUSE_SECONDS)
