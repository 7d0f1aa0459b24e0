"""Define the objects that a context's kernels share: the heap of malloc, the output of printf, graph conditions."""

from collections import deque
from collections.abc import Callable
from threading import Event, Lock
from typing import Final
from weakref import WeakValueDictionary

from attrs import Factory, define, field

from pympsd_server.backends.free_ranges import FreeRanges, NoRange

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
        self._ranges: FreeRanges | None = None
        """The free addresses; None before the first allocation."""
        self._sizes: dict[int, int] = {}

    def set_limit(self, count: int) -> bool:
        """Set the size in bytes. Return whether the heap has this size now: after a malloc it cannot change."""
        with self._lock:
            if self._ranges is None:
                self.limit = max(_UNIT, count)
            return self._ranges is None or count == self.limit

    def allocate(self, count: int) -> int:
        """Allocate a number of bytes; return their address, or 0 if the heap is full."""
        count = max(count, 1)
        with self._lock:
            if self._ranges is None:
                base = self._reserve(self.limit)
                self._ranges = FreeRanges(base, self.limit if base else 0, _UNIT)
            try:
                address = self._ranges.take(count)
            except NoRange:
                return 0
            self._sizes[address] = count
        return address

    def free(self, address: int) -> bool:
        """Free an allocation, or do nothing for address 0. Return False if the address is not an allocation."""
        if not address:
            return True
        with self._lock:
            count = self._sizes.pop(address, None)
            if count is None or self._ranges is None:
                return False
            self._ranges.give(address, count)
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
        self._report_bytes = 0

    def print(self, text: bytes) -> None:
        """Add the text that one thread printed."""
        with self._lock:
            self._texts.append(text)
            self._bytes += len(text)
            while self._bytes > min(self.limit, MAX_PRINT_BYTES):
                self._bytes -= len(self._texts.popleft())

    def report(self, text: bytes) -> None:
        """Add the lines of a failed assertion, if not more than MAX_PRINT_BYTES of lines are kept then."""
        with self._lock:
            if self._report_bytes + len(text) <= MAX_PRINT_BYTES:
                self._reports.append(text)
                self._report_bytes += len(text)

    def take(self) -> tuple[bytes, bytes]:
        """Return the pending texts for standard output and standard error, and clear them."""
        if not self._texts and not self._reports:
            return b"", b""
        with self._lock:
            output = b"".join(self._texts), b"".join(self._reports)
            self._texts.clear()
            self._reports.clear()
            self._bytes = self._report_bytes = 0
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
