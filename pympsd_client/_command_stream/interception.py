"""What sees records before they are sent: a stream capture, which takes those of capturing streams."""

from collections.abc import Callable
from typing import Any, Protocol

HostFunction = tuple[int, int, Callable[[int], None]]
"""The address of a C function (0 for another callable), that of its data, and what calls it."""


class Interceptor(Protocol):
    """Takes work in place of the command stream, or refuses it; it raises CudaError."""

    def takes_record(self, record: bytes) -> bool:
        """Take a record, or leave it (False)."""

    def takes_copy(self, context: Any, stream: int, make: Callable[[], Any]) -> bool:
        """Take a copy with pageable host memory, whose bytes no record has; ``make`` returns its description."""

    def takes_allocation(self, context: Any, stream: int, size: int, kind: Any) -> int:
        """Take an allocation of a kind of pool and return its address, or leave it (0)."""

    def takes_free(self, context: Any, stream: int, address: int) -> bool:
        """Take the freeing of an address, or leave it."""

    def makes_programmatic(self, context: Any, stream: int) -> None:
        """Note that the kernel just taken may begin before the one in front of it has ended."""

    def takes_external_event(self, context: Any, stream: int, event: int, is_wait: bool) -> bool:
        """Take the recording of an event, or a wait for one, as work; or leave it."""

    def takes_host_function(self, context: Any, stream: int, work: HostFunction | None) -> bool:
        """Take a host function; None: a callback, which cannot be taken."""


class _Intercepted:
    """The interceptor, while there is one: any thread may set it, so it is read once and then called."""

    def __init__(self) -> None:
        self.by: Interceptor | None = None


intercepted = _Intercepted()
