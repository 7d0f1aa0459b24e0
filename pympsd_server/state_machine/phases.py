"""The phases of a server: one table; an illegal move raises and changes nothing."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Phase(Enum):
    """Where the server is in its life."""

    INITIALIZING = "initializing"
    SERVING = "serving"
    FAULT = "fault"
    """A fatal fault is contained: no new clients until those it reached have gone."""
    LEAVING = "leaving"
    """Told to go, or left alone by the daemon: it goes with its last client."""
    ENDED = "ended"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.INITIALIZING: frozenset({Phase.SERVING, Phase.ENDED}),
    Phase.SERVING: frozenset({Phase.FAULT, Phase.LEAVING, Phase.ENDED}),
    Phase.FAULT: frozenset({Phase.SERVING, Phase.LEAVING, Phase.ENDED}),
    Phase.LEAVING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
"""From each phase the phases it may move to."""


class IllegalMove(Exception):
    """The server cannot go from one phase to another like that."""


def move(current: Phase, target: Phase) -> Phase:
    """Return the target, or raise IllegalMove."""
    if target not in MOVES[current]:
        raise IllegalMove(f"a server that is {current.value} cannot become {target.value}")
    return target
