"""The daemon's timers: what each is for, and what it belongs to."""

from __future__ import annotations

from enum import Enum, auto

from attrs import frozen


class TimerKind(Enum):
    """What a timer bounds or delays; its key is the serial of a server unless noted."""

    START = auto()  # a server becoming ready
    LEAVE = auto()  # the end of a server without clients, or of a forced one
    SILENCE = auto()  # a server's report that its clients, whose processes have ended, are gone
    RETURN = auto()  # the return of a server of the previous daemon
    PLACES = auto()  # the return of clients that waited when the previous daemon died; no key
    RETRY = auto()  # the pause before a user's next server, after the server of the key
    PROBATION = auto()  # after it, a ready server counts as working
    FAILURE_EXPIRY = auto()  # after it, a server that ended with its clients no longer counts as a failed start
    TURN = auto()  # the overtaking of a queue entry, by its ticket
    TERMINATION = auto()  # a server's answer to terminate_client, by the termination's serial
    FORCE = auto()  # a quit without force; no key


@frozen
class Timer:
    """One timer; timers of the same kind and key are the same timer."""

    kind: TimerKind
    key: int = 0
