"""The choice of multiprocessors for contexts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.backends.emulated.scheduling.placement import Multiprocessors


def test_contexts_have_separate_multiprocessors_while_they_fit() -> None:
    device = Multiprocessors(10)
    assert device.take(4) == (0, 1, 2, 3)
    assert device.take(6) == (4, 5, 6, 7, 8, 9)


def test_contexts_that_do_not_fit_share_the_least_used_ones() -> None:
    device = Multiprocessors(5)
    assert [device.take(count) for count in (3, 3, 2)] == [(0, 1, 2), (0, 3, 4), (1, 2)]
    device.give((0, 3, 4))
    assert device.take(2) == (3, 4)


def test_a_context_without_a_limit_counts_as_user_of_none() -> None:
    device = Multiprocessors(4)
    for unlimited in (0, 4, 5):
        assert device.take(unlimited) == (0, 1, 2, 3)
    assert (device.take(2), device.take(2)) == ((0, 1), (2, 3))
    device.give((0, 1, 2, 3))
    assert device.take(1) == (0,)


def test_a_context_of_a_partition_keeps_to_it() -> None:
    device = Multiprocessors(10)
    assert device.take(0, (4, 5, 6)) == (4, 5, 6)
    assert device.take(9, (4, 5, 6)) == (4, 5, 6)
    assert device.take(2, (4, 5, 6)) == (4, 5)
    assert device.take(2, (4, 5, 6)) == (4, 6)


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 22), st.integers(0, 30)), max_size=40))
def test_a_context_never_shares_more_than_it_must(count: int, steps: list[tuple[int, int]]) -> None:
    """Each step takes a number of multiprocessors, and may release those that an earlier step took."""
    device, held = Multiprocessors(count), []
    for expected, age in steps:
        limited = [ids for ids in held if len(ids) < count]
        users = {number: sum(number in ids for ids in limited) for number in range(count)}
        ids = device.take(expected)
        assert ids == tuple(sorted(set(ids)))
        assert set(ids) <= set(range(count))
        if not 0 < expected < count:
            assert len(ids) == count
        else:
            assert len(ids) == expected
            rest = set(range(count)) - set(ids)
            # No other choice has fewer users, and of those with as many users the lowest are chosen.
            assert max((users[number], number) for number in ids) < min((users[number], number) for number in rest)
        held.append(ids)
        if age < len(held):
            device.give(held.pop(age))
    for ids in held:
        device.give(ids)
    assert device.take(max(1, count // 2)) == tuple(range(max(1, count // 2)))
