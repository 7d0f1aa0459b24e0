"""Resources are freed when no context of their client can have work that uses them; refusals leak nothing."""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread, main_thread

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects import context_resources
from pympsd_server.backends.cuda.objects.context import STREAM_BYTES, CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.cuda.objects.module_image import Cubin
from pympsd_server.backends.cuda.objects.stream import CudaStream
from pympsd_server.backends.interface import BackendError, Status
from tests.backends.contract.port_user import copy_from_device, copy_to_device, fill
from tests.backends.cuda.fake_driver import FakeDriver, Recorder, Refused

Make = Callable[..., CudaContext]
MIB = 1 << 20
OUT_OF_MEMORY = int(Result.ERROR_OUT_OF_MEMORY)


def no_events(driver: FakeDriver, device: CudaDevice) -> None:
    """Make the driver refuse to create events, and keep none."""
    device.services.events._free[False].clear()
    driver.codes["cuEventCreate"] = OUT_OF_MEMORY


def test_freed_memory_stays_until_queued_work_of_a_sibling_is_done(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    owner, other, victim, done, freed = make_context(1), make_context(1), make_context(2), Recorder(), Recorder()
    address, stream, used = owner.allocate(4 * MIB), other.create_stream(True, 0), device.memory_used[1]
    driver.stall(stream.handle)
    stream.copy(copy_to_device(address, memoryview(b"\xee" * 4096)), done)
    owner.free(address, freed)
    assert freed.wait() == [Status()], "as in CUDA it waits for its own context's work only"
    assert device.memory_used[1] == used
    assert victim.allocate(4 * MIB) != address
    with pytest.raises(BackendError):
        owner.free(address, freed)
    driver.run(stream.handle)
    driver.until(lambda: device.memory_used[1] == used - 4 * MIB)
    assert victim.allocate(4 * MIB) == address
    assert freed.statuses == [Status()]


def test_freed_memory_stays_when_that_sibling_ends_before_its_work_does(
    driver: FakeDriver, device: CudaDevice, make_context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pympsd_server.backends.cuda.objects.context.END_SECONDS", 0.0)
    owner, other, freed = make_context(1), make_context(1), Recorder()
    address, stream, used = owner.allocate(4 * MIB), other.create_stream(True, 0), device.memory_used[1]
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 4096))
    owner.free(address, freed)
    other.destroy()
    assert device.memory_used[1] == used
    driver.run(stream.handle)
    driver.until(lambda: device.memory_used[1] == used - other.charged - 4 * MIB)


def test_later_requests_cannot_access_freed_memory(driver: FakeDriver, make_context: Make) -> None:
    context, freed = make_context(1), Recorder()
    address, stream = context.allocate(4 * MIB), context.create_stream(True, 0)
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    context.free(address, freed)
    for call in (
        lambda: stream.fill(fill(address, 2, 1, 16)),
        lambda: stream.copy(copy_to_device(address, memoryview(bytes(16))), Recorder()),
        lambda: stream.copy(copy_from_device(memoryview(bytearray(16)), address), Recorder()),
    ):
        with pytest.raises(BackendError, match="in no allocation"):
            call()
    driver.run(stream.handle)
    assert freed.wait() == [Status()]


def busy_in_turns(driver: FakeDriver, context: CudaContext) -> Callable[[], None]:
    """Keep a context busy without a pause; each call ends all the work that it had."""
    first, second = (context.create_stream(True, 0) for _ in range(2))
    address = context.allocate(4096)

    def begin(stream: CudaStream) -> None:
        driver.stall(stream.handle)
        stream.fill(fill(address, 1, 1, 16))

    def turn() -> None:
        nonlocal first, second
        begin(second)
        driver.run(first.handle)
        first, second = second, first

    begin(first)
    return turn


@pytest.mark.long
def test_a_context_that_is_never_idle_delays_no_sibling_for_ever(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    turn = busy_in_turns(driver, make_context(1, memory_bytes=1024 * MIB))
    for _ in range(6):
        entry = make_context(1)
        entry.allocate(200 * MIB)
        held = device.memory_used[1]
        entry.destroy()
        make_context(1).allocate(4096)  # its worker starts a batch
        turn()
        driver.until(lambda held=held: device.memory_used[1] < held - 150 * MIB)


def test_however_much_is_freed_few_markers_are_watched(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    owner, other, done = make_context(1), make_context(1), Recorder()
    address, used = other.allocate(4096), device.memory_used[1]
    streams = [other.create_stream(True, 0) for _ in range(4)]
    for stream in streams:
        driver.stall(stream.handle)
        stream.fill(fill(address, 1, 1, 16))
    call = driver.calls["cuEventCreate"]
    for _ in range(100):
        owner.free(owner.allocate(4 * MIB), done)
    assert len(done.statuses) == 100
    assert driver.calls["cuEventCreate"] - call <= 2 * len(streams)
    driver.run()
    driver.until(lambda: device.memory_used[1] <= used + len(streams) * STREAM_BYTES)


def test_a_module_beyond_the_clients_limit_is_not_loaded(
    driver: FakeDriver, device: CudaDevice, make_context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_resources, "loadable", lambda driver, image: (image, Cubin((), 512 * MIB)))
    context = make_context(1, memory_bytes=64 * MIB)
    used, loaded = device.memory_used[1], len(driver.modules)
    with pytest.raises(BackendError, match="a module"):
        context.load_module(b"")
    assert (device.memory_used[1], len(driver.modules)) == (used, loaded)
    assert driver.calls["cuModuleLoadData"] <= loaded


def test_a_client_of_one_context_frees_immediately(driver: FakeDriver, make_context: Make) -> None:
    context, freed = make_context(1), Recorder()
    address = context.allocate(4 * MIB)
    driver.calls.clear()
    context.free(address, freed)
    assert freed.statuses == [Status()], "immediately"
    assert driver.calls.keys() <= {"cuStreamSynchronize", "cuMemUnmap", "cuMemRelease", "cuStreamQuery"}


def test_variables_at_one_address_are_owned_once(
    driver: FakeDriver, device: CudaDevice, make_context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin = Cubin(variables=("one", "one", "other"), device_bytes=4096)
    monkeypatch.setattr(context_resources, "loadable", lambda driver, image: (image, cubin))
    context, done = make_context(1), Recorder()
    stream, used, module = context.default_stream, device.memory_used[1], context.load_module(b"")
    first, _, second = module.globals
    assert set(module.variable_ranges) == {first.address, second.address}
    driver.stall(stream.handle)
    stream.copy(copy_to_device(first.address, memoryview(bytes(8))), done)
    module.unload()
    with pytest.raises(BackendError, match="in no allocation"):
        stream.fill(fill(first.address, 1, 1, 8))
    driver.run(stream.handle)
    context.notify(done)
    assert done.wait(2) == [Status()] * 2, "the thread that calls completions continues"
    driver.until(lambda: device.memory_used[1] == used and len(driver.modules) == 1)


def test_a_free_that_the_driver_refuses_completes_with_its_error(driver: FakeDriver, make_context: Make) -> None:
    context, freed = make_context(1), Recorder()
    address, stream = context.allocate(4 * MIB), context.create_stream(True, 0)
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    context.free(address, freed)
    driver.codes["cuMemUnmap"] = OUT_OF_MEMORY
    driver.run(stream.handle)
    (status,) = freed.wait()
    assert status.code is Result.ERROR_OUT_OF_MEMORY


def test_memory_that_cannot_be_mapped_is_released(driver: FakeDriver, make_context: Make) -> None:
    context = make_context(1)
    before = driver.memory_bytes
    driver.codes["cuMemMap"] = OUT_OF_MEMORY
    with pytest.raises(BackendError):
        context.allocate(4 * MIB)
    assert driver.memory_bytes == before
    driver.codes.clear()
    context.allocate(4 * MIB)


@pytest.mark.parametrize("after", range(5))
def test_a_stream_that_cannot_be_created_leaks_nothing(
    driver: FakeDriver, device: CudaDevice, make_context: Make, after: int
) -> None:
    context, calls = make_context(1), iter(range(10))
    device.services.events._free[False].clear()
    before = len(driver.streams), device.memory_used[1], len(device.services.words._free)

    def refuse(*arguments: object) -> None:
        if next(calls) == after:  # four events are made, and then the stream
            raise Refused(OUT_OF_MEMORY)

    driver.hooks.update(cuEventCreate=refuse, cuStreamCreateWithPriority=refuse)
    with pytest.raises(BackendError):
        context.create_stream(True, 0)
    assert (len(driver.streams), device.memory_used[1], len(device.services.words._free)) == before
    assert len(device.services.events._free[False]) == after


def test_a_refused_request_is_not_completed_at_the_end(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    context, done, freed = make_context(1), Recorder(), Recorder()
    address, stream, event = context.allocate(4096), context.default_stream, context.create_event(False)
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    stream.record(event)
    no_events(driver, device)

    def refuse(*arguments: object) -> None:
        if current_thread() is main_thread():
            raise Refused(OUT_OF_MEMORY)

    driver.hooks["cuEventQuery"] = refuse
    for call in (context.notify, stream.notify, event.notify, lambda done: context.free(address, done)):
        with pytest.raises(BackendError):
            call(done)
    driver.codes.clear()
    driver.hooks.clear()
    context.free(address, freed)
    driver.run()
    assert freed.wait() == [Status()]
    context.destroy()
    assert done.statuses == []


def test_memory_whose_free_was_refused_stays_accessible(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    context = make_context(1)
    address, stream = context.allocate(4096), context.default_stream
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    no_events(driver, device)
    with pytest.raises(BackendError):
        context.free(address, Recorder())
    stream.fill(fill(address, 2, 1, 16))
    driver.run()
    assert driver.bytes_at(address, 16) == b"\x02" * 16
