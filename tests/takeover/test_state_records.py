"""Possible and damaged states: one number out of bounds must not end the next daemon."""

from __future__ import annotations

import pytest
from attrs import evolve

from pympsd.takeover.state.records import PersistentServer, PersistentState, check
from pympsd.vocabulary.limits import MAX_MEMORY

DEVICES = 2
SERVER = PersistentServer(3, 847, 500, 60.0, {1: 1 << 30})
OTHER = PersistentServer(4, 848, 0, 100.0, {})
KNOWN = PersistentState(
    generation=2,
    thread_percentage=40.0,
    client_priority=1,
    memory_limits={0: 2 << 30},
    wishes=(600,),
    servers=(SERVER, OTHER),
)
LARGEST = PersistentState(
    generation=(1 << 22) - 1,
    thread_percentage=100.0,
    client_priority=1,
    memory_limits={1: MAX_MEMORY},
    wishes=((1 << 32) - 2,),
    servers=(PersistentServer((1 << 63) - 1, (1 << 31) - 1, (1 << 32) - 2, 100.0, {1: MAX_MEMORY}),),
)


def with_server(**change: object) -> PersistentState:
    """Return a state with a changed first server."""
    return evolve(KNOWN, servers=(evolve(SERVER, **change), OTHER))


@pytest.mark.parametrize("known", [PersistentState(), KNOWN, LARGEST])
def test_a_possible_state_is_accepted(known: PersistentState) -> None:
    check(known, DEVICES)


@pytest.mark.parametrize(
    "damaged",
    [
        *(evolve(KNOWN, generation=number) for number in (-1, 1 << 22, 1 << 70)),
        *(evolve(KNOWN, wishes=(number,)) for number in (-7, (1 << 32) - 1, 1 << 40)),
        *(evolve(KNOWN, memory_limits=limits) for limits in ({0: 0}, {2: 1}, {-1: 1}, {0: MAX_MEMORY + 1})),
        *(evolve(KNOWN, thread_percentage=number) for number in (0.0, 101.0)),
        evolve(KNOWN, client_priority=2),
        *(with_server(pid=number) for number in (0, -1, 1 << 31, OTHER.pid)),
        *(with_server(serial=number) for number in (0, -1, 1 << 63, OTHER.serial)),
        *(with_server(uid=number) for number in (-1, (1 << 32) - 1, 1 << 40)),
        *(with_server(memory_limits=limits) for limits in ({0: -1}, {2: 1}, {0: MAX_MEMORY + 1})),
        with_server(thread_percentage=0.0),
    ],
)
def test_a_damaged_state_is_refused(damaged: PersistentState) -> None:
    with pytest.raises(ValueError, match=r"there is no|two servers|percentage|priority"):
        check(damaged, DEVICES)
