"""The interface of all connections: devices, opened contexts, and the `Connection` that opens them."""

import socket
from collections.abc import Callable
from typing import Protocol

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream.ring import ring_of
from pympsd_client._command_stream.staging import StagingMemory
from pympsd_client._command_stream.transport import Transport


@frozen(eq=False)
class VisibleDevice:
    """A visible device: ``number`` is the program's, ``ordinal`` the daemon's, which selects the address window."""

    number: int
    ordinal: int
    properties: DeviceProperties


@frozen
class Opened:
    """The properties of an opened context.

    ``memory_bytes``: the maximum size of its memory. ``stream_priorities``: the least and the greatest priority.
    """

    context_id: int
    generation: int
    transport: Transport
    multiprocessors: int
    memory_bytes: int
    stream_priorities: tuple[int, int]


class Connection(Protocol):
    """The connection to the devices: a session with an MPS server, or private executors.

    ``driver_version`` is the CUDA version that cuDriverGetVersion returns, 1000 x major + 10 x minor.
    """

    devices: tuple[VisibleDevice, ...]
    driver_version: int
    provisions: bool
    """Whether contexts can be limited to some of a device's SMs; only MPS can do so (MPS documents, 2.3.5.2)."""
    per_context: bool
    """Whether each context has an active thread percentage of its own."""

    def open_context(
        self, device: VisibleDevice, flags: int, affinity: int | None = None, partition: int | None = None
    ) -> Opened:
        """Open a context on at most ``affinity`` SMs, rounded up, or exactly ``partition`` SMs; raise CudaError."""

    def close_context(self, device: VisibleDevice, context_id: int) -> None:
        """Close a context and free its resources; raise CudaError."""

    def check(self) -> None:
        """Raise CudaError if the other side has gone."""

    def close(self) -> None:
        """Close the connection; never raises."""

    def abandon(self) -> None:
        """In a forked child: close the copies of the descriptors."""


def open_stream(
    fds: tuple[int, ...], shared_bytes: int, on_end: Callable[[str], CudaError], ring_bytes: int = 0
) -> Transport:
    """Return a transport for a command stream: its socket and staging memory are ``fds``. Raise OSError."""
    connection = socket.socket(fileno=fds[0])
    try:
        staging = StagingMemory(fds[1], shared_bytes, ring_bytes)
        return Transport(connection, staging, on_end, ring_of(staging, shared_bytes, ring_bytes))
    except BaseException:
        connection.close()
        raise
