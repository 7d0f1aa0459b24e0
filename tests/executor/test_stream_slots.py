"""The order in which the items of an executable graph run, by slots and events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.executor.graphs.executable import assign_slots


@st.composite
def dags(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """What each item depends on: earlier ones."""
    size = draw(st.integers(0, 12))
    return [tuple(sorted(draw(st.sets(st.integers(0, at - 1), max_size=3)))) if at else () for at in range(size)]


@given(dags(), st.integers(1, 5))
def test_every_dependency_is_kept_and_the_end_waits_for_all(after: list[tuple[int, ...]], limit: int) -> None:
    slot_assignments = assign_slots(after, limit)
    before: list[set[int]] = []
    """What is certainly done when each item begins."""
    last: dict[int, int] = {}
    for index, assigned in enumerate(slot_assignments):
        done: set[int] = set()
        for dependency in (*assigned.waits_for, *([last[assigned.slot]] if assigned.slot in last else [])):
            assert dependency < index
            done |= before[dependency] | {dependency}
        assert all(slot_assignments[dependency].is_waited_for for dependency in assigned.waits_for)
        assert set(after[index]) <= done
        if assigned.slot and assigned.slot not in last:
            assert assigned.begins_slot or done, "a slot that begins before the launch"
        before.append(done)
        last[assigned.slot] = index
    assert all(slot_assignments[index].is_waited_for for slot, index in last.items() if slot)
    assert all(assigned.slot < limit for assigned in slot_assignments)


def test_a_chain_needs_one_slot_and_no_event() -> None:
    slot_assignments = assign_slots([(), (0,), (1,), (2,)])
    assert [assigned.slot for assigned in slot_assignments] == [0, 0, 0, 0]
    assert not any(
        assigned.waits_for or assigned.is_waited_for or assigned.begins_slot for assigned in slot_assignments
    )


def test_branches_run_side_by_side() -> None:
    slot_assignments = assign_slots([(), (0,), (0,), (1, 2)])
    assert slot_assignments[1].slot != slot_assignments[2].slot
    assert slot_assignments[3].slot in (slot_assignments[1].slot, slot_assignments[2].slot)


def test_more_branches_than_slots_share_them() -> None:
    slot_assignments = assign_slots([()] * 20, 4)
    assert {assigned.slot for assigned in slot_assignments} == {0, 1, 2, 3}
