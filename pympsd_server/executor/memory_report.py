"""Reports clients' memory on the device to the owner whenever it changes, for the process table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from pympsd.wire.executor_messages import MemoryUsed
from pympsd_server.backends.interface import Device

PAUSE_SECONDS: Final = 0.25
"""Seconds between two reports, so that frequent allocations do not make them costly."""


def report_memory(device: Device, send: Callable[[MemoryUsed], None]) -> None:
    """Start reporting, in a separate thread that waits for changes."""
    changed = threading.Event()
    device.watch_memory(changed.set)
    threading.Thread(target=_report, args=(device, send, changed), name="memory report", daemon=True).start()


def _report(device: Device, send: Callable[[MemoryUsed], None], changed: threading.Event) -> None:
    reported: dict[int, int] = {}
    while changed.wait():
        changed.clear()
        held = dict(device.memory_used)
        if held != reported:
            send(MemoryUsed(held))
            reported = held
        time.sleep(PAUSE_SECONDS)
