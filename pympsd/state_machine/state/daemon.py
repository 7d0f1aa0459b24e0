"""The whole state of a daemon: its parts, each with its own records and methods.

The state machine is sans-I/O: `pympsd.state_machine.decide.handle` changes this state by an event and returns
instructions; the state opens nothing, waits for nothing and reads no clock. Each part stands alone, so that a module
imports the part that it needs:

=================== ================================================================================================
options what the daemon was started with; never changes (`options`) devices, defaults what the next server is started
with servers the server processes, by id, with their clients and contexts (`server`, `client`) queue, turns who waits,
and which user is next (`queue`, `turns`) named_servers protocol 3's servers with their namespaces, whether or not
they have a process (`named_server`) partitions protocol 2's static SM partitions; those of protocol 3 belong to named
servers process_limits limits that follow from a client's process: rules, cgroups terminations each terminate_client
that is not answered yet drains what is being drained: whose new clients are held, and which of its clients still run
(`drains`) failed_starts servers that ended before they had served a client, and the pauses between the tries quitting
a pending quit compound_commands, commands with several parts, and the file that was applied last
(`compound_commands`) configuration refusals the last refusals of clients, by user usage each user's share of the
daemon's resources, and its use lifetime which of the daemons of this directory it is, the ids that it gives, what it
has counted ===================
================================================================================================

What another daemon needs to take over is a function of this state (`takeover.state.records.snapshot`); the rest is
reported again by servers and clients, or lost without harm (timers, pending terminations).
"""

from collections import Counter, defaultdict
from enum import Enum

from attrs import define, field, frozen

from pympsd.state_machine.state.compound_commands import CompoundCommands, Configuration
from pympsd.state_machine.state.drains import Drains, TargetKind
from pympsd.state_machine.state.named_server import NamedServers
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.queue import ClientQueue
from pympsd.state_machine.state.refusals import Refusals
from pympsd.state_machine.state.server import Server
from pympsd.state_machine.state.turns import Turns
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.identities import DEFAULT, Ids
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import ALL_DEVICES, CgroupLimits, ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.partitions import SmPartition
from pympsd.vocabulary.rules import Rule
from pympsd.vocabulary.shares import Shares


class Count(Enum):
    """The counters of a daemon, for its metrics."""

    SERVERS = "servers started"
    FAULTS = "fatal faults"
    TERMINATED = "clients terminated"
    REFUSED = "clients refused"


@define
class Defaults:
    """The limits that the next server starts with."""

    thread_percentage: ThreadPercentage = field(factory=ThreadPercentage)
    client_priority: ClientPriority = field(factory=ClientPriority)
    memory_limits: dict[int, PinnedMemory] = field(factory=dict)
    """The limit of memory by device ordinal; a device without an entry has no limit."""

    @property
    def limits(self) -> Limits:
        """The defaults as `Limits`; in protocol 3 those of a new server's namespace ``default``."""
        return Limits({ALL_DEVICES: self.thread_percentage}, dict(self.memory_limits), self.client_priority)


@define
class ProcessLimits:
    """Limits that follow from a client's process, for clients that come later: by rule and by cgroup."""

    rules: tuple[Rule, ...] | None = None
    """The rules in the order in which they are tested; None if there have never been any."""
    cgroups: CgroupLimits = field(factory=dict)
    transient_cgroups: dict[str, bool] = field(factory=dict)
    """The cgroups with limits that a command has set, which end with the cgroup; True if the cgroup has been seen."""
    accounts_cgroups: bool = True
    """Whether the limits of cgroups are enforced (the feature memacct)."""
    audits_memory: bool = False
    """Whether servers log the allocations and frees of later clients."""


@frozen
class FailedStarts:
    """The consecutive processes of a server that ended before they had served a client."""

    count: int
    pausing_after: int
    """The id of the server that ended last, during the pause before the next try; else 0."""
    unserved: int = 0
    """The id of the server that ended last, if it ended together with its clients; else 0. Its failure counts for
    a while, because the clients may connect again."""
    refusal: str = ""
    """The reason why this user's clients are refused until the pause is over; empty if they are not refused."""


@frozen
class Termination:
    """A pending terminate_client: the operator session that waits, and the server that works on it."""

    session: int
    server: int
    timeout: float
    """The seconds in which the server has to answer."""
    answer: Answer | None = None
    """The answer that replaces the number printed by terminate_client when the termination is over; None if the
    number."""
    pid: int = 0
    """The PID of the client that is terminated."""
    in_words: bool = False
    """Whether the answer is a sentence, not the number that terminate_client prints."""
    evicted: tuple[int, ...] = ()
    """The ids of the clients that are drained, or whose namespace or SM partition was deleted."""
    contexts: frozenset[int] = frozenset()
    """The ids of the contexts that the client had when the command was given."""
    is_drain: bool = False
    """True if a drain began the termination: the result is kept for that drain."""


@define
class Terminations:
    """The pending terminations, by ids that are never reused, so that a late answer is not mistaken for a later
    one's.
    """

    pending: dict[int, Termination] = field(factory=dict)
    ids: Ids = field(factory=Ids)
    results: dict[int, int] = field(factory=dict)
    """The CUresult numbers of terminations that drains began, until the end of the event."""


@define
class Quit:
    """A pending quit; the operators that requested it are answered by the daemon's end."""

    forced: bool = False
    over: bool = False
    """True if Exit was issued, so that it is not issued a second time."""
    by_operator: bool = False
    """True if an operator requested the quit, which the next daemon then continues; False if a signal to this daemon
    only."""
    timeout: float | None = None
    """The shortest time limit in seconds that an operator gave; None if the daemon waits for clients without a
    limit."""
    changes_backend: bool = False
    """True if the daemon continues with another backend when its servers have ended, unless it is to end by then."""


@define
class Usage:
    """The shares of the daemon's resources that users may have, and how much they use."""

    shares: Shares = field(factory=Shares)
    taken: dict[str, Counter[int]] = field(factory=lambda: defaultdict(Counter))
    """The amount that each user has of the resources that only the I/O layer counts, by resource name."""
    refusals: Counter[tuple[int, str]] = field(factory=Counter)
    """The number of refusals of each user, by resource name."""


@define
class Lifetime:
    """This daemon's place among the daemons of its pipe directory, and its own history."""

    generation: int = 0
    """The number of earlier daemons from which servers were taken over, one after the other, up to this daemon."""
    server_ids: Ids = field(factory=Ids)
    backend_works: bool = False
    """True if a server of this backend has served a client."""
    counts: Counter[Count] = field(factory=Counter)
    now: float = 0.0
    """The time at which the last command or client arrived, in seconds since 1970."""


@define
class Daemon:
    """The whole state of the daemon, in parts. Only `decide.handle` changes it.

    Each part is in a module of its own next to this one, and handlers import the part that they need.
    """

    options: DaemonOptions
    devices: tuple[DeviceProperties, ...]
    defaults: Defaults = field(factory=Defaults)
    servers: dict[int, Server] = field(factory=dict)
    """The server processes by id, in the order in which they were started."""
    queue: ClientQueue = field(factory=ClientQueue)
    turns: Turns = field(factory=Turns)
    named_servers: NamedServers = field(factory=NamedServers)
    partitions: list[SmPartition] = field(factory=list)
    """The daemon's static SM partitions, in order of creation; empty without `DaemonOptions.static`."""
    process_limits: ProcessLimits = field(factory=ProcessLimits)
    terminations: Terminations = field(factory=Terminations)
    drains: Drains = field(factory=Drains)
    failed_starts: dict[str, FailedStarts] = field(factory=dict)
    """The failed starts by the server's name, as long as starts are tried again."""
    quitting: Quit | None = None
    compound_commands: CompoundCommands = field(factory=CompoundCommands)
    configuration: Configuration = field(factory=Configuration)
    usage: Usage = field(factory=Usage)
    refusals: Refusals = field(factory=Refusals)
    lifetime: Lifetime = field(factory=Lifetime)

    @property
    def needs_origins(self) -> bool:
        """Whether the properties of a client's process must be read when it connects.

        They must be if there are rules, if a drain has a cgroup as its target, and always in protocol 3, whose lists
        and limits name cgroups.
        """
        has_rules = self.process_limits.rules is not None
        drains_cgroup = any(drain.target.kind is TargetKind.CGROUP for drain in self.drains)
        return has_rules or drains_cgroup or self.options.policy.has_named_servers

    def server_by_pid(self, pid: int) -> Server | None:
        """Return the server process with a PID, or None."""
        return next((server for server in self.list_running_servers() if server.pid == pid), None)

    def list_running_servers(self) -> list[Server]:
        """Return the servers that have a process, the oldest first."""
        return [server for server in self.servers.values() if server.pid]

    def server_named(self, name: str) -> Server | None:
        """Return the process of the server with a name, or None if it has none."""
        return next((server for server in self.servers.values() if server.name == name), None)

    def ordinals_of(self, server: Server) -> tuple[int, ...]:
        """Return the ordinals of the devices that a server's clients may see, in the order in which they see them."""
        named_server = self.named_servers.get(server.name)
        return tuple(range(len(self.devices))) if named_server is None else named_server.ordinals(len(self.devices))

    def count_free(self, server: Server | None, ordinal: int) -> int:
        """Return how many more clients of a server fit on a device if each has one context.

        ``server``: None for a server that has no process yet.
        """
        clients = () if server is None else server.clients.values()
        in_use = sum(client.connections_on(ordinal) for client in clients)
        return max(0, self.devices[ordinal].max_contexts - in_use)

    def place_of(self, server: str, namespace: str | None = None) -> dict[str, str]:
        """Return the field of a log line that names a server, or a namespace (empty: ``default``).

        Protocol 2 has no such field: ``{}``. In protocol 3 it is ``{"place": "a"}`` or ``{"place": "a/default"}``.
        """
        if not self.options.policy.has_named_servers:
            return {}
        return {"place": server if namespace is None else f"{server}/{namespace or DEFAULT}"}

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of servers runs, so that one has to end before another can start."""
        return len(self.servers) >= self.options.max_servers
