"""The buffers of copies are one client's at a time, charged or counted, and released once, however the copies end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import round_up_to_granules
from pympsd_server.backends.cuda.memory.scratch import SCRATCH_BYTES
from pympsd_server.backends.cuda.objects.context import CONTEXT_BYTES, CudaContext
from pympsd_server.backends.cuda.objects.device import CudaDevice
from pympsd_server.backends.interface import BackendError, Status
from tests.backends.contract.port_user import copy_from_device, copy_on_device, copy_to_device, fill
from tests.backends.cuda.fake_driver import FakeDriver, Recorder

MakeContext = Callable[..., CudaContext]
MIB = 1 << 20
OUT_OF_MEMORY = int(Result.ERROR_OUT_OF_MEMORY)
ILLEGAL_ADDRESS = int(Result.ERROR_ILLEGAL_ADDRESS)


def expect_refusal(code: Result) -> pytest.RaisesExc[BackendError]:
    """Expect a BackendError with this code."""
    return pytest.raises(BackendError, check=lambda error: error.code == code and bool(error.reason))


# --- overlapping copies


def test_waiting_overlapping_copies_share_scratch_charged_to_their_client(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    context = make_context(1, memory_bytes=64 * MIB)
    address, stream = context.allocate(20 * MIB), context.create_stream(True, 0)
    used, memory = device.memory_used[1], driver.memory_bytes
    driver.stall(stream.handle)
    for _ in range(20):
        stream.copy(copy_on_device(address + 512, address, 17 * MIB))
    assert device.memory_used[1] - used == driver.memory_bytes - memory == SCRATCH_BYTES
    driver.run(stream.handle)
    driver.until(lambda: device.memory_used[1] == used and driver.memory_bytes == memory)


def test_copies_of_growing_length_share_scratch(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    context = make_context(1)
    address, stream = context.allocate(20 * MIB), context.create_stream(True, 0)
    used = device.memory_used[1]
    driver.stall(stream.handle)
    for count in range(1000, 17 * MIB, MIB // 2):
        stream.copy(copy_on_device(address, address + 8, count))
    assert device.memory_used[1] - used < 2 * SCRATCH_BYTES
    driver.run(stream.handle)
    driver.until(lambda: device.memory_used[1] == used)


def test_an_overlapping_copy_moves_as_if_through_a_buffer(driver: FakeDriver, make_context: MakeContext) -> None:
    context, count = make_context(1), 2 * SCRATCH_BYTES + 2 * MIB
    address, done = context.allocate(count), Recorder()
    content = bytes(range(256)) * (count // 256)
    context.default_stream.copy(copy_to_device(address, memoryview(content)), done)
    done.wait()
    context.default_stream.copy(copy_on_device(address + 512, address, count - 512))
    assert driver.bytes_at(address, count) == content[:512] + content[:-512]
    context.default_stream.copy(copy_on_device(address, address + 512, count - 512))
    assert driver.bytes_at(address, count - 512) == content[:-512]


def test_scratch_is_refused_where_the_clients_limit_is_met(device: CudaDevice, make_context: MakeContext) -> None:
    context = make_context(1, memory_bytes=CONTEXT_BYTES + 24 * MIB)
    address = context.allocate(20 * MIB)
    used = device.memory_used[1]
    with expect_refusal(Result.ERROR_OUT_OF_MEMORY):
        context.default_stream.copy(copy_on_device(address + 512, address, 17 * MIB))
    assert device.memory_used[1] == used
    context.default_stream.copy(copy_on_device(address + 512, address, 2 * MIB))
    context.default_stream.copy(copy_on_device(address + 2 * MIB, address, 17 * MIB))
    assert context.status.code is Result.SUCCESS, "smaller copies are accepted"


def test_scratch_that_the_driver_refuses_is_not_charged(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    context = make_context(1)
    address = context.allocate(20 * MIB)
    used = device.memory_used[1]
    driver.codes["cuMemCreate"] = OUT_OF_MEMORY
    with expect_refusal(Result.ERROR_OUT_OF_MEMORY):
        context.default_stream.copy(copy_on_device(address + 512, address, 17 * MIB))
    assert device.memory_used[1] == used


# --- copies that fail


@pytest.mark.parametrize("call", ["cuEventRecord", "cuMemcpyHtoDAsync"])
def test_the_slot_of_a_copy_that_may_be_running_is_not_reused(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext, call: str
) -> None:
    context, other = make_context(1), make_context(2)
    first, second = context.allocate(4096), other.allocate(4096)
    stream, done = context.create_stream(True, 0), Recorder()
    driver.stall(stream.handle)
    stream.fill(fill(first, 7, 1, 4096))
    driver.codes[call] = OUT_OF_MEMORY
    with expect_refusal(Result.ERROR_OUT_OF_MEMORY):
        stream.copy(copy_to_device(first, memoryview(b"a" * 4096)), done)
    driver.codes.clear()
    other.default_stream.copy(copy_to_device(second, memoryview(b"b" * 4096)), done)
    assert done.wait() == [Status()]
    driver.run(stream.handle)
    assert driver.bytes_at(first, 4096) == (b"a" if call == "cuEventRecord" else b"\7") * 4096
    driver.until(lambda: not device.services.staging._taken)
    assert context.status.code is Result.SUCCESS
    assert done.statuses == [Status()], "a refused copy is not completed too"


def test_scratch_of_a_copy_that_may_be_running_stays(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    context = make_context(1)
    address, stream = context.allocate(20 * MIB), context.create_stream(True, 0)
    used = device.memory_used[1]
    driver.stall(stream.handle)
    driver.codes["cuEventRecord"] = OUT_OF_MEMORY
    with expect_refusal(Result.ERROR_OUT_OF_MEMORY):
        stream.copy(copy_on_device(address + 512, address, 17 * MIB))
    driver.codes.clear()
    assert device.memory_used[1] > used
    driver.run(stream.handle)  # which touches it
    driver.until(lambda: device.memory_used[1] == used)


def test_a_copy_that_poisons_the_device_completes_and_does_not_raise(
    driver: FakeDriver, make_context: MakeContext
) -> None:
    context, done = make_context(1), Recorder()
    address = context.allocate(4096)
    driver.codes["cuMemcpyHtoDAsync"] = ILLEGAL_ADDRESS
    context.default_stream.copy(copy_to_device(address, memoryview(b"1234")), done)
    assert [status.code for status in done.statuses] == [Result.ERROR_ILLEGAL_ADDRESS]
    with expect_refusal(Result.ERROR_ILLEGAL_ADDRESS):
        context.default_stream.copy(copy_to_device(address, memoryview(b"1234")), done)
    assert len(done.statuses) == 1


# --- copies that never begin


def test_held_copies_release_their_buffers_when_the_context_ends(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    neighbour, context = make_context(1), make_context(2)
    address, stream, done, begun = context.allocate(20 * MIB), context.create_stream(True, 0), Recorder(), Recorder()
    call = stream.launch_host_function(begun)
    begun.wait()
    stream.copy(copy_to_device(address, memoryview(b"1234")), done)
    stream.copy(copy_from_device(memoryview(bytearray(4)), address), done)
    stream.copy(copy_on_device(address + 512, address, 17 * MIB))
    assert device.services.staging._taken == {context.space: 8}
    assert context.space.budget.used > CONTEXT_BYTES + round_up_to_granules(20 * MIB)
    space, memory = context.space, neighbour.memory_info()[0]
    context.destroy()
    driver.until(lambda: not device.services.staging._taken and not space.budget.used)
    assert neighbour.memory_info()[0] > memory
    assert [status.code for status in done.statuses] == [Result.ERROR_CONTEXT_IS_DESTROYED] * 2
    assert call.step is not None
    context.queue.release_step(call.step)  # as a finish just before the end would
    assert "cuMemcpyHtoDAsync" not in driver.calls
    assert "cuMemcpyDtoDAsync" not in driver.calls


def test_a_slot_is_free_before_its_copy_completes(
    driver: FakeDriver, device: CudaDevice, make_context: MakeContext
) -> None:
    context, taken = make_context(1), []
    address, stream, done = context.allocate(4096), context.create_stream(True, 0), Recorder()
    driver.stall(stream.handle)

    def note_slots(status: Status) -> None:
        taken.append(dict(device.services.staging._taken))
        done(status)

    stream.copy(copy_to_device(address, memoryview(b"1234")), note_slots)
    assert device.services.staging._taken == {context.space: 4}
    driver.run(stream.handle)
    assert done.wait() == [Status()]
    assert taken == [{}]
