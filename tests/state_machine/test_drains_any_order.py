"""Drains and undrains in any order, next to clients that come and go, time limits, terminations and kill -9."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.state_machine import events
from pympsd.state_machine import instructions as do
from pympsd.state_machine.decide import handle
from pympsd.state_machine.instructions import Timer, TimerKind
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.takeover.state.records import InitialDefaults, check, snapshot
from pympsd.vocabulary.identities import Peer

EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out

DEVICES = describe("H200")
UIDS = (500, 600)
TARGETS = st.sampled_from(["--all", *(f"--user={uid}" for uid in UIDS), *(f"--server=uid_{uid}" for uid in UIDS)])
CODES = st.sampled_from([0, 0, 201, 702, 806])
OVER = (0, 201, 806)


def covers(target: str, uid: int) -> bool:
    return target == "--all" or target.endswith(str(uid))


class DrainMachine(RuleBasedStateMachine):
    """The I/O layer of a daemon whose users have servers at the same time, and what it may expect of drains."""

    def __init__(self) -> None:
        super().__init__()
        self.daemon = self._new_daemon()
        self.initial = InitialDefaults.of(self.daemon)
        self.uid_of: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.running: dict[int, int] = {}
        """Each admitted client's server."""
        self.terminated: set[int] = set()
        self.servers: dict[int, int] = {}
        """The users of servers with a process."""
        self.spawning: dict[int, int] = {}
        self.leaving: set[int] = set()
        self.pending: set[int] = set()
        self.drains: dict[str, tuple[bool, bool]] = {}
        """Whether each drain refuses, and releases."""
        self.timers: set[Timer] = set()
        self.tokens: dict[int, do.TerminateClient] = {}
        self.undrained_tokens: set[int] = set()
        """The terminations that drains had begun before they were undrained: they continue."""
        self.operators: dict[int, str] = {}
        """Who waits, and for which target."""
        self.reports: Counter[tuple[int, str]] = Counter()
        self.last_id = 0

    @staticmethod
    def _new_daemon() -> Daemon:
        return Daemon(DaemonOptions(0, max_servers=4), DEVICES)

    # --- the I/O layer

    def feed(self, event: events.Event) -> None:
        for instruction in handle(self.daemon, event, answer_line):
            self._carry_out(instruction)

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.SpawnServer(server, uid):
                assert not any(releases for _, releases in self.drains.values()), "a server starts in a release"
                self.spawning[server] = uid
            case do.AdmitClient(client, server):
                assert client in self.waiting
                assert not self._is_covered(client), "a held client was admitted"
                self.waiting.remove(client)
                self.running[client] = server
            case do.RefuseClient(client, _, reason):
                refusing = [name for name, (refuses, _) in self.drains.items() if refuses]
                assert any(covers(name, self.uid_of[client]) and name in reason for name in refusing), reason
                self.waiting.remove(client)
            case do.ShutDownServer(server, forced):
                present = {client for client, on in self.running.items() if on == server}
                assert forced or not present - self.terminated
                self.leaving.add(server)
            case do.TerminateClient(_, token):
                self.tokens[token] = instruction
            case do.SetTimer(timer):
                self.timers.add(timer)
            case do.CancelTimer(timer):
                self.timers.discard(timer)
            case do.Note(session, text):
                if session in self.operators and text.startswith("Client "):
                    self.reports[session, text.split(" ")[1]] += 1
            case do.Reply(session, answer):
                self._answered(session, refused=answer.refused)
            case do.ReleaseDriver(answers):
                assert not self.servers
                for reply in answers:
                    self._answered(reply.session, refused=reply.answer.refused)

    def _answered(self, session: int, *, refused: bool) -> None:
        target = self.operators.pop(session, None)
        if target is not None and not refused:
            left = {client for client in self.running if covers(target, self.uid_of[client])}
            assert left <= self.terminated, f"{left - self.terminated} are left"

    def _is_covered(self, client: int) -> bool:
        return any(covers(target, self.uid_of[client]) for target in self.drains)

    def _give(self, line: str) -> None:
        self.feed(events.OperatorLine(self.last_id, 0, parse(line.encode(), 2)))

    # --- what can happen

    @rule(uid=st.sampled_from(UIDS))
    def connect(self, uid: int) -> None:
        self.last_id += 1
        self.uid_of[self.last_id] = uid
        self.waiting.add(self.last_id)
        self.feed(self._connection(self.last_id))

    def _connection(self, client: int) -> events.ClientConnected:
        return events.ClientConnected(client, self._process(client), connection=client)

    def _process(self, client: int) -> ClientProcess:
        uid = self.uid_of[client]
        return ClientProcess(Peer(5000 + client, uid, uid), "c")

    @rule(
        name=TARGETS,
        timeout=st.sampled_from(["", " --timeout=0", " --timeout=5", " --timeout=5 --then=fail"]),
        refuses=st.booleans(),
        releases=st.booleans(),
    )
    def drain(self, name: str, timeout: str, refuses: bool, releases: bool) -> None:
        self.last_id += 1
        releases = releases and name == "--all"
        self.drains[name] = refuses, releases
        self.operators[self.last_id] = name
        self._give(f"drain {name}{timeout}{' --new-clients=refuse' * refuses}{' --release' * releases}")

    @rule(uid=st.sampled_from(UIDS))
    def start_server(self, uid: int) -> None:
        self.last_id += 1
        self._give(f"start_server -uid {uid}")

    @precondition(lambda self: self.drains)
    @rule(data=st.data())
    def undrain(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(sorted(self.drains)))
        self.undrained_tokens |= {drain.token for drain in self.daemon.drains if str(drain.target) == target}
        del self.drains[target]
        self.last_id += 1
        self._give(f"undrain {target}")
        assert target not in self.operators.values(), "whoever waited was not answered"

    @precondition(lambda self: self.spawning)
    @rule()
    def server_starts(self) -> None:
        server, uid = self.spawning.popitem()
        self.servers[server] = uid
        self.feed(events.ServerSpawned(server, 900 + server % 1000))
        self.feed(events.StatusPushed(server, "ACTIVE"))
        self._verify(server)

    def _verify(self, server: int) -> None:
        """End a server's trial: if it crashes now, the next one starts without a pause."""
        self.feed(events.TimerEnded(Timer(TimerKind.TRIAL, server)))

    @precondition(lambda self: self.leaving or self.servers)
    @rule(data=st.data(), crashes=st.sampled_from([False, False, True]))
    def server_ends(self, data: st.DataObject, crashes: bool) -> None:
        candidates = sorted(set(self.servers) if crashes else self.leaving & set(self.servers))
        if candidates:
            self._end(data.draw(st.sampled_from(candidates)))

    def _end(self, server: int) -> None:
        del self.servers[server]
        self.leaving.discard(server)
        self.pending.discard(server)
        for client in [client for client, on in self.running.items() if on == server]:
            del self.running[client]
        self.tokens = {token: request for token, request in self.tokens.items() if request.server != server}
        self.feed(events.ServerExited(server, 0))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def client_ends(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.running)))
        server = self.running.pop(client)
        self.terminated.discard(client)
        if server not in self.pending:  # between two daemons nobody sees it
            self.feed(events.ClientGonePushed(server, client))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), code=CODES)
    def is_terminated(self, data: st.DataObject, code: int) -> None:
        token = data.draw(st.sampled_from(sorted(self.tokens)))
        request = self.tokens.pop(token)
        if code in OVER:
            self.terminated |= {client for client in request.evicted if client in self.running}
        self.feed(events.TerminationAnswered(request.server, token, code))

    @precondition(lambda self: any(timer.kind is TimerKind.DRAIN for timer in self.timers))
    @rule()
    def time_is_over(self) -> None:
        timer = min((timer for timer in self.timers if timer.kind is TimerKind.DRAIN), key=lambda timer: timer.key)
        self.timers.remove(timer)
        self.feed(events.TimerEnded(timer))

    @rule(data=st.data())
    def daemon_is_replaced(self, data: st.DataObject) -> None:
        """Kill the daemon or replace it: to the next one both are the same."""
        persistent_state = snapshot(self.daemon, self.initial)
        check(persistent_state, len(DEVICES))
        self.spawning.clear()
        self.operators.clear()
        self.timers.clear()
        self.tokens.clear()
        self.undrained_tokens.clear()
        self.leaving.clear()
        self.pending = set(self.servers)
        self.daemon = self._new_daemon()
        waited = sorted(self.waiting)
        self.feed(events.PredecessorDied(persistent_state, connections=frozenset(waited)))
        for client in data.draw(st.permutations(waited)):
            self.feed(self._connection(client))

    @precondition(lambda self: self.pending)
    @rule()
    def server_returns(self) -> None:
        server = self.pending.pop()
        clients = [client for client, on in self.running.items() if on == server]
        returned = tuple(Client(client, self.uid_of[client], self._process(client)) for client in clients)
        self.feed(events.ServerTakenOver(server, "ACTIVE", False, returned))
        self._verify(server)

    # --- what holds

    @invariant()
    def a_drain_terminates_one_client_at_a_time(self) -> None:
        tokens = {drain.token for drain in self.daemon.drains}
        assert self.daemon.terminations.pending.keys() <= tokens | self.undrained_tokens
        for drain in self.daemon.drains:
            assert not drain.clients.keys() & drain.terminated
        assert {str(drain.target) for drain in self.daemon.drains} == set(self.drains)

    @invariant()
    def each_end_is_reported_once(self) -> None:
        # A client that could not be terminated is reported once more when it ends.
        assert all(count <= 2 for count in self.reports.values())

    def teardown(self) -> None:
        """Undrain everything: each client that waits is served."""
        while self.pending:
            self.server_returns()
        self.drains.clear()
        self.last_id += 1
        self._give("undrain")
        for _ in range(len(self.waiting) + len(self.leaving) + 4):
            for server in sorted(self.leaving & set(self.servers)):
                self._end(server)
            while self.spawning:
                self.server_starts()
        assert not self.waiting, f"{self.waiting} wait, and nothing is being drained"
        assert not self.daemon.queue.held


TestDrains = DrainMachine.TestCase
TestDrains.settings = settings(max_examples=60 * EXAMPLES // 100, stateful_step_count=40, deadline=None)
