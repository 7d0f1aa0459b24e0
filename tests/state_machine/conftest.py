"""A daemon's mind that is driven by events, and reads like the story of control.log."""

from __future__ import annotations

import pytest
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.journal.catalogue import CONTROL_LINES
from pympsd.journal.dialects import Dialect
from pympsd.state_machine import events
from pympsd.state_machine.daemon_state import Daemon
from pympsd.state_machine.decide import handle
from pympsd.state_machine.instructions import CancelTimer, Instruction, Log, SetTimer
from pympsd.vocabulary.identities import Peer

WATCHES = ("start ", "leave ", "silence ", "turn ", "memory ")
UNREMARKABLE = "probation "
"""The timer of every server that gets ready."""
DEVICES = describe("2xH200")


@define
class Story:
    """A mind, everything it instructed, and the sentences it logged."""

    daemon: Daemon
    told: list[Instruction] = field(factory=list)
    logged: list[str] = field(factory=list)
    watches: list[tuple[str, float]] = field(factory=list)
    """The timers that watch over servers and the line, as (token, seconds): kept apart, for they are everywhere."""
    cancelled: list[str] = field(factory=list)
    """The tokens of timers that were cancelled, kept apart too."""

    def feed(self, event: events.Event) -> list[Instruction]:
        """Let an event happen; return what is to be done, the log's lines apart."""
        done = handle(self.daemon, event)
        for instruction in done:
            if isinstance(instruction, Log):
                template = CONTROL_LINES[instruction.event].sentence(Dialect.DOCUMENTED)
                assert template is not None
                self.logged.append(template.format(**instruction.fields))
        told = [instruction for instruction in done if not isinstance(instruction, Log)]
        watches = [one for one in told if isinstance(one, SetTimer) and one.token.startswith(WATCHES)]
        self.watches += [(one.token, one.seconds) for one in watches]
        self.cancelled += [one.token for one in told if isinstance(one, CancelTimer)]
        told = [one for one in told if one not in watches and not isinstance(one, CancelTimer)]
        told = [one for one in told if not (isinstance(one, SetTimer) and one.token.startswith(UNREMARKABLE))]
        self.told += told
        return told

    def says(self, line: str, *, session: int = 1, uid: int = 0) -> list[Instruction]:
        """An operator gives a command."""
        return self.feed(events.OperatorLine(session, uid, line.encode()))

    def knocks(self, client: int, uid: int, *, traced: bool = False) -> list[Instruction]:
        """A client of a user knocks; its PID is its serial plus 100."""
        peer = Peer(client + 100, uid, uid, (uid,))
        return self.feed(events.ClientKnocked(client, peer, f"client {client}", 7, traced=traced))

    def is_ready(self, server: int, pid: int) -> list[Instruction]:
        """A server is spawned and becomes active."""
        self.feed(events.ServerSpawned(server, pid))
        return self.feed(events.StatusPushed(server, "ACTIVE"))

    def take_log(self) -> list[str]:
        """Return the lines logged since the last time."""
        lines, self.logged = self.logged, []
        return lines


@pytest.fixture
def story() -> Story:
    """A root daemon."""
    return Story(Daemon(0, DEVICES))


@pytest.fixture
def own_story() -> Story:
    """The daemon of user 1000."""
    return Story(Daemon(1000, DEVICES))
