"""What a context gives its kernels besides memory: a heap, a buffer for what they print, and conditions."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from attrs import define, field

from pympsd_server.backends.emulated.ptx.runtime.heap import DeviceHeap

PRINT_BYTES: Final = 1 << 20
"""CU_LIMIT_PRINTF_FIFO_SIZE unless a program sets it."""

GREATEST_PRINT_BYTES: Final = 64 << 20
"""However large a buffer a program asks for: the text is in the executor's memory, not the device's."""


class PrintBuffer:
    """The text of one context's kernels: past `limit` bytes the oldest is dropped, as from CUDA's circular buffer."""

    def __init__(self) -> None:
        self.limit = PRINT_BYTES
        """In bytes, up to GREATEST_PRINT_BYTES."""
        self._lock = Lock()
        self._texts: deque[bytes] = deque()
        self._bytes = 0
        self._reports: list[bytes] = []

    def print(self, text: bytes) -> None:
        """Add the text of one vprintf."""
        with self._lock:
            self._texts.append(text)
            self._bytes += len(text)
            while self._bytes > min(self.limit, GREATEST_PRINT_BYTES):
                self._bytes -= len(self._texts.popleft())

    def report(self, text: bytes) -> None:
        """Add the lines of failed assertions."""
        with self._lock:
            self._reports.append(text)

    def take(self) -> tuple[bytes, bytes]:
        """Return and clear what is to be written to standard output and to standard error."""
        if not self._texts and not self._reports:
            return b"", b""
        with self._lock:
            taken = b"".join(self._texts), b"".join(self._reports)
            self._texts.clear()
            self._reports.clear()
            self._bytes = 0
        return taken


@define(eq=False)
class DeviceCondition:
    """What kernels set by cudaGraphSetConditional."""

    value: int = 0


class Conditions:
    """The conditions of a context's executable graphs, by handle. Each lives as long as a graph holds it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: WeakValueDictionary[int, DeviceCondition] = WeakValueDictionary()
        self.find: Final = self._held.get

    def of(self, handle: int) -> DeviceCondition:
        """Return the condition of a handle, for a graph to hold."""
        with self._lock:
            return self._held.setdefault(handle, DeviceCondition())


@define(eq=False)
class Facilities:
    """The facilities of one context; kernels of all its modules share them."""

    heap: DeviceHeap
    output: PrintBuffer = field(factory=PrintBuffer)
    conditions: Conditions = field(factory=Conditions)
