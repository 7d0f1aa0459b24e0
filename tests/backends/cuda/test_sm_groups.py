"""Contexts get unused groups while there are any, and kept sets if those are used no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.backends.cuda.objects.sm_groups import SmGroups


def test_limits_are_rounded_up_to_groups_and_all_of_them_is_no_limit() -> None:
    groups = SmGroups(66, 2)
    assert [groups.wanted(count) for count in (0, 1, 2, 3, 66, 130, 131, 132, 500)] == [0, 1, 1, 2, 33, 65, 0, 0, 0]


@given(st.lists(st.integers(1, 20), max_size=6))
def test_groups_are_disjoint_while_they_fit(sizes: list[int]) -> None:
    groups, kept = SmGroups(66, 2), []
    for size in sizes:
        kept.append(groups.take(size, kept))
    used = [number for taken in kept for number in taken]
    assert [len(taken) for taken in kept] == sizes
    if sum(sizes) <= 66:
        assert len(set(used)) == len(used)


def test_groups_are_taken_among_those_of_a_partition() -> None:
    groups = SmGroups(16, 8)
    assert groups.take(2, among=(3, 5, 15)) == (3, 5)
    assert groups.take(2, [(0, 1), (3, 15)], among=(3, 5, 15)) == (3, 15)
    assert groups.take(2, [(0, 1)]) == (0, 1)


def test_a_kept_set_is_taken_again_unless_others_are_less_used() -> None:
    groups = SmGroups(8, 2)
    first = groups.take(4)
    assert groups.take(4, [first]) == (4, 5, 6, 7)
    groups.give((4, 5, 6, 7))
    groups.give(first)
    assert groups.take(4, [(2, 3, 4, 5), first]) == (2, 3, 4, 5)
    assert groups.take(4, [(2, 3, 4, 5), first]) == (0, 1, 6, 7)
