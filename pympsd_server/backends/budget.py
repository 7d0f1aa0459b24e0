"""How much device memory there is and how much of it a client may have: accounts in bytes, for every backend."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError

NOTEWORTHY_BYTES: Final = 64 << 20
"""Less than this is not looked at when others on the device have given memory back."""
GRANULE_BYTES: Final = 512
"""Allocations are accounted in whole granules, as the address space lays them out."""


def charged(count: int) -> int:
    """Return what an allocation of so many bytes is accounted as."""
    return -(-count // GRANULE_BYTES) * GRANULE_BYTES


@define(eq=False)
class DeviceBudget:
    """All memory of one device, in bytes; safe to use from several threads.

    ``in_all`` returns what is taken of it by whomever, clients of this executor or not: asked at the start, and then
    before anybody is refused, for others may have given some back since. None: nobody else takes any.
    """

    total: int
    in_all: Callable[[], int] | None = None
    used: int = field(default=0, init=False)
    on_change: Callable[[], None] | None = field(default=None, init=False)
    """Called, from any thread, after bytes were taken or given back."""
    _others: int = field(default=0, init=False)
    """Of the used bytes those that clients here have not taken."""
    _lock: Lock = field(factory=Lock, init=False)

    def __attrs_post_init__(self) -> None:
        if self.in_all is not None:
            self.used = self._others = self.in_all()

    def take(self, count: int) -> bool:
        """Take bytes; return whether there were enough."""
        if not (self._take(count) or (self._others_have_given_back() and self._take(count))):
            return False
        self.changed()
        return True

    def _take(self, count: int) -> bool:
        with self._lock:
            if self.used + count > self.total:
                return False
            self.used += count
        return True

    def _others_have_given_back(self) -> bool:
        if self.in_all is None:
            return False
        in_all = self.in_all()
        with self._lock:
            given_back = self.used - in_all
            # What clients are accounted with and what it takes on the device differ by a little.
            if given_back < NOTEWORTHY_BYTES:
                return False
            given_back = min(given_back, self._others)
            self._others -= given_back
            self.used -= given_back
        return True

    def give(self, count: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.used -= count
        self.changed()

    def changed(self) -> None:
        """Tell who watches."""
        if self.on_change is not None:
            self.on_change()


@define(eq=False)
class ClientBudget:
    """A client process' part of it. ``limit`` in bytes, 0 for the device's; guarded by the client's memory lock."""

    device: DeviceBudget
    limit: int
    used: int = field(default=0, init=False)

    @property
    def total(self) -> int:
        """What cuMemGetInfo calls total: the limit where there is one."""
        return min(self.limit, self.device.total) if self.limit else self.device.total

    @property
    def free(self) -> int:
        """Bytes that could still be taken."""
        return max(0, min(self.total - self.used, self.device.total - self.device.used))

    def take(self, count: int, what: str = "an allocation") -> None:
        """Take bytes; BackendError OUT_OF_MEMORY says what they were for and which limit was met."""
        if self.used + count > self.total:
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY,
                f"{what} takes {count} bytes; this client's limit is {self.total} bytes and it holds {self.used}",
            )
        if not self.device.take(count):
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY,
                f"{what} takes {count} bytes; the device has {self.device.total - self.device.used} "
                f"of {self.device.total} left",
            )
        self.used += count

    def give(self, count: int) -> None:
        """Give bytes back."""
        self.device.give(count)
        self.used -= count
