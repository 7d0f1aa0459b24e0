"""The made-up driver does what the tests beside it take for granted."""

from __future__ import annotations

from collections.abc import Callable

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects.context import CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import Outcome
from tests.backends.contract.port_user import copy_from_device, copy_to_device, fill
from tests.backends.cuda.fake_driver import FakeDriver, Recorder


def test_bytes_go_to_the_device_and_come_back(driver: FakeDriver, make_context: Callable[..., CudaContext]) -> None:
    context, told = make_context(1), Recorder()
    address, back = context.allocate(4096), bytearray(4096)
    context.default_stream.copy(copy_to_device(address, memoryview(b"\x05" * 4096)), told)
    context.default_stream.copy(copy_from_device(memoryview(back), address), told)
    assert told.wait(2) == [Outcome(), Outcome()]
    assert bytes(back) == b"\x05" * 4096 == driver.bytes_at(address, 4096)


def test_work_of_a_stalled_stream_waits_and_that_of_streams_behind_it(
    driver: FakeDriver, make_context: Callable[..., CudaContext]
) -> None:
    context, told = make_context(1), Recorder()
    address, stream = context.allocate(16), context.create_stream(False, 0)
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    context.default_stream.fill(fill(address, 2, 1, 8))
    context.notify(told)
    assert driver.bytes_at(address, 16) == bytes(16)
    assert not told.outcomes
    driver.run(stream.handle)
    assert told.wait() == [Outcome()]
    assert driver.bytes_at(address, 16) == b"\x02" * 8 + b"\x01" * 8


def test_all_is_given_back(driver: FakeDriver, device: CudaDevice, make_context: Callable[..., CudaContext]) -> None:
    keeper, streams = make_context(1), len(driver.streams)
    used, memory = device.budget.used, driver.memory_bytes
    context = make_context(2)
    context.allocate(64 << 20)
    context.create_stream(True, 0)
    context.destroy()
    assert (device.budget.used, driver.memory_bytes, len(driver.streams)) == (used, memory, streams)
    assert keeper.outcome.code is Result.SUCCESS
