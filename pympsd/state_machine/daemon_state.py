"""The daemon's state: its servers with their clients and contexts, the queue, a pending quit."""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import Enum
from typing import Final

from attrs import Factory, define, field, frozen

from pympsd.state_machine import server_lifecycle
from pympsd.state_machine.clients import Client
from pympsd.state_machine.server_lifecycle import Phase
from pympsd.state_machine.turns.policies import TurnPolicy, order
from pympsd.state_machine.v3.gathering import Configuration, Gatherings
from pympsd.state_machine.v3.named_server import NamedServer
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.identities import Peer, Serials
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import (
    ALL_DEVICES,
    CgroupLimits,
    ClientPriority,
    MemoryGroup,
    PinnedMemory,
    ThreadPercentage,
)
from pympsd.vocabulary.namespaces import server_of_user
from pympsd.vocabulary.partitions import SmPartition
from pympsd.vocabulary.rules import Rule
from pympsd.vocabulary.shares import SERVERS, Shares

MOST_SERVERS: Final = 16
"""Servers at once when users are together: any user can cause one, and each takes memory of every device it uses."""
MOST_NAMED_SERVERS: Final = SERVERS.total
"""The same in protocol 3, in which servers do not end to make room."""


class Count(Enum):
    """What a daemon counts, for its metrics."""

    SERVERS = "servers started"
    FAULTS = "fatal faults"
    TERMINATED = "clients terminated"
    REFUSED = "clients refused"


@define
class Server:
    """A server process; ``pid`` is 0 until it is spawned."""

    serial: int
    uid: int
    thread_percentage: ThreadPercentage
    memory_limits: dict[int, PinnedMemory] = field(factory=dict)
    """The limit of each client, by device ordinal."""
    pid: int = 0
    phase: Phase = Phase.SPAWNING
    forced: bool = False
    starters: list[int] = field(factory=list)
    """Operator sessions to answer when it is spawned."""
    clients: dict[int, Client] = field(factory=dict)
    groups: dict[tuple[int, str], tuple[int, MemoryGroup]] = field(factory=dict)
    """Limits of memory of clients together, by device ordinal and name, as they came with the latest client that has
    a context there, whose serial stands before them."""
    launches: dict[int, int] = field(factory=dict)
    """Kernels that it has started, by device ordinal, as it reported; the driver's own server does not."""
    closed: bool = False
    """Its user's newcomers wait, because another user has waited long enough; kept for the log."""
    awaited: bool = False
    """The previous daemon had it, and it has not returned yet: its clients are unknown."""
    start_refusal: str = ""
    """Why it cannot start, if known: trying again would be useless."""
    violation: str = ""
    """What it said that is not known."""
    proven: bool = False
    """A client of it has made a context or left in order, or it has lived for a while."""
    leave_timed: bool = False
    """Its LEAVE timer runs."""
    silence_timed: bool = False
    """Its SILENCE timer runs."""
    name: str = field(default=Factory(lambda self: server_of_user(self.uid), takes_self=True))

    @property
    def title(self) -> str:
        """What a sentence calls it."""
        return title(self.name, self.uid)

    def become(self, phase: Phase) -> None:
        """Move to a phase; raise IllegalMove if the table does not allow it."""
        self.phase = server_lifecycle.move(self.phase, phase)

    @property
    def limits(self) -> Limits:
        """The limits of its later clients, in protocol 2."""
        return Limits({ALL_DEVICES: self.thread_percentage}, self.memory_limits)

    @property
    def workers(self) -> int:
        """The number of worker threads of the vendor's server: one for each client process and each context."""
        return sum(1 + len(client.contexts) for client in self.clients.values())

    @property
    def is_abandoned(self) -> bool:
        """Whether it has clients whose processes have all ended, as far as is known."""
        return bool(self.clients) and all(client.ended for client in self.clients.values())

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no clients."""
        return not self.clients and not self.awaited

    @property
    def status(self) -> str:
        """The status an operator sees."""
        return server_lifecycle.STATUS[self.phase]


def title(name: str, uid: int) -> str:
    """Return what a sentence calls a server."""
    return f"the MPS server of user {uid}" if name == server_of_user(uid) else f"the MPS server '{name}'"


@define
class QueueEntry:
    """A waiting client, or (client 0) an operator's request to start a server."""

    ticket: int
    uid: int
    client: int = 0
    peer: Peer | None = None
    command: str = ""
    namespace: int = 0
    process: int = 0
    joins: bool = False
    last_to_overtake: int | None = None
    """The last ticket that may still overtake this one; None: all may, until its timer ends."""
    has_turn: bool = False
    """The server that it waits for was started for it."""
    server: str = field(default=Factory(lambda self: server_of_user(self.uid), takes_self=True))
    """The name of the server that it waits for."""
    mps_namespace: str = ""
    """As in Client."""
    rule: Limits | None = None
    """The limits that hold for it by rule; None: there are no rules."""
    cgroups: tuple[str, ...] = ()
    """As in Client."""
    sm_partition: str = ""
    """What its CUDA_MPS_SM_PARTITION says."""
    since: float = 0.0
    """As in Client."""
    container_pid: int = 0
    kernel_limits: CgroupLimits = field(factory=dict)
    """As in ClientConnected."""
    connection: int = 0
    """As in ClientConnected."""


@define
class Debugged:
    """A client under a debugger, which waits until ``others``, the clients before it, have left."""

    client: int
    pid: int
    uid: int
    others: set[int]


@frozen
class FailedStarts:
    """The consecutive processes of a server that ended before they had served a client."""

    count: int
    pausing_after: int
    """The serial of the last one during the pause before the next try, else 0."""
    unserved: int = 0
    """The serial of the last one if it ended with its clients: it counts for a while, for they may connect again."""
    refusal: str = ""
    """Why this user's clients are refused until the pause is over; empty: they are not."""


@frozen
class Termination:
    """A terminate_client under way: the operator session that waits, and the server that works on it."""

    session: int
    server: int
    timeout: float
    """Seconds the server has to answer."""
    answer: Answer | None = None
    """Given when it is over, in place of the number that terminate_client prints."""
    pid: int = 0
    """The client's PID, if the answer is in words; 0: it is a number."""
    expelled: tuple[int, ...] = ()
    """Clients whose namespace or SM partition was deleted."""


@define
class Quit:
    """A quit under way; the operators that asked for it are answered by the daemon's end."""

    forced: bool = False
    over: bool = False
    """Exit was issued; it is issued once."""
    asked: bool = False
    """By an operator: the next daemon goes on with it if this one is killed. A signal is meant for one daemon."""
    timeout: float | None = None
    """The shortest time that an operator gave; None: the clients are waited for."""
    goes_on: bool = False
    """The daemon goes on with another backend when its servers have ended, unless it is to end by then."""


@define
class Daemon:
    """The whole state. ``uid`` is the user the daemon runs as; root serves every user."""

    uid: int
    devices: tuple[DeviceFacts, ...]
    thread_percentage: ThreadPercentage = field(factory=ThreadPercentage)
    client_priority: ClientPriority = field(factory=ClientPriority)
    memory_limits: dict[int, PinnedMemory] = field(factory=dict)
    """The limits that the next server starts with, by device ordinal."""
    clients_only: bool = False
    """Operators are refused at ``control``; there is another socket for them."""
    open_queries: bool = False
    """Operators that came by a namespace's socket see everything."""
    trusts_containers: bool = False
    """Operators in other PID and user namespaces are taken for their user."""
    protocol: int = 2
    """2: one server a user, one user at a time; 3: named servers with namespaces."""
    multiuser: bool = False
    """Whether one server, root's, serves the clients of all users."""
    most_servers: int = 1
    """Servers at once, each of another user; 1: users take turns."""
    terminate_by_reset: bool = False
    """Whether terminate_client may reset a device to end a kernel that cannot be stopped."""
    serves_unmapped: bool = False
    """Whether clients whose uid is a placeholder, as their user is of another user namespace, are served under it."""
    has_other_backend: bool = False
    """Whether the daemon may take another backend if the driver's server is not known."""
    server_is_known: bool = False
    """A server of this backend has served a client."""
    turn_patience: float = 30.0
    """Seconds for which newcomers of the active user may overtake a waiting user; 0: they never may."""
    turn_policy: TurnPolicy = field(factory=order)
    """Which of the users that take turns is next."""
    turns_had: Counter[str] = field(factory=Counter)
    """By the name of a user's server."""
    terminations: dict[int, Termination] = field(factory=dict)
    """By a serial of their own, so that a late answer is not taken for a later one's."""
    servers: dict[int, Server] = field(factory=dict)
    queue: list[QueueEntry] = field(factory=list)
    """In the order of its tickets."""
    places: dict[int, int] = field(factory=dict)
    """The tickets of clients that waited when the previous daemon died and have not returned, by connection."""
    turn_timers: set[int] = field(factory=set)
    """The tickets in the queue whose TURN timers run."""
    debugged: dict[int, Debugged] = field(factory=dict)
    failed_starts: dict[str, FailedStarts] = field(factory=dict)
    """By the server's name, while starts are tried again."""
    quitting: Quit | None = None
    generation: int = 0
    """The number of daemons before this one whose servers were handed on to it."""
    server_serials: Serials = field(factory=Serials)
    termination_serials: Serials = field(factory=Serials)
    gatherings: Gatherings = field(factory=Gatherings)
    configuration: Configuration = field(factory=Configuration)
    default_socket: bool = True
    """Whether clients that name no server are served, in protocol 3."""
    pid_namespace: int = 0
    """The inode of the daemon's own PID namespace."""
    tickets: Serials = field(factory=Serials)
    counts: Counter[Count] = field(factory=Counter)
    """What has happened since this daemon began."""
    shares: Shares = field(factory=Shares)
    """What each user may have of the daemon."""
    taken: dict[str, Counter[int]] = field(factory=lambda: defaultdict(Counter))
    """What each user has of what exists in the I/O layer only, by the name of the resource."""
    refusals: Counter[tuple[int, str]] = field(factory=Counter)
    """How often a user was refused more of a resource, by its name."""
    pipe_directory: str = ""
    has_own_servers: bool = True
    """Whether servers are pympsd's, not the driver's: those can be given some of the devices, and partitions."""
    named_servers: dict[str, NamedServer] = field(factory=dict)
    """Protocol 3's servers, by name."""
    occupied: dict[int, SmPartition] = field(factory=dict)
    """SM partitions that were deleted with their clients, by client, until the client's work has ended."""
    rules: tuple[Rule, ...] | None = None
    """Limits by rule, of clients that come later; None: there have never been any."""
    cgroup_limits: CgroupLimits = field(factory=dict)
    passing_cgroups: dict[str, bool] = field(factory=dict)
    """Those of them that a command has set, which go with the cgroup: whether that has been seen."""
    accounts_cgroups: bool = True
    """Whether they hold (the feature memacct)."""
    audits_memory: bool = False
    """Whether servers log what later clients take and return."""
    now: float = 0.0
    """When the last command or client came, in seconds since 1970."""
    named_changes: int = 0
    """Counts the changes of what the next daemon has to know of them."""

    @property
    def default_limits(self) -> Limits:
        """The limits that the next server starts with; in protocol 3 its namespace ``default``."""
        return Limits({ALL_DEVICES: self.thread_percentage}, dict(self.memory_limits), self.client_priority)

    @property
    def asks_origins(self) -> bool:
        """Whether rules depend on facts of a client's process, or lists and limits of protocol 3 on its cgroup."""
        return self.rules is not None or self.protocol == 3

    def serving_uid(self, uid: int) -> int:
        """Return the uid whose server serves a user: root's in multi-user mode."""
        return 0 if self.multiuser else uid

    def server_by_pid(self, pid: int) -> Server | None:
        """Return the server with a PID, or None."""
        return next((server for server in self.running_servers() if server.pid == pid), None)

    def running_servers(self) -> list[Server]:
        """Return the servers that have a process, oldest first."""
        return [server for server in self.servers.values() if server.pid]

    def server_named(self, name: str) -> Server | None:
        """Return the process of the server with a name, or None."""
        return next((server for server in self.servers.values() if server.name == name), None)

    def ordinals_of(self, server: Server) -> tuple[int, ...]:
        """Return the ordinals of the devices that a server's clients may see, in their order."""
        named = self.named_servers.get(server.name)
        return tuple(range(len(self.devices))) if named is None else named.ordinals(len(self.devices))

    @property
    def together(self) -> bool:
        """Whether users have servers at the same time, and none waits for another's while there is room."""
        return self.most_servers > 1

    @property
    def is_full(self) -> bool:
        """Whether a server has to end before another one may start."""
        return len(self.servers) >= self.most_servers
