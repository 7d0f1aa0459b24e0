"""The properties of one device, which the daemon lists, servers check and clients answer from; and its use.

`DeviceUse` is a server's report of a device: the memory that its clients hold there, its kernels, and its
utilization.

One record goes the whole way, so that a new figure needs no change in between:

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

from pympsd.process.version import CLIENT_CONTEXTS, DRIVER

WINDOW_BASE = 0x6000_0000_0000
WINDOW_BITS = 40
"""Each device owns the addresses from ``WINDOW_BASE + (ordinal << WINDOW_BITS)`` up to the next window (1 TiB)."""
PINNED_BASE = 0x4000_0000_0000
PINNED_BITS = 38
"""Page-locked host memory that a device's executor shares with clients lies at the same addresses in both, between
``PINNED_BASE + (ordinal << PINNED_BITS)`` and the next such window (256 GiB), where nothing else is mapped."""
PINNED_WINDOWS = 64
PINNED_END = PINNED_BASE + (PINNED_WINDOWS << PINNED_BITS)
VIRTUAL_OFFSET, MAPPED_OFFSET = 2 << 38, 3 << 38
"""On an emulated device the page-locked memory lies in the device's own window instead, from this offset up to the
window's end, because its kernels access only the addresses of that window. Between the first offset and this one
clients reserve addresses and map memory there themselves."""
MAPPING_GRANULE = 2 << 20
"""The unit in bytes of such mappings: their addresses and sizes are multiples of it."""


MAX_CONTEXTS_BEFORE_VOLTA = 16
"""The maximum number of client contexts at a time on a device before Volta (MPS documents, 2.3.2)."""


@frozen
class DeviceProperties:
    """One device as a machine description or a probe found it.

    ``memory_bytes`` is the total of device memory in bytes; ``attributes`` maps the names of CUdevice_attribute
    without their ``CU_DEVICE_ATTRIBUTE_`` prefix to their values.
    """

    name: str
    uuid: str
    """The UUID with its ``GPU-`` prefix."""
    pci: str
    """The PCI address as device_query prints it: ``0000:00.06.00``."""
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    attributes: dict[str, int]
    contains_faults: bool = False
    """True if a fatal fault stays with its context (an option of emulated machines) instead of affecting all contexts
    on the device."""
    stops_kernels: bool = False
    """True if a running kernel can be stopped. Emulated machines can, unless described otherwise."""
    isolates_address_spaces: bool = False
    """True if the clients of one executor cannot access each other's memory. Emulated machines from Volta on do
    this, unless described otherwise."""
    driver: int = DRIVER
    """The branch of the driver whose versions, number of client contexts and commands are the device's."""
    sm_chunks: tuple[int, int] | None = None
    """The number of chunks of SMs for static partitions, and the SMs in each; None: by compute capability."""
    sm_chunks_2: tuple[int, int] | None = None
    """The chunks of protocol 2, in the same form; the SMs in each are a multiple of those in a chunk of
    ``sm_chunks``."""
    reserved_bytes: int = 0
    """The device memory that the driver keeps for itself, or 0: NVML counts it, CUDA and ``memory_bytes`` do not."""

    @property
    def is_volta_or_newer(self) -> bool:
        """Whether the device takes part in Volta MPS: from compute capability 7.0 on."""
        return self.compute_capability >= (7, 0)

    @property
    def max_contexts(self) -> int:
        """Return the number of client contexts that a server can have on the device at one time, with clients that
        leave CUDA_DEVICE_MAX_CONNECTIONS at its default. This is the one place that decides it.
        """
        return CLIENT_CONTEXTS[self.driver] if self.is_volta_or_newer else MAX_CONTEXTS_BEFORE_VOLTA

    @property
    def bus_id(self) -> str:
        """The PCI address as nvidia-smi writes it: ``0000:00.06.00`` becomes ``00000000:00:06.0``.

        A text in another form, which only a driver could report, is returned as it is.
        """
        domain, _, address = self.pci.partition(":")
        parts = address.split(".")
        try:
            bus, slot, function = (int(part, 16) for part in parts)
            return f"{int(domain, 16):08X}:{bus:02X}:{slot:02X}.{function:X}"
        except ValueError:
            return self.pci


def uuid_text(uuid: bytes) -> str:
    """Return a UUID as text: ``GPU-`` and 32 hexadecimal digits in five groups.

    Args:
        uuid: Its 16 bytes, as CUuuid has them.

    >>> uuid_text(bytes(range(16)))
    'GPU-00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    digits = uuid.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def window_of(ordinal: int) -> int:
    """Return the first address of a device's window.

    Args:
        ordinal: The device's ordinal among the daemon's visible devices.

    >>> ordinal_of(window_of(3) + 4096)
    3
    """
    return WINDOW_BASE + (ordinal << WINDOW_BITS)


def ordinal_of(address: int) -> int:
    """Return the ordinal of the device whose window contains an address.

    The result is negative for an address below all windows, and may be beyond the last device.
    """
    return (address - WINDOW_BASE) >> WINDOW_BITS


def mapped_window_of(ordinal: int) -> int:
    """Return the first address of the host memory that kernels of an emulated device access."""
    return window_of(ordinal) + MAPPED_OFFSET


def pinned_window_of(ordinal: int) -> int:
    """Return the first address of the page-locked host memory that a device's executor shares with its clients."""
    return PINNED_BASE + (ordinal << PINNED_BITS)


_MAX_LAUNCHES: Final = (1 << 63) - 1


@frozen
class DeviceUse:
    """The use of one device by one server."""

    clients: dict[int, int]
    """The bytes that each client holds, by the daemon's id of the client; clients without an entry hold none."""
    launches: int = 0
    """The number of kernels that the server has started on the device since the server's start."""
    left: int = 0
    """The bytes that exited clients still hold because their kernels are still running."""
    utilization: int | None = None
    """The percentage of the last sample period (at most 1 s) in which kernels ran; None if it is not counted."""

    def is_possible(self, memory_bytes: int) -> bool:
        """Return whether a device with ``memory_bytes`` of memory can be used as reported; servers are not trusted.

        >>> DeviceUse({7: 64}).is_possible(memory_bytes=32)
        False
        """
        counts = self.left, *self.clients.values()
        figures = 0 <= self.launches <= _MAX_LAUNCHES, 0 <= (self.utilization or 0) <= 100
        return all(figures) and all(0 <= count <= memory_bytes for count in counts)


def combine_utilization(percentages: Iterable[int]) -> int:
    """Return the utilization of a device that several executors or servers use: the sum, at most 100 %."""
    return min(100, sum(percentages))
