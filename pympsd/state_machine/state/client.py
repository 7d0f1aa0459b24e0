"""Client processes, and the clients of servers with their contexts.

The session of a connection finds out the properties of its process once. They stay together in one frozen
`ClientProcess`: the client connects (`ClientConnected`), waits (`QueueEntry`), is admitted and is a client of a
server (`Client`), and is taken over by the next daemon (`ServerTakenOver`). A process is never identified by its PID
alone: processes of other PID namespaces have PID 0 here, and the kernel uses PIDs again.
"""

from __future__ import annotations

from attrs import define, field, frozen

from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import CgroupLimits, LimitsInForce, MemoryGroup
from pympsd.vocabulary.rules import Origin


@frozen
class ClientProcess:
    """A client process with its properties at the time when it connected.

    It is frozen and held by everything that refers to the process: the event, the queue's entry and the client.
    """

    peer: Peer
    """The PID, the user and the groups of the process, as the kernel reports them for the connection."""
    command: str
    pid_namespace: int = 0
    """The inode of the process's PID namespace; 0 if it is unknown."""
    namespace: str = ""
    """The MPS namespace whose socket the client used (protocol 3 only); empty: ``default``."""
    number: int = 0
    """A number that no other process has, which distinguishes those with PID 0; 0 if it is unknown."""
    container_pid: int = 0
    """The PID in the process's own PID namespace; 0 if the process has no other PID, or the daemon cannot see it."""
    since: float = 0.0
    """The time at which the client connected, in seconds since 1970; 0 if it is unknown, because an earlier
    daemon admitted the client."""
    origin: Origin | None = None
    """The properties that rules and limits of cgroups examine; None if this daemon did not need these properties."""
    kernel_limits: CgroupLimits = field(factory=dict)
    """The limits that the kernel sets for the process's cgroup and the cgroups above."""

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The paths of the process's cgroups (see `pympsd.vocabulary.rules.Origin`); empty if the daemon could not
        see them."""
        return (self.origin.cgroups if self.origin is not None else None) or ()

    def is_same(self, other: ClientProcess) -> bool:
        """Return whether two records describe the same process.

        False if nothing distinguishes the process from others, such as a PID of 0 in another PID namespace.
        """
        identity = self.peer.pid, self.number
        return any(identity) and identity == (other.peer.pid, other.number)


@frozen
class ReportedContext:
    """A context of a client, as its server reported it."""

    id: int
    number: int
    device: int


@define
class Client:
    """A client process that a server has, with its contexts and limits."""

    id: int
    uid: int
    """The user of the client's server: root with ``-m``, whoever runs the process."""
    process: ClientProcess
    contexts: dict[int, ReportedContext] = field(factory=dict)
    memory: dict[int, int] = field(factory=dict)
    """The bytes that the client holds, by device ordinal, as its server (or NVML, for the driver's own server)
    reported."""
    ended: bool = False
    """True if the client's process has ended, and the server has yet to report that."""
    partitions: dict[int, str] = field(factory=dict)
    """The name of the client's SM partition, by ordinal of each device that is in static use for the client; empty:
    no partition."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """The limits of memory that the client shares with others, by device ordinal, as they were when it connected."""
    limits: LimitsInForce | None = None
    """The limits in force for the client, as its server reported; for the driver's own server, those that the
    daemon set."""
    terminated: bool = False
    """True if terminate_client has ended the client's contexts, and the client has made none since."""

    def connections_on(self, device: int) -> int:
        """Return how many connections of a device the client's contexts use."""
        count = sum(context.device == device for context in self.contexts.values())
        return count * (1 if self.limits is None else self.limits.connections)

    @property
    def pid(self) -> int:
        """The PID of the process as the daemon sees it; 0 if it is in a PID namespace that the daemon cannot see."""
        return self.process.peer.pid
