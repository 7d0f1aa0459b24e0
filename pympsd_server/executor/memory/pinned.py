"""Page-locked memory of one client: both map it at the same address, and copies of the device access it.

A client's page-locked memory is one file, with offsets that follow from the addresses, so that executors of other
devices can map it as a whole. The file has pages only where memory is used. The executor creates and seals the file,
so that a client cannot shrink it. Freed memory stays mapped in the executor until no work on the device can access
it, which the backend determines.
"""

import errno
import mmap
import os
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy as np
from attrs import define, field, frozen

from pympsd.channel.descriptors import explain
from pympsd.channel.mapping import make_sealed, map_file, release, unmap
from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError
from pympsd_server.backends.virtual_memory import HOST_FILE_BYTES, File, file_name, new_secret
from pympsd_server.executor.memory.pinned_addresses import PinnedAddresses

_TRIES: Final = 8
"""The maximum number of addresses to try if something else is mapped there."""


@frozen
class PinnedPiece:
    """A new piece of memory, at an offset of a file; ``fd`` is for the client, and is closed after it is sent."""

    address: int
    offset: int
    fd: int


@frozen(eq=False)
class _Piece:
    memory: memoryview
    unregister: Callable[[], None]
    """The backend's function that releases the memory when no work on the device can access it any more."""


@define(eq=False)
class PinnedPieces:
    """The pieces of one client. The client's worker uses it; the owner's thread closes it."""

    _device: Device
    _addresses: PinnedAddresses
    _address_space: int
    _lock: Lock = field(factory=Lock, init=False)
    _closed: bool = field(default=False, init=False)
    _starts: list[int] = field(factory=list, init=False)
    _pieces: dict[int, _Piece] = field(factory=dict, init=False)
    _file: File | None = field(default=None, init=False)

    def allocate(self, count: int) -> PinnedPiece:
        """Return a new piece of ``count`` zero bytes. Raise BackendError with INVALID_VALUE or OUT_OF_MEMORY."""
        if count == 0:
            raise BackendError(Result.ERROR_INVALID_VALUE, "an allocation must have at least 1 byte")
        size = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            file, fd = self._open_file()
        except OSError as error:
            raise _allocation_error(size, error) from None
        try:
            address, memory = self._map(fd, size)
            unregister = self._device.register_host_memory(self._address_space, address, memory, file)
            with self._lock:
                closed = self._closed
                if not closed:
                    insort(self._starts, address)
                    self._pieces[address] = _Piece(memory, unregister)
            if closed:
                unregister()
                raise BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "this client is gone")
        except BaseException:
            os.close(fd)
            raise
        return PinnedPiece(address, self._addresses.offset_of(address), fd)

    def _open_file(self) -> tuple[File, int]:
        """Return the file and a descriptor for the caller.

        Raise OSError, or BackendError with CONTEXT_IS_DESTROYED.
        """
        with self._lock:
            if self._closed:
                raise BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "this client is gone")
            if self._file is None:
                secret = new_secret()
                self._file = File(make_sealed(file_name(secret), HOST_FILE_BYTES), secret)
            return self._file, os.dup(self._file.descriptor)

    def charge(self, count: int) -> Callable[[], None]:
        """Count other host memory of the client; return a function that stops counting it.

        Raise BackendError with OUT_OF_MEMORY.
        """
        return self._addresses.charge(count, self)

    def _map(self, fd: int, size: int) -> tuple[int, memoryview]:
        addresses = self._addresses
        for _ in range(_TRIES):
            address = addresses.take(size, self)
            try:
                offset = addresses.offset_of(address)
                return address, map_at(fd, address, size, partial(addresses.give, address), offset)
            except OSError as error:
                addresses.give(address)
                if error.errno != errno.EEXIST:
                    raise _allocation_error(size, error) from None
                addresses.skip(address)
        raise BackendError(
            Result.ERROR_OUT_OF_MEMORY, "the addresses for page-locked memory are taken in this process"
        )

    def view(self, address: int, count: int) -> memoryview:
        """Return ``count`` bytes at an address.

        Raise BackendError with INVALID_VALUE unless they are in one piece.
        """
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            start = self._starts[at] if at >= 0 else address
            piece = self._pieces.get(start)
        if piece is None or address - start > piece.memory.nbytes - count:
            reason = f"host address {address:#x}, {count} bytes: in no page-locked memory of this client"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        return piece.memory[address - start : address - start + count]

    def take(self, address: int) -> Callable[[], None]:
        """Remove the piece at an address, and return the callback that unregisters it.

        Raise BackendError with INVALID_VALUE unless a piece begins there.
        """
        with self._lock:
            piece = self._pieces.pop(address, None)
            if piece is None:
                reason = f"{address:#x} is not where page-locked memory of this client begins"
                raise BackendError(Result.ERROR_INVALID_VALUE, reason)
            self._starts.remove(address)
        return piece.unregister

    def close(self) -> None:
        """Unregister all pieces, after the client's contexts were destroyed; later allocations fail."""
        with self._lock:
            self._closed = True
            pieces = tuple(self._pieces.values())
            self._pieces.clear()
            self._starts.clear()
            file, self._file = self._file, None
        for piece in pieces:
            piece.unregister()
        if file is not None:
            os.close(file.descriptor)


def _allocation_error(size: int, error: OSError) -> BackendError:
    if error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
        return BackendError(Result.ERROR_OUT_OF_MEMORY, f"no {size} bytes of page-locked memory: {explain(error)}")
    return BackendError(Result.ERROR_OPERATING_SYSTEM, f"no page-locked memory: {explain(error)}")


class _Bytes:
    """The owner of the mapping, which arrays over the mapping keep alive (NumPy, The array interface protocol)."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, False),
        }


def map_at(fd: int, address: int, size: int, on_end: Callable[[], None], offset: int = 0) -> memoryview:
    """Return ``size`` bytes of a file, mapped at ``address``.

    Raise OSError, with EEXIST if something else is mapped there.

    When the last reference to the bytes is dropped, they are released and unmapped, and then ``on_end`` is called,
    from any thread.
    """
    map_file(fd, size, address, offset)
    owner = _Bytes(address, size)
    weakref.finalize(owner, _end, address, size, on_end).atexit = False
    return np.asarray(owner).data


def _end(address: int, size: int, on_end: Callable[[], None]) -> None:
    release(address, size)
    unmap(address, size)
    on_end()
