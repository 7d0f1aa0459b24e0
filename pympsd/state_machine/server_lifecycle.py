"""The states of a server as the daemon sees them, in one table; an illegal move raises and changes nothing."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pympsd.vocabulary.statuses import ServerStatus


class Phase(Enum):
    """Where a server is in its life."""

    RETURNING = "returning"
    """A server of a daemon that died, expected to return."""
    SPAWNING = "spawning"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAULT = "fault"
    LEAVING = "leaving"
    """Asked to end: when its clients have gone, or at once."""
    GONE = "gone"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.RETURNING: frozenset({Phase.INITIALIZING, Phase.ACTIVE, Phase.FAULT, Phase.LEAVING, Phase.GONE}),
    Phase.SPAWNING: frozenset({Phase.INITIALIZING, Phase.GONE}),
    Phase.INITIALIZING: frozenset({Phase.ACTIVE, Phase.LEAVING, Phase.GONE}),
    Phase.ACTIVE: frozenset({Phase.FAULT, Phase.LEAVING, Phase.GONE}),
    Phase.FAULT: frozenset({Phase.ACTIVE, Phase.LEAVING, Phase.GONE}),
    Phase.LEAVING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
"""The phases that each phase may move to."""


STATUS: Final = {
    Phase.RETURNING: ServerStatus.INITIALIZING,
    Phase.SPAWNING: ServerStatus.INITIALIZING,
    Phase.INITIALIZING: ServerStatus.INITIALIZING,
    Phase.ACTIVE: ServerStatus.ACTIVE,
    Phase.FAULT: ServerStatus.FAULT,
    Phase.LEAVING: ServerStatus.ACTIVE,
}
"""What get_server_status calls a phase."""
