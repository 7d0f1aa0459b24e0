"""Registered host memory for the contract tests."""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections.abc import Callable
from itertools import count

from pympsd.channel.mapping import make_sealed
from pympsd.vocabulary.device_properties import pinned_window_of
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.virtual_memory import File, file_name
from pympsd_server.executor.memory.pinned import map_at

_NUMBER = count(1).__next__


def make_file(size: int) -> File:
    """Return a new file of host memory, whose descriptor the caller closes."""
    secret = secrets.randbits(128)
    return File(make_sealed(file_name(secret), size), secret)


class PinnedMemory:
    """Host memory registered with a device; ``gone`` is set once nothing refers to it any more."""

    def __init__(self, device: Device, size: int, client: int = 1) -> None:
        self.gone = threading.Event()
        self.address = (device.host_memory_base or pinned_window_of(9)) + _NUMBER() * (1 << 30) + 3 * mmap.PAGESIZE
        file = make_file(size)
        try:
            self.bytes: memoryview | None = map_at(file.descriptor, self.address, size, self.gone.set)
            self._unregister: Callable[[], None] | None = device.register_host_memory(
                client, self.address, self.bytes, file
            )
        finally:
            os.close(file.descriptor)

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
