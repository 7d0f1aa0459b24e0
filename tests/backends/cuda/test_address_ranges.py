"""The sub-allocator: allocations never overlap, pages are under all of them and under nothing else."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pympsd_server.backends.budget import GRANULE_BYTES
from pympsd_server.backends.cuda.memory.address_ranges import PAGE_BYTES, AddressWindow, OwnedRanges
from pympsd_server.backends.free_ranges import NoRange

BASE, SIZE = 0x6000_0000_0000, 64 * PAGE_BYTES
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 5 * PAGE_BYTES),
    st.builds(lambda pages, more: pages * PAGE_BYTES + more, st.integers(1, 4), st.integers(-600, 600)),
)


class Allocating(RuleBasedStateMachine):
    """Allocations and what is mapped, next to a model of both."""

    allocations = Bundle("allocations")

    def __init__(self) -> None:
        super().__init__()
        self.window = AddressWindow(BASE, SIZE)
        self.held: dict[int, int] = {}
        self.mapped: dict[int, int] = {}

    @rule(target=allocations, count=SIZES)
    def allocate(self, count: int) -> int:
        try:
            address, pages = self.window.allocate(count)
        except NoRange:
            return 0
        assert BASE <= address < address + count <= BASE + SIZE
        assert all(address + count <= other or other + size <= address for other, size in self.held.items())
        self.held[address] = count
        new = dict.fromkeys(pages.shared, PAGE_BYTES) | (dict([pages.whole]) if pages.whole else {})
        assert not new.keys() & self.mapped.keys()
        self.mapped.update(new)
        return address

    @rule(address=consumes(allocations))
    def free(self, address: int) -> None:
        if not address:
            return
        pages = self.window.free(address)
        del self.held[address]
        if pages.whole is not None:
            assert self.mapped.pop(pages.whole[0]) == pages.whole[1]
        for page in pages.shared:
            assert self.mapped.pop(page) == PAGE_BYTES

    @invariant()
    def every_byte_is_mapped_and_no_page_without_need(self) -> None:
        pieces = sorted((start, start + size) for start, size in self.mapped.items())
        assert all(end <= following for (_, end), (following, _) in pairwise(pieces))
        for address, count in self.held.items():
            first, last = address // PAGE_BYTES, (address + count - 1) // PAGE_BYTES
            covered = {page for low, high in pieces for page in range(low // PAGE_BYTES, high // PAGE_BYTES)}
            assert set(range(first, last + 1)) <= covered
        for low, high in pieces:
            assert any(address < high and low < address + size for address, size in self.held.items())

    def teardown(self) -> None:
        for address in tuple(self.held):
            self.free(address)
        assert not self.mapped
        assert self.window.allocate(SIZE)[0] == BASE, "what was freed is one range again"


TestAllocating = Allocating.TestCase


def test_small_allocations_share_a_page() -> None:
    window = AddressWindow(BASE, SIZE)
    pages = [window.allocate(1)[1].shared for _ in range(100)]
    assert pages == [(BASE,)] + [()] * 99


def test_the_rest_of_a_large_allocation_is_shared_with_small_ones() -> None:
    window = AddressWindow(BASE, SIZE)
    _, pages = window.allocate(3 * PAGE_BYTES + 5)
    assert pages.whole == (BASE, 3 * PAGE_BYTES)
    assert pages.shared == (BASE + 3 * PAGE_BYTES,)
    assert window.allocate(100) == (BASE + 3 * PAGE_BYTES + GRANULE_BYTES, type(pages)(None, ()))


def test_an_access_lies_in_one_owned_range() -> None:
    owned = OwnedRanges()
    for start in (100, 200):  # side by side, and two
        owned.add(start, 100)
    assert owned.covers(100, 100)
    assert owned.covers(150, 50)
    assert not owned.covers(150, 51)
    assert not owned.covers(99, 1)
    assert not owned.covers(300, 1)
    owned.remove(100)
    assert not owned.covers(100, 1)
    assert owned.covers(200, 1)
