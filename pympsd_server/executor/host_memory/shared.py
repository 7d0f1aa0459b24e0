"""The shared memory for bulk data, created and sealed by the executor, so that no client can shrink it."""

from __future__ import annotations

import mmap
import os
from typing import Final

from attrs import frozen

from pympsd.channel.sealed_file import make_sealed

SHARED_BYTES: Final = 16 << 20


@frozen
class SharedMemory:
    """``view`` is the executor's mapping, ``fd`` the client's descriptor; the receiver of this object closes it."""

    fd: int
    view: memoryview


def make(ring_bytes: int = 0) -> SharedMemory:
    """Return new zeroed shared memory of SHARED_BYTES and a ring's; OSError if the system has none."""
    size = SHARED_BYTES + ring_bytes
    fd = make_sealed("pympsd-bulk", size)
    try:
        return SharedMemory(fd, memoryview(mmap.mmap(fd, size)))
    except BaseException:
        os.close(fd)
        raise
