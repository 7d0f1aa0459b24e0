"""What a server reports of a device: the memory that its clients hold there, its kernels, and its utilization.

The same record travels all the way, so a new figure needs no change in between:

    executors -> the server's record of them -> MemoryReported -> the daemon's `Server.use` -> NVML, metrics, lists

On the link its fields are those of MemoryReported itself. They are encoded by their names: a new one has a default,
which stands for what a server of an earlier version does not report. An example: two clients hold 64 and 2 MiB, an
exited one still holds 1 MiB, and 12 kernels were started::

    DeviceUse({7: 64 << 20, 9: 2 << 20}, launches=12, left=1 << 20)

The driver's own server reports nothing of this: its clients' memory is read through NVML.
"""

from collections.abc import Iterable
from typing import Final

from attrs import frozen

_MAX_LAUNCHES: Final = (1 << 63) - 1


@frozen
class DeviceUse:
    """The use of one device by one server."""

    clients: dict[int, int]
    """Bytes that each client holds, by the daemon's id of it; one that is left out holds none."""
    launches: int = 0
    """Kernels that the server has started there since its start."""
    left: int = 0
    """Bytes that exited clients still hold: their kernels run."""
    utilization: int | None = None
    """The percentage of the last sample period (at most 1 s) in which kernels ran; None: it is not counted."""

    def is_possible(self, memory_bytes: int) -> bool:
        """Return whether a device with ``memory_bytes`` of memory can be used so: servers are not trusted.

        >>> DeviceUse({7: 64}).is_possible(memory_bytes=32)
        False
        """
        counts = self.left, *self.clients.values()
        figures = 0 <= self.launches <= _MAX_LAUNCHES, 0 <= (self.utilization or 0) <= 100
        return all(figures) and all(0 <= count <= memory_bytes for count in counts)


def combine_utilization(percentages: Iterable[int]) -> int:
    """Return the utilization of a device that several executors or servers use: the sum, at most 100 %."""
    return min(100, sum(percentages))
