"""Page-locked memory of one client: shared with it at the same address, and reached by its device's copies.

It is made here and sealed, so that no client can cut it under our feet. Freed, it stays mapped on this side until
nothing on the device can be at work on it: how long that takes the backend knows.
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final

from attrs import frozen

from pympsd.channel.descriptors import explain
from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Device
from pympsd_server.executor.host_memory.pinned_addresses import PinnedRoom
from pympsd_server.executor.host_memory.pinned_mapping import mapped_at
from pympsd_server.executor.host_memory.shared import make_sealed

_TRIES: Final = 8
"""Addresses looked at where something else is mapped."""


@frozen
class Given:
    """A new piece: ``fd`` is for the client, and is closed once it is sent."""

    address: int
    fd: int


@frozen(eq=False)
class _Piece:
    memory: memoryview
    let_go: Callable[[], None]
    """The backend's: gives the memory up when nothing on the device can be at work on it."""


class PinnedMemory:
    """The pieces of one client. Used by its worker, closed by the desk."""

    def __init__(self, device: Device, room: PinnedRoom) -> None:
        self._device = device
        self._room = room
        self._lock = Lock()
        self._closed = False
        self._starts: list[int] = []
        self._pieces: dict[int, _Piece] = {}

    def allocate(self, count: int) -> Given:
        """Return a new piece of ``count`` bytes, zero; BackendError INVALID_VALUE, OUT_OF_MEMORY."""
        if count == 0:
            raise BackendError(Result.ERROR_INVALID_VALUE, "an allocation has at least 1 byte")
        size = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
        address, fd, memory = self._map(size)
        try:
            let_go = self._device.reach_host(address, memory)
            with self._lock:
                closed = self._closed
                if not closed:
                    insort(self._starts, address)
                    self._pieces[address] = _Piece(memory, let_go)
            if closed:
                let_go()
                raise BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "this client is gone")
        except BaseException:
            os.close(fd)
            raise
        return Given(address, fd)

    def _map(self, size: int) -> tuple[int, int, memoryview]:
        room = self._room
        for _ in range(_TRIES):
            address = room.take(size, self)
            try:
                fd = make_sealed("pympsd-pinned", size)
                try:
                    return address, fd, mapped_at(fd, address, size, partial(room.give, address))
                except BaseException:
                    os.close(fd)
                    raise
            except OSError as error:
                room.give(address)
                if error.errno != errno.EEXIST:
                    raise _refused(size, error) from None
                room.skip(address)
        raise BackendError(
            Result.ERROR_OUT_OF_MEMORY, "the addresses for page-locked memory are taken in this process"
        )

    def view(self, address: int, count: int) -> memoryview:
        """Return ``count`` bytes at an address; BackendError INVALID_VALUE unless a piece of the client has them."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            start = self._starts[at] if at >= 0 else address
            piece = self._pieces.get(start)
        if piece is None or address - start > piece.memory.nbytes - count:
            reason = f"host address {address:#x}, {count} bytes: in no page-locked memory of this client"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        return piece.memory[address - start : address - start + count]

    def take(self, address: int) -> Callable[[], None]:
        """Forget a piece; return what gives its memory up. BackendError INVALID_VALUE unless one begins there."""
        with self._lock:
            piece = self._pieces.pop(address, None)
            if piece is None:
                reason = f"{address:#x} is not where page-locked memory of this client begins"
                raise BackendError(Result.ERROR_INVALID_VALUE, reason)
            self._starts.remove(address)
        return piece.let_go

    def close(self) -> None:
        """The client is gone, and its contexts are: give all of it up. A worker that is late gets no more."""
        with self._lock:
            self._closed = True
            pieces = tuple(self._pieces.values())
            self._pieces.clear()
            self._starts.clear()
        for piece in pieces:
            piece.let_go()


def _refused(size: int, error: OSError) -> BackendError:
    if error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
        return BackendError(Result.ERROR_OUT_OF_MEMORY, f"no {size} bytes of page-locked memory: {explain(error)}")
    return BackendError(Result.ERROR_OPERATING_SYSTEM, f"no page-locked memory: {explain(error)}")
