"""Define the objects that a context's kernels share: the heap of malloc, the output of printf, graph conditions."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from threading import Event, Lock
from typing import Final
from weakref import WeakValueDictionary

from attrs import Factory, define, field

HEAP_BYTES: Final = 8 << 20
"""The default of CU_LIMIT_MALLOC_HEAP_SIZE, in bytes."""
_UNIT: Final = 16
"""The alignment of allocations, in bytes; sizes are rounded up to it."""


class DeviceHeap:
    """The heap of device-side malloc and free, one block of the context's memory.

    The first allocation calls `reserve` with the heap's size; it returns the block's address, or 0 if memory is
    short.
    """

    def __init__(self, reserve: Callable[[int], int]) -> None:
        self._reserve = reserve
        self.limit = HEAP_BYTES
        """The size of the heap in bytes."""
        self._lock = Lock()
        self._base: int | None = None
        self._gaps: list[tuple[int, int]] = []
        """Free ranges (start, end), in ascending order and never adjacent."""
        self._sizes: dict[int, int] = {}

    def set_limit(self, count: int) -> bool:
        """Set the size in bytes. Return whether the heap has this size now: after a malloc it cannot change."""
        with self._lock:
            if self._base is None:
                self.limit = max(_UNIT, count)
            return self._base is None or count == self.limit

    def allocate(self, count: int) -> int:
        """Allocate a number of bytes; return their address, or 0 if the heap is full."""
        size = max(_UNIT, -(-count // _UNIT) * _UNIT)
        with self._lock:
            if self._base is None:
                self._base = self._reserve(self.limit)
                self._gaps = [(self._base, self._base + self.limit)] if self._base else []
            for index, (start, end) in enumerate(self._gaps):
                if start + size <= end:
                    self._gaps[index : index + 1] = [(start + size, end)] if start + size < end else []
                    self._sizes[start] = size
                    return start
        return 0

    def free(self, address: int) -> bool:
        """Free an allocation, or do nothing for address 0. Return False if the address is not an allocation."""
        if not address:
            return True
        with self._lock:
            size = self._sizes.pop(address, None)
            if size is None:
                return False
            insort(self._gaps, (address, address + size))
            at = self._gaps.index((address, address + size))
            for lower in (at, at - 1):
                pair = self._gaps[lower : lower + 2] if lower >= 0 else []
                if len(pair) == 2 and pair[0][1] == pair[1][0]:
                    self._gaps[lower : lower + 2] = [(pair[0][0], pair[1][1])]
        return True


PRINT_BYTES: Final = 1 << 20
"""The default of CU_LIMIT_PRINTF_FIFO_SIZE, in bytes."""

MAX_PRINT_BYTES: Final = 64 << 20
"""The maximum size of the text in bytes, because it is in the executor's memory and not in the device's."""


class PrintBuffer:
    """The text that a context's kernels print. Above `limit` bytes the oldest is dropped, as in CUDA's buffer."""

    def __init__(self) -> None:
        self.limit = PRINT_BYTES
        """The maximum size of the text in bytes, but at most MAX_PRINT_BYTES are kept."""
        self._lock = Lock()
        self._texts: deque[bytes] = deque()
        self._bytes = 0
        self._reports: list[bytes] = []

    def print(self, text: bytes) -> None:
        """Add the text that one thread printed."""
        with self._lock:
            self._texts.append(text)
            self._bytes += len(text)
            while self._bytes > min(self.limit, MAX_PRINT_BYTES):
                self._bytes -= len(self._texts.popleft())

    def report(self, text: bytes) -> None:
        """Add the lines of failed assertions."""
        with self._lock:
            self._reports.append(text)

    def take(self) -> tuple[bytes, bytes]:
        """Return the pending texts for standard output and standard error, and clear them."""
        if not self._texts and not self._reports:
            return b"", b""
        with self._lock:
            output = b"".join(self._texts), b"".join(self._reports)
            self._texts.clear()
            self._reports.clear()
            self._bytes = 0
        return output


@define(eq=False)
class DeviceCondition:
    """The value that kernels set with cudaGraphSetConditional."""

    value: int = 0


class Conditions:
    """The conditions of a context's executable graphs, by handle. A condition exists as long as a graph holds it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: WeakValueDictionary[int, DeviceCondition] = WeakValueDictionary()
        self.find: Final = self._held.get

    def get_or_create(self, handle: int) -> DeviceCondition:
        """Return the condition with a handle; create it if it does not exist. The caller must keep the reference."""
        with self._lock:
            return self._held.setdefault(handle, DeviceCondition())


@define(eq=False)
class Facilities:
    """The objects that the kernels of all modules of a context share."""

    heap: DeviceHeap
    output: PrintBuffer = field(factory=PrintBuffer)
    conditions: Conditions = field(factory=Conditions)
    ended: Event = field(factory=Event)
    """The event that is set when the context has faulted or is being destroyed."""
    client: object = field(default=Factory(lambda context: context, takes_self=True))
    """An object that all contexts of a client process share, as its identity; by default this object itself."""
    user: int = 0
    """The user ID of the client process."""
