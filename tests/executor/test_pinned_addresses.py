"""Addresses and bounds of page-locked memory: ranges never meet, sums never exceed, what is freed counts again."""

from __future__ import annotations

import mmap
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.device_properties import PINNED_BITS, PINNED_END, PINNED_WINDOWS, WINDOW_BASE, pinned_window_of
from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError
from pympsd_server.executor.memory.pinned_addresses import (
    MAX_PIECES,
    PinnedAddresses,
    available_bytes,
    machine_bytes,
)

PAGE = mmap.PAGESIZE
MACHINE = 64 << 20


def plenty() -> int:
    """A machine with memory to spare."""
    return 1 << 50


def room(machine: int = MACHINE, ordinal: int = 0) -> PinnedAddresses:
    """A room on a small machine."""
    return PinnedAddresses(ordinal, machine, plenty)


def expect_refusal(words: str) -> pytest.RaisesExc[BackendError]:
    """Expect OUT_OF_MEMORY with these words."""
    return pytest.raises(BackendError, match=words, check=lambda error: error.code is Result.ERROR_OUT_OF_MEMORY)


def test_windows_are_apart_from_each_other_and_from_the_devices() -> None:
    starts = [pinned_window_of(ordinal) for ordinal in range(PINNED_WINDOWS)]
    assert all(later - earlier == 1 << PINNED_BITS for earlier, later in pairwise(starts))
    assert starts[-1] + (1 << PINNED_BITS) == PINNED_END < WINDOW_BASE
    # Below where Linux places programs (two thirds of 47 bits) and above where its legacy mappings begin (a third).
    assert (1 << 47) // 3 < starts[0] < PINNED_END < (1 << 47) // 3 * 2
    with expect_refusal("only the first 64 devices"):
        room(ordinal=PINNED_WINDOWS).take(PAGE, "a")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "take", "give"]), st.sampled_from("abc"), st.integers(1, MACHINE // PAGE // 3)
        ),
        max_size=60,
    )
)
def test_ranges_never_meet_and_sums_never_exceed(steps: list[tuple[str, str, int]]) -> None:
    tested = room()
    held: dict[int, tuple[str, int]] = {}
    for kind, owner, pages in steps:
        if kind == "give":
            if held:
                address = next(iter(held))
                tested.give(address)
                del held[address]
            continue
        size = pages * PAGE
        used = sum(held_size for holder, held_size in held.values() if holder == owner)
        fits = used + size <= MACHINE // 4 and sum(held_size for _, held_size in held.values()) + size <= MACHINE // 2
        if not fits:
            with expect_refusal("bytes of page-locked memory"):
                tested.take(size, owner)
            continue
        address = tested.take(size, owner)
        assert pinned_window_of(0) <= address
        assert address + size <= pinned_window_of(1)
        assert address % 65536 == 0
        for start, (_, other) in held.items():
            assert address + size < start or start + other < address, "a page at least is between any two"
        held[address] = owner, size
    assert tested.pieces == len(held)


def test_a_refusal_names_the_limit_that_is_met() -> None:
    tested = room()
    tested.take(MACHINE // 4, "a")
    with expect_refusal(f"with {MACHINE // 4} in use, are more than a client may have: {MACHINE // 4}"):
        tested.take(PAGE, "a")
    tested.take(MACHINE // 4, "b")
    with expect_refusal(f"the clients of this device have {MACHINE // 2}"):
        tested.take(PAGE, "c")
    scarce = PinnedAddresses(0, 1 << 40, lambda: PAGE)
    scarce.take(PAGE, "a")
    with expect_refusal(f"no {2 * PAGE} bytes of memory to spare"):
        scarce.take(2 * PAGE, "a")


def test_memory_elsewhere_counts_until_it_is_freed() -> None:
    tested = room()
    discharge = tested.charge(MACHINE // 4, "a")
    with expect_refusal(f"with {MACHINE // 4} in use"):
        tested.take(PAGE, "a")
    assert tested.pieces == 0, "it has no range"
    discharge()
    tested.take(MACHINE // 4, "a")
    with expect_refusal("in use"):
        tested.charge(PAGE, "a")


def test_a_control_group_may_have_less_than_the_machine(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    own, groups = tmp_path / "own", tmp_path / "groups"
    assert machine_bytes(own, groups) == machine
    own.write_text("12:cpu:/x\n0::/outer/inner\n")
    (groups / "outer" / "inner").mkdir(parents=True)
    assert machine_bytes(own, groups) == machine
    (groups / "outer" / "inner" / "memory.max").write_text("max\n")
    assert machine_bytes(own, groups) == machine
    (groups / "outer" / "memory.max").write_text("1048576\n")
    assert machine_bytes(own, groups) == 1 << 20
    (groups / "outer" / "inner" / "memory.max").write_text("4096\n")
    assert machine_bytes(own, groups) == 4096
    assert 0 < available_bytes() <= machine


def test_pieces_are_bounded() -> None:
    tested = room(1 << 40)
    for _ in range(MAX_PIECES):
        tested.take(PAGE, "a")
    with expect_refusal(f"at most {MAX_PIECES} pieces"):
        tested.take(PAGE, "a")
    tested.take(PAGE, "b")


def test_addresses_are_not_used_again_immediately_and_a_taken_one_is_left() -> None:
    tested = room()
    first = tested.take(PAGE, "a")
    tested.give(first)
    assert tested.take(PAGE, "a") != first
    third = tested.take(PAGE, "a")
    tested.skip(third)
    assert not third <= tested.take(PAGE, "a") < third + (1 << 30)


def test_the_end_of_the_window_is_followed_by_its_beginning() -> None:
    tested = room(1 << 40)
    quarter = 1 << (PINNED_BITS - 2)
    taken = [tested.take(quarter - (1 << 20), str(number)) for number in range(3)]
    assert len(set(taken)) == 3
    assert all(pinned_window_of(0) <= address <= pinned_window_of(1) - quarter for address in taken)
