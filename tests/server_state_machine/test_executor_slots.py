"""Places: who shares an executor, and so an address space."""

from __future__ import annotations

import pytest

from pympsd.devices.machine import describe, from_toml
from pympsd_server.state_machine.executor_slots import EVERYBODY, Place, place_of
from pympsd_server.state_machine.roster import Roster

SHARING = "isolates_address_spaces = false\n[[device]]\n"


@pytest.mark.parametrize(("device", "user"), [(describe("H200")[0], EVERYBODY), (from_toml(SHARING)[0], 500)])
def test_users_share_an_executor_only_where_it_keeps_their_memory_apart(device: object, user: int) -> None:
    assert place_of(500, 3, device) == Place(3, user)  # type: ignore[arg-type]


def test_a_place_is_for_its_user_or_for_everybody() -> None:
    assert [Place(0, 500).is_for(uid) for uid in (500, 600, 0)] == [True, False, False]
    assert [Place(0).is_for(uid) for uid in (500, 600, 0)] == [True, True, True]


def test_the_roster_knows_who_is_at_a_place() -> None:
    roster = Roster()
    for serial, user in ((1, 500), (2, 600)):
        roster.open_context(roster.arrive(serial, 100, 0, {}, user), 0, 1, user=user)
    (there,) = roster.contexts_at(Place(0, 600))
    assert (there.client, there.place) == (2, Place(0, 600))
    assert roster.contexts_at(Place(0)) == roster.contexts_at(Place(1, 600)) == []
    roster.leave(2)
    assert roster.contexts_at(Place(0, 600)) == []
