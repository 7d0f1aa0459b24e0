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
    """Its PID, user and groups, as the kernel reports them of the connection."""
    command: str
    pid_namespace: int = 0
    """The inode of its PID namespace; 0: unknown."""
    namespace: str = ""
    """The MPS namespace whose socket it came by, in protocol 3; empty: ``default``."""
    number: int = 0
    """A number that no other process has, which distinguishes those with PID 0; 0: unknown."""
    container_pid: int = 0
    """The PID in the process's own PID namespace; 0: it has no other one, or the daemon cannot see it."""
    since: float = 0.0
    """Seconds since 1970 at which it connected; 0: only an earlier daemon could know."""
    origin: Origin | None = None
    """The properties that rules and limits of cgroups examine; None: this daemon did not need them."""
    kernel_limits: CgroupLimits = field(factory=dict)
    """Limits that the kernel sets for its cgroup and those above."""

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The paths of its cgroups (see `pympsd.vocabulary.rules.Origin`); empty if the daemon could not see them."""
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
    """The user of its server: root with ``-m``, whoever runs the process."""
    process: ClientProcess
    contexts: dict[int, ReportedContext] = field(factory=dict)
    memory: dict[int, int] = field(factory=dict)
    """Bytes that it holds, by device ordinal, as its server reported; for the driver's own server, as NVML
    reported."""
    ended: bool = False
    """Its process has ended, and the server has yet to report that."""
    partitions: dict[int, str] = field(factory=dict)
    """Its SM partition on each device that is in static use for it, by ordinal; empty: it has none there."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """Limits of memory that it came with and shares with others, by device ordinal."""
    limits: LimitsInForce | None = None
    """The limits in force for it, as its server reported; for the driver's own server, those that the daemon has
    set."""
    terminated: bool = False
    """Whether terminate_client has ended its contexts, and it has made none since."""

    def connections_on(self, device: int) -> int:
        """Return how many connections of a device the client's contexts use."""
        count = sum(context.device == device for context in self.contexts.values())
        return count * (1 if self.limits is None else self.limits.connections)

    @property
    def pid(self) -> int:
        """Its PID as the daemon sees it; 0 if the process is in a PID namespace that the daemon cannot see."""
        return self.process.peer.pid
