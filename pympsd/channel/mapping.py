"""Map pages at chosen addresses of this process, which Python's own mmap cannot do (mmap(2), mremap(2)).

Files in memory whose size is sealed (memfd_create(2), F_ADD_SEALS in fcntl(2)) are safe to map. If a file shrinks,
reading its mapping raises SIGBUS; so does reading a mapping of huge pages if none are free.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from functools import cache
from typing import Final

# The mmap module of Python 3.11 lacks these; the values are those of Linux on x86-64 and aarch64.
NORESERVE: Final[int] = getattr(mmap, "MAP_NORESERVE", 0x4000)
FIXED_NOREPLACE: Final = 0x100000
"""MAP_FIXED_NOREPLACE: map at this address or not at all; kernels before 4.17 take the address as a hint."""
_FIXED: Final = 0x10
_MAY_MOVE_TO: Final = 1 | 2
"""The flags of mremap(2) MREMAP_MAYMOVE and MREMAP_FIXED together."""
_READ_AND_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED: Final = ctypes.c_void_p(-1).value
_libc: Final = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_advise = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_remap = _libc.mremap
_remap.restype = ctypes.c_void_p
_remap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


def map_file(fd: int, size: int, address: int = 0, offset: int = 0) -> int:
    """Map ``size`` bytes of a file from an offset; return the address, which is ``address`` unless that is 0.

    Raise OSError, with EEXIST if something else is mapped at the address.
    """
    flags = mmap.MAP_SHARED | FIXED_NOREPLACE if address else mmap.MAP_SHARED
    mapped = _check(_map(address or None, size, _READ_AND_WRITE, flags, fd, offset))
    if address and mapped != address:
        _unmap(mapped, size)
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    return mapped


def map_file_over(fd: int, size: int, address: int, offset: int = 0) -> None:
    """Map ``size`` bytes of a file from an offset; replace the mappings at the address. Raise OSError."""
    _check(_map(address, size, _READ_AND_WRITE, mmap.MAP_SHARED | NORESERVE | _FIXED, fd, offset))


def map_nothing(size: int, address: int = 0) -> int:
    """Map zero pages, which take no memory until they are used, and return the address.

    If ``address`` is not 0, replace the mappings there. Raise OSError.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE | (_FIXED if address else 0)
    return _check(_map(address or None, size, _READ_AND_WRITE, flags, -1, 0))


def map_again(source: int, size: int, address: int) -> None:
    """Map whole pages of a shared mapping a second time; replace the mappings at the address. Raise OSError."""
    # With an old size of 0, mremap leaves the first mapping unchanged.
    _check(_remap(source, 0, size, _MAY_MOVE_TO, address))


def release(address: int, size: int) -> None:
    """Release whole pages of a file in memory that are mapped at an address. They are zero when next accessed."""
    _advise(address, size, mmap.MADV_REMOVE)


def unmap(address: int, size: int) -> None:
    """Unmap whole pages."""
    _unmap(address, size)


def _check(address: int | None) -> int:
    if address is None or address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address


_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_sealed(name: str, size: int) -> int:
    """Return the descriptor of a file in memory with ``size`` zero bytes, whose size cannot be changed.

    Raise OSError.

    The caller owns the descriptor. Because of the seals a peer that gets the descriptor cannot shrink the file, so
    reading its mapping never faults (memfd_create(2)).
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
    """Return the device number of memfd files with pages of the usual size; files with huge pages have a different
    one.
    """
    fd = make_sealed("", 0)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def open_sealed(pid: int, fd: int, name: str, size: int = 0) -> int:
    """Return a descriptor of another process's file that `make_sealed` made with this name.

    Raise OSError if it cannot be opened, ValueError if it is another file or has fewer than ``size`` bytes.
    """
    # The descriptor may be of any file, and opening a device may have effects, so find out first which file it is.
    handle = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        if os.readlink(f"/proc/self/fd/{handle}") != f"/memfd:{name} (deleted)":
            raise ValueError(f"descriptor {fd} of process {pid} is another file")
        if os.fstat(handle).st_dev != _file_system():
            raise ValueError(f"descriptor {fd} of process {pid} is a file of huge pages")
        opened = os.open(f"/proc/self/fd/{handle}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(handle)
    try:
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError(f"the size of descriptor {fd} of process {pid} can change")
        if os.fstat(opened).st_size < size:
            raise ValueError(f"descriptor {fd} of process {pid} has fewer than {size} bytes")
    except BaseException:
        os.close(opened)
        raise
    return opened
