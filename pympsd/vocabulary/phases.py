"""One phase machine for all tables of phases: a phase may move only to the phases that its table lists for it.

Two tables use it: a server as the daemon sees it (`pympsd.state_machine.state.server`), and the same server as it
sees itself (`pympsd_server.state_machine.server_phase`). They differ, because the daemon also has servers that are
not started yet or that belong to a daemon that died, and the server also distinguishes its exit from its end.

    phase = move(MOVES, phase, Phase.ACTIVE)

If the table does not list the move, IllegalMove is raised and ``phase`` keeps its value: nothing was assigned.

`scripts/generate-docs` draws a diagram of each table (docs/states).
"""

from collections.abc import Mapping, Set
from enum import Enum
from typing import TypeVar

from pympsd.errors import InternalError

_Phase = TypeVar("_Phase", bound=Enum)


class IllegalMove(InternalError):
    """The table does not allow a server to move from its phase to the other one; the message lists what it allows."""


def move(moves: Mapping[_Phase, Set[_Phase]], current: _Phase, target: _Phase) -> _Phase:
    """Return ``target`` if the table of ``moves`` lists it for the phase ``current``.

    Args:
        moves: The table: for each phase, those that may follow it.
        current: The phase that the server is in.
        target: The phase that it is to enter.

    Raises:
        IllegalMove: The table does not list it. The message names both phases and the phases that are allowed.
    """
    if target not in moves[current]:
        allowed = ", ".join(sorted(phase.value for phase in moves[current])) or "nothing"
        raise IllegalMove(f"a server that is {current.value} cannot become {target.value}, only {allowed}")
    return target
