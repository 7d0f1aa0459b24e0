"""The shared memory for bulk data, created and sealed by the executor, so that no client can shrink it."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

from attrs import frozen

SHARED_BYTES: Final = 16 << 20
# If a file shrinks, reading its mapping raises SIGBUS; none of these seals can be removed.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


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


def make_sealed(name: str, size: int) -> int:
    """Return the descriptor of ``size`` zero bytes whose size cannot be changed; OSError if there is no memory."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
