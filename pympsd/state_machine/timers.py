"""The daemon's timers: what each is for, and what it belongs to."""

from __future__ import annotations

from enum import Enum

from attrs import frozen


class TimerKind(Enum):
    """What a timer bounds or delays."""

    START = "start"
    """A server becoming ready. The key is the server's serial, as for all that follow without a note."""
    LEAVE = "leave"
    """A server without clients, or a forced one, ending."""
    SILENCE = "silence"
    """A server reporting that its clients, whose processes have ended, are gone."""
    RETURN = "return"
    """A server of the previous daemon coming back."""
    RETRY = "retry"
    """The pause before a user's next server is started."""
    PROBATION = "probation"
    """The time after which a ready server counts as working."""
    MEMORY = "memory"
    """The time for which a server that ended with its clients counts as a failed start."""
    TURN = "turn"
    """The time for which newcomers may overtake a waiting user; the key is the queue entry's ticket."""
    TERMINATION = "termination"
    """A server answering a terminate_client; the key is the termination's serial."""
    FORCE = "force"
    """The time until a quit uses force; it has no key."""


@frozen
class Timer:
    """One timer; timers of the same kind and key are the same timer."""

    kind: TimerKind
    key: int = 0
