"""The records of the state file: settings made by commands, start requests, and the daemon's servers.

The classes are the file's format: msgspec writes their fields as JSON by name. A field may be added with a default,
which is what a file of an older daemon has, and none may be renamed. A default of the daemon is None if no command
has set it: then the next daemon's own applies, which may have been started with other variables.

`snapshot` makes the records of a running daemon after each event, and the file is written if they have changed; so
everything in them is cheap to make and compares by value. `check` refuses a state that no daemon can have had: the
file is this user's own, but it may be damaged. Servers are here with the little that identifies their processes;
their clients and contexts are not, because each server has its own (`pympsd.takeover`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, evolve, field, frozen

from pympsd.state_machine.state.compound_commands import Configuration
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.drains import Drain, DrainTarget, RunningClient, TargetKind
from pympsd.state_machine.state.named_server import NamedServer, Source
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.identities import NO_USER, name_problem
from pympsd.vocabulary.limit_table import BY_DEVICE, NO_LIMITS, Limits, count_bytes
from pympsd.vocabulary.limits import (
    ALL_DEVICES,
    MAX_MEMORY,
    CgroupLimit,
    ClientPriority,
    PinnedMemory,
    ThreadPercentage,
)
from pympsd.vocabulary.partitions import SmPartition, is_partition_name
from pympsd.vocabulary.rules import KINDS, Rule
from pympsd.vocabulary.shares import read_share

MAX_GENERATIONS: Final = 1 << 22
"""The maximum number of generations: with 40 bits for the ids of each generation, all ids fit 63 bits."""


@frozen
class PersistentServer:
    """A server that ran under the daemon; it reports its clients and contexts itself when it returns."""

    serial: int
    pid: int
    uid: int
    thread_percentage: float
    memory_limits: dict[int, int]
    """The limit of memory in bytes, by device ordinal."""
    leaving: bool = False
    """True if the server was asked to end. pympsd's own servers report that themselves."""
    name: str = ""


@frozen
class PersistentNamespace:
    """A namespace of a named server, with its limits."""

    name: str
    limits: Limits = NO_LIMITS
    clients_only: bool = False


@frozen
class PersistentNamedServer:
    """A server of protocol 3, whether or not it has a process."""

    name: str
    uid: int
    namespaces: tuple[PersistentNamespace, ...]
    allowed_devices: tuple[int, ...] | None = None
    source: str = Source.COMMAND
    failed: str = ""
    partitions: tuple[SmPartition, ...] = ()
    maximum: Limits = NO_LIMITS
    contains_partitions: bool = False
    created: float = 0.0


@frozen
class PersistentQuit:
    """A pending quit that an operator requested."""

    timeout: float | None = None
    """The seconds that the operator gave before force; 0 once force is used."""


@frozen
class PersistentConfiguration:
    """The fields of Configuration; ``failed``: the number of its changes that were refused."""

    generation: int
    source: str
    applied: str
    failed: int = 0
    text: bytes | None = None


@frozen
class PersistentDrain:
    """The fields of Drain. Its time limit begins again, unless it is over."""

    kind: str
    name: str = ""
    refuses: bool = False
    timeout: float | None = None
    terminates: bool = True
    releases: bool = False
    since: float = 0.0
    clients: dict[int, RunningClient] = field(factory=dict)
    terminated: tuple[int, ...] = ()
    is_expired: bool = False
    is_over: bool = False


@frozen(kw_only=True, slots=False)
class PersistentDefaults:
    """The defaults of new servers. Each is None if no command has set it: then the next daemon's own applies."""

    thread_percentage: float | None = None
    client_priority: int | None = None
    memory_limits: dict[int, int] | None = None


@frozen(kw_only=True, slots=False)
class PersistentQueue:
    """The waiting clients and requests, if the next daemon keeps the queue."""

    wishes: tuple[int, ...] = ()
    """The users with a queued start request (the name is the state file's key)."""
    queue_order: tuple[int, ...] = ()
    """The queue: the id of each client's connection, or 0 for the next of the start requests."""


@frozen(kw_only=True, slots=False)
class PersistentProcessLimits:
    """The fields of ProcessLimits: limits by rule and by cgroup."""

    rules: tuple[Rule, ...] | None = None
    cgroup_limits: dict[str, dict[int, int]] = field(factory=dict)
    """The hard limits of cgroups, in bytes by device ordinal."""
    cgroup_soft_limits: dict[str, dict[int, int]] = field(factory=dict)
    passing_cgroups: dict[str, bool] = field(factory=dict)
    accounts_cgroups: bool = True
    audits_memory: bool = False


@frozen(kw_only=True)
class PersistentState(PersistentDefaults, PersistentQueue, PersistentProcessLimits):
    """A daemon's state. In the file the fields of its parts stand next to its own, by name."""

    generation: int = 0
    """The number of daemons whose servers were handed on; the ids of each daemon are above those of the earlier
    ones."""
    servers: tuple[PersistentServer, ...] = ()
    quit: PersistentQuit | None = None
    protocol: int = 2
    named_servers: tuple[PersistentNamedServer, ...] = ()
    default_socket: bool = True
    configuration: PersistentConfiguration | None = None
    shares: dict[str, int] = field(factory=dict)
    """The shares of each user that the configuration file sets, by resource."""
    partitions: tuple[SmPartition, ...] = ()
    """The daemon's static SM partitions (protocol 2 only)."""
    drains: tuple[PersistentDrain, ...] = ()


@define
class _Kept:
    changes: int = 0
    servers: tuple[PersistentNamedServer, ...] = ()


@frozen
class InitialDefaults:
    """The defaults that a daemon had at its start, from its environment."""

    thread_percentage: ThreadPercentage
    client_priority: ClientPriority
    memory_limits: dict[int, PinnedMemory]
    _kept: _Kept = field(factory=_Kept, init=False, eq=False)

    @classmethod
    def of(cls, daemon: Daemon) -> InitialDefaults:
        """Return the defaults of a daemon that has just started."""
        return cls(
            daemon.defaults.thread_percentage, daemon.defaults.client_priority, dict(daemon.defaults.memory_limits)
        )

    def named_servers(self, daemon: Daemon) -> tuple[PersistentNamedServer, ...]:
        """Return the records of the named servers; the same tuple again until they change."""
        if self._kept.changes != daemon.named_servers.changes:
            named_servers = tuple(
                _persistent_named(server) for server in daemon.named_servers.values() if not server.deleted
            )
            self._kept.changes, self._kept.servers = daemon.named_servers.changes, named_servers
        return self._kept.servers


def snapshot(daemon: Daemon, initial: InitialDefaults) -> PersistentState:
    """Return the state that the next daemon needs."""
    percentage, priority, limits = (
        daemon.defaults.thread_percentage,
        daemon.defaults.client_priority,
        daemon.defaults.memory_limits,
    )
    quitting = daemon.quitting
    return PersistentState(
        generation=daemon.lifetime.generation,
        thread_percentage=None if percentage == initial.thread_percentage else percentage.value,
        client_priority=None if priority == initial.client_priority else priority.level,
        memory_limits=None if limits == initial.memory_limits else count_bytes(limits),
        wishes=tuple(entry.uid for entry in daemon.queue.all_entries if not entry.client)
        if daemon.options.policy.keeps_queue
        else (),
        queue_order=_queue_order(daemon),
        servers=tuple(_persistent(server) for server in daemon.list_running_servers()),
        quit=PersistentQuit(0.0 if quitting.forced else quitting.timeout)
        if quitting and quitting.by_operator
        else None,
        protocol=daemon.options.protocol,
        named_servers=initial.named_servers(daemon),
        rules=daemon.process_limits.rules,
        default_socket=daemon.named_servers.default_socket,
        cgroup_limits=_pack_cgroups(daemon, lambda limit: limit.hard),
        cgroup_soft_limits=_pack_cgroups(daemon, lambda limit: limit.soft),
        passing_cgroups=dict(daemon.process_limits.transient_cgroups),
        accounts_cgroups=daemon.process_limits.accounts_cgroups,
        audits_memory=daemon.process_limits.audits_memory,
        configuration=_persistent_configuration(daemon.configuration),
        shares=dict(daemon.usage.shares.configured),
        partitions=tuple(daemon.partitions),
        drains=tuple(map(_persistent_drain, daemon.drains)),
    )


def _queue_order(daemon: Daemon) -> tuple[int, ...]:
    """Return the order of the queue, with the clients whose return is still pending; empty if it does not matter."""
    if not daemon.options.policy.keeps_queue:
        return ()
    all_entries = daemon.queue.all_entries
    entries = [(entry.ticket, entry.connection) for entry in all_entries if entry.connection or not entry.client]
    places = [(ticket, connection) for connection, ticket in daemon.queue.reserved.items()]
    return tuple(connection for _, connection in sorted((*entries, *places)))


def check(state: PersistentState, devices: int) -> None:
    """Raise ValueError for a state that no daemon with this number of devices can have had."""
    if state.thread_percentage is not None:
        ThreadPercentage(state.thread_percentage)
    if state.client_priority is not None:
        ClientPriority(state.client_priority)
    if not 0 <= state.generation < MAX_GENERATIONS:
        raise ValueError(f"there is no generation {state.generation}")
    for server in state.servers:
        _check_server(server, devices)
    for alike in ("serial", "pid"):
        if len({getattr(server, alike) for server in state.servers}) < len(state.servers):
            raise ValueError(f"two servers have one {alike}")
    for uid in state.wishes:
        _check_user(uid)
    for named_server in state.named_servers:
        _check_named(named_server, devices)
    if len({server.name for server in state.named_servers}) < len(state.named_servers):
        raise ValueError("two servers have one name")
    _check_partitions("the daemon", state.partitions, devices)
    for name, value in state.shares.items():
        read_share(name, value)
    for drain in state.drains:
        TargetKind(drain.kind)
        if drain.timeout is not None and not 0 <= drain.timeout < 1 << 31:
            raise ValueError(f"there is no drain within {drain.timeout:g} s")
    _check_limits(state.memory_limits or {}, devices)
    for limits in (*state.cgroup_limits.values(), *state.cgroup_soft_limits.values()):
        _check_limits(limits, devices)
    for rule in state.rules or ():
        _check_stated(rule.limits, devices)
        if any(condition.kind not in KINDS for condition in rule.conditions):
            raise ValueError(f"rule {rule} has an unknown condition")
    if state.quit is not None and state.quit.timeout is not None and not 0 <= state.quit.timeout < 1 << 31:
        raise ValueError(f"there is no quit within {state.quit.timeout:g} s")


def _check_server(server: PersistentServer, devices: int) -> None:
    ThreadPercentage(server.thread_percentage)
    if not 0 < server.pid < 1 << 31 or not 0 < server.serial < 1 << 63:
        raise ValueError(f"there is no process {server.pid} with id {server.serial}")
    _check_user(server.uid)
    _check_limits(server.memory_limits, devices)


def _check_named(named_server: PersistentNamedServer, devices: int) -> None:
    _check_user(named_server.uid)
    Source(named_server.source)
    problems = [name_problem(named_server.name, of_server=True)]
    problems += [name_problem(namespace.name) for namespace in named_server.namespaces]
    if any(problems):
        raise ValueError(" ".join(problems))
    if not all(0 <= ordinal < devices for ordinal in named_server.allowed_devices or ()):
        raise ValueError(f"server {named_server.name} has a device that does not exist")
    _check_partitions(f"server {named_server.name}", named_server.partitions, devices)
    for limits in (named_server.maximum, *(namespace.limits for namespace in named_server.namespaces)):
        _check_stated(limits, devices)


def _check_partitions(owner: str, partitions: Sequence[SmPartition], devices: int) -> None:
    for partition in partitions:
        is_possible = is_partition_name(partition.name) and min(partition.chunks, default=-1) >= 0
        if not is_possible or not 0 <= partition.device < devices:
            raise ValueError(f"{owner} cannot have the SM partition {partition.name}")


def _check_user(uid: int) -> None:
    # To the kernel it means "unchanged", which is the daemon's own user.
    if not 0 <= uid < NO_USER:
        raise ValueError(f"there is no user {uid}")


def _check_limits(limits: dict[int, int], devices: int) -> None:
    for ordinal, limit in limits.items():
        if not 0 <= ordinal < devices or not 0 < limit <= MAX_MEMORY:
            raise ValueError(f"there is no limit of {limit} bytes for device {ordinal}")


def _check_stated(limits: Limits, devices: int) -> None:
    """Raise ValueError for limits by device that no daemon with this number of devices can have had."""
    for row in BY_DEVICE:
        ordinals = (row.of(limits) or {}).keys()
        if not all(row.is_for_all if ordinal == ALL_DEVICES else 0 <= ordinal < devices for ordinal in ordinals):
            raise ValueError(f"there is no {row.name} for the devices {', '.join(map(str, ordinals))}")
    for memory in (limits.pinned_memory, limits.total_memory):
        _check_limits(count_bytes(memory), devices)


def _persistent(server: Server) -> PersistentServer:
    percentage, limits = server.thread_percentage.value, count_bytes(server.memory_limits)
    return PersistentServer(
        server.id, server.pid, server.uid, percentage, limits, server.phase is Phase.LEAVING, server.name
    )


def _persistent_named(named_server: NamedServer) -> PersistentNamedServer:
    """Return the record of a named server for the state file."""
    return PersistentNamedServer(
        named_server.name,
        named_server.uid,
        tuple(
            PersistentNamespace(namespace.name, namespace.limits, namespace.clients_only)
            for namespace in named_server.namespaces.values()
        ),
        named_server.allowed_devices,
        named_server.source.value,
        named_server.failed,
        tuple(named_server.partitions),
        named_server.maximum,
        named_server.contains_partitions,
        named_server.created,
    )


_DRAIN_OPTIONS: Final = ("refuses", "timeout", "terminates", "releases", "since", "is_expired", "is_over")
"""The fields that `PersistentDrain` and `Drain` have in the same form."""


def _persistent_drain(drain: Drain) -> PersistentDrain:
    return PersistentDrain(
        drain.target.kind.value,
        drain.target.name,
        clients=dict(drain.clients),
        terminated=tuple(sorted(drain.terminated)),
        **{name: getattr(drain, name) for name in _DRAIN_OPTIONS},
    )


def drains_of(state: PersistentState) -> list[Drain]:
    """Return the drains of a daemon that died."""
    return [
        Drain(
            DrainTarget(TargetKind(drain.kind), drain.name),
            clients=dict(drain.clients),
            terminated=set(drain.terminated),
            **{name: getattr(drain, name) for name in _DRAIN_OPTIONS},
        )
        for drain in state.drains
    ]


def parse_memory(in_bytes: dict[int, int]) -> dict[int, PinnedMemory]:
    """Return limits that are given in bytes."""
    return {ordinal: PinnedMemory(limit) for ordinal, limit in in_bytes.items()}


def _pack_cgroups(daemon: Daemon, choose: Callable[[CgroupLimit], PinnedMemory | None]) -> dict[str, dict[int, int]]:
    return {
        path: {ordinal: value.value for ordinal, limit in limits.items() if (value := choose(limit)) is not None}
        for path, limits in daemon.process_limits.cgroups.items()
    }


def limits_of_cgroups(state: PersistentState) -> dict[str, dict[int, CgroupLimit]]:
    """Return the limits of cgroups."""
    limits_by_path: dict[str, dict[int, CgroupLimit]] = {}
    for limits, kind in ((state.cgroup_limits, "hard"), (state.cgroup_soft_limits, "soft")):
        for path, by_device in limits.items():
            by_index = limits_by_path.setdefault(path, {})
            for ordinal, limit in parse_memory(by_device).items():
                by_index[ordinal] = evolve(by_index.get(ordinal, CgroupLimit()), **{kind: limit})
    return limits_by_path


def _persistent_configuration(configuration: Configuration) -> PersistentConfiguration | None:
    if not configuration.generation:
        return None
    return PersistentConfiguration(
        configuration.generation,
        configuration.source,
        configuration.applied,
        configuration.failed,
        configuration.text,
    )
