"""The phase machine: a table allows moves; an illegal move raises, and the message lists what the table allows."""

from enum import Enum
from itertools import product

import pytest

from pympsd.state_machine.state import server
from pympsd.vocabulary.phases import IllegalMove, move
from pympsd_server.state_machine import server_phase

TABLES = (server.MOVES, server_phase.MOVES)
CASES = [(moves, *pair) for moves in TABLES for pair in product(moves, repeat=2)]


@pytest.mark.parametrize(("moves", "current", "target"), CASES, ids=lambda each: getattr(each, "value", ""))
def test_only_the_tables_moves_are_made(moves: dict[Enum, frozenset[Enum]], current: Enum, target: Enum) -> None:
    if target in moves[current]:
        assert move(moves, current, target) is target
    else:
        allowed = ", ".join(sorted(phase.value for phase in moves[current])) or "nothing"
        with pytest.raises(IllegalMove, match=f"{current.value} cannot become {target.value}, only {allowed}$"):
            move(moves, current, target)
