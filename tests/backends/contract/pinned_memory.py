"""Registered host memory for the contract tests."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from itertools import count

from pympsd.channel.mapping import make_sealed
from pympsd.vocabulary.device_properties import pinned_window_of
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.virtual_memory import File
from pympsd_server.executor.memory.pinned import map_at

_NUMBER = count(1).__next__
NO_FILE = File(descriptor=-1, secret=0)
"""No executor of another device maps it."""


class PinnedMemory:
    """Host memory registered with a device; ``gone`` is set once nothing refers to it any more."""

    def __init__(self, device: Device, size: int, client: int = 1) -> None:
        self.gone = threading.Event()
        self.address = (device.host_memory_base or pinned_window_of(9)) + _NUMBER() * (1 << 30) + 3 * mmap.PAGESIZE
        fd = make_sealed("host", size)
        try:
            self.bytes: memoryview | None = map_at(fd, self.address, size, self.gone.set)
        finally:
            os.close(fd)
        self._unregister: Callable[[], None] | None = device.register_host_memory(
            client, self.address, self.bytes, NO_FILE
        )

    @property
    def memory(self) -> memoryview:
        """Its bytes."""
        assert self.bytes is not None
        return self.bytes

    def unregister(self) -> None:
        """Unregister it, and drop the reference."""
        if self._unregister is not None:
            self._unregister()
        self._unregister = self.bytes = None
