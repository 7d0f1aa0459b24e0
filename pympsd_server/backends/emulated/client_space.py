"""The address space that the contexts of one client process share, safe to change while kernels read it."""

from __future__ import annotations

import time
from threading import Lock

from attrs import define, field

from pympsd.vocabulary.device_facts import WINDOW_BITS
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.memory import AddressSpace, ReserveRefused
from pympsd_server.backends.emulated.ptx.datatypes import Value
from pympsd_server.backends.emulated.ptx.faults import DeviceFault
from pympsd_server.backends.interface import BackendError


class WatchedSpace(AddressSpace):
    """An address space that counts its changes: odd while one is being made.

    Kernels look addresses up without a lock, for an allocation must not wait for a kernel. A look-up beside which
    the count moved may have seen half a change: it is made again. Changes themselves are made under a lock.
    """

    _changes = 0

    def allocate(self, nbytes: int, alignment: int = 512) -> int:
        """The address of new bytes, zero."""
        self._changes += 1
        try:
            return super().allocate(nbytes, alignment)
        finally:
            self._changes += 1

    def free(self, address: int) -> None:
        """Give back an allocation."""
        self._changes += 1
        try:
            super().free(address)
        finally:
            self._changes += 1

    def contains(self, low: int, high: int) -> bool:
        """Whether offsets low to high (exclusive) all lie inside one allocation."""
        while True:
            before = self._changes
            try:
                found = super().contains(low, high)
            except IndexError:  # the lists were of different lengths for a moment
                found = False
            if before == self._changes and not before & 1:
                return found
            time.sleep(0)  # let the change be finished

    def check(self, offsets: Value, nbytes: int) -> None:
        """Fault unless ``nbytes`` aligned bytes are allocated at each offset."""
        while True:
            before = self._changes
            fault: Exception | None = None
            try:
                super().check(offsets, nbytes)
            except (DeviceFault, IndexError, ValueError) as error:
                fault = error
            if before == self._changes and not before & 1:
                if fault is not None:
                    raise fault
                return
            self._table = None  # it may be made of half a change
            time.sleep(0)


@define(eq=False)
class ClientSpace:
    """``lock`` is held while the space is changed; ``contexts`` counts those that share it."""

    space: WatchedSpace
    lock: Lock = field(factory=Lock, init=False)
    contexts: int = field(default=0, init=False)


def reserve(base: int, total: int) -> ClientSpace:
    """Reserve a space at a device's window, twice the memory, so that gaps never make memory unreachable."""
    try:
        return ClientSpace(WatchedSpace(base, min(1 << WINDOW_BITS, 2 * total)))
    except ReserveRefused as error:
        raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
