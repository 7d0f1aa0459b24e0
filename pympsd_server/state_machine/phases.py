"""The phases of a server, in one table; an illegal move raises and changes nothing."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Phase(Enum):
    """A phase of the server's life."""

    INITIALIZING = "initializing"
    SERVING = "serving"
    FAULT = "fault"
    """A fatal fault is being contained: new clients are refused until the reached ones have gone."""
    LEAVING = "leaving"
    """The server ends with its last client, on request or because a new daemon does not adopt it."""
    ENDED = "ended"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.INITIALIZING: frozenset({Phase.SERVING, Phase.ENDED}),
    Phase.SERVING: frozenset({Phase.FAULT, Phase.LEAVING, Phase.ENDED}),
    Phase.FAULT: frozenset({Phase.SERVING, Phase.LEAVING, Phase.ENDED}),
    Phase.LEAVING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
"""The phases that may follow each phase."""


class IllegalMove(Exception):
    """The table has no such move."""


def move(current: Phase, target: Phase) -> Phase:
    """Return the target, or raise IllegalMove."""
    if target not in MOVES[current]:
        raise IllegalMove(f"a server that is {current.value} cannot become {target.value}")
    return target
