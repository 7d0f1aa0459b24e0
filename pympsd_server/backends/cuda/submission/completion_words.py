"""Words of host memory that streams write marks to: the end of work is seen by reading them, without the driver.

It is seen 0.8 us sooner than by asking an event, and reading waits for no lock of the driver's (decision 004).
"""

import ctypes
from threading import Lock
from typing import Final

from attrs import define, field, frozen

from pympsd_server.backends.cuda.driver.calls import Driver, cu

_APART_BYTES: Final = 64
"""A cache line each: workers poll theirs without pause."""
_AREA_BYTES: Final = 65536


@frozen
class CompletionWord:
    """32 bits at an address that host and device share."""

    address: int

    @property
    def value(self) -> int:
        """The mark that was written to it last."""
        return ctypes.c_uint32.from_address(self.address).value


@define(eq=False)
class CompletionWords:
    """The words of one device. A word that is used again keeps the value it has. Safe for threads."""

    _driver: Driver
    _lock: Lock = field(factory=Lock, init=False)
    _free: list[CompletionWord] = field(factory=list, init=False)

    def take(self) -> CompletionWord:
        """Return an unused word; BackendError when the driver has no memory."""
        with self._lock:
            if not self._free:
                flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
                start = int(self._driver.call(cu.cuMemHostAlloc, _AREA_BYTES, flags))
                ctypes.memset(start, 0, _AREA_BYTES)
                self._free = [CompletionWord(start + offset) for offset in range(0, _AREA_BYTES, _APART_BYTES)]
            return self._free.pop()

    def give(self, word: CompletionWord) -> None:
        """Return a word once all that writes to it is done. Its memory stays: freeing it waits for all kernels."""
        with self._lock:
            self._free.append(word)
