"""The daemon's timers: what each is for, and what it belongs to.

The state machine sets and cancels timers by instructions and receives their ends as events (TimerEnded); it never
reads a clock. A timer that has no meaning any more is ignored when it ends, so most are not cancelled.
"""

from enum import Enum, auto

from attrs import frozen


class TimerKind(Enum):
    """The purpose of a timer; its key is the id of a server unless noted."""

    START = auto()
    """The time until a server is ready."""
    LEAVE = auto()
    """The end of a server without clients, or of a forced one."""
    SILENCE = auto()
    """A server's report that its clients, whose processes have ended, are gone."""
    RETURN = auto()
    """The return of a server of the previous daemon."""
    PLACES = auto()
    """The return of clients that waited when the previous daemon died; no key."""
    RETRY = auto()
    """The pause before a user's next server, after the server of the key."""
    TRIAL = auto()
    """The trial period after which a ready server counts as working."""
    FAILURE_EXPIRY = auto()
    """The time after which a server that ended with its clients no longer counts as a failed start."""
    TURN = auto()
    """The time for which others may overtake a queue entry; the key is its ticket."""
    TERMINATION = auto()
    """A server's answer to terminate_client; the key is the termination's id."""
    DRAIN = auto()
    """The time limit of a drain; the key is the drain's id."""
    FORCE = auto()
    """A quit without force; no key."""


@frozen
class Timer:
    """One timer; timers of the same kind and key are the same timer."""

    kind: TimerKind
    key: int = 0
