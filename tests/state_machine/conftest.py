"""A daemon's state machine that is driven by events, and reads like the story of control.log."""

from __future__ import annotations

import pytest
from attrs import define, field

from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.journal.catalogue import CONTROL_LINES
from pympsd.journal.line_format import Dialect
from pympsd.state_machine import events
from pympsd.state_machine.decide import handle
from pympsd.state_machine.instructions import CancelTimer, Instruction, Log, SetTimer, Timer, TimerKind
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.vocabulary.identities import Peer

WATCHES = (TimerKind.START, TimerKind.LEAVE, TimerKind.SILENCE, TimerKind.TURN, TimerKind.FAILURE_EXPIRY)
DEVICES = describe("2xH200")


@define
class Story:
    """A state machine, its instructions, and the sentences it logged."""

    daemon: Daemon
    instructions: list[Instruction] = field(factory=list)
    """All that `feed` returned."""
    logged: list[str] = field(factory=list)
    watches: list[tuple[Timer, float]] = field(factory=list)
    """The timers that watch over servers and the queue, and their seconds: kept apart because nearly all events set
    some."""
    cancelled: list[Timer] = field(factory=list)
    """The timers that were cancelled, kept apart too."""

    def feed(self, event: events.Event) -> list[Instruction]:
        """Let an event happen; return the instructions except log lines, watches and TRIAL timers."""
        left = []
        for instruction in handle(self.daemon, event, answer_line):
            match instruction:
                case Log(name, fields):
                    template = CONTROL_LINES[name].sentence(Dialect.DOCUMENTED)
                    assert template is not None
                    self.logged.append(template.format(**fields))
                case SetTimer(timer, seconds) if timer.kind in WATCHES:
                    self.watches.append((timer, seconds))
                case SetTimer(Timer(TimerKind.TRIAL)):
                    pass  # set for every server that becomes ready
                case CancelTimer(timer):
                    self.cancelled.append(timer)
                case _:
                    left.append(instruction)
        self.instructions += left
        return left

    def says(self, line: str, *, session: int = 1, uid: int = 0) -> list[Instruction]:
        """Let an operator give a command."""
        return self.feed(events.OperatorLine(session, uid, parse(line.encode(), self.daemon.options.protocol)))

    def connects(self, client: int, uid: int, *, traced: bool = False) -> list[Instruction]:
        """Let a client of a user connect; its PID is its id plus 100."""
        peer = Peer(client + 100, uid, uid, (uid,))
        return self.feed(events.ClientConnected(client, ClientProcess(peer, f"client {client}", 7), traced=traced))

    def is_ready(self, server: int, pid: int) -> list[Instruction]:
        """Let a server be spawned and become active."""
        self.feed(events.ServerSpawned(server, pid))
        return self.feed(events.StatusPushed(server, "ACTIVE"))

    def take_log(self) -> list[str]:
        """Return the lines logged since the last call."""
        lines, self.logged = self.logged, []
        return lines


@pytest.fixture
def story() -> Story:
    """Return the story of a root daemon."""
    return Story(Daemon(DaemonOptions(0), DEVICES))


@pytest.fixture
def own_story() -> Story:
    """Return the story of user 1000's daemon."""
    return Story(Daemon(DaemonOptions(1000), DEVICES))
