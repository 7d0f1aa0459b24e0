"""How much device memory there is, and how much of it a context may have."""

from __future__ import annotations

from threading import Lock
from typing import Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError

CONTEXT_OVERHEAD_BYTES: Final = 8 << 20
"""What every context costs before its first allocation: 8 MiB flat, freed with it.

A real context costs hundreds of MiB, most of it for features the emulated device does not have; the flat figure
keeps the rule of the MPS documents that a pinned memory limit covers the context's own memory too.
"""
GRANULE_BYTES: Final = 512
"""Allocations are accounted in whole granules, as the address space lays them out."""


def charged(count: int) -> int:
    """Return what an allocation of so many bytes is accounted as."""
    return -(-count // GRANULE_BYTES) * GRANULE_BYTES


@define(eq=False)
class DeviceBudget:
    """All memory of one device, in bytes; safe to use from several threads."""

    total: int
    used: int = field(default=0, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    def take(self, count: int) -> bool:
        """Take bytes; return whether there were enough."""
        with self._lock:
            if self.used + count > self.total:
                return False
            self.used += count
            return True

    def give(self, count: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.used -= count


@define(eq=False)
class ContextBudget:
    """A context's part of it. ``limit`` in bytes, 0 for the device's; guarded by the context's memory lock."""

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

    def take(self, count: int) -> None:
        """Take bytes; BackendError OUT_OF_MEMORY says which limit was met."""
        if self.used + count > self.total:
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY,
                f"{count} bytes more would be {self.used + count}, over this context's {self.total}",
            )
        if not self.device.take(count):
            raise BackendError(
                Result.ERROR_OUT_OF_MEMORY,
                f"{count} bytes: the device has {self.device.total - self.device.used} of {self.device.total} left",
            )
        self.used += count

    def give(self, count: int) -> None:
        """Give bytes back."""
        self.device.give(count)
        self.used -= count
