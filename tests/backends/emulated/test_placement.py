"""Where blocks live."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.backends.emulated.placement import BlockSize, Placement

SMS = (4, 5, 9)


def test_blocks_are_spread_over_the_contexts_own_multiprocessors() -> None:
    seats = Placement(SMS, {}).seat(BlockSize(128, 0), 7)
    assert seats.sm_of_block.tolist() == [4, 5, 9, 4, 5, 9, 4]


def test_room_is_bounded_by_blocks_threads_and_shared_memory() -> None:
    placement = Placement(SMS, {"MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 100_000})
    assert placement.room(BlockSize(1, 0)) == 3 * 32
    assert placement.room(BlockSize(1024, 0)) == 3 * 2
    assert placement.room(BlockSize(32, 30_000)) == 3 * 3
    assert len(placement.seat(BlockSize(1024, 0), 100).rows) == 6
    assert placement.room(BlockSize(1, 0)) == 0


def test_emptier_multiprocessors_are_filled_first() -> None:
    placement = Placement(SMS, {})
    placement.seat(BlockSize(1024, 0), 1)
    assert placement.seat(BlockSize(512, 0), 2).sm_of_block.tolist() == [5, 9]


sizes = st.builds(BlockSize, st.integers(1, 1024), st.integers(0, 200_000))


@given(st.lists(st.tuples(sizes, st.integers(1, 200), st.booleans()), max_size=20))
def test_no_multiprocessor_is_ever_overfull_and_all_room_comes_back(
    steps: list[tuple[BlockSize, int, bool]],
) -> None:
    placement, seated = Placement(SMS, {}), []
    whole = placement.room(BlockSize(64, 0))
    for size, count, leave in steps:
        room = placement.room(size)
        seats = placement.seat(size, count)
        assert len(seats.rows) == min(room, count)
        seated.append(seats)
        if leave:
            placement.leave(seated.pop(0))
        threads: Counter[int] = Counter()
        for each in seated:
            for sm in each.sm_of_block.tolist():
                threads[sm] += each.size.threads
        assert set(threads) <= set(SMS)
        assert max(threads.values(), default=0) <= 2048
        assert placement.resident == sum(len(each.rows) for each in seated)
    for each in seated:
        placement.leave(each)
    assert placement.room(BlockSize(64, 0)) == whole
    assert placement.resident == 0
