"""The server's phases: one table; an illegal move raises."""

from itertools import product

import pytest

from pympsd_server.state_machine.phases import MOVES, IllegalMove, Phase, move


@pytest.mark.parametrize(("current", "target"), list(product(Phase, Phase)), ids=lambda phase: str(phase.value))
def test_only_the_tables_moves_are_made(current: Phase, target: Phase) -> None:
    if target in MOVES[current]:
        assert move(current, target) is target
    else:
        with pytest.raises(IllegalMove, match=f"{current.value} cannot become {target.value}"):
            move(current, target)


def test_every_phase_is_in_the_table_and_can_end() -> None:
    assert set(MOVES) == set(Phase)
    assert all(Phase.ENDED in MOVES[phase] for phase in Phase if phase is not Phase.ENDED)
    assert not MOVES[Phase.ENDED]
