"""Sessions thrown at the daemon's mind: no exception, and after every event the state is one that can be."""

from __future__ import annotations

import random
from itertools import count

from fuzz_lines import Lines

from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.journal.catalogue import CONTROL_LINES
from pympsd.journal.dialects import Dialect
from pympsd.journal.line_format import Said, rendered
from pympsd.state_machine import events
from pympsd.state_machine import instructions as do
from pympsd.state_machine.daemon_state import Daemon
from pympsd.state_machine.decide import handle
from pympsd.vocabulary.identities import Peer

DEVICES = describe("2xH200")
OWNER, STRANGER = 0, 1000


class Session:
    """One mind and what its rim would be: spawns servers, connects clients, counts the answers that are owed."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.daemon = Daemon(OWNER, DEVICES)
        self.numbers = count(1)
        self.owed: set[int] = set()
        self.working: set[int] = set()
        self.over = False
        self.pending: list[events.Event] = []

    def run(self, lines: int) -> int:
        """Play the session; return how many events it had."""
        played = 0
        for _ in range(lines):
            self._give_line()
            self._connect_somebody()
            while self.pending and not self.over and self.source.random() < 0.7:
                self.feed(self.pending.pop(0))
                played += 1
            played += 1
            if self.over:
                break
        return played

    def _give_line(self) -> None:
        pids = tuple(server.pid for server in self.daemon.running_servers())
        clients = tuple(client.pid for server in self.daemon.servers.values() for client in server.clients.values())
        line = Lines(self.source, pids + clients).line()
        session = next(self.numbers)
        self.owed.add(session)
        uid = OWNER if self.source.random() < 0.9 else STRANGER
        self.feed(events.OperatorLine(session, uid, line))

    def _connect_somebody(self) -> None:
        if self.source.random() < 0.1:
            number = next(self.numbers)
            uid = self.source.choice((OWNER, STRANGER))
            self.pending.append(events.ClientConnected(number, Peer(number + 500, uid, uid, (uid,)), "client", 7))

    def feed(self, event: events.Event) -> None:
        """Let an event happen; check all that comes of it."""
        for instruction in handle(self.daemon, event, answer_line):
            self._carry_out(instruction)
        self._check()

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.Log(event, fields):
                _is_one_entry(event, fields)
            case do.Reply(session, answer):
                assert session in self.owed, "an answer nobody waits for"
                self.owed.discard(session)
                answer.printed.encode("utf-8", "surrogateescape")
                answer.diagnostic.encode("utf-8", "surrogateescape")
                assert "\n" not in answer.diagnostic
                assert answer.refused or not answer.diagnostic
            case do.Working(session):
                self.working.add(session)
            case do.SpawnServer(server):
                failed = self.source.random() < 0.1
                spawned = events.ServerSpawned(server, next(self.numbers) + 1000)
                after = (
                    (events.SpawnFailed(server, "no"),)
                    if failed
                    else (spawned, events.StatusPushed(server, "ACTIVE"))
                )
                self.pending += after
            case do.ShutDownServer(server) | do.KillServer(server):
                self.pending = [each for each in self.pending if not isinstance(each, events.StatusPushed)]
                self.pending.append(events.ServerExited(server, 0))
            case do.AdmitClient(client, server):
                self.pending.append(events.ContextPushed(server, client, next(self.numbers), 1, 0))
                if self.source.random() < 0.5:
                    self.pending.append(events.ClientGonePushed(server, client))
            case do.TerminateClient(server, session):
                self.pending.append(events.TerminationAnswered(server, session, self.source.choice((0, 201))))
            case do.Exit(status):
                assert status == 0
                assert not self.daemon.servers
                self.over = True

    def _check(self) -> None:
        daemon = self.daemon
        assert 0 < daemon.thread_percentage.value <= 100
        assert daemon.client_priority.level in (0, 1)
        for limits in (daemon.memory_limits, *(server.memory_limits for server in daemon.servers.values())):
            assert limits.keys() <= set(range(len(DEVICES)))
            assert all(limit.value > 0 for limit in limits.values())
        assert len(daemon.servers) <= 1
        # Everybody is answered, or told that it takes a while, or waits for a server that is being started.
        starting = {session for server in daemon.servers.values() for session in getattr(server, "starters", ())}
        assert self.owed <= self.working | starting
        (listed,) = [
            each
            for each in handle(daemon, events.OperatorLine(0, 1, b"get_server_list"), answer_line)
            if isinstance(each, do.Reply)
        ]
        assert all(word.isdecimal() for word in listed.answer.printed.split())


def _is_one_entry(event: str, fields: dict[str, object]) -> None:
    for dialect in Dialect:
        data = rendered(Said("Control", 1, event, dict(fields), 0.0), CONTROL_LINES[event], dialect)
        if event == "command" and data is not None:
            assert data.count(b"\n") == 1, "a command can begin a line of its own in the log"


def fuzz_state_machine(seed: int, sessions: int) -> int:
    """Play so many sessions; return how many events they had. Raises what a session raised, its number in a note."""
    played = 0
    for number in range(sessions):
        source = random.Random(f"{seed}/{number}")
        try:
            played += Session(source).run(source.randint(1, 12))
        except Exception as error:
            error.add_note(f"session {number} of seed {seed}")
            raise
    return played
