"""The state machine of protocol 3 under arbitrary orders of events: named servers, namespaces, clients, restarts.

As in daemon_machine.py, the machine plays the I/O layer and draws only events that are possible then. At the end
everything is completed: each operator is answered once, and each client is admitted or refused once.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.commands.v3.config import NO_CHANGE
from pympsd.devices.machine import describe
from pympsd.state_machine import events
from pympsd.state_machine import instructions as do
from pympsd.state_machine.decide import handle
from pympsd.state_machine.instructions import Timer, TimerKind
from pympsd.state_machine.partitions import partitions_on
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import MAX_NAMED_SERVERS, DaemonOptions
from pympsd.state_machine.state.server import Phase
from pympsd.takeover.state.records import InitialDefaults, check, snapshot
from pympsd.vocabulary.identities import DEFAULT, Peer
from pympsd.vocabulary.limit_table import ClientLimits
from pympsd.vocabulary.limits import ClientPriority

SERVERS = st.sampled_from(["a", "b", "uid_500"])
NAMESPACES = st.sampled_from(["default", "hi", "lo"])
UIDS = st.sampled_from([0, 500, 600])
LIMITS = st.sampled_from(
    ["--active-thread-percentage=25", "--pinned-memory-limit=4G", "--client-priority=1", "--pinned-memory-limit=0=1G"]
)
NUMBER = st.integers(0, 7)
PARTITIONS = st.sampled_from(["p", "q"])
CHOICES = st.sampled_from(["", "p", "0/p,1/q", "q", "1/p"])
"""Partitions that clients name."""
FILES = st.dictionaries(
    SERVERS,
    st.dictionaries(NAMESPACES, st.sampled_from(["", "active_thread_percentage = 30", "client_priority = 1"])),
)
"""Configuration files: the namespaces of servers, each with a line."""
DEVICES = describe("2xH200")
DRAINED = 200
"""The number of rounds after which everything in progress must be complete."""


def _owner(server: str) -> int:
    """Return the user who owns a server in a file."""
    return 500 if server == "uid_500" else 0


class NamedMachine(RuleBasedStateMachine):
    """Everything outside the state machine."""

    multiuser = False

    def __init__(self) -> None:
        super().__init__()
        self.daemon = self._new_daemon()
        self.initial = InitialDefaults.of(self.daemon)
        self.sockets: set[tuple[str, str]] = set()
        self.wanted: dict[tuple[str, str], None] = {}
        """The sockets that should exist, in order."""
        self.unusable: set[tuple[str, str]] = set()
        """The sockets that cannot be created at the moment."""
        self.spawning: dict[int, str] = {}
        self.running: dict[int, str] = {}
        self.pending: set[int] = set()
        self.leaving: set[int] = set()
        self.timers: list[Timer] = []
        self.terminating: dict[int, int] = {}
        self.id_ = 0
        self.waiting: dict[int, tuple[str, str]] = {}
        self.on_server: dict[int, int] = {}
        self.came_to: dict[int, str] = {}
        self.partitions: dict[int, dict[int, str]] = {}
        """By client and device."""
        self.resolved: Counter[int] = Counter()
        self.session = 0
        self.unanswered: set[int] = set()
        self.printed = ""
        self.pid = 1000
        self.opened: list[events.NamespaceOpened] = []

    def _new_daemon(self) -> Daemon:
        return Daemon(
            DaemonOptions(
                0, protocol=3, multiuser=self.multiuser, max_servers=MAX_NAMED_SERVERS + 1, pipe_directory="/p"
            ),
            DEVICES,
        )

    # --- the I/O layer

    def feed(self, event: events.Event) -> None:
        if isinstance(event, events.OperatorLine | events.ClientConnected | events.ServerExited):
            for lost in [place for place in self.wanted if place not in self.sockets]:
                self.feed(events.NamespaceLost(*lost))
        for instruction in handle(self.daemon, event, answer_line):
            self._carry_out(instruction)
        while self.opened:
            self.feed(self.opened.pop(0))

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.OpenNamespace(server, namespace, uid):
                assert self.daemon.named_servers[server].uid == uid
                self.wanted[server, namespace] = None
                may_be = (server, namespace) not in self.unusable and (not namespace or (server, "") in self.sockets)
                problem = "" if may_be else "no room"
                if may_be:
                    self.sockets.add((server, namespace))
                self.opened.append(events.NamespaceOpened(server, namespace, problem))
            case do.CloseNamespace(server, namespace):
                self.sockets.discard((server, namespace))
                self.wanted.pop((server, namespace), None)
            case do.SpawnServer(id_, uid, _, name):
                named_server = self.daemon.named_servers[name]
                assert (named_server.uid, named_server.deleted) == (uid, False)
                assert (name, DEFAULT) in self.sockets
                assert name not in (*self.spawning.values(), *self.running.values())
                self.spawning[id_] = name
            case do.AdmitClient(client, id_, _, priority, limits):
                server, namespace = self.waiting.pop(client)
                assert self.running[id_] == server
                assert id_ not in self.leaving
                self._check_limits(server, namespace, priority, limits)
                self.on_server[client] = id_
                assert limits is not None
                self.partitions[client] = {device: partition.name for device, partition in limits.partitions.items()}
                self._check_partitions(server, limits)
                self.resolved[client] += 1
            case do.RefuseClient(client, code, reason):
                del self.waiting[client]
                assert code in (800, 805, 807)
                assert reason
                self.resolved[client] += 1
            case do.ShutDownServer(id_, _):
                assert id_ in self.running
                self.leaving.add(id_)
            case do.KillServer(id_):
                assert id_ in self.running
            case do.TerminateClient(id_, token, _):
                assert id_ in self.running
                self.terminating[token] = id_
            case do.Reply(session, answer):
                self.unanswered.remove(session)
                self.printed = answer.printed
            case do.SetTimer(timer, _):
                self.timers.append(timer)
            case do.CancelTimer(timer):
                self.timers.remove(timer)

    def _check_limits(self, server: str, namespace: str, priority: int, limits: ClientLimits | None) -> None:
        entry = self.daemon.named_servers[server].namespaces[namespace]
        assert limits is not None
        assert limits.own == entry.limits
        assert priority == (entry.limits.client_priority or ClientPriority()).level
        assert limits.namespace == namespace

    def _check_partitions(self, server: str, limits: ClientLimits) -> None:
        partitions = self.daemon.named_servers[server].partitions
        assert {entry.device for entry in partitions} <= limits.partitions.keys()
        for device, chosen in limits.partitions.items():
            is_known = any(
                (entry.device, entry.name, entry.chunks) == (device, chosen.name, chosen.chunks)
                for entry in partitions
            )
            assert bool(chosen.problem) != is_known

    def _says(self, line: str, file: bytes | None = None) -> None:
        self.session += 1
        self.unanswered.add(self.session)
        self.feed(events.OperatorLine(self.session, 0, parse(line.encode(), 3), file=file))

    # --- what can happen

    @initialize(server=SERVERS, clients=st.integers(0, 2))
    def start_busy(self, server: str, clients: int) -> None:
        self.create(server, 500)
        self.create_namespace("hi", server, "--active-thread-percentage=25")
        self.spawned(0)
        self.ready(0)
        for _ in range(clients):
            self.connect(server, "hi", 500)

    @rule(name=SERVERS, uid=UIDS)
    def create(self, name: str, uid: int) -> None:
        self._says(f"server create {name} --uid={0 if self.multiuser else uid}")

    @rule(name=SERVERS, force=st.booleans())
    def delete(self, name: str, force: bool) -> None:
        self._says(f"server delete {name}" + " --force" * force)

    @rule(name=NAMESPACES, server=SERVERS, limits=LIMITS)
    def create_namespace(self, name: str, server: str, limits: str) -> None:
        self._says(f"namespace create {name} --server={server} {limits}")

    @rule(server=SERVERS, uid=st.sampled_from([0, 500]))
    def set_user(self, server: str, uid: int) -> None:
        self._says(f"server set {server} --uid={uid}")

    @rule(name=NAMESPACES, server=SERVERS, limits=LIMITS)
    def set_namespace(self, name: str, server: str, limits: str) -> None:
        self._says(f"namespace set {name} --server={server} {limits}")

    @rule(name=NAMESPACES, server=SERVERS, force=st.booleans())
    def delete_namespace(self, name: str, server: str, force: bool) -> None:
        self._says(f"namespace delete {name} --server={server}" + " --force" * force)

    @rule(name=PARTITIONS, server=SERVERS, device=st.integers(0, 1), chunks=st.integers(1, 9), more=st.booleans())
    def create_partition(self, name: str, server: str, device: int, chunks: int, more: bool) -> None:
        where = f"--server={server} --device={device} --chunks={chunks}"
        self._says(f"sm-partition create {name} {where} --include-remainder={str(more).lower()}")

    @rule(name=PARTITIONS, server=SERVERS, device=st.integers(0, 1), force=st.booleans())
    def delete_partition(self, name: str, server: str, device: int, force: bool) -> None:
        self._says(f"sm-partition delete {name} --server={server} --device={device}" + " --force" * force)

    @rule(servers=FILES, prune=st.booleans(), force=st.booleans())
    def apply(self, servers: dict[str, dict[str, str]], prune: bool, force: bool) -> None:
        """Apply a file. A second application changes only what could not be changed before."""
        if self.multiuser:
            servers.pop("uid_500", None)  # no other server than root's is possible
        text = self._written(servers)
        self._says("config apply F" + " --prune" * prune + " --force" * force, text)
        named_servers = self.daemon.named_servers
        if self.unusable or any(server.deleted for server in named_servers.values()):
            return
        self._says("config apply F --check", text)
        assert not [
            line
            for line in self.printed.splitlines()
            if not ("keeps" in line or "stays" in line or line == NO_CHANGE)
        ]
        # Nothing is changed of a server that belongs to another user than the file says.
        ours = {name: namespaces for name, namespaces in servers.items() if named_servers[name].uid == _owner(name)}
        assert all(
            namespace in named_servers[name].namespaces
            for name, namespaces in ours.items()
            for namespace in namespaces
        )

    def _written(self, servers: dict[str, dict[str, str]]) -> bytes:
        lines = ['schema_version = "1.0"']
        for name, namespaces in servers.items():
            lines += [f"[servers.{name}]", f"uid = {_owner(name)}"]
            for namespace, line in namespaces.items():
                lines += [f"[servers.{name}.namespaces.{namespace}]", line]
        return "\n".join(lines).encode()

    @rule(
        query=st.sampled_from(
            ["server list", "namespace list", "client list --all", "device list", "sm-partition list --all"]
        )
    )
    def ask(self, query: str) -> None:
        self._says(query)

    @rule(server=st.one_of(st.just(""), SERVERS), namespace=NAMESPACES, uid=UIDS, partition=CHOICES)
    def connect(self, server: str, namespace: str, uid: int, partition: str = "") -> None:
        self.id_ += 1
        own = f"uid_{0 if self.multiuser else uid}"
        destination = (server or own, namespace if server else DEFAULT)
        self.waiting[self.id_] = destination
        peer = Peer(5000 + self.id_, uid, uid, (uid,))
        process = ClientProcess(peer, "train", 7, namespace if server else "")
        environment = {"CUDA_MPS_SM_PARTITION": partition}
        self.feed(events.ClientConnected(self.id_, process, environment, server=server))

    @precondition(lambda self: self.waiting)
    @rule(number=NUMBER)
    def leave_queue(self, number: int) -> None:
        client = _one_of(self.waiting, number)
        del self.waiting[client]
        self.feed(events.WaitingClientLeft(client))

    @precondition(lambda self: self.on_server)
    @rule(number=NUMBER)
    def client_gone(self, number: int) -> None:
        client = _one_of(self.on_server, number)
        id_ = self.on_server[client]
        if id_ not in self.pending:
            del self.on_server[client]
            self.feed(events.ClientGonePushed(id_, client))

    @precondition(lambda self: self.spawning)
    @rule(number=NUMBER)
    def spawned(self, number: int) -> None:
        if self.spawning:
            id_ = _one_of(self.spawning, number)
            self.running[id_] = self.spawning.pop(id_)
            self.pid += 1
            self.feed(events.ServerSpawned(id_, self.pid))

    @precondition(lambda self: self.spawning)
    @rule(number=NUMBER)
    def not_spawned(self, number: int) -> None:
        id_ = _one_of(self.spawning, number)
        del self.spawning[id_]
        self.feed(events.SpawnFailed(id_, "no memory"))

    @precondition(lambda self: self.running)
    @rule(number=NUMBER)
    def ready(self, number: int) -> None:
        starting = [server for server in self.running if self.daemon.servers[server].phase is Phase.INITIALIZING]
        if starting:
            self.feed(events.StatusPushed(starting[number % len(starting)], "ACTIVE"))

    @precondition(lambda self: self.running)
    @rule(number=NUMBER, stated=st.booleans())
    def exits(self, number: int, stated: bool) -> None:
        id_ = _one_of(self.running, number)
        if stated and id_ not in self.pending:
            self.feed(events.StartRefused(id_, "the devices are gone"))
        self._end(id_)

    def _end(self, id_: int) -> None:
        del self.running[id_]
        self.pending.discard(id_)
        self.leaving.discard(id_)
        self.terminating = {token: server for token, server in self.terminating.items() if server != id_}
        self.on_server = {client: server for client, server in self.on_server.items() if server != id_}
        self.feed(events.ServerExited(id_, 1))

    @precondition(lambda self: self.terminating)
    @rule(number=NUMBER)
    def terminated(self, number: int) -> None:
        token = _one_of(self.terminating, number)
        self.feed(events.TerminationAnswered(self.terminating.pop(token), token, 0))

    @precondition(lambda self: self.timers)
    @rule(number=NUMBER)
    def timer_ends(self, number: int) -> None:
        timer = self.timers.pop(number % len(self.timers))
        if timer.kind is TimerKind.TERMINATION:
            self.terminating.pop(timer.key, None)
        self.feed(events.TimerEnded(timer))

    @rule(server=SERVERS, namespace=st.one_of(st.just(""), NAMESPACES))
    def toggle_room(self, server: str, namespace: str) -> None:
        """Make the creation of a socket fail from now on, or succeed again."""
        self.unusable ^= {(server, namespace)}

    @precondition(lambda self: self.sockets)
    @rule(number=NUMBER, whole=st.booleans())
    def remove(self, number: int, whole: bool) -> None:
        """Remove a socket, or all sockets of its server, from outside."""
        lost = sorted(self.sockets)[number % len(self.sockets)]
        self.sockets = {socket for socket in self.sockets if socket != lost and not (whole and socket[0] == lost[0])}
        self._says("namespace list")

    @rule()
    def daemon_dies(self) -> None:
        """Kill the daemon: the next one reads the saved state, and waiting clients connect to it again."""
        persistent_state = snapshot(self.daemon, self.initial)
        check(persistent_state, len(DEVICES))
        before = {name: server for name, server in self.daemon.named_servers.items() if not server.deleted}
        configuration = self.daemon.configuration
        in_force = configuration.generation, configuration.source, configuration.applied, configuration.failed
        for id_ in list(self.spawning):
            del self.spawning[id_]  # it ends with its link
        self.daemon = self._new_daemon()
        self.initial = InitialDefaults.of(self.daemon)
        self.timers, self.terminating, self.unanswered = [], {}, set()
        self.sockets, self.unusable, self.wanted = set(), set(), {}
        waiting, self.waiting = self.waiting, {}
        self.pending = set(self.running)
        self.feed(events.PredecessorDied(persistent_state))
        configuration = self.daemon.configuration
        assert in_force == (
            configuration.generation,
            configuration.source,
            configuration.applied,
            configuration.failed,
        )
        after = self.daemon.named_servers
        assert _copy_servers(before) == _copy_servers(
            {name: server for name, server in after.items() if not server.deleted}
        )
        for client, (server, namespace) in waiting.items():
            self.waiting[client] = (server, namespace)
            uid = before[server].uid
            peer = Peer(5000 + client, uid, uid, (uid,))
            process = ClientProcess(peer, "train", 7, namespace)
            self.feed(events.ClientConnected(client, process, server=server))

    @precondition(lambda self: self.pending)
    @rule(number=NUMBER)
    def returns(self, number: int) -> None:
        id_ = sorted(self.pending)[number % len(self.pending)]
        self.pending.remove(id_)
        mine = [client for client, server in self.on_server.items() if server == id_]
        reports = tuple(
            Client(
                client, 0, ClientProcess(Peer(5000 + client, 0, 0), "train", 7), partitions=self.partitions[client]
            )
            for client in mine
        )
        status = "INITIALIZING" if id_ not in self.leaving and not mine else "ACTIVE"
        self.feed(events.ServerTakenOver(id_, status, id_ in self.leaving, reports))

    # --- what always holds

    @invariant()
    def whoever_waits_can_be_served(self) -> None:
        queued = {entry.client: entry for entry in self.daemon.queue if entry.client}
        assert set(queued) == set(self.waiting)
        for client, (server, namespace) in self.waiting.items():
            assert queued[client].server == server
            named_server = self.daemon.named_servers[server]
            assert not named_server.deleted
            assert namespace in named_server.namespaces

    @invariant()
    def no_chunk_has_two_partitions(self) -> None:
        # Those of a server that ends and has no clients are free.
        taken = [partition for device in (0, 1) for _, partition in partitions_on(self.daemon, device)]
        every = [(entry.device, chunk) for entry in taken for chunk in entry.chunks]
        assert len(set(every)) == len(every)

    @invariant()
    def nobody_is_outside_of_partitions(self) -> None:
        for server in self.daemon.servers.values():
            named_server = self.daemon.named_servers.get(server.name)
            static = {partition.device for partition in named_server.partitions} if named_server else set()
            assert all(static <= client.partitions.keys() for client in server.clients.values())

    @invariant()
    def sockets_are_those_of_servers_and_namespaces(self) -> None:
        expected = {
            (named_server.name, namespace)
            for named_server in self.daemon.named_servers.values()
            if not named_server.deleted
            for namespace in ("", *named_server.namespaces)
        }
        assert self.sockets <= expected
        assert all(
            named_server.unreachable
            or named_server.deleted
            or {(named_server.name, ""), (named_server.name, DEFAULT)} <= self.sockets
            for named_server in self.daemon.named_servers.values()
        )
        if self.daemon.quitting is None:
            for server in self.daemon.named_servers.values():
                for namespace in server.namespaces.values():
                    assert server.deleted or namespace.unopened or (server.name, namespace.name) in self.sockets

    @invariant()
    def processes_are_those_of_servers(self) -> None:
        for id_, name in (self.spawning | self.running).items():
            assert self.daemon.servers[id_].name == name
            assert name in self.daemon.named_servers

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(count == 1 for count in self.resolved.values())

    def teardown(self) -> None:
        """Let everything complete."""
        for _ in range(DRAINED):
            if not self._go_on():
                break
        assert not self.unanswered
        assert not self.waiting
        assert not [named_server for named_server in self.daemon.named_servers.values() if named_server.deleted]

    def _go_on(self) -> bool:
        """Carry out the next step that must happen; return whether one existed."""
        starting = [server for server in self.running if self.daemon.servers[server].phase is Phase.INITIALIZING]
        ending = [server for server in self.leaving if self._may_end(server)]
        retries = [timer for timer in self.timers if timer.kind is TimerKind.RETRY]
        if self.pending:
            self.returns(0)
        elif self.terminating:
            self.terminated(0)
        elif self.spawning:
            self.spawned(0)
        elif ending:
            self._end(ending[0])
        elif starting:
            self.feed(events.StatusPushed(starting[0], "ACTIVE"))
        elif self.leaving:
            self.client_gone(0)
        elif retries:
            self.timers.remove(retries[0])
            self.feed(events.TimerEnded(retries[0]))
        else:
            return False
        return True

    def _may_end(self, id_: int) -> bool:
        return self.daemon.servers[id_].forced or id_ not in self.on_server.values()


class MultiuserNamedMachine(NamedMachine):
    """All servers are root's."""

    multiuser = True


def _one_of(items: dict[int, object], number: int) -> int:  # type: ignore[type-arg]
    return sorted(items)[number % len(items)]


def _copy_servers(servers: dict[str, object]) -> dict[str, object]:
    return dict(servers)
