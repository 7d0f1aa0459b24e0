"""The daemon's state machine under arbitrary orders of events of users, operators, servers and signals.

The machine stands for the I/O layer: it records instructions, and draws (by hypothesis) only possible events. It
records when each client came and when it could no longer be overtaken. At the end it lets time pass: each waiting
client is answered, however many new clients of the active user connect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Any

from attrs import asdict, evolve
from fuzz_lines import NUMBERS, WORDS, Lines
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pympsd.commands.grammar.line import parse
from pympsd.commands.grammar.loose import read_words as read_loosely
from pympsd.commands.grammar.privileges import Caller
from pympsd.commands.grammar.registry import COMMANDS
from pympsd.commands.grammar.syntax import CommandRefused
from pympsd.commands.operator_line import answer_line, decide_line
from pympsd.devices.machine import describe
from pympsd.journal.catalogue import CONTROL_LINES
from pympsd.journal.line_format import Dialect, LogEntry, render
from pympsd.state_machine import events
from pympsd.state_machine import instructions as do
from pympsd.state_machine.decide import handle
from pympsd.state_machine.instructions import Timer, TimerKind
from pympsd.state_machine.state.client import Client, ClientProcess, ReportedContext
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import MAX_SERVERS, DaemonOptions
from pympsd.state_machine.state.server import MOVES, Phase
from pympsd.state_machine.state.turns import Turns, fewest_turns, order
from pympsd.takeover.state.records import InitialDefaults, snapshot
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.parsed_line import ParsedLine

Waiter = tuple[str, int]
"""("client", its id) or ("request", the uid of a start request)."""
UIDS = st.sampled_from([0, 500, 600, 65534])
DEVICES = describe("2xH200")
NUMBER = st.integers(0, 3)
STEPS_OF_A_TURN = 20
"""The number of steps at the end of a test between two times at which all turns time out."""
"""The choice among several servers."""


def _arguments(line: ParsedLine) -> dict[str, Any]:
    """Return the arguments of a change; nothing if a word in it is refused."""
    command = COMMANDS.get(line.command)
    if command is None or command.verb:
        return {}
    try:
        reading = read_loosely(command.syntax, line.words[1:], flags_anywhere=False)
    except CommandRefused:
        return {}
    return {} if command.refuses_unknown and reading.left_over else reading.arguments


class DaemonMachine(RuleBasedStateMachine):
    """The environment of the state machine: the I/O layer, clients, servers and operators."""

    waiting = Bundle("waiting")

    def __init__(self) -> None:
        super().__init__()
        self.daemon = self._new_daemon()
        self.initial = InitialDefaults.of(self.daemon)
        self.pending: set[int] = set()
        """Servers of a daemon that died, until they report to the next one."""
        self.moment = 0
        self.came: dict[Waiter, int] = {}
        """When each client connected, and each user's pending start request was made."""
        self.closed_since: dict[Waiter, int] = {}
        self.turn_timers: dict[Timer, Waiter] = {}
        self.debugged: dict[int, set[int]] = {}
        self.id_ = 0
        self.session = 0
        self.pid = 1000
        self.uid_of: dict[int, int] = {}
        self.in_queue: set[int] = set()
        self.resolved: Counter[int] = Counter()
        self.on_server: dict[int, int] = {}
        self.watched: set[int] = set()
        """The clients whose ends the I/O layer observes: those it has to watch, except if it has no pidfd."""
        self.joining: dict[int, int] = {}
        """Further connections of admitted clients, which must get the server of the client."""
        self.ended: set[int] = set()
        """The clients whose processes have ended, as reported to the state machine."""
        self.spawning: dict[int, int] = {}
        self.running: dict[int, int] = {}
        self.uid_of_server: dict[int, int] = {}
        self.ever_forced: set[int] = set()
        self.shutting_down: set[int] = set()
        self.shut_down: set[int] = set()
        self.killed: set[int] = set()
        self.terminating: dict[int, tuple[int, int]] = {}
        """By token: the session that waits and the server that works on it."""
        self.starting: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self.failures: Counter[int] = Counter()
        """By user: the number of consecutive servers that ended before they had served."""
        self.unserved: dict[int, int] = {}
        """By user: the last of these servers, if it ended with its clients."""
        self.refusing: set[int] = set()
        """The users whose clients are refused for a while."""
        self.verified: set[int] = set()
        self.sent_limits: dict[int, tuple[float, dict[int, int]]] = {}
        self.timers: list[Timer] = []
        self.replies: Counter[int] = Counter()
        self.expect_reply: set[int] = set()
        self.quitters: set[int] = set()
        self.exits = 0
        self.quit_begun = False
        self.quit_asked = False
        """An operator began the quit: it continues under the next daemon."""
        self.phases: dict[int, Phase] = {}

    daemon_uid = 0
    multiuser = False
    static = False
    overtaking_seconds = 30.0
    most_servers = 1
    turn_policy = staticmethod(order())
    steps_for_each = 10
    """The maximum number of steps, for each client so far, until all waiting ones are served."""

    @property
    def together(self) -> bool:
        """Whether users have servers at the same time."""
        return self.most_servers > 1

    def serving(self, uid: int) -> int:
        """Return the uid whose server serves a user."""
        return 0 if self.multiuser else uid

    def _new_daemon(self) -> Daemon:
        return Daemon(
            DaemonOptions(
                self.daemon_uid, multiuser=self.multiuser, max_servers=self.most_servers, static=self.static
            ),
            DEVICES,
            turns=Turns(policy=self.turn_policy, overtaking_seconds=self.overtaking_seconds),
        )

    def environment_of(self, client: int) -> dict[str, str]:
        """Return a client's variables."""
        return {}

    def partitions_of(self, client: int) -> dict[int, str]:
        """Return the SM partitions of a client, as its server reports them."""
        return {}

    # --- the I/O layer

    def feed(self, event: events.Event) -> list[do.Instruction]:
        was_over = self.exits
        self.moment += 1
        instructions = handle(self.daemon, event, answer_line)
        for instruction in instructions:
            self._carry_out(instruction)
        if was_over:
            assert self.exits == was_over == 1
        self._follow_phases()
        return instructions

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.SpawnServer(server, uid, peer):
                assert len(self._served()) < self.most_servers
                assert uid not in self._served()
                assert not self.together or uid == self._first_without_server()
                assert not self.quit_begun
                assert server not in self.uid_of_server
                assert peer is None or peer.uid == uid
                assert peer is None or not self.multiuser
                self.sent_limits[server] = self._limits_of(server)
                self.spawning[server] = self.uid_of_server[server] = uid
            case do.AdmitClient(client, server, pid, _) if client in self.joining:
                assert (self.joining[client], self.running[server]) == (server, pid)
                del self.joining[client]
            case do.AdmitClient(client, server, pid, _):
                assert self.running[server] == pid
                assert server not in self.pending
                assert self.uid_of_server[server] == self.serving(self.uid_of[client])
                assert server not in self.shutting_down
                self._resolve(client)
                self._check_overtaking(client)
                self.on_server[client] = server
                self.watched.add(client)
            case do.WatchClient(client, server, pid):
                assert (self.on_server[client], 5000 + client) == (server, pid)
                assert server not in self.pending
                self.watched.add(client)
            case do.RefuseClient(client, code, reason):
                assert code == 805
                assert reason
                self._resolve(client)
                self.refused[client] = reason
            case do.ContinueWithoutMps(client, reason):
                assert reason
                assert not self.debugged[client] & self._clients()
                self._resolve(client)
            case do.ShutDownServer(server, forced):
                assert server in self.running
                assert forced or server not in self.shutting_down
                assert not forced or server not in self.ever_forced
                self._check_why_it_shuts_down(server, forced)
                self.shutting_down.add(server)
                self.ever_forced |= {server} if forced else set()
            case do.KillServer(server):
                assert server in self.running
                self.killed.add(server)
            case do.UpdateServerLimits(server, percentage, limits):
                assert server in self.running
                self.sent_limits[server] = (percentage, limits)
            case do.TerminateClient(server, token, _):
                assert server in self.running
                assert token not in self.terminating
                self.terminating[token] = (self.daemon.terminations.pending[token].session, server)
            case do.Log(event, fields):
                _check_is_one_entry(event, fields)
            case do.Reply(session, answer):
                _check_answer(answer)
                assert session in self.expect_reply
                self.replies[session] += 1
            case do.Working(session):
                assert session in self.quitters | self.expect_reply
            case do.SetTimer(timer, seconds):
                assert seconds >= 0
                self.timers.append(timer)
                if timer.kind is TimerKind.TURN:
                    assert seconds == self.overtaking_seconds > 0
                    assert not self.together
                    self.turn_timers[timer] = self._timed_by(timer.key)
            case do.CancelTimer(timer):
                self.timers.remove(timer)
                if timer.kind is TimerKind.TURN:
                    assert self.turn_timers[timer] not in self._waiters()
            case do.Exit(status):
                assert status == 0
                assert self.quit_begun
                assert not self.running
                assert not self.spawning
                self.exits += 1

    def _came_last(self, ticket: int) -> Waiter:
        last = max(self.came.values())
        latest = [waiter for waiter, moment in self.came.items() if moment == last]
        # Only a daemon that starts takes several at the same time: the start requests of the previous one.
        (uid,) = {entry.uid for entry in self.daemon.queue if entry.ticket == ticket}
        return next(waiter for waiter in latest if len(latest) == 1 or waiter == ("request", uid))

    def _timed_by(self, ticket: int) -> Waiter:
        """Return who waits with a ticket: in order of arrival only the last one to come gets a timer."""
        return self._came_last(ticket)

    def _resolve(self, client: int) -> None:
        assert client in self.in_queue or client in self.debugged, "answered twice, or after it left"
        self.in_queue.discard(client)
        self.debugged.pop(client, None)
        self.resolved[client] += 1

    def _clients(self, uid: int | None = None) -> set[int]:
        """Return the clients that are queued or admitted; with a user, those that his debugged clients wait for."""
        unknown = {-server for server in self.pending}
        served = {client for client, server in self.on_server.items() if server not in self.pending}
        clients = self.in_queue | served | unknown
        if uid is None or not self.together:
            return clients
        user_of = self.uid_of | {-server: user for server, user in self.uid_of_server.items()}
        return {client for client in clients if user_of[client] == uid}

    def _served(self) -> set[int]:
        """Return the users that have servers."""
        return {self.uid_of_server[server] for server in (*self.spawning, *self.running)}

    def _without_server(self) -> set[int]:
        return {self._user_of(waiter) for waiter in self._waiters()} - self._served()

    def _first_without_server(self) -> int:
        """Return the first user, in order of arrival, that waits without a server, and not in a pause."""
        waiting = {user for user in self._without_server() if not self._pause_of(user)}
        arrivals = {waiter: self.came[waiter] for waiter in self._waiters() if self._user_of(waiter) in waiting}
        first = min(arrivals.values())
        users = {self._user_of(waiter) for waiter, moment in arrivals.items() if moment == first}
        # Only the start requests of a previous daemon come together: they are in the queue in their old order.
        return next(entry.uid for entry in self.daemon.queue if entry.uid in users)

    def _others_wait(self, server: int) -> bool:
        """Whether other users wait for a server's end."""
        if self.together:
            return len(self._served()) == self.most_servers and bool(self._without_server())
        return any(entry.uid != self.uid_of_server[server] for entry in self.daemon.queue)

    def _start_requests(self) -> list[int]:
        return [entry.uid for entry in self.daemon.queue if not entry.client]

    def _waiters(self) -> set[Waiter]:
        clients = {("client", client) for client in self.in_queue}
        return clients | {("request", uid) for uid in self._start_requests()}

    def _user_of(self, waiter: Waiter) -> int:
        kind, number = waiter
        return number if kind == "request" else self.serving(self.uid_of[number])

    def _check_overtaking(self, client: int) -> None:
        own = self.serving(self.uid_of[client])
        for waiter in self._waiters():
            if self._user_of(waiter) != own and waiter in self.closed_since:
                assert self.came["client", client] < self.closed_since[waiter], f"{client} overtook {waiter}"

    def _joins(self, waiter: Waiter) -> None:
        self.came[waiter] = self.moment + 1
        self.closed_since.pop(waiter, None)
        if self.overtaking_seconds == 0:
            self.closed_since[waiter] = self.moment + 1

    def _check_why_it_shuts_down(self, server: int, forced: bool) -> None:
        idle = server not in self.on_server.values()
        others_wait = self._others_wait(server)
        assert not (self.multiuser and others_wait)
        # It was shutting down before, or other users wait: then no client is left whose work could be lost.
        silent = forced and self._is_abandoned(server) and (others_wait or server in self.shutting_down)
        assert self.quit_begun or server in self.shut_down or silent or (idle and others_wait and not forced)

    def _is_abandoned(self, server: int) -> bool:
        clients = {client for client, on in self.on_server.items() if on == server}
        return bool(clients) and clients <= self.ended

    def _limits_of(self, server: int) -> tuple[float, dict[int, int]]:
        entry = self.daemon.servers[server]
        return entry.thread_percentage.value, {n: limit.value for n, limit in entry.memory_limits.items()}

    def _follow_phases(self) -> None:
        now = {id_: server.phase for id_, server in self.daemon.servers.items()}
        for id_, phase in now.items():
            before = self.phases.get(id_, Phase.SPAWNING)
            assert phase is before or phase in _reachable(before)
        self.phases = now

    # --- what can happen

    @initialize(clients=st.integers(0, 3), ended=st.booleans())
    def start_busy(self, clients: int, ended: bool) -> None:
        """Begin with served clients, or with clients whose ends are not reported, because many events need them."""
        for _ in range(clients):
            self.connect(uid=500, foreign=False)
        if clients:
            self.spawned()
            self.status(fault=False)
        if ended:
            self.all_processes_end()

    @rule(target=waiting, uid=UIDS, foreign=st.sampled_from([False, False, False, True]))
    def connect(self, uid: int, foreign: bool) -> object:
        self.id_ += 1
        client = self.id_
        self.uid_of[client] = uid
        self.in_queue.add(client)
        self._joins(("client", client))
        process = ClientProcess(Peer(5000 + client, uid, uid, foreign=foreign), "c", 1)
        self.feed(events.ClientConnected(client, process, self.environment_of(client)))
        if foreign or self.daemon_uid not in (0, uid) or self.quit_begun or self.serving(uid) in self.refusing:
            assert client not in self.in_queue
        return client if client in self.in_queue else multiple()

    @rule(target=waiting, uid=UIDS)
    def connect_under_a_debugger(self, uid: int) -> object:
        self.id_ += 1
        client = self.id_
        self.uid_of[client] = uid
        self.debugged[client] = self._clients(uid)
        servers = (dict(self.spawning), dict(self.running), set(self.shutting_down), list(self.daemon.queue))
        process = ClientProcess(Peer(5000 + client, uid, uid), "c", 1)
        self.feed(events.ClientConnected(client, process, self.environment_of(client), traced=True))
        # It takes no turn.
        assert servers == (self.spawning, self.running, self.shutting_down, list(self.daemon.queue))
        if self.daemon_uid not in (0, uid) or self.quit_begun or self.serving(uid) in self.refusing:
            assert client not in self.debugged
        return client if client in self.debugged else multiple()

    @rule(client=consumes(waiting))
    def leave_queue(self, client: int) -> None:
        if client in self.in_queue or client in self.debugged:
            self.in_queue.discard(client)
            self.debugged.pop(client, None)
            self.feed(events.WaitingClientLeft(client))

    @rule(
        line=st.sampled_from(["ps", "get_server_list", "device_query", "foo", "", "get_client_list 1001"]), uid=UIDS
    )
    def ask(self, line: str, uid: int) -> None:
        self._give(line.encode(), uid)

    @rule(user=st.sampled_from([0, 500, 600]), uid=UIDS)
    def start_server(self, user: int, uid: int) -> None:
        self._give(b"start_server -uid %d" % user, uid)

    @rule(source=st.randoms(use_true_random=True), count=st.integers(1, 12), uid=UIDS)
    def give_any_lines(self, source: Random, count: int, uid: int) -> None:
        """Give well-formed, mutated and random lines; `quit` draws its own."""
        clients = tuple(5000 + client for client in self.on_server)
        lines = Lines(source, (*self.running.values(), *clients))
        for _ in range(count):
            line = lines.line()
            if not self._is_quit(line):
                self._give(line, uid)

    @staticmethod
    def _is_quit(line: bytes) -> bool:
        return parse(line, 2).command == "quit"

    def _give(self, line: bytes, uid: int) -> None:
        """Let an operator give a line; check that it is answered immediately, unless its command takes time."""
        self.session += 1
        parsed = parse(line, 2)
        command = parsed.command if parsed.is_whole and uid in (0, self.daemon_uid) else ""
        spawning, terminating = set(self.spawning), set(self.terminating)
        arguments = _arguments(parsed)
        if command == "quit" and not arguments:
            command = ""
        if command == "quit":
            self.quitters.add(self.session)
            self.quit_begun = self.quit_asked = True
        else:
            self.expect_reply.add(self.session)
        if command == "shutdown_server":
            pid = arguments.get("pid", 0)
            self.shut_down |= {server for server, running in self.running.items() if running == pid}
        if command == "start_server" and isinstance(user := arguments.get("uid"), int):
            request = ("request", self.serving(user))
            if request not in self._waiters():
                self._joins(request)
        self.feed(events.OperatorLine(self.session, uid, parsed))
        started = set(self.spawning) - spawning
        later = started or set(self.terminating) - terminating or command == "quit"
        assert self.replies[self.session] == (0 if later else 1)
        self.starting |= dict.fromkeys(started, self.session)

    def _answered_starter(self, server: int) -> None:
        session = self.starting.pop(server, None)
        assert session is None or self.replies[session] == 1

    def running_server(self, pid: int) -> int:
        """Return the id of the running server with a PID."""
        return next(server for server, running in self.running.items() if running == pid)

    def _a_server_pid(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*self.running.values(), 7]))

    @rule(
        line=st.sampled_from(
            [
                "set_default_active_thread_percentage 40",
                "set_default_active_thread_percentage 0",
                "set_default_device_pinned_mem_limit 1 2G",
                "set_default_device_pinned_mem_limit 0 0",
                "set_default_device_pinned_mem_limit 5 2G",
                "set_default_client_priority 1",
                "set_default_client_priority 2",
            ]
        ),
        uid=UIDS,
    )
    def set_a_default(self, line: str, uid: int) -> None:
        before = {server: self._limits_of(server) for server in self.daemon.servers}
        self._give(line.encode(), uid)
        # A running server keeps the defaults it started with.
        assert {server: self._limits_of(server) for server in self.daemon.servers} == before

    @rule(
        data=st.data(),
        words=st.sampled_from(
            [
                ("set_active_thread_percentage", "30"),
                ("set_active_thread_percentage", "x"),
                ("set_device_pinned_mem_limit", "0 900M"),
                ("set_device_pinned_mem_limit", "0 0"),
                ("set_device_pinned_mem_limit", "9 1G"),
            ]
        ),
        uid=UIDS,
    )
    def set_of_a_server(self, data: st.DataObject, words: tuple[str, str], uid: int) -> None:
        before = self.daemon.defaults.thread_percentage, dict(self.daemon.defaults.memory_limits)
        self._give(f"{words[0]} {self._a_server_pid(data)} {words[1]}".encode(), uid)
        assert before == (self.daemon.defaults.thread_percentage, self.daemon.defaults.memory_limits)

    @rule(data=st.data(), forced=st.sampled_from([b"", b" -f"]), uid=UIDS)
    def shutdown_server(self, data: st.DataObject, forced: bytes, uid: int) -> None:
        self._give(b"shutdown_server %d%s" % (self._a_server_pid(data), forced), uid)

    @rule(data=st.data(), uid=UIDS)
    def terminate_client(self, data: st.DataObject, uid: int) -> None:
        pid = self._a_server_pid(data)
        self._give(b"terminate_client %d 5001" % pid, uid)
        if pid in self.running.values() and uid in (0, self.daemon_uid):
            assert (self.session, self.running_server(pid)) in self.terminating.values()

    @precondition(lambda self: self.terminating)
    @rule(data=st.data(), code=st.sampled_from([0, 201]))
    def termination_answered(self, data: st.DataObject, code: int) -> None:
        token = data.draw(st.sampled_from(sorted(self.terminating)))
        session, server = self.terminating[token]
        # No other server can answer it.
        self.feed(events.TerminationAnswered(server + 1, token, code))
        assert self.replies[session] == 0
        del self.terminating[token]
        self.feed(events.TerminationAnswered(server, token, code))
        assert self.replies[session] == bool(session)
        # It is answered once only.
        self.feed(events.TerminationAnswered(server, token, code))

    @rule(
        words=st.sampled_from([[b"-t", b"1"], [b"-t", b"0"], []]) | st.lists(st.sampled_from([*NUMBERS, *WORDS])),
        uid=st.sampled_from([0, 500, 600]),
    )
    def quit(self, words: list[bytes], uid: int) -> None:
        self._give(b" ".join([b"quit", *words]), uid)
        assert not self.quit_begun or not self.in_queue

    @rule()
    def stop_signal(self) -> None:
        self.quit_begun = True
        self.feed(events.StopSignal())
        assert not self.in_queue

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def timer_ends(self, data: st.DataObject) -> None:
        self._timer_ends(data.draw(st.sampled_from(self.timers)))

    def _timer_ends(self, timer: Timer) -> None:
        self.timers.remove(timer)
        if timer in self.turn_timers:
            self.closed_since[self.turn_timers[timer]] = self.moment + 1
        kind, key = timer.kind, timer.key
        if kind is TimerKind.TERMINATION:
            session, _ = self.terminating.pop(key)
        self.feed(events.TimerEnded(timer))
        if kind is TimerKind.TERMINATION:
            assert self.replies[session] == bool(session)
        elif kind is TimerKind.RETRY:
            user = self.uid_of_server[key]
            waited_for = any(self._user_of(waiter) == user for waiter in self._waiters())
            if user in self.refusing or not (waited_for or user in self.unserved):
                self._drop_failures(user)
        elif kind is TimerKind.FAILURE_EXPIRY and self.unserved.get(self.uid_of_server[key]) == key:
            user = self.uid_of_server[key]
            if user not in self.refusing and self._pause_of(user):
                del self.unserved[user]
            elif user not in self.refusing:
                self._drop_failures(user)
        elif kind is TimerKind.TRIAL and self.phases.get(key) in (Phase.ACTIVE, Phase.FAULT):
            self._has_served(key)

    def _drop_failures(self, user: int) -> None:
        self.failures.pop(user, None)
        self.unserved.pop(user, None)
        self.refusing.discard(user)

    def _has_served(self, server: int) -> None:
        self.verified.add(server)
        self._drop_failures(self.uid_of_server[server])

    @precondition(lambda self: self.spawning)
    @rule(number=NUMBER)
    def spawned(self, number: int = 0) -> None:
        server = _one_of(self.spawning, number)
        del self.spawning[server]
        self.pid += 1
        self.running[server] = self.pid
        self.feed(events.ServerSpawned(server, self.pid))
        self._answered_starter(server)

    @precondition(lambda self: self.spawning)
    @rule(number=NUMBER)
    def spawn_fails(self, number: int) -> None:
        server = _one_of(self.spawning, number)
        uid = self.spawning.pop(server)
        self._drop_failures(uid)
        self.feed(events.SpawnFailed(server, "no"))
        self._answered_starter(server)
        assert not {client for client in self.in_queue if self.serving(self.uid_of[client]) == uid}

    @precondition(lambda self: not self.exits and (self.running or self.in_queue or self._start_requests()))
    @rule(data=st.data())
    def daemon_dies(self, data: st.DataObject) -> None:
        """Kill the daemon and start another; the clients that waited connect again, in any order."""
        defaults = self._defaults()
        persistent_state = snapshot(self.daemon, self.initial)
        assert [server.serial for server in persistent_state.servers] == sorted(self.running)
        alone = set(self.running) - set(self.on_server.values())
        # A server without clients leaves, sooner or later.
        gone = {server for server in sorted(alone) if data.draw(st.booleans(), label="it has ended already")}
        self._drop_daemon_state(gone)
        persistent_state = evolve(
            persistent_state,
            servers=tuple(server for server in persistent_state.servers if server.serial not in gone),
        )
        self.daemon = self._new_daemon()
        self.pending = set(self.running)
        self.verified |= self.pending
        self.phases = dict.fromkeys(self.pending, Phase.RETURNING)
        for uid in map(self.serving, persistent_state.wishes):
            self._joins(("request", uid))
        waited, traced = sorted(self.in_queue) + sorted(self.debugged), set(self.debugged)
        self.in_queue.clear()
        self.debugged.clear()
        self.feed(events.PredecessorDied(persistent_state))
        assert self._defaults() == defaults
        self._connect_again(data, waited, traced)

    def _defaults(self) -> tuple[object, ...]:
        daemon = self.daemon
        return daemon.defaults.thread_percentage, daemon.defaults.client_priority, dict(daemon.defaults.memory_limits)

    def _drop_daemon_state(self, gone: set[int]) -> None:
        """Drop what ends with a daemon: timers, operators, requests, and servers that were just started."""
        self.running = {server: pid for server, pid in self.running.items() if server not in gone}
        self.uid_of_server = {server: self.uid_of_server[server] for server in self.running}
        for collection in (self.spawning, self.terminating, self.starting, self.turn_timers, self.closed_since):
            collection.clear()
        for failed in (self.failures, self.unserved, self.refusing):
            failed.clear()
        self.timers.clear()
        self.watched.clear()
        self.ended.clear()
        self.quitters.clear()
        self.shut_down |= self.shutting_down & set(self.running)
        self.shutting_down, self.ever_forced = set(), set()
        # If no server is left, ids begin again.
        for marked in (self.verified, self.killed, self.shut_down):
            marked &= set(self.running)
        # Without servers there is nothing left that it waits for.
        self.quit_begun = self.quit_asked = self.quit_asked and bool(self.running)

    def _connect_again(self, data: st.DataObject, waited: list[int], traced: set[int]) -> None:
        for client in data.draw(st.permutations(waited), label="the order in which they connect again"):
            if client in traced:
                self.debugged[client] = self._clients(self.uid_of[client])
            else:
                self.in_queue.add(client)
                self._joins(("client", client))
            uid = self.uid_of[client]
            process, environment = ClientProcess(Peer(5000 + client, uid, uid), "c", 1), self.environment_of(client)
            self.feed(events.ClientConnected(client, process, environment, traced=client in traced))

    @precondition(lambda self: self.pending)
    @rule(status=st.sampled_from(["ACTIVE", "FAULT"]), leaving=st.booleans(), number=NUMBER)
    def returns(self, status: str, leaving: bool, number: int = 0) -> None:
        server = _one_of(self.pending, number)
        self.pending.remove(server)
        clients = {client for client, on in self.on_server.items() if on == server}
        for others in self.debugged.values():
            if -server in others:
                others |= clients
        if leaving:
            self.shutting_down.add(server)
        returned = tuple(
            Client(
                client,
                0,
                ClientProcess(Peer(5000 + client, 0, 0), "c", 1),
                {1: ReportedContext(1, 1, 0)},
                partitions=self.partitions_of(client),
            )
            for client in sorted(clients)
        )
        self.feed(events.ServerTakenOver(server, status, leaving, returned))
        known_clients = self.daemon.servers[server].clients
        assert all(list(known_clients[client].contexts) == [1] for client in clients)
        # A second return changes nothing.
        state = asdict(self.daemon)
        self.feed(events.ServerTakenOver(server, status, not leaving, ()))
        assert asdict(self.daemon) == state

    @precondition(lambda self: self.pending)
    @rule(number=NUMBER)
    def is_not_adopted(self, number: int) -> None:
        server = _one_of(self.pending, number)
        self._server_ends(server, events.ServerNotTakenOver(server, "other devices"))

    @precondition(lambda self: set(self.running) - self.pending)
    @rule(fault=st.booleans(), number=NUMBER)
    def status(self, fault: bool, number: int = 0) -> None:
        server = _one_of(set(self.running) - self.pending, number)
        can_fault = self.phases[server] in (Phase.ACTIVE, Phase.LEAVING, Phase.FAULT)
        self.feed(events.StatusPushed(server, "FAULT" if fault and can_fault else "ACTIVE"))

    @precondition(lambda self: self.on_server)
    @rule(data=st.data(), gone=st.booleans())
    def context(self, data: st.DataObject, gone: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.on_server)))
        if not gone and not self._makes_contexts(client):
            return
        server = self.on_server[client]
        event = events.ContextGonePushed(server, client, 1) if gone else events.ContextPushed(server, client, 1, 1, 0)
        if not gone and server not in self.pending:
            self._has_served(server)
        self.feed(event)

    def _makes_contexts(self, client: int) -> bool:
        """Return whether a client's server lets it make a context."""
        return True

    @precondition(lambda self: self._that_may_join())
    @rule(data=st.data())
    def connect_again_for_a_context(self, data: st.DataObject) -> None:
        """Let a client's process connect once more, as those of the driver's server do."""
        client = data.draw(st.sampled_from(self._that_may_join()))
        server = self.on_server[client]
        self.id_ += 1
        self.joining[self.id_] = server
        self._has_served(server)
        peer = Peer(5000 + client, self.uid_of[client], self.uid_of[client])
        self.feed(events.ClientConnected(self.id_, ClientProcess(peer, "c", 1), joins=True))
        assert not self.joining, "it waits, though its process was admitted"

    def _that_may_join(self) -> list[int]:
        """Return the clients whose further connections are accepted, whichever user waits."""
        ready = self._in(Phase.ACTIVE, Phase.FAULT, Phase.LEAVING) - self.pending - self.ever_forced
        return sorted(client for client, server in self.on_server.items() if server in ready - self._forced())

    def _forced(self) -> set[int]:
        return {id_ for id_, server in self.daemon.servers.items() if server.forced}

    @precondition(lambda self: self._in(Phase.ACTIVE, Phase.FAULT, Phase.LEAVING) - self.pending)
    @rule(data=st.data(), status=st.sampled_from(["ACTIVE", "FAULT"]), number=NUMBER)
    def gets_a_status_query(self, data: st.DataObject, status: str, number: int) -> None:
        """Let a server that does not report by itself report its status and its clients' contexts."""
        server = _one_of(self._in(Phase.ACTIVE, Phase.FAULT, Phase.LEAVING) - self.pending, number)
        pids = [5000 + client for client, on in self.on_server.items() if on == server]
        reported = data.draw(st.lists(st.sampled_from([*pids, 0, 7]), unique=True), label="the PIDs that it reports")
        contexts = {
            pid: tuple(ReportedContext(place, place, 0) for place in range(1, 1 + pid % 3)) for pid in reported
        }
        held = {pid for pid in pids if contexts.get(pid)}
        if held:
            self._has_served(server)
        self.feed(events.ServerReported(server, status, contexts))
        client_plans = self.daemon.servers[server].clients.values()
        assert {client.pid for client in client_plans if client.contexts} == held
        listed = [client.pid for client in client_plans if client.pid in contexts]
        assert listed == [pid for pid in reported if pid in listed]

    @rule()
    def devices_are_reported(self) -> None:
        self.feed(events.DevicesReported(DEVICES[:1]))
        assert self.daemon.devices == DEVICES

    @precondition(lambda self: self.on_server)
    @rule(data=st.data())
    def client_gone(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.on_server)))
        server = self.on_server.pop(client)
        # Between two daemons no daemon sees it.
        if server not in self.pending:
            self._has_served(server)
            self.feed(events.ClientGonePushed(server, client))

    @precondition(lambda self: self._living())
    @rule(data=st.data())
    def process_ends(self, data: st.DataObject) -> None:
        """Report a client's end from the kernel; the server reports it later, or never."""
        self._process_ends(data.draw(st.sampled_from(self._living())))

    @precondition(lambda self: self._living())
    @rule()
    def all_processes_end(self) -> None:
        for client in self._living():
            self._process_ends(client)

    def _living(self) -> list[int]:
        return sorted(client for client in self.watched - self.ended if client in self.on_server)

    def _process_ends(self, client: int) -> None:
        server = self.on_server[client]
        self.ended.add(client)
        # That has no visible effect: a healthy server reports it in a moment.
        assert set(map(type, self.feed(events.ClientEnded(server, client)))) <= {do.SetTimer}
        # It does not count twice, nor for an unknown client.
        for again in (client, -1):
            assert self.feed(events.ClientEnded(server, again)) == []

    @precondition(lambda self: self.running)
    @rule(status=st.sampled_from([0, 1, -9, None]), number=NUMBER)
    def server_exits(self, status: int | None, number: int = 0) -> None:
        self._exits(_one_of(self.running, number), status)

    def _exits(self, server: int, status: int | None) -> None:
        if self.phases[server] is Phase.INITIALIZING:
            self._dies_at_start(server, status, stated=False)
            return
        ready = self.phases[server] in (Phase.ACTIVE, Phase.FAULT)
        if ready and server not in self.verified and server in self.on_server.values():
            self._dies_unserving(server, status)
        else:
            self._drop_failures(self.uid_of_server[server])
            self._server_ends(server, events.ServerExited(server, status))

    @precondition(lambda self: self._in(Phase.ACTIVE, Phase.FAULT))
    @rule(number=NUMBER)
    def crashes(self, number: int = 0) -> None:
        self._exits(_one_of(self._in(Phase.ACTIVE, Phase.FAULT), number), -11)

    def _in(self, *phases: Phase) -> set[int]:
        return {server for server, phase in self.phases.items() if phase in phases}

    def _dies_unserving(self, server: int, status: int | None) -> None:
        user = self.uid_of_server[server]
        self.failures[user] += 1
        self.unserved[user] = server
        if self.failures[user] == 4:
            self.refusing.add(user)
        self._server_ends(server, events.ServerExited(server, status))
        if user in self.refusing:
            assert not [waiter for waiter in self._waiters() if self._user_of(waiter) == user]
        else:
            assert not [uid for uid in self.spawning.values() if uid == user]

    @precondition(lambda self: self._in(Phase.INITIALIZING))
    @rule(stated=st.sampled_from([False, False, True]), number=NUMBER)
    def server_dies_at_start(self, stated: bool, number: int = 0) -> None:
        self._dies_at_start(_one_of(self._in(Phase.INITIALIZING), number), 1, stated=stated)

    def _dies_at_start(self, server: int, status: int | None, *, stated: bool) -> None:
        if stated:
            self.feed(events.StartRefused(server, "the device is in use"))
        # A start that took too long is stated too: its timer ends once.
        stated = bool(self.daemon.servers[server].start_refusal)
        user = self.uid_of_server[server]
        waiting = {client for client in self.in_queue if self.serving(self.uid_of[client]) == user}
        requested = user in self._start_requests()
        self.failures[user] += 1
        self.unserved.pop(user, None)
        self._server_ends(server, events.ServerExited(server, status, "no such file"))
        given_up = stated or self.failures[user] == 4
        assert (waiting - self.in_queue) == (waiting if given_up else set())
        if given_up or not (waiting or requested):
            self.failures.pop(user)
        for client in waiting - self.in_queue:
            assert ("in use" in self.refused[client] or "not ready within" in self.refused[client]) == stated
            assert ("no such file" in self.refused[client]) != stated

    def _server_ends(self, server: int, event: events.Event) -> None:
        del self.running[server]
        self.pending.discard(server)
        for others in self.debugged.values():
            others.discard(-server)
        self.on_server = {client: on for client, on in self.on_server.items() if on != server}
        waiting = [session for session, on in self.terminating.values() if on == server]
        self.terminating = {token: request for token, request in self.terminating.items() if request[1] != server}
        self.feed(event)
        assert all(self.replies[session] == bool(session) for session in waiting)

    # --- what always holds

    @invariant()
    def a_server_knows_its_limits(self) -> None:
        for server in self.running:
            assert self.sent_limits[server] == self._limits_of(server)

    @invariant()
    def a_termination_is_answered_once(self) -> None:
        pending = self.daemon.terminations.pending
        requests = {token: (request.session, request.server) for token, request in pending.items()}
        assert requests == self.terminating
        # None waits for ever.
        assert {Timer(TimerKind.TERMINATION, token) for token in requests} <= set(self.timers)
        assert all(count == 1 for count in self.replies.values())

    @invariant()
    def the_limits_are_possible(self) -> None:
        assert 0 < self.daemon.defaults.thread_percentage.value <= 100
        assert self.daemon.defaults.client_priority.level in (0, 1)
        for limits in (
            self.daemon.defaults.memory_limits,
            *(server.memory_limits for server in self.daemon.servers.values()),
        ):
            assert limits.keys() <= set(range(len(DEVICES)))
            assert all(limit.value > 0 for limit in limits.values())

    @invariant()
    def each_server_is_another_users_and_there_are_not_too_many(self) -> None:
        assert len({server.uid for server in self.daemon.servers.values()}) == len(self.daemon.servers)
        assert len(self.daemon.servers) <= self.most_servers
        assert set(self.daemon.servers) == set(self.spawning) | set(self.running)
        listed = decide_line(self.daemon, Caller(0, 1), parse(b"get_server_list", 2)).answer
        assert listed is not None
        assert listed.printed == "".join(f"{pid}\n" for _, pid in sorted(self.running.items()))

    @invariant()
    def no_client_is_lost(self) -> None:
        assert {entry.client for entry in self.daemon.queue if entry.client} == self.in_queue
        assert all(count == 1 for count in self.resolved.values())
        clients = {client for server in self.daemon.servers.values() for client in server.clients}
        assert clients == {client for client, server in self.on_server.items() if server not in self.pending}
        assert {server.id for server in self.daemon.servers.values() if server.pending} == self.pending

    @invariant()
    def a_debugged_client_waits_for_earlier_clients_only(self) -> None:
        assert set(self.daemon.queue.debugged) == set(self.debugged)
        assert all(others & self._clients() for others in self.debugged.values())

    @invariant()
    def an_entry_that_can_be_overtaken_has_a_timer(self) -> None:
        timed = {waiter for timer, waiter in self.turn_timers.items() if timer in self.timers}
        # No timer runs for a client that has gone.
        assert timed <= self._waiters()
        if self.together:
            # Nobody is overtaken, and no turn ends.
            assert not self.turn_timers
            return
        current = [server.uid for server in self.daemon.servers.values()]
        for place, entry in enumerate(self.daemon.queue):
            waiter = ("client", entry.client) if entry.client else ("request", entry.uid)
            if waiter not in timed and waiter not in self.closed_since:
                # In a pause after a failed start there is no server, and the head of the queue cannot be overtaken.
                assert {*current, *(before.uid for before in self.daemon.queue.entries[:place])} <= {entry.uid}
                assert current or place or self._pause_of(entry.uid)

    @invariant()
    def the_queue_moves_on(self) -> None:
        # A queue that neither a server nor a pause moves on would wait for ever.
        if self.together:
            full = len(self._served()) == self.most_servers
            assert full or all(self._pause_of(user) for user in self._without_server())
            return
        assert not self.daemon.queue or self.daemon.servers or self._pause_of(self.daemon.queue.entries[0].uid)

    @invariant()
    def ended_clients_do_not_block_the_queue_for_ever(self) -> None:
        for server in set(self.running) - self.ever_forced:
            if self._is_abandoned(server) and self._is_waited_for(server):
                assert Timer(TimerKind.SILENCE, server) in self.timers

    def _is_waited_for(self, server: int) -> bool:
        return self._others_wait(server) or self.phases[server] is Phase.LEAVING

    @invariant()
    def a_server_has_one_timer_to_leave(self) -> None:
        watches = [timer for timer in self.timers if timer.kind in (TimerKind.LEAVE, TimerKind.SILENCE)]
        assert len(watches) == len(set(watches))

    def _pause_of(self, uid: int) -> Timer | None:
        """Return the timer after which a server is started again for a user; None if no such timer runs."""
        failed = self.daemon.failed_starts.get(f"uid_{uid}")
        timer = Timer(TimerKind.RETRY, failed.pausing_after) if failed else None
        return timer if timer in self.timers else None

    @invariant()
    def a_pause_ends(self) -> None:
        for name, failed in self.daemon.failed_starts.items():
            uid = int(name.removeprefix("uid_"))
            assert failed.count == self.failures[uid]
            assert 1 <= failed.count <= (4 if failed.refusal else 3)
            assert bool(failed.refusal) == (uid in self.refusing)
            assert not failed.pausing_after or self._pause_of(uid)

    @invariant()
    def a_ready_server_admits_its_users_clients(self) -> None:
        for server in self.daemon.servers.values():
            if server.phase is Phase.ACTIVE:
                others = {waiter for waiter in self._waiters() if self._user_of(waiter) != server.uid}
                for waiter in self._waiters() - others:
                    # Unless it came after another user had waited long enough.
                    assert any(self.closed_since.get(other, self.moment) < self.came[waiter] for other in others)
                assert server.clients or not self._others_wait(server) or self._room_is_made()

    def _room_is_made(self) -> bool:
        """Whether as many servers are about to end as users wait for; there is one, if they take turns."""
        ending = {server for server in self._in(Phase.LEAVING) if server not in self.on_server.values()}
        return self.together and len(ending - self.pending) >= len(self._without_server())

    @invariant()
    def after_quit_the_queue_is_empty_and_the_daemon_exits_once(self) -> None:
        if self.quit_begun:
            assert not self.in_queue
            assert not self.debugged
            assert self.exits == (0 if self.daemon.servers else 1)
            assert all(self.replies[session] == 0 for session in self.quitters)
        else:
            assert self.exits == 0

    # --- the end

    def teardown(self) -> None:
        """Let time pass until every waiting client is answered, while new clients of the active user connect.

        If users run together no clients connect, because enough of them could make a further user wait for ever.
        """
        owed = self.in_queue | set(self.debugged)
        for step in range(50 + self.steps_for_each * self.id_):
            # Also later, because a timer may begin now, for clients that the turn policy passes over.
            if step % STEPS_OF_A_TURN == 0:
                self._turns_time_out()
            if not owed & (self.in_queue | set(self.debugged)):
                return
            self._time_passes()
        raise AssertionError(f"clients {sorted(owed & (self.in_queue | set(self.debugged)))} starve")

    def _turns_time_out(self) -> None:
        for timer in [timer for timer in self.timers if timer.kind is TimerKind.TURN]:
            if timer in self.timers:  # the end of another one may have cancelled it
                self._timer_ends(timer)

    def _time_passes(self) -> None:
        if self.spawning:
            self.spawned()
            return
        if any(self._continues(server) for server in sorted(self.running)):
            return
        pauses = [pause for entry in self.daemon.queue if (pause := self._pause_of(entry.uid))]
        assert pauses, "nothing moves the queue on"
        self._timer_ends(pauses[0])

    def _continues(self, id_: int) -> bool:
        """Let a server take its next step; return whether it had one."""
        server = self.daemon.servers[id_]
        own = [client for client, on in self.on_server.items() if on == id_]
        if server.pending:
            self.returns("ACTIVE", leaving=False, number=sorted(self.pending).index(id_))
        elif server.phase in (Phase.INITIALIZING, Phase.FAULT):
            self.feed(events.StatusPushed(id_, "ACTIVE"))
        elif self._is_abandoned(id_) and self._is_waited_for(id_):
            # It is stopped for ever, whatever it is asked to do.
            for timer in (Timer(TimerKind.SILENCE, id_), Timer(TimerKind.LEAVE, id_)):
                if timer in self.timers:
                    self._timer_ends(timer)
            assert id_ in self.killed
            self._exits(id_, -9)
        elif own:
            if not self.together:
                self.connect(uid=server.uid, foreign=False)
            self._has_served(id_)
            del self.on_server[min(own)]
            self.feed(events.ClientGonePushed(id_, min(own)))
        elif server.phase is Phase.LEAVING:
            self._exits(id_, 0)
        else:
            return False
        return True


def _one_of(servers: Collection[int], number: int) -> int:
    return sorted(servers)[number % len(servers)]


def _reachable(phase: Phase) -> set[Phase]:
    phases = set(MOVES[phase])
    for target in MOVES[phase]:
        phases |= MOVES[target]
    return phases


class OwnDaemonMachine(DaemonMachine):
    """The daemon of a user other than root."""

    daemon_uid = 500


class FewestTurnsMachine(DaemonMachine):
    """The same, but the user with the fewest turns is next."""

    turn_policy = staticmethod(fewest_turns())
    steps_for_each = 60  # who has had many turns waits until others have had as many

    def _timed_by(self, ticket: int) -> Waiter:
        """Return the waiters with a ticket, which may have come long before."""
        (entry,) = (entry for entry in self.daemon.queue if entry.ticket == ticket)
        return ("client", entry.client) if entry.client else ("request", entry.uid)

    def _check_overtaking(self, client: int) -> None:
        """The chosen user may overtake earlier ones, whatever the overtaking limit."""

    @invariant()
    def the_queue_moves_on(self) -> None:
        queue = self.daemon.queue.entries
        assert not queue or self.daemon.servers or any(self._pause_of(entry.uid) for entry in queue)


class NoOvertakingMachine(DaemonMachine):
    """New clients never overtake."""

    overtaking_seconds = 0.0


class MultiuserMachine(DaemonMachine):
    """One server, root's, for the clients of all users."""

    multiuser = True


class TogetherMachine(DaemonMachine):
    """Users have servers at the same time, and all users fit."""

    most_servers = MAX_SERVERS


class CrowdedMachine(DaemonMachine):
    """Users have servers at the same time, but more users exist than servers are allowed."""

    most_servers = 2


def _check_is_one_entry(event: str, fields: dict[str, str | int | float]) -> None:
    for dialect in Dialect:
        text = render(LogEntry("Control", 1, event, dict(fields), 0.0), CONTROL_LINES[event], dialect)
        if event == "command" and text is not None:
            assert text.count(b"\n") == 1, "a command can begin a line of its own in the log"


def _check_answer(answer: Answer) -> None:
    answer.printed.encode("utf-8", "surrogateescape")
    answer.diagnostic.encode("utf-8", "surrogateescape")
    assert "\n" not in answer.diagnostic
    # Notes on an option that was ignored, and on a number that is written in another form than is allowed.
    is_note = answer.diagnostic.partition(": ")[2].startswith("-") or " is read as " in answer.diagnostic
    # An SM partition was removed, but the server did not confirm that its terminated clients are evicted.
    is_note = is_note or answer.diagnostic.startswith("terminate_client: ")
    assert answer.refused or is_note or not answer.diagnostic


MACHINES = (
    DaemonMachine,
    OwnDaemonMachine,
    NoOvertakingMachine,
    MultiuserMachine,
    TogetherMachine,
    CrowdedMachine,
)


def fuzz_state_machine(first_seed: int, sessions: int) -> None:
    """Run a number of sessions of 40 steps over all kinds of daemons; the same seed gives the same sessions."""
    for machine in MACHINES:
        run_state_machine_as_test(
            seed(first_seed)(machine),
            settings=settings(
                max_examples=-(-sessions // len(MACHINES)),
                stateful_step_count=40,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
