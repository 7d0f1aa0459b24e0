"""Contexts get unused groups while there are any, and kept sets if those are used no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.backends.cuda.objects.green_contexts import SmGroups, part_of


def test_limits_are_rounded_up_to_groups_and_all_groups_are_unlimited() -> None:
    groups = SmGroups(66, 2)
    assert [groups.count_groups(count) for count in (0, 1, 2, 3, 66, 130, 131, 132, 500)] == [
        0,
        1,
        1,
        2,
        33,
        65,
        0,
        0,
        0,
    ]


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


@given(st.integers(1, 20), st.integers(1, 12), st.booleans(), st.integers(0, 8), st.integers(0, 300))
def test_a_part_of_a_partition_has_so_many_multiprocessors_rounded_up_to_chunks(
    count: int, size: int, has_rest: bool, rest: int, wanted: int
) -> None:
    """``rest``: how many multiprocessors the chunk after the last one has."""
    chunks = tuple(range(count)) + ((count,) if has_rest else ())
    sizes = dict.fromkeys(range(count), size) | {count: rest}
    total = sum(sizes[chunk] for chunk in chunks)
    number, among = part_of(chunks, wanted, size, count)
    for taken in (among[:number], among[-number:]):  # whichever of them are free
        actual = sum(sizes[chunk] for chunk in taken)
        if not wanted or wanted > count * size:
            assert actual == total
        else:
            assert wanted <= actual < wanted + size
