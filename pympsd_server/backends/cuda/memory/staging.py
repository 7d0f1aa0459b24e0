"""Host memory that the device reads and writes: slots for small copies, clients' shared memory for large ones.

Registering memory does not wait for kernels, but it delays other clients' launches while it lasts (7 ms for 16 MiB).
Unregistering waits for every running kernel, so it is left to the cleanup thread.

Source: docs/decisions/004-what-the-gpu-decided.md.
"""

import ctypes
import errno
import mmap
import os
from collections import Counter
from collections.abc import Hashable
from threading import Lock
from typing import Any, Final

import numpy as np
from attrs import define, frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.memory.address_ranges import split_at_registered_parts
from pympsd_server.backends.free_ranges import FreeRanges, NoRange
from pympsd_server.backends.interface import BackendError

DIRECT_BYTES: Final = 256 << 10
"""The size in bytes above which copies go directly from and to memory that can be registered."""
_AREA_BYTES: Final = 16 << 20
_MAX_SLOT_BYTES: Final = 512 << 20
"""The maximum number of bytes in the slots of unfinished copies. A copy that needs more fails with OUT_OF_MEMORY."""
_MAX_CLIENT_BYTES: Final = 32 << 20
"""The maximum number of bytes in one client's slots. A client that follows the protocol uses at most its 16 MiB of
shared memory, and as much again for a context that it has destroyed."""
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE. Linux before 5.14 lacks it; there the driver makes the pages while it pins them."""
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def address_of(view: memoryview) -> int:
    """Return the address of a view's bytes."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@define(eq=False)
class _Area:
    memory: mmap.mmap
    address: int
    free: FreeRanges


@frozen(eq=False)
class Slot:
    """Registered memory of the executor, through which one copy passes."""

    address: int
    view: memoryview
    client: Hashable
    _area: _Area


class Staging:
    """The slots that copies of one device pass through. Safe to use from several threads."""

    def __init__(self, driver: Driver) -> None:
        """Register the first area, while nothing runs that it could delay."""
        self._driver = driver
        self._lock = Lock()
        self._areas = [self._area(_AREA_BYTES)]
        self._taken: Counter[Hashable] = Counter()
        """The number of bytes in slots, by client."""

    def _area(self, size: int) -> _Area:
        memory = mmap.mmap(-1, size)
        address = address_of(memoryview(memory))
        self._driver.call(cu.cuMemHostRegister, address, size, 0)
        return _Area(memory, address, FreeRanges(0, size))

    def take(self, count: int, client: Hashable) -> Slot:
        """Return a slot of ``count`` bytes; raise BackendError OUT_OF_MEMORY at the limits."""
        with self._lock:
            client_bytes = self._taken[client]
            if client_bytes and client_bytes + count > _MAX_CLIENT_BYTES:
                raise _too_much("this client", _MAX_CLIENT_BYTES)
            slot = self._slot(count, client)
            self._taken[client] += count
            return slot

    def _slot(self, count: int, client: Hashable) -> Slot:
        for area in self._areas:
            try:
                offset = area.free.take(count)
            except NoRange:
                continue
            return Slot(area.address + offset, memoryview(area.memory)[offset : offset + count], client, area)
        size = max(_AREA_BYTES, -(-count // mmap.PAGESIZE) * mmap.PAGESIZE)
        if sum(len(area.memory) for area in self._areas) + size > _MAX_SLOT_BYTES:
            raise _too_much("all clients", _MAX_SLOT_BYTES)
        self._areas.append(self._area(size))
        return self._slot(count, client)

    def give(self, slot: Slot) -> None:
        """Give back a slot after the device has finished its copy."""
        with self._lock:
            slot._area.free.give(slot.address - slot._area.address, slot.view.nbytes)
            self._taken[slot.client] -= slot.view.nbytes
            if not self._taken[slot.client]:
                del self._taken[slot.client]

    def close(self) -> None:
        """Unregister all areas; this waits for every running kernel."""
        with self._lock:
            for area in self._areas:
                self._driver.call(cu.cuMemHostUnregister, area.address)
            self._areas.clear()


def _too_much(subject: str, limit: int) -> BackendError:
    reason = f"unfinished copies of {subject} would take more than {limit} bytes of the executor; synchronize first"
    return BackendError(Result.ERROR_OUT_OF_MEMORY, reason)


class RegisteredMappings:
    """Shared memory of one client that the device accesses directly. Used by that client's worker."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._mappings: dict[int, tuple[Any, int]] = {}
        """The mapping and its address, by the mapping's id().

        The address is 0 if the mapping could not be registered.
        """

    def can_access(self, view: memoryview) -> bool:
        """Return whether the device can access the bytes of a view; a mapping is registered the first time."""
        memory = view.obj
        if not isinstance(memory, mmap.mmap):
            return False
        mapping = self._mappings.get(id(memory))
        if mapping is None:
            mapping = self._mappings[id(memory)] = (memory, self._register(memory))
        return bool(mapping[1])

    def _register(self, memory: mmap.mmap) -> int:
        address = address_of(memoryview(memory))
        try:
            self._driver.call(cu.cuMemHostRegister, address, len(memory), 0)
        except BackendError:  # the system does not pin more memory: copies use slots
            return 0
        return address

    def release(self) -> None:
        """Unregister all mappings; this waits for every running kernel."""
        for _, address in self._mappings.values():
            if address:
                self._driver.call(cu.cuMemHostUnregister, address)
        self._mappings.clear()


class RegisteredMemory:
    """Page-locked memory that a client shares: registered in place, for copies and for kernels."""

    def __init__(self, driver: Driver, address: int, memory: memoryview) -> None:
        self._driver = driver
        self._address = address
        self._memory: memoryview | None = memory
        self._registered: list[int] = []

    def register(self) -> None:
        """Register the memory in parts, so that others can launch in between.

        The caller must call ``release`` even after a BackendError.
        """
        flags = cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP
        assert self._memory is not None
        for _, address, length in split_at_registered_parts(self._address, self._memory.nbytes):
            # Make the pages first, which takes longer than pinning them, but does not delay other clients.
            if _madvise(address, length, _POPULATE_WRITE) != 0 and ctypes.get_errno() != errno.EINVAL:
                reason = f"cannot make {length} bytes of page-locked memory: {os.strerror(ctypes.get_errno())}"
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
            self._driver.call(cu.cuMemHostRegister, address, length, flags)
            self._registered.append(address)

    def release(self) -> None:
        """Unregister the memory; this waits for every running kernel."""
        while self._registered:
            self._driver.call(cu.cuMemHostUnregister, self._registered.pop())
        self._memory = None
