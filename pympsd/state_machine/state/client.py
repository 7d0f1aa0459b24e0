"""The clients of servers, as the daemon knows them, and their contexts."""

from __future__ import annotations

from attrs import define, field, frozen

from pympsd.vocabulary.limits import LimitsInForce, MemoryGroup


@frozen
class Context:
    """A client context as its server reported it."""

    serial: int
    number: int
    device: int


@define
class Client:
    """A client process on a server."""

    serial: int
    pid: int
    uid: int
    command: str
    namespace: int
    contexts: dict[int, Context] = field(factory=dict)
    memory: dict[int, int] = field(factory=dict)
    """Bytes that it holds, by device ordinal, as its server reported; of the driver's own server as NVML did."""
    ended: bool = False
    """Its process has ended, and the server has yet to report that."""
    process: int = 0
    """As in ClientConnected."""
    mps_namespace: str = ""
    """The namespace of its server that it came to, in protocol 3."""
    cgroups: tuple[str, ...] = ()
    """As in Origin, if they are known."""
    partitions: dict[int, str] = field(factory=dict)
    """Its SM partition on each device that is in static use for it, by ordinal; empty: it has none there."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """Limits of memory that it came with and shares with other clients, by device ordinal."""
    since: float = 0.0
    """When it connected, in seconds since 1970; 0: an earlier daemon knew."""
    container_pid: int = 0
    """As in ClientConnected."""
    limits: LimitsInForce | None = None
    """The limits in force for it, as its server reported; of the driver's own server what the daemon has set."""

    def is_process(self, pid: int, process: int) -> bool:
        """Whether this is the client of a process."""
        return self.pid == pid and self.process == process and bool(pid or process)
