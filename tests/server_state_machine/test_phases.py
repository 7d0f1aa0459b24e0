"""The server's phases: one table, in which every phase can end."""

from pympsd_server.state_machine.server_phase import MOVES, ServerPhase


def test_every_phase_is_in_the_table_and_can_end() -> None:
    assert set(MOVES) == set(ServerPhase)
    assert all(ServerPhase.ENDED in MOVES[phase] for phase in ServerPhase if phase is not ServerPhase.ENDED)
    assert not MOVES[ServerPhase.ENDED]
