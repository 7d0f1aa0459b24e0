"""The end of a context while its worker is in the midst of a call, or while its client's other work runs."""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread
from typing import Any

import pytest

from pympsd.channel.descriptors import close_all
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Attach, DropClient, ExecutorDone
from pympsd_server.backends.cuda.objects import context as context_module
from pympsd_server.backends.cuda.objects.context import END_SECONDS, CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.executor.attachments import Attachments
from tests.backends.contract.port_user import copy_to_device, fill
from tests.backends.cuda.fake_driver import FakeDriver, Gate, Recorder, Worker
from tests.backends.cuda.test_module_images import cubin

Make = Callable[..., CudaContext]
MIB = 1 << 20


class Clock:
    """Stands for the module ``time``: it advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return its seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance it."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which contexts wait for their kernels."""
    clock = Clock()
    monkeypatch.setattr(context_module, "time", clock)
    return clock


def count_held(driver: FakeDriver, device: CudaDevice) -> tuple[int, ...]:
    """Return what clients use of the device."""
    return (
        device.budget.used, driver.memory_bytes, len(driver.mapped), len(driver.streams), len(driver.modules),
        len(device.memory_used),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "make"),
    [
        ("cuMemCreate", lambda context: context.allocate(64 * MIB)),
        ("cuStreamCreateWithPriority", lambda context: context.create_stream(True, 0)),
        ("cuModuleLoadData", lambda context: context.load_module(cubin())),
    ],
)
def test_an_object_being_created_when_its_context_ends_is_released(
    driver: FakeDriver, device: CudaDevice, make_context: Make, call: str, make: Callable[[CudaContext], Any]
) -> None:
    make_context(9)
    before, gate = count_held(driver, device), Gate()
    context = make_context(1)
    for _ in range(20):  # one more is charged
        context.create_stream(True, 0)
    driver.hooks[call] = gate
    worker = Worker(lambda: make(context))
    gate.wait()
    context.destroy()
    gate.open()
    with pytest.raises(BackendError) as caught:
        worker.result()
    assert caught.value.code is Result.ERROR_CONTEXT_IS_DESTROYED
    driver.until(lambda: count_held(driver, device) == before)


def test_a_destroyed_context_keeps_its_memory_under_work_being_issued(
    driver: FakeDriver, device: CudaDevice, make_context: Make, clock: Clock
) -> None:
    make_context(9)
    before, context, gate = count_held(driver, device), make_context(1), Gate()
    address, other = context.allocate(4 * MIB), context.create_stream(False, 0)
    driver.stall(other.handle)
    other.fill(fill(address, 1, 1, 16))
    driver.hooks["cuStreamQuery"] = gate  # the worker queries whether to wait for the other stream
    worker = Worker(lambda: context.default_stream.fill(fill(address, 7, 1, MIB)))
    gate.wait()
    driver.stall(context.default_stream.handle)
    driver.run(other.handle)
    context.destroy()
    assert device.unfinished == 1
    gate.open()
    worker.result()
    driver.run()
    driver.until(lambda: count_held(driver, device) == before)


class EndsMeanwhile:
    """A context's lock; the context ends just before it is taken."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._lock = context.queue.lock
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        self._context.abandon()
        return self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()


def test_a_host_function_that_finishes_at_the_end_issues_nothing(
    driver: FakeDriver, device: CudaDevice, make_context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, begun = make_context(1), Recorder()
    address, stream = context.allocate(4 * MIB), context.default_stream
    call = stream.launch_host_function(begun)
    stream.fill(fill(address, 1, 1, 16))
    begun.wait()
    driver.stall(stream.handle)
    with monkeypatch.context() as patch:
        patch.setattr(context.queue, "lock", EndsMeanwhile(context))
        call.finish()
    assert driver.waiting(stream.handle) == 0


def test_a_destroyed_contexts_memory_stays_until_queued_work_of_a_sibling_is_done(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    owner, other, victim, done = make_context(1), make_context(1), make_context(2), Recorder()
    address, stream = owner.allocate(4 * MIB), other.create_stream(True, 0)
    driver.stall(stream.handle)
    stream.copy(copy_to_device(address, memoryview(b"\xee" * 4096)), done)
    owner.destroy()
    assert device.unfinished == 0
    assert victim.allocate(4 * MIB) != address
    with pytest.raises(BackendError) as caught:
        stream.copy(copy_to_device(address, memoryview(b"\xee" * 4096)), done)
    assert caught.value.code is Result.ERROR_INVALID_VALUE, "later requests cannot access it"
    used = device.memory_used[1]
    driver.run(stream.handle)
    driver.until(lambda: device.memory_used[1] == used - 4 * MIB)
    assert done.wait() == [Status()]
    assert victim.allocate(4 * MIB) == address


def test_a_destroyed_contexts_memory_stays_until_held_work_of_a_sibling_is_done(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    owner, other, begun, done = make_context(1), make_context(1), Recorder(), Recorder()
    address = owner.allocate(4 * MIB)
    call = other.default_stream.launch_host_function(begun)
    other.default_stream.copy(copy_to_device(address, memoryview(b"\xee" * 4096)), done)
    used = device.memory_used[1] - owner.charged
    owner.destroy()
    assert device.memory_used[1] == used
    assert driver.bytes_at(address, 1) == b"\0"
    call.finish()
    assert done.wait() == [Status()]
    driver.until(lambda: device.memory_used[1] == used - 4 * MIB)


def test_all_contexts_of_a_client_wait_for_their_kernels_together(
    driver: FakeDriver, device: CudaDevice, make_context: Make, clock: Clock
) -> None:
    contexts = [make_context(1) for _ in range(6)]
    for context in contexts:
        address = context.allocate(4096)
        driver.stall(context.default_stream.handle)
        context.default_stream.fill(fill(address, 1, 1, 16))
    begun = clock.now
    for context in contexts:
        context.abandon()
    for context in contexts:
        context.destroy()
    assert clock.now - begun < END_SECONDS + 0.1
    assert device.unfinished == 6
    driver.run()
    driver.until(lambda: not device.memory_used)


def test_dropping_a_client_of_several_contexts_waits_once(
    driver: FakeDriver, device: CudaDevice, clock: Clock
) -> None:
    output: list[object] = []

    def send(message: object, fds: tuple[int, ...] = ()) -> None:
        output.append(message)
        close_all(fds)

    attachments = Attachments(device, 1, send)
    for number in range(6):
        attachments.handle(Attach(number, 1, number, not number, Quota(0, 0, 0)))
    for context in tuple(device._contexts):
        address = context.allocate(4096)
        driver.stall(context.default_stream.handle)
        context.default_stream.fill(fill(address, 1, 1, 16))
    begun = clock.now
    attachments.handle(DropClient(6, 1))
    assert output[-1] == ExecutorDone(6, unfinished=6)
    assert clock.now - begun < END_SECONDS + 0.1


def test_a_stream_is_released_without_waiting_for_a_worker_blocked_in_the_driver(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    context, neighbour, gate = make_context(1), make_context(2), Gate()
    address = context.allocate(4096)
    busy, destroyed = context.create_stream(True, 0), context.create_stream(True, 0)
    left_behind = neighbour.create_stream(True, 0)
    driver.stall(destroyed.handle)
    destroyed.fill(fill(address, 1, 1, 16))
    destroyed.destroy()
    driver.hooks["cuMemsetD8Async"] = gate
    worker = Worker(lambda: busy.fill(fill(address, 1, 1, 16)))
    gate.wait()
    driver.run(destroyed.handle)
    left_behind.destroy()
    driver.until(lambda: left_behind.handle not in driver.streams)
    assert destroyed.handle in driver.streams
    gate.open()
    worker.result()
    driver.until(lambda: destroyed.handle not in driver.streams)


def test_no_stream_is_released_while_it_is_queried(
    driver: FakeDriver, device: CudaDevice, make_context: Make, faults: list[Status]
) -> None:
    context, neighbour, gate = make_context(1), make_context(2), Gate()
    address, destroyed, left_behind = (
        context.allocate(16),
        context.create_stream(True, 0),
        neighbour.create_stream(True, 0),
    )
    driver.stall(destroyed.handle)
    destroyed.fill(fill(address, 1, 1, 16))
    destroyed.destroy()
    driver.hooks["cuStreamQuery"] = gate
    worker = Worker(context.is_quiet)
    gate.wait()
    driver.run(destroyed.handle)
    left_behind.destroy()
    driver.until(lambda: left_behind.handle not in driver.streams)
    gate.open()
    assert worker.result()
    driver.until(lambda: destroyed.handle not in driver.streams)
    assert faults == []


def test_a_device_closes_while_a_destroyed_context_is_being_released(
    driver: FakeDriver, device: CudaDevice, make_context: Make, clock: Clock
) -> None:
    context, gate = make_context(1), Gate("cleanup")
    address, stream = context.allocate(4096), context.default_stream
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    context.destroy()
    driver.hooks["cuStreamDestroy"] = gate
    driver.run()
    gate.wait()
    closing = Worker(device.close)
    driver.until(lambda: device.closed and not device.services.watcher._thread.is_alive())
    gate.open()
    closing.result()


def test_a_stream_that_cannot_be_queried_poisons_the_device(
    driver: FakeDriver, device: CudaDevice, make_context: Make, faults: list[Status]
) -> None:
    context, done = make_context(1), Recorder()
    address, stream = context.allocate(4096), context.default_stream
    call = stream.launch_host_function(done)
    driver.stall(stream.handle)
    stream.notify(done)  # held: no marker is queried
    other = context.create_stream(True, 0)
    driver.stall(other.handle)
    other.fill(fill(address, 1, 1, 16))
    driver.codes["cuStreamQuery"] = 999
    statuses = done.wait(2)
    assert [status.code for status in statuses] == [Result.SUCCESS, Result.ERROR_UNKNOWN]
    assert [status.code for status in faults] == [Result.ERROR_UNKNOWN]
    call.finish()


def test_a_copy_is_queued_before_its_memory_can_be_freed(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    owner, other, victim, gate, done = make_context(1), make_context(1), make_context(2), Gate(), Recorder()
    address, stream, take = owner.allocate(4 * MIB), other.create_stream(True, 0), device.services.staging.take

    def take_later(*arguments: Any) -> Any:  # between the check and the queue
        gate()
        return take(*arguments)

    device.services.staging.take = take_later  # type: ignore[method-assign]
    driver.stall(stream.handle)
    worker = Worker(lambda: stream.copy(copy_to_device(address, memoryview(b"\xee" * 4096)), done))
    gate.wait()
    owner.destroy()
    assert victim.allocate(4 * MIB) != address
    gate.open()
    worker.result()
    driver.run()
    assert done.wait() == [Status()]


def test_a_contexts_resources_are_not_freed_by_the_completion_thread(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    owner, other = make_context(1), make_context(1)
    freed_by: set[str] = set()
    for _ in range(8):
        owner.allocate(4 * MIB)
    address, stream = other.allocate(4096), other.default_stream
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    owner.destroy()
    used = device.memory_used[1]
    driver.hooks["cuMemUnmap"] = lambda *_: freed_by.add(current_thread().name)
    other.allocate(4096)  # its worker starts a batch: the deferred frees follow this
    driver.run(stream.handle)
    driver.until(lambda: device.memory_used[1] < used - 31 * MIB)
    assert freed_by == {"cleanup"}


def test_a_destroyed_stream_is_waited_for_when_the_driver_makes_no_event(
    driver: FakeDriver, make_context: Make
) -> None:
    context = make_context(1)
    address, stream, done = context.allocate(16), context.create_stream(True, 0), Recorder()
    driver.stall(stream.handle)
    stream.fill(fill(address, 1, 1, 16))
    stream.services.events._free[False].clear()
    driver.codes["cuEventCreate"] = int(Result.ERROR_OUT_OF_MEMORY)
    stream.destroy()
    assert context.queue.native_state.leaving == 1
    driver.codes.clear()
    context.notify(done)
    assert not done.statuses, "the context's work is not done"
    driver.run(stream.handle)
    assert done.wait() == [Status()]
    driver.until(lambda: stream.handle not in driver.streams and context.queue.native_state.leaving == 0)


def test_contexts_of_a_faulted_device_end_without_driver_calls(
    driver: FakeDriver, device: CudaDevice, make_context: Make
) -> None:
    first, second = make_context(1), make_context(2)
    for context in (first, second):
        context.create_stream(True, 0)
        context.allocate(4 * MIB)
    device.fault(Status(Result.ERROR_ILLEGAL_ADDRESS, "a fake fault"))
    for call in ("cuStreamDestroy", "cuMemUnmap", "cuStreamQuery", "cuStreamSynchronize"):
        driver.codes[call] = int(Result.ERROR_ILLEGAL_ADDRESS)
    for context in (first, second):
        context.destroy()
    assert (device.unfinished, device.memory_used) == (0, {})
