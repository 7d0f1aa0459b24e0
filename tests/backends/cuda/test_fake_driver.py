"""The fake driver behaves as the tests next to it assume."""

from __future__ import annotations

from collections.abc import Callable

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import Status
from tests.backends.contract.port_user import copy_from_device, copy_to_device, fill
from tests.backends.cuda.fake_driver import FakeDriver, Recorder

MakeContext = Callable[..., CudaContext]


def test_bytes_go_to_the_device_and_come_back(driver: FakeDriver, make_context: MakeContext) -> None:
    context, done = make_context(1), Recorder()
    address, back = context.allocate(4096), bytearray(4096)
    context.default_stream.copy(copy_to_device(address, memoryview(b"\x05" * 4096)), done)
    context.default_stream.copy(copy_from_device(memoryview(back), address), done)
    assert done.wait(2) == [Status(), Status()]
    assert bytes(back) == b"\x05" * 4096 == driver.bytes_at(address, 4096)


def test_work_of_a_stalled_stream_and_of_streams_behind_it_waits(
    driver: FakeDriver, make_context: MakeContext
) -> None:
    context, done = make_context(1), Recorder()
    address, stream = context.allocate(16), context.create_stream(False, 0)
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    context.default_stream.fill(fill(address, 2, 1, 8))
    context.notify(done)
    assert driver.bytes_at(address, 16) == bytes(16)
    assert not done.statuses
    driver.run(stream.handle)
    assert done.wait() == [Status()]
    assert driver.bytes_at(address, 16) == b"\x02" * 8 + b"\x01" * 8


def test_a_destroyed_context_releases_everything(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    keeper, streams = make_context(1), len(driver.streams)
    used, memory = device.budget.used, driver.memory_bytes
    context = make_context(2)
    context.allocate(64 << 20)
    context.create_stream(True, 0)
    context.destroy()
    assert (device.budget.used, driver.memory_bytes, len(driver.streams)) == (used, memory, streams)
    assert keeper.status.code is Result.SUCCESS
