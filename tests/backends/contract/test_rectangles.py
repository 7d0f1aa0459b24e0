"""Copies and fills of rows with a pitch, and of slices, against a NumPy model."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attrs import define, evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import Copy, Extent, Fill, Region
from tests.backends.contract.pinned_memory import PinnedMemory
from tests.backends.contract.port_user import Gate, Notified, PortUser, in_pinned, in_staging, on_device
from tests.backends.contract.test_memory import expect_refusal

VALUE = Result.ERROR_INVALID_VALUE
SIZE = 4 * mmap.PAGESIZE
DIRECTIONS = [
    ("device", "device"),
    ("device", "staging"),
    ("staging", "device"),
    ("device", "pinned"),
    ("pinned", "device"),
]
Bytes = np.ndarray[Any, Any]


@pytest.fixture
def pinned(device: Device) -> Iterator[tuple[PinnedMemory, PinnedMemory]]:
    """Registered memory to copy from and to copy to."""
    memories = PinnedMemory(device, SIZE), PinnedMemory(device, SIZE)
    yield memories
    for entry in memories:
        entry.unregister()


@define
class Layout:
    """The place of one side of a copy in its memory of SIZE bytes."""

    offset: int
    pitch: int
    slice_pitch: int = 0

    def select(self, memory: Bytes, extent: Extent) -> Bytes:
        """Return the bytes of an extent by slice, row and column."""
        shape = (extent.depth, extent.height, extent.width)
        return np.lib.stride_tricks.as_strided(memory[self.offset :], shape, (self.slice_pitch, self.pitch, 1))


@define
class Side:
    """Memory of SIZE bytes in one space."""

    user: PortUser
    space: str
    pinned: PinnedMemory
    address: int
    staging: bytearray

    @classmethod
    def of(cls, user: PortUser, space: str, pinned: PinnedMemory) -> Side:
        """Make one, full of random bytes."""
        address = user.context.allocate(SIZE) if space == "device" else 0
        side = cls(user, space, pinned, address, bytearray(SIZE))
        side.write(os.urandom(SIZE))
        return side

    def write(self, data: bytes) -> None:
        """Set all bytes."""
        if self.space == "device":
            assert self.user.write(self.address, data).wait() == Result.SUCCESS
        else:
            self.host[:] = data

    @property
    def host(self) -> memoryview:
        """Its bytes in host memory."""
        return memoryview(self.staging) if self.space == "staging" else self.pinned.memory

    def read(self) -> Bytes:
        """Return a copy of all bytes."""
        data = self.user.read(self.address, SIZE) if self.space == "device" else bytes(self.host)
        return np.frombuffer(bytearray(data), np.uint8)

    def region(self, layout: Layout, extent: Extent) -> Region:
        """Return the region that a layout and an extent describe."""
        if self.space == "device":
            return on_device(self.address + layout.offset, layout.pitch, layout.slice_pitch)
        span = on_device(0, layout.pitch, layout.slice_pitch).span(extent)
        host = self.host[layout.offset : layout.offset + span]
        make = in_staging if self.space == "staging" else in_pinned
        return make(host, layout.pitch, layout.slice_pitch)


Layouts = tuple[Layout, Layout]
"""Of the source and of the destination."""


def copy_and_compare(user: PortUser, source: Side, target: Side, layouts: Layouts, extent: Extent) -> None:
    """Copy an extent, and compare all bytes of both memories with the expected ones."""
    before, expected = source.read(), target.read()
    layouts[1].select(expected, extent)[...] = layouts[0].select(before, extent)
    done = Notified()
    copy = Copy(target.region(layouts[1], extent), source.region(layouts[0], extent), extent)
    user.default.copy(copy, done)
    assert done.wait() == Result.SUCCESS
    assert np.array_equal(target.read(), expected)
    assert np.array_equal(source.read(), before)


@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
@pytest.mark.parametrize(
    ("extent", "layouts"),
    [
        (Extent(24, 7), (Layout(16, 40), Layout(8, 32))),
        (Extent(24, 7), (Layout(0, 24), Layout(8, 100))),
        (Extent(1, 100), (Layout(3, 9), Layout(5, 1))),
        (Extent(10, 4, 3), (Layout(0, 16, 16 * 6), Layout(32, 12, 12 * 4))),
        (Extent(10, 1, 5), (Layout(0, 10, 10), Layout(32, 12, 24))),
        (Extent(64, 5, 2), (Layout(0, 64, 64 * 5), Layout(0, 64, 64 * 5))),
    ],
    ids=["rows", "one side packed", "a column", "slices", "slices of one row", "packed"],
)
def test_copies_change_the_extent_and_nothing_else(
    user: PortUser,
    pinned: tuple[PinnedMemory, PinnedMemory],
    source: str,
    target: str,
    extent: Extent,
    layouts: Layouts,
) -> None:
    copy_and_compare(user, Side.of(user, source, pinned[0]), Side.of(user, target, pinned[1]), layouts, extent)


@st.composite
def copies(draw: st.DrawFn) -> tuple[Extent, Layouts]:
    """Draw an extent, and two layouts that hold it in SIZE bytes."""
    extent = Extent(draw(st.integers(0, 70)), draw(st.integers(0, 12)), draw(st.integers(0, 5)))

    def layout() -> Layout:
        pitch = max(1, extent.width) + draw(st.integers(0, 20))
        slice_pitch = pitch * (max(1, extent.height) + draw(st.integers(0, 3)))
        return Layout(draw(st.integers(0, SIZE - 5 * slice_pitch)), pitch, slice_pitch)

    return extent, (layout(), layout())


@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(copies())
def test_any_copy_is_that_of_a_model(
    user: PortUser,
    pinned: tuple[PinnedMemory, PinnedMemory],
    source: str,
    target: str,
    drawn: tuple[Extent, Layouts],
) -> None:
    extent, layouts = drawn
    sides = Side.of(user, source, pinned[0]), Side.of(user, target, pinned[1])
    copy_and_compare(user, *sides, layouts, extent)
    for side in sides:
        if side.address:
            user.free(side.address)


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_fill_is_that_of_a_model(user: PortUser, element_bytes: int, data: st.DataObject) -> None:
    columns, rows = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    pitch = element_bytes * (columns + data.draw(st.integers(0, 9)))
    offset, value = element_bytes * data.draw(st.integers(0, 50)), data.draw(st.integers(0, 2**32 - 1))
    extent = Extent(element_bytes * columns, rows)
    address, before = user.context.allocate(SIZE), os.urandom(SIZE)
    assert user.write(address, before).wait() == Result.SUCCESS
    expected = np.frombuffer(bytearray(before), np.uint8)
    row = np.frombuffer(
        (value & ((1 << 8 * element_bytes) - 1)).to_bytes(element_bytes, "little") * columns, np.uint8
    )
    Layout(offset, pitch).select(expected, extent)[...] = row
    user.default.fill(Fill(on_device(address + offset, pitch), value, element_bytes, extent))
    assert user.read(address, SIZE) == expected.tobytes()
    user.free(address)


def test_large_rectangles_are_copied_whole(user: PortUser) -> None:
    """Rows and slices of more than one piece, however a backend cuts them."""
    first, second = user.context.allocate(48 << 20), user.context.allocate(24 << 20)
    data = os.urandom(24 << 20)
    assert user.write(second, data).wait() == Result.SUCCESS
    for extent, wide, packed in (
        (Extent(9 << 20, 2), (12 << 20, 0), (9 << 20, 0)),
        (Extent(1000, 20_000), (2000, 0), (1000, 0)),
        (Extent(1000, 100, 200), (1024, 1024 * 101), (1000, 1000 * 100)),
    ):
        user.default.copy(Copy(on_device(first, *wide), on_device(second, *packed), extent))
        back, done = bytearray(extent.bytes), Notified()
        user.default.copy(Copy(in_staging(memoryview(back), *packed), on_device(first, *wide), extent), done)
        assert done.wait() == Result.SUCCESS
        assert back == data[: extent.bytes]
    user.default.fill(Fill(on_device(first, 12 << 20), 0x01020304, 4, Extent(9 << 20, 2)))
    assert user.read(first + (12 << 20), 9 << 20) == bytes((4, 3, 2, 1)) * (9 << 18)


@pytest.mark.parametrize("extent", [Extent(0, 5), Extent(5, 0), Extent(0, 5, 5), Extent(5, 5, 0), Extent(0, 0, 0)])
def test_an_empty_extent_does_nothing_but_completes(user: PortUser, extent: Extent) -> None:
    host = memoryview(bytearray())
    for copy in (
        Copy(on_device(0), on_device(0), extent),
        Copy(on_device(0), in_staging(host), extent),
        Copy(in_staging(host), on_device(0), extent),
    ):
        done = Notified()
        user.default.copy(copy, done)
        assert done.wait() == Result.SUCCESS
    user.default.fill(Fill(on_device(0), 1, 1, extent))
    assert user.synchronize() == Result.SUCCESS


FITTING = Layout(0, 16, 16 * 4)
EXTENT = Extent(10, 4, 3)
"""Its span in that layout is 186 bytes."""


@pytest.mark.parametrize(
    "changes",
    [
        {"base": 200 - 185},
        {"base": -1},
        {"pitch": 9},
        {"slice_pitch": 16 * 3},
        {"slice_pitch": 128},
        {"slice_pitch": 2**62},
    ],
    ids=[
        "past the end",
        "before the start",
        "a pitch below the width",
        "slices overlap",
        "a long span",
        "no address",
    ],
)
def test_copies_of_what_is_not_allocated_or_overlaps_are_refused(user: PortUser, changes: dict[str, int]) -> None:
    address, other, host = user.context.allocate(200), user.context.allocate(200), memoryview(bytearray(200))
    bad = on_device(address, FITTING.pitch, FITTING.slice_pitch)
    bad = evolve(bad, **{**changes, "base": address + changes.get("base", 0)})
    for good in (on_device(other, 16, 64), in_staging(host, 16, 64)):
        for copy in (Copy(bad, good, EXTENT), Copy(good, bad, EXTENT)):
            with expect_refusal(VALUE):
                user.default.copy(copy, Notified())
    assert user.synchronize() == Result.SUCCESS
    assert user.read(other, 200) == user.read(address, 200) == bytes(200)


@pytest.mark.parametrize("make", [in_staging, in_pinned])
def test_a_host_pitch_below_the_width_is_refused(
    user: PortUser, pinned: tuple[PinnedMemory, PinnedMemory], make: Any
) -> None:
    address, host = user.context.allocate(200), pinned[0].memory[:100]
    for copy in (
        Copy(on_device(address, 10), make(host, 9), Extent(10, 4)),
        Copy(make(host, 9), on_device(address, 10), Extent(10, 4)),
    ):
        with expect_refusal(VALUE):
            user.default.copy(copy, Notified())


@pytest.mark.parametrize(
    ("base", "pitch", "element_bytes", "extent"),
    [
        (0, 40, 4, Extent(16, 6)),
        (204, 40, 4, Extent(16, 1)),
        (0, 12, 4, Extent(16, 2)),
        (0, 41, 2, Extent(16, 2)),
        (0, 42, 4, Extent(16, 2)),
        (2, 40, 4, Extent(16, 2)),
        (1, 40, 2, Extent(16, 2)),
        (0, 40, 3, Extent(15, 2)),
        (0, 2**62, 4, Extent(16, 2)),
    ],
)
def test_fills_that_do_not_fit_or_are_misaligned_are_refused(
    user: PortUser, base: int, pitch: int, element_bytes: int, extent: Extent
) -> None:
    address = user.context.allocate(212)
    with expect_refusal(VALUE):
        user.default.fill(Fill(on_device(address + base, pitch), 1, element_bytes, extent))
    assert user.read(address, 212) == bytes(212)


def test_rectangles_keep_to_the_order_of_their_stream(
    user: PortUser, pinned: tuple[PinnedMemory, PinnedMemory]
) -> None:
    stream, address = user.context.create_stream(True, 0), user.context.allocate(64)
    source, target = pinned[0].memory, pinned[1].memory
    gate = Gate.closed(user, stream)
    stream.copy(Copy(on_device(address, 16), in_pinned(source[:36], 32), Extent(4, 2)))
    stream.fill(Fill(on_device(address + 2, 16), 7, 1, Extent(1, 2)))
    done = Notified()
    stream.copy(Copy(in_pinned(target[:8], 4), on_device(address, 16), Extent(4, 2)), done)
    source[:36] = b"abcd" * 9
    assert done.stays_silent()
    assert not any(target[:8])
    gate.open()
    assert done.wait() == Result.SUCCESS
    assert target[:8] == b"ab\7dab\7d"


def test_slices_of_one_row_may_lie_further_apart_than_any_pitch(user: PortUser) -> None:
    distance = 1 << 31
    address = user.context.allocate(distance + 16)
    for offset, data in ((0, b"first"), (distance, b"other")):
        assert user.write(address + offset, data).wait() == Result.SUCCESS
    target, done = bytearray(10), Notified()
    copy = Copy(in_staging(memoryview(target), 5, 5), on_device(address, 5, distance), Extent(5, 1, 2))
    user.context.default_stream.copy(copy, done)
    assert done.wait() == Result.SUCCESS
    assert bytes(target) == b"firstother"


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_the_pitch_of_one_row_is_not_looked_at(user: PortUser, element_bytes: int) -> None:
    address = user.context.allocate(16)
    user.context.default_stream.fill(Fill(on_device(address, 3, 1), 0xFF, element_bytes, Extent(8)))
    expected = (0xFF).to_bytes(element_bytes, "little") * (8 // element_bytes)
    assert bytes(user.read(address, 8)) == expected
