"""AddressSpace against a model: allocations as byte arrays."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.memory import address_space
from pympsd_server.backends.emulated.memory.address_space import STRICT, AddressSpace, NotAnAllocation
from pympsd_server.backends.emulated.memory.transfers import fill
from pympsd_server.backends.emulated.memory.window import ReserveRefused
from pympsd_server.backends.interface import Extent, Fill, Region, Space
from pympsd_server.ptx.isa.faults import IllegalAddress, OutOfMemory
from tests.emulated.harness import BASE

SIZE = 1 << 16


TIERS = ()


class Model(RuleBasedStateMachine):
    """Allocate, free, read and write at random; every byte is as the model says."""

    allocations = Bundle("allocations")

    def __init__(self) -> None:
        super().__init__()
        self.space = AddressSpace(BASE, SIZE)
        self.space.bounds = STRICT
        self.model: dict[int, bytearray] = {}

    def teardown(self) -> None:
        self.space.close()

    @rule(target=allocations, size=st.integers(1, 9000), alignment=st.sampled_from([1, 16, 512, 4096]))
    def allocate(self, size: int, alignment: int) -> int:
        try:
            address = self.space.allocate(size, alignment)
        except OutOfMemory:
            assert sum(map(len, self.model.values())) + size > SIZE // 8
            return 0
        assert address % alignment == 0
        assert all(address >= a + len(d) or a >= address + size for a, d in self.model.items())
        assert self.space.read(address, size) == bytes(size)
        self.model[address] = bytearray(size)
        return address

    @rule(address=consumes(allocations))
    def free(self, address: int) -> None:
        if address in self.model:
            self.space.free(address)
            del self.model[address]
        else:
            with pytest.raises(NotAnAllocation):
                self.space.free(address)

    @rule(address=allocations, data=st.binary(max_size=64), at=st.integers(0, 9100))
    def write(self, address: int, data: bytes, at: int) -> None:
        held = self.model.get(address)
        if held is not None and at + len(data) <= len(held):
            self.space.write(address + at, data)
            held[at : at + len(data)] = data
        elif held is not None and len(held) < at < len(held) + 512:
            with pytest.raises(IllegalAddress):
                self.space.write(address + at, data + b"x")

    @rule(address=allocations)
    def one_past_the_end_is_out(self, address: int) -> None:
        held = self.model.get(address)
        if held is not None:
            with pytest.raises(IllegalAddress):
                self.space.view(address, len(held) + 1)
            with pytest.raises(IllegalAddress):
                self.space.view(address - 1, 1)

    @invariant()
    def contents_are_the_models(self) -> None:
        for address, held in self.model.items():
            assert self.space.read(address, len(held)) == held
            assert self.space.size_of(address) == len(held)
        assert len(self.space.reach()[0]) == len(self.model)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_a_device_of_memory_costs_nothing_until_touched() -> None:
    space = AddressSpace(BASE, 150 << 30)
    address = space.allocate(100 << 30)
    space.write(address + (90 << 30), b"far")
    assert space.read(address + (90 << 30), 4) == b"far\0"
    space.free(address)
    assert len(space.reach()[0]) == 0
    space.close()


def test_everything_is_usable_again_after_free() -> None:
    space = AddressSpace(BASE, 1 << 20)
    first = [space.allocate(1000) for _ in range(20)]
    for address in first[::2] + first[1::2]:
        space.free(address)
    assert space.allocate((1 << 20) - 4096) == BASE


def test_out_of_memory_is_code_2() -> None:
    space = AddressSpace(BASE, 4096)
    with pytest.raises(OutOfMemory, match="5000 bytes") as caught:
        space.allocate(5000)
    assert caught.value.code == 2


def test_allocations_beyond_the_maximum_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers could not access more allocations, because the table that peers read would be full."""
    monkeypatch.setattr(address_space, "MAX_CLIENT_ALLOCATIONS", 3)
    space = AddressSpace(BASE, 1 << 20)
    addresses = [space.allocate_at_end(4, 4), space.allocate(100), space.allocate(100)]
    for allocate in (space.allocate, space.allocate_at_end):
        with pytest.raises(OutOfMemory, match="at most 3 allocations on a device; free some") as refusal:
            allocate(100, 512)
        assert refusal.value.code == Result.ERROR_OUT_OF_MEMORY
    space.free(addresses[1])
    assert space.allocate(100) == addresses[1]
    space.close()


def measure(call: Callable[[], object]) -> tuple[int, int]:
    """Return the number of lines that a call executes, and the bytes that it allocates at the same time."""
    lines, before = 0, sys.gettrace()

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    call()  # so that no list grows later
    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines, peak


@pytest.mark.parametrize("is_published", [False, True])
def test_the_cost_of_an_allocation_does_not_depend_on_how_many_there_are(is_published: bool) -> None:
    """The cost of a free does not either: no loop is over the other allocations, and no list of them is copied."""
    costs = []
    for count in (20, 2000):
        space = AddressSpace(BASE, 1 << 26)
        if is_published:
            space.publish(BASE)
        addresses = [space.allocate(100) for _ in range(count)]
        for address in addresses[::2]:
            space.free(address)
        costs.append(measure(lambda space=space: space.free(space.allocate(5000))))  # type: ignore[misc]
        space.close()
    (few_lines, few_bytes), (many_lines, many_bytes) = costs
    assert many_lines < few_lines + 50
    assert many_bytes < few_bytes + 2048


def test_find_returns_the_allocation_around_an_address() -> None:
    space = AddressSpace(BASE, 1 << 16)
    address = space.allocate(100)
    assert space.find(address + 7) == (address, 100)
    with pytest.raises(IllegalAddress):
        space.find(address + 100)


def test_a_refused_reservation_raises() -> None:
    with pytest.raises(ReserveRefused, match="cannot reserve"):
        AddressSpace(BASE, 1 << 62)


def test_zeros_in_memory_that_nobody_has_touched_take_no_pages() -> None:
    """Programs clear pools of gigabytes first, of which they use little."""
    size = 1 << 33
    space = AddressSpace(BASE, size + (1 << 20))
    address = space.allocate(size)
    places = (5, size // 3, size - 9)
    for place in places:
        space.write(address + place, b"text")
    zeros = Fill(Region(Space.DEVICE, address), 0, 1, Extent(size))
    for _ in fill(space, zeros):
        pass
    assert all(space.read(address + place, 4) == bytes(4) for place in places)
    assert space.is_untouched(address + size // 2, 1 << 20)
    assert not space.is_untouched(address, 1 << 20)
    assert not space.is_untouched(address, size + 1)
    space.close()
