"""The server's phases: one table, in which every phase can end."""

from pympsd_server.state_machine.server_phase import MOVES, Phase


def test_every_phase_is_in_the_table_and_can_end() -> None:
    assert set(MOVES) == set(Phase)
    assert all(Phase.ENDED in MOVES[phase] for phase in Phase if phase is not Phase.ENDED)
    assert not MOVES[Phase.ENDED]
