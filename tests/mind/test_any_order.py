"""The daemon's mind under any order of events: users, operators, servers and signals, drawn by hypothesis.

The machine plays the rim: it remembers what was instructed, and only lets happen what could happen then.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from pympsd.devices.machine import describe
from pympsd.mind import events
from pympsd.mind import instructions as do
from pympsd.mind.daemon_state import Daemon
from pympsd.mind.decide import handle
from pympsd.mind.server_lifecycle import MOVES, Phase
from pympsd.vocabulary.identities import Peer

UIDS = st.sampled_from([0, 500, 600, 65534])
DEVICES = describe("2xH200")


class DaemonMachine(RuleBasedStateMachine):
    """Everything outside the mind."""

    waiting = Bundle("waiting")

    def __init__(self) -> None:
        super().__init__()
        self.daemon = Daemon(self.daemon_uid, DEVICES, multiuser=self.multiuser)
        self.serial = 0
        self.session = 0
        self.pid = 1000
        self.uid_of: dict[int, int] = {}
        self.in_line: set[int] = set()
        self.settled: Counter[int] = Counter()
        self.on_server: dict[int, int] = {}
        self.spawning: dict[int, int] = {}
        self.running: dict[int, int] = {}
        self.uid_of_server: dict[int, int] = {}
        self.ever_forced: set[int] = set()
        self.told_to_leave: set[int] = set()
        self.shut_down: set[int] = set()
        self.terminating: dict[int, int] = {}
        self.starting: dict[int, int] = {}
        self.told_limits: dict[int, tuple[float, dict[int, int]]] = {}
        self.timers: list[str] = []
        self.replies: Counter[int] = Counter()
        self.expect_reply: set[int] = set()
        self.quitters: set[int] = set()
        self.exits = 0
        self.quit_begun = False
        self.phases: dict[int, Phase] = {}

    daemon_uid = 0
    multiuser = False

    def serving(self, uid: int) -> int:
        """Whose server serves a user."""
        return 0 if self.multiuser else uid

    # --- the rim

    def feed(self, event: events.Event) -> None:
        was_over = self.exits
        for instruction in handle(self.daemon, event):
            self._carry_out(instruction)
        if was_over:
            assert self.exits == was_over == 1
        self._follow_phases()

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.SpawnServer(server, uid, peer):
                assert not self.spawning
                assert not self.running
                assert not self.quit_begun
                assert peer is None or peer.uid == uid
                assert peer is None or not self.multiuser
                self.told_limits[server] = self._limits_of(server)
                self.spawning[server] = self.uid_of_server[server] = uid
            case do.AdmitClient(client, server, pid, _):
                assert self.running[server] == pid
                assert self.uid_of_server[server] == self.serving(self.uid_of[client])
                assert server not in self.told_to_leave
                self._settle(client)
                self.on_server[client] = server
            case do.RefuseClient(client, code, reason):
                assert code in (805, 807)
                assert reason
                self._settle(client)
            case do.TellServerToLeave(server, forced):
                assert server in self.running
                assert forced or server not in self.told_to_leave
                assert not forced or server not in self.ever_forced
                self._check_why_it_leaves(server, forced)
                self.told_to_leave.add(server)
                self.ever_forced |= {server} if forced else set()
            case do.KillServer(server):
                assert server in self.running
            case do.TellServerItsLimits(server, percentage, limits):
                assert server in self.running
                self.told_limits[server] = (percentage, limits)
            case do.TerminateClient(server, session, _):
                assert server in self.running
                self.terminating[session] = server
            case do.Reply(session, _):
                assert session in self.expect_reply
                self.replies[session] += 1
            case do.Working(session):
                assert session in self.quitters | self.expect_reply
            case do.SetTimer(token, seconds):
                assert seconds >= 0
                self.timers.append(token)
            case do.Exit(status):
                assert status == 0
                assert self.quit_begun
                assert not self.running
                assert not self.spawning
                self.exits += 1

    def _settle(self, client: int) -> None:
        assert client in self.in_line, "answered twice, or after it left"
        self.in_line.discard(client)
        self.settled[client] += 1

    def _check_why_it_leaves(self, server: int, forced: bool) -> None:
        idle = server not in self.on_server.values()
        others_wait = any(waiting.uid != self.uid_of_server[server] for waiting in self.daemon.line)
        assert not (self.multiuser and others_wait)
        assert self.quit_begun or server in self.shut_down or (idle and others_wait and not forced)

    def _limits_of(self, server: int) -> tuple[float, dict[int, int]]:
        known = self.daemon.servers[server]
        return known.thread_percentage.value, {n: limit.value for n, limit in known.memory_limits.items()}

    def _follow_phases(self) -> None:
        now = {serial: server.phase for serial, server in self.daemon.servers.items()}
        for serial, phase in now.items():
            before = self.phases.get(serial, Phase.SPAWNING)
            assert phase is before or phase in _reachable(before)
        self.phases = now

    # --- what can happen

    @rule(target=waiting, uid=UIDS, foreign=st.sampled_from([False, False, False, True]))
    def knock(self, uid: int, foreign: bool) -> object:
        self.serial += 1
        client = self.serial
        self.uid_of[client] = uid
        self.in_line.add(client)
        self.feed(events.ClientKnocked(client, Peer(5000 + client, uid, uid, foreign=foreign), "c", 1))
        if foreign or self.daemon_uid not in (0, uid) or self.quit_begun:
            assert client not in self.in_line
        return client if client in self.in_line else multiple()

    @rule(client=consumes(waiting))
    def leave_the_line(self, client: int) -> None:
        if client in self.in_line:
            self.in_line.discard(client)
            self.feed(events.ClientLeftTheLine(client))

    @rule(
        line=st.sampled_from(["ps", "get_server_list", "device_query", "foo", "", "get_client_list 1001"]), uid=UIDS
    )
    def ask(self, line: str, uid: int) -> None:
        self._operator(line, uid)

    @rule(wish=st.sampled_from([0, 500, 600]), uid=UIDS)
    def start_server(self, wish: int, uid: int) -> None:
        before = set(self.spawning)
        self.session += 1
        self.expect_reply.add(self.session)
        self.feed(events.OperatorLine(self.session, uid, f"start_server -uid {wish}".encode()))
        started = set(self.spawning) - before
        assert self.replies[self.session] == (0 if started else 1)
        self.starting |= dict.fromkeys(started, self.session)

    def _answered_starter(self, server: int) -> None:
        session = self.starting.pop(server, None)
        assert session is None or self.replies[session] == 1

    def _operator(self, line: str, uid: int) -> None:
        self.session += 1
        self.expect_reply.add(self.session)
        self.feed(events.OperatorLine(self.session, uid, line.encode()))
        assert self.replies[self.session] == 1

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
        self._operator(line, uid)
        # What a server started with stays its own.
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
        before = self.daemon.thread_percentage, dict(self.daemon.memory_limits)
        self._operator(f"{words[0]} {self._a_server_pid(data)} {words[1]}", uid)
        assert before == (self.daemon.thread_percentage, self.daemon.memory_limits)

    @rule(data=st.data(), forced=st.sampled_from(["", " -f"]), uid=UIDS)
    def shutdown_server(self, data: st.DataObject, forced: str, uid: int) -> None:
        pid = self._a_server_pid(data)
        if uid in (0, self.daemon_uid):
            self.shut_down |= {server for server, running in self.running.items() if running == pid}
        self._operator(f"shutdown_server {pid}{forced}", uid)

    @rule(data=st.data(), uid=UIDS)
    def terminate_client(self, data: st.DataObject, uid: int) -> None:
        pid = self._a_server_pid(data)
        reaches = pid in self.running.values() and uid in (0, self.daemon_uid)
        if not reaches:
            self._operator(f"terminate_client {pid} 5001", uid)
            return
        self.session += 1
        self.expect_reply.add(self.session)
        self.feed(events.OperatorLine(self.session, uid, f"terminate_client {pid} 5001".encode()))
        assert self.session in self.terminating
        assert self.replies[self.session] == 0

    @precondition(lambda self: self.terminating)
    @rule(data=st.data(), code=st.sampled_from([0, 201]))
    def termination_answered(self, data: st.DataObject, code: int) -> None:
        session = data.draw(st.sampled_from(sorted(self.terminating)))
        self.feed(events.TerminationAnswered(self.terminating.pop(session), session, code))
        assert self.replies[session] == 1

    @rule(line=st.sampled_from(["quit", "quit -t 1", "quit -t 0"]), uid=st.sampled_from([0, 500, 600]))
    def quit(self, line: str, uid: int) -> None:
        if uid not in (0, self.daemon_uid):
            self._operator(line, uid)
            return
        self.session += 1
        self.quitters.add(self.session)
        self.quit_begun = True
        self.feed(events.OperatorLine(self.session, uid, line.encode()))
        assert not self.in_line

    @rule()
    def stop_signal(self) -> None:
        self.quit_begun = True
        self.feed(events.StopSignal())
        assert not self.in_line

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def timer_ends(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.timers))
        self.timers.remove(token)
        self.feed(events.TimerEnded(token))

    @precondition(lambda self: self.spawning)
    @rule()
    def spawned(self) -> None:
        ((server, _),) = self.spawning.items()
        self.spawning.clear()
        self.pid += 1
        self.running[server] = self.pid
        self.feed(events.ServerSpawned(server, self.pid))
        self._answered_starter(server)

    @precondition(lambda self: self.spawning)
    @rule()
    def spawn_fails(self) -> None:
        ((server, uid),) = self.spawning.items()
        self.spawning.clear()
        self.feed(events.SpawnFailed(server, "no"))
        self._answered_starter(server)
        assert not {client for client in self.in_line if self.serving(self.uid_of[client]) == uid}

    @precondition(lambda self: self.running)
    @rule(fault=st.booleans())
    def status(self, fault: bool) -> None:
        ((server, _),) = self.running.items()
        can_fault = self.phases[server] in (Phase.ACTIVE, Phase.LEAVING, Phase.FAULT)
        self.feed(events.StatusPushed(server, "FAULT" if fault and can_fault else "ACTIVE"))

    @precondition(lambda self: self.on_server)
    @rule(data=st.data(), gone=st.booleans())
    def context(self, data: st.DataObject, gone: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.on_server)))
        server = self.on_server[client]
        event = events.ContextGonePushed(server, client, 1) if gone else events.ContextPushed(server, client, 1, 1, 0)
        self.feed(event)

    @precondition(lambda self: self.on_server)
    @rule(data=st.data())
    def client_gone(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.on_server)))
        self.feed(events.ClientGonePushed(self.on_server.pop(client), client))

    @precondition(lambda self: self.running)
    @rule(status=st.sampled_from([0, 1, -9]))
    def server_exits(self, status: int) -> None:
        ((server, _),) = self.running.items()
        self.running.clear()
        self.on_server = {client: on for client, on in self.on_server.items() if on != server}
        waiting = [session for session, on in self.terminating.items() if on == server]
        self.terminating = {session: on for session, on in self.terminating.items() if on != server}
        self.feed(events.ServerExited(server, status))
        assert all(self.replies[session] == 1 for session in waiting)

    # --- what always holds

    @invariant()
    def a_server_knows_its_limits(self) -> None:
        for server in self.running:
            assert self.told_limits[server] == self._limits_of(server)

    @invariant()
    def a_termination_is_answered_once(self) -> None:
        assert self.daemon.terminations == self.terminating
        assert all(count == 1 for count in self.replies.values())

    @invariant()
    def at_most_one_server(self) -> None:
        assert len(self.daemon.servers) <= 1
        assert set(self.daemon.servers) == set(self.spawning) | set(self.running)

    @invariant()
    def nobody_is_lost(self) -> None:
        assert {waiting.client for waiting in self.daemon.line if waiting.client} == self.in_line
        assert all(count == 1 for count in self.settled.values())
        known = {client for server in self.daemon.servers.values() for client in server.clients}
        assert known == set(self.on_server)

    @invariant()
    def whoever_waits_will_be_served(self) -> None:
        # A line with nobody to move it on would wait for ever.
        assert not self.daemon.line or self.daemon.servers

    @invariant()
    def a_ready_server_keeps_nobody_of_its_user_waiting(self) -> None:
        for server in self.daemon.servers.values():
            if server.phase is Phase.ACTIVE:
                assert server.uid not in {self.serving(self.uid_of[client]) for client in self.in_line}
                assert server.clients or not self.daemon.line

    @invariant()
    def after_quit_nobody_waits_and_the_end_comes_once(self) -> None:
        if self.quit_begun:
            assert not self.in_line
            assert self.exits == (0 if self.daemon.servers else 1)
            assert all(self.replies[session] == 0 for session in self.quitters)
        else:
            assert self.exits == 0


def _reachable(phase: Phase) -> set[Phase]:
    found = set(MOVES[phase])
    for target in MOVES[phase]:
        found |= MOVES[target]
    return found


class OwnDaemonMachine(DaemonMachine):
    """The daemon of a user that is not root."""

    daemon_uid = 500


class MultiuserMachine(DaemonMachine):
    """One server, root's, for the clients of all users."""

    multiuser = True


DaemonMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
OwnDaemonMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
MultiuserMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestRootDaemon = DaemonMachine.TestCase
TestOwnDaemon = OwnDaemonMachine.TestCase
TestMultiuserDaemon = MultiuserMachine.TestCase
