"""Copies and fills of rows and slices: the bytes of the extent, and no others."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.memory.address_ranges import REGISTERED_BYTES
from pympsd_server.backends.cuda.memory.staging import DIRECT_BYTES, address_of
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import BackendError, Copy, Extent, Fill, Region, Space, Status
from tests.backends.contract.port_user import in_pinned, in_staging, on_device
from tests.backends.cuda.fake_driver import FakeDriver, Recorder

MakeContext = Callable[..., CudaContext]
SMALL = Extent(60, 20, 3)
LARGE = Extent(6000, 50, 3)
STRAIGHT = Extent(70, 1, 5)
TOUCHING = Extent(64, 20, 3)
assert SMALL.bytes < DIRECT_BYTES < LARGE.bytes
PITCHES = {SMALL: (64, 1400), LARGE: (6144, 6144 * 51), STRAIGHT: (0, 99), TOUCHING: (64, 1280)}
"""The slice pitch is a multiple of the pitch in one of them, and not in another."""


def pattern(extent: Extent, seed: int) -> np.ndarray[Any, Any]:
    """Return as many bytes as an extent spans."""
    pitch, slice_pitch = PITCHES[extent]
    count = on_device(0, pitch, slice_pitch).span(extent)
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def inside(extent: Extent, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bytes of an extent."""
    pitch, slice_pitch = PITCHES[extent]
    return np.ndarray((extent.depth, extent.height, extent.width), np.uint8, memory, strides=(slice_pitch, pitch, 1))


def region(space: Space, place: int | memoryview, extent: Extent) -> Region:
    """Return a region in a space, with the pitches of an extent."""
    if isinstance(place, int):
        return on_device(place, *PITCHES[extent])
    return (in_pinned if space is Space.PINNED else in_staging)(place, *PITCHES[extent])


@pytest.fixture
def place(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> Callable[[Space, np.ndarray[Any, Any]], tuple[Any, Callable[[], bytes]]]:
    """Put bytes in a space; return their place and what reads them."""
    context, numbers = make_context(1), itertools.count()

    def put(space: Space, content: np.ndarray[Any, Any]) -> tuple[Any, Callable[[], bytes]]:
        if space is Space.DEVICE:
            address, done = context.allocate(content.size), Recorder()
            context.default_stream.copy(
                Copy(on_device(address), in_staging(memoryview(content)), Extent(content.size)), done
            )
            done.wait()
            return address, lambda: driver.bytes_at(address, content.size)
        memory = memoryview(mmap.mmap(-1, 2 * REGISTERED_BYTES))
        # Where a part ends, in the midst of a row.
        start = -address_of(memory) % REGISTERED_BYTES
        start = start - 1000 if space is Space.PINNED and start > 1000 else next(numbers)
        if space is Space.PINNED:
            device.register_host_memory(1, address_of(memory), memory)
        own = memory[start : start + content.size]
        own[:] = memoryview(content)
        return own, own.tobytes

    return put


SPACES = [
    (Space.DEVICE, Space.DEVICE),
    (Space.DEVICE, Space.STAGING),
    (Space.STAGING, Space.DEVICE),
    (Space.DEVICE, Space.PINNED),
    (Space.PINNED, Space.DEVICE),
]


@pytest.mark.parametrize("extent", PITCHES, ids=["small", "large", "straight", "touching"])
@pytest.mark.parametrize(("to", "start"), SPACES, ids=lambda space: space.value)
def test_the_bytes_of_the_extent_are_copied_and_no_others(
    driver: FakeDriver, make_context: MakeContext, place: Any, to: Space, start: Space, extent: Extent
) -> None:
    context, done = make_context(1), Recorder()
    expected, content = pattern(extent, 1), pattern(extent, 2)
    (target, read_target), (source, _) = place(to, expected), place(start, content)
    context.default_stream.copy(Copy(region(to, target, extent), region(start, source, extent), extent), done)
    assert done.wait() == [Status()]
    inside(extent, expected)[...] = inside(extent, content)
    assert read_target() == expected.tobytes()


@pytest.mark.parametrize(
    ("extent", "element"),
    [(extent, element) for extent in PITCHES for element in (1, 2, 4) if not PITCHES[extent][1] % element],
)
def test_the_elements_of_the_extent_are_filled_and_no_others(
    driver: FakeDriver, make_context: MakeContext, place: Any, extent: Extent, element: int
) -> None:
    context, expected = make_context(1), pattern(extent, 1)
    target, read_target = place(Space.DEVICE, expected)
    value = 0x1122334455667788
    context.default_stream.fill(Fill(region(Space.DEVICE, target, extent), value, element, extent))
    row = (value % (1 << 8 * element)).to_bytes(element, "little") * (extent.width // element)
    inside(extent, expected)[...] = np.frombuffer(row, np.uint8)
    assert read_target() == expected.tobytes()


def test_no_byte_of_other_clients_comes_back_between_the_rows(driver: FakeDriver, make_context: MakeContext) -> None:
    other, context, done = make_context(2), make_context(1), Recorder()
    secret = memoryview(b"\xee" * 4096)
    other.default_stream.copy(Copy(on_device(other.allocate(4096)), in_staging(secret), Extent(4096)), done)
    done.wait()
    back = bytearray(64 * 16)
    copied = Copy(
        in_staging(memoryview(back)[: 15 * 64 + 8], 64), on_device(context.allocate(8 * 16), 8), Extent(8, 16)
    )
    context.default_stream.copy(copied, done)
    done.wait(2)
    assert bytes(back) == bytes(64 * 16)


@pytest.mark.parametrize(
    ("extent", "pitch", "slice_pitch"),
    [
        (Extent(64, 4), 63, 0),
        (Extent(64, 65), 64, 0),
        (Extent(64, 2, 2), 64, 127),
        (Extent(64, 2, 2), 64, 4096),
        (Extent(64, 2), 1 << 40, 0),
    ],
)
def test_regions_outside_of_the_clients_memory_are_refused(
    make_context: MakeContext, extent: Extent, pitch: int, slice_pitch: int
) -> None:
    context, done = make_context(1), Recorder()
    address, large, stream = context.allocate(4096), context.allocate(1 << 20), context.default_stream
    wrong, right = on_device(address, pitch, slice_pitch), on_device(large, 64, 4096 * 4)
    for work in (
        lambda: stream.copy(Copy(wrong, right, extent), done),
        lambda: stream.copy(Copy(right, wrong, extent), done),
        lambda: stream.fill(Fill(wrong, 1, 1, extent)),
    ):
        with pytest.raises(BackendError) as caught:
            work()
        assert caught.value.code is Result.ERROR_INVALID_VALUE
    assert done.statuses == []


def test_host_memory_of_another_length_is_refused(make_context: MakeContext) -> None:
    context, done = make_context(1), Recorder()
    target = on_device(context.allocate(4096), 8)
    for count, extent in ((17, Extent(8, 2)), (19, Extent(8, 2)), (7, Extent(8))):
        with pytest.raises(BackendError, check=lambda error: error.code == Result.ERROR_INVALID_VALUE):
            context.default_stream.copy(Copy(target, in_staging(memoryview(bytes(count)), 10), extent), done)


@pytest.mark.parametrize("extent", [Extent(0), Extent(0, 5), Extent(8, 0), Extent(8, 5, 0)])
def test_an_empty_copy_does_nothing_and_completes(
    driver: FakeDriver, make_context: MakeContext, extent: Extent
) -> None:
    context, done = make_context(1), Recorder()
    driver.calls.clear()
    for source in (on_device(1), in_staging(memoryview(b"")), in_pinned(memoryview(b""))):
        context.default_stream.copy(Copy(on_device(0), source, extent), done)
    context.default_stream.copy(Copy(on_device(0), on_device(1), extent))
    context.default_stream.fill(Fill(on_device(0), 1, 1, extent))
    assert done.statuses == [Status()] * 3
    assert not driver.calls.keys() - {"cuStreamQuery"}


def test_large_staging_that_the_device_can_access_takes_no_slot(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    context, done = make_context(1), Recorder()
    stream, memory = context.create_stream(True, 0), memoryview(mmap.mmap(-1, 1 << 20))
    address = context.allocate(1 << 20)
    driver.stall(stream.handle)
    for extent, slots in ((LARGE, 0), (SMALL, SMALL.bytes)):
        host = memory[: on_device(0, *PITCHES[extent]).span(extent)]
        stream.copy(Copy(region(Space.DEVICE, address, extent), region(Space.STAGING, host, extent), extent), done)
        assert sum(device.services.staging._taken.values()) == slots
    driver.run()
    assert done.wait(2) == [Status()] * 2
