"""What a daemon says of its devices, servers and clients, as values; ``--json`` prints the same."""

from __future__ import annotations

from attrs import frozen


@frozen
class Device:
    """A device of the daemon."""

    ordinal: int
    uuid: str
    pci: str
    name: str
    multiprocessors: int
    memory_bytes: int


@frozen
class Context:
    """A context of a client: ``id`` is unique on its server, ``number`` counts those of the process from 1."""

    id: int
    number: int
    device: int
    """The daemon's ordinal."""


@frozen
class Client:
    """A client process of a server."""

    pid: int
    uid: int
    command: str
    pid_namespace: int
    namespace: str | None
    """The namespace of its server that it came to, in protocol 3."""
    active_thread_percentage: float | None
    """The percentage in force for it; on the driver's own server what the daemon has set."""
    memory_bytes: dict[int, int]
    """The bytes that it holds, by the daemon's ordinal; on the driver's own server as NVML reports them."""
    contexts: tuple[Context, ...]


@frozen
class Server:
    """A server process."""

    pid: int
    uid: int
    name: str
    status: str
    active_thread_percentage: float
    """That of the next client, in protocol 2, and the limits too."""
    pinned_memory_limits: dict[int, int]
    """Bytes by the daemon's ordinal."""
    launches: dict[int, int]
    """Kernels started on each device; the driver's own server does not report it."""
    clients: tuple[Client, ...]


@frozen
class Waiting:
    """A client that waits for a server, or (``pid`` 0) an operator's request to start one."""

    pid: int
    uid: int
    server: str
    command: str
