"""The placement of blocks."""

from __future__ import annotations

from collections import Counter

from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from pympsd.devices.profiles import PROFILES
from pympsd.vocabulary.occupancy import blocks_per_multiprocessor
from pympsd_server.backends.emulated.scheduling.placement import BlockSize, Placement

SMS = (4, 5, 9)


def test_blocks_are_spread_over_the_contexts_own_multiprocessors() -> None:
    placed = Placement(SMS, {}).place(BlockSize(128, 0), 7)
    assert placed.sm_of_block.tolist() == [4, 5, 9, 4, 5, 9, 4]


def test_room_is_bounded_by_blocks_threads_and_shared_memory() -> None:
    placement = Placement(SMS, {"MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 100_000})
    assert placement.free_blocks(BlockSize(1, 0)) == 3 * 32
    assert placement.free_blocks(BlockSize(1024, 0)) == 3 * 2
    assert placement.free_blocks(BlockSize(32, 30_000)) == 3 * 3
    placed = placement.place(BlockSize(1024, 0), 100)
    assert len(placed.rows) == 6
    assert placement.free_blocks(BlockSize(1, 0)) == 0
    placement.release(placed)
    assert placement.free_blocks(BlockSize(1, 0)) == 3 * 32


def test_emptier_multiprocessors_are_filled_first() -> None:
    placement = Placement(SMS, {})
    placement.place(BlockSize(1024, 0), 1)
    assert placement.place(BlockSize(512, 0), 2).sm_of_block.tolist() == [5, 9]


sizes = st.builds(BlockSize, st.integers(1, 1024), st.integers(0, 200_000))


@given(st.lists(st.tuples(sizes, st.integers(1, 200), st.booleans()), max_size=20))
def test_no_multiprocessor_is_ever_overfull_and_all_room_comes_back(
    steps: list[tuple[BlockSize, int, bool]],
) -> None:
    placement, all_placed = Placement(SMS, {}), []
    whole = placement.free_blocks(BlockSize(64, 0))
    for size, count, leave in steps:
        room = placement.free_blocks(size)
        placed = placement.place(size, count)
        assert len(placed.rows) == min(room, count)
        all_placed.append(placed)
        if leave:
            placement.release(all_placed.pop(0))
        threads: Counter[int] = Counter()
        for entry in all_placed:
            for sm in entry.sm_of_block.tolist():
                threads[sm] += entry.size.threads
        assert set(threads) <= set(SMS)
        assert max(threads.values(), default=0) <= 2048
        assert placement.resident == sum(len(entry.rows) for entry in all_placed)
    for entry in all_placed:
        placement.release(entry)
    assert placement.free_blocks(BlockSize(64, 0)) == whole
    assert placement.resident == 0


@given(st.sampled_from(sorted(PROFILES)), sizes)
def test_room_is_what_the_occupancy_calculation_says(model: str, size: BlockSize) -> None:
    attributes = PROFILES[model].attributes
    blocks = blocks_per_multiprocessor(attributes, size.threads, size.shared_bytes)
    placement = Placement(SMS, attributes)
    assert placement.capacity(size) == placement.free_blocks(size) == 3 * blocks
    assert len(placement.place(size, 1000).rows) == 3 * blocks
    placement = Placement(SMS, attributes)
    placement.place(BlockSize(1, 0), 1)  # with a neighbour there are at most one fewer on its multiprocessor
    assert 3 * blocks - max(1, blocks) <= len(placement.place(size, 1000).rows) <= 3 * blocks


def test_a_block_without_shared_memory_fits_where_none_is_left() -> None:
    placement = Placement((0,), PROFILES["V100"].attributes)
    placement.place(BlockSize(32, 98304), 1)
    assert placement.free_blocks(BlockSize(32, 0)) == 31
    assert placement.free_blocks(BlockSize(32, 1)) == 0


@define(eq=False)
class FakeKernel:
    """A kernel that looks for room for a number of blocks."""

    blocks_together: int = 1


WARP, HALF = BlockSize(32, 0), BlockSize(1024, 0)


def test_a_kernel_that_gathers_room_is_not_overtaken() -> None:
    """Kernels that overlap would never leave the room empty between them."""
    placement, together, others = Placement((0,), {}), FakeKernel(2), [FakeKernel() for _ in range(2)]
    first = placement.place(WARP, 1)
    assert placement.admits(others[0], WARP)
    assert not placement.admits(together, HALF)
    assert not placement.admits(others[0], WARP)
    assert not placement.admits(FakeKernel(2), WARP)
    assert not placement.can_grow()
    placement.release(first)
    assert not placement.admits(others[1], WARP)
    assert placement.admits(together, HALF)
    assert not placement.admits(others[1], WARP)
    placement.place(HALF, 2)
    placement.mark_begun(together)
    assert not placement.admits(others[1], WARP)  # there is no room


def test_a_kernel_that_gathers_room_in_vain_is_overtaken_in_the_end() -> None:
    placement, together, other = Placement((0,), {}), FakeKernel(2), FakeKernel()
    placement.place(WARP, 1)
    assert not placement.admits(together, HALF)
    placement.unfinished_slices = 255
    assert not placement.admits(other, WARP)
    placement.unfinished_slices = 256
    assert placement.admits(other, WARP)
    assert placement.can_grow()
    placement.unfinished_slices = 0
    assert not placement.admits(other, WARP)


def test_no_kernel_grows_while_others_want_to_begin() -> None:
    placement, other = Placement((0,), {}), FakeKernel()
    placed = placement.place(HALF, 2)
    assert placement.can_grow()
    assert not placement.admits(other, WARP)
    assert not placement.can_grow()
    placement.release(placed)
    assert placement.admits(other, WARP)
    assert placement.can_grow()
