"""Files in memory whose size is sealed (memfd_create(2), F_ADD_SEALS in fcntl(2)): safe to map.

If a file shrinks, reading its mapping raises SIGBUS; so does one of huge pages, of which there may be none.
"""

import fcntl
import os
from functools import cache
from typing import Final

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_sealed(name: str, size: int) -> int:
    """Return the descriptor of ``size`` zero bytes whose size cannot be changed; OSError if there is no memory.

    The caller owns the descriptor. Because of the seals a peer that gets it cannot shrink the file, so reading a
    mapping of it never faults (memfd_create(2)).
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


@cache
def _file_system() -> int:
    """Return the device number of memfd files with pages of the usual size; those of huge pages have another."""
    fd = make_sealed("", 0)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def open_sealed(pid: int, fd: int, name: str, size: int = 0) -> int:
    """Return a descriptor of another process's file that `make_sealed` made with this name; OSError, ValueError.

    It has at least ``size`` bytes.
    """
    # No FIFO is waited for, no terminal is taken: it may be any file.
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if os.readlink(f"/proc/self/fd/{opened}") != f"/memfd:{name} (deleted)":
            raise ValueError(f"descriptor {fd} of process {pid} is another file")
        if os.fstat(opened).st_dev != _file_system():
            raise ValueError(f"descriptor {fd} of process {pid} is a file of huge pages")
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError(f"the size of descriptor {fd} of process {pid} can change")
        if os.fstat(opened).st_size < size:
            raise ValueError(f"descriptor {fd} of process {pid} has fewer than {size} bytes")
    except BaseException:
        os.close(opened)
        raise
    return opened
