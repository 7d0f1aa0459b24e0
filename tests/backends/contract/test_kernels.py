"""Modules, launches, faults, and kernels that never end."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.partitions import chunk_count, chunk_size
from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import Launch
from tests.backends.contract.port_user import PTX, Gate, Notified, PortUser
from tests.backends.contract.test_memory import expect_refusal

VALUE = Result.ERROR_INVALID_VALUE


def test_a_module_lists_its_functions_and_globals(user: PortUser) -> None:
    functions = {function.name: function for function in user.module.functions}
    assert functions["store"].parameters == ((0, 8), (8, 4))
    assert functions["store"].parameter_bytes == 12
    assert functions["shared_words"].attributes["SHARED_SIZE_BYTES"] == 40000
    assert functions["narrow"].attributes["MAX_THREADS_PER_BLOCK"] == 64
    (counter,) = user.module.globals
    assert (counter.name, counter.size) == ("counter", 4)
    assert user.word(counter.address) == 5


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (b"", Result.ERROR_INVALID_PTX),
        (b"\x7fELF\2\1\1", Result.ERROR_NO_BINARY_FOR_GPU),
        (b"\xff\xfe\0", Result.ERROR_INVALID_IMAGE),
        (PTX.replace(b"trap;", b"traps;"), Result.ERROR_INVALID_PTX),
        (PTX + b".entry (", Result.ERROR_INVALID_PTX),
    ],
)
def test_bad_images_are_refused(user: PortUser, image: bytes, code: Result) -> None:
    with expect_refusal(code):
        user.context.load_module(image)
    assert user.module.functions


def test_unloading_frees_after_the_kernels_that_run(user: PortUser) -> None:
    before = user.context.memory_info()
    module = user.module
    held = before[0] - user.context.memory_info()[0]
    assert held > 0
    gate = Gate.closed(user)
    module.unload()
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    assert user.context.memory_info()[0] == before[0] - 512  # the gate's word


@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_every_thread_runs_once(user: PortUser, count: int) -> None:
    words = user.words(count)
    user.launch("add", words, count, grid=(-(-count // 256), 1, 1), block=(256, 1, 1))
    assert user.read(words, 4 * count) == struct.pack(f"={count}I", *range(count))


@pytest.mark.parametrize("blocks", [2, 64, 2000])
def test_blocks_that_wait_for_each_other_finish(user: PortUser, blocks: int) -> None:
    user.launch("gather", user.words(), grid=(blocks, 1, 1), block=(64, 1, 1))
    assert user.synchronize() == Result.SUCCESS


def test_kernels_of_two_streams_that_wait_for_each_other_finish(user: PortUser) -> None:
    words = user.words(2)
    first, second = user.context.create_stream(True, -5), user.context.create_stream(True, 0)
    user.launch("until", words, 1, stream=first)
    user.launch("store", words, 1, stream=second)
    assert user.synchronize() == Result.SUCCESS


@pytest.mark.parametrize(
    ("shape", "code"),
    [
        ({"grid": (0, 1, 1)}, VALUE),
        ({"grid": (2**31, 1, 1)}, VALUE),
        ({"grid": (1, 65536, 1)}, VALUE),
        ({"block": (1025, 1, 1)}, VALUE),
        ({"block": (1, 1, 65)}, VALUE),
        ({"block": (512, 2, 2)}, VALUE),
        ({"shared": 300_000}, VALUE),
    ],
)
def test_launches_beyond_all_devices_limits_are_refused(user: PortUser, shape: dict[str, Any], code: Result) -> None:
    with expect_refusal(code):
        user.launch("empty", **shape)
    assert user.synchronize() == Result.SUCCESS


def test_launches_beyond_the_kernels_limits_are_refused(user: PortUser) -> None:
    with expect_refusal(VALUE):  # as recorded with an H200
        user.launch("narrow", block=(65, 1, 1))
    with expect_refusal(VALUE):
        user.default.launch(Launch(user.module, 0, (1, 1, 1), (1, 1, 1), 0, b"surplus!"))
    with expect_refusal(Result.ERROR_INVALID_HANDLE):
        user.default.launch(Launch(user.module, 99, (1, 1, 1), (1, 1, 1), 0, b""))


def test_a_fault_is_sticky_and_notified_once(user: PortUser) -> None:
    word = user.words()
    user.launch("trapped")
    assert user.synchronize() == Result.ERROR_LAUNCH_FAILED
    assert user.fault.wait() == Result.ERROR_LAUNCH_FAILED
    assert "trapped" in user.fault.reason
    assert user.context.status.code == Result.ERROR_LAUNCH_FAILED
    for attempt in (
        lambda: user.launch("empty"),
        lambda: user.words(),
        lambda: user.write(word, b"1234"),
        lambda: user.context.load_module(PTX),
        lambda: user.context.create_stream(False, 0),
    ):
        with expect_refusal(Result.ERROR_LAUNCH_FAILED):
            attempt()
    assert user.free(word).wait() == Result.ERROR_LAUNCH_FAILED
    assert user.synchronize() == Result.ERROR_LAUNCH_FAILED


def test_a_store_outside_is_an_illegal_address(user: PortUser) -> None:
    user.launch("store", 0x1234_5678_0000, 1)
    assert user.synchronize() == Result.ERROR_ILLEGAL_ADDRESS


def test_a_misaligned_store_is_a_misaligned_address(user: PortUser) -> None:
    user.launch("store", user.words(2) + 1, 1)
    assert user.synchronize() == Result.ERROR_MISALIGNED_ADDRESS


def test_work_after_a_fault_is_dropped_and_completed(user: PortUser) -> None:
    word, gate = user.words(), Gate.closed(user)
    user.launch("trapped")
    user.launch("store", word, 1)
    copied, done = user.write(word, b"1234"), Notified()
    user.default.notify(done)
    gate.open()
    assert copied.wait() == done.wait() == Result.ERROR_LAUNCH_FAILED


@pytest.mark.needs("contains_faults")
def test_a_fault_stays_with_its_context(device: Device) -> None:
    bad, same_client, other = (PortUser.on(device, client=client) for client in (1, 1, 2))
    words = [user.words() for user in (same_client, other)]
    bad.launch("trapped")
    assert bad.synchronize() == Result.ERROR_LAUNCH_FAILED
    for user, word in zip((same_client, other), words, strict=True):
        user.launch("store", word, 8)
        assert user.word(word) == 8
        assert not user.fault.called


@pytest.mark.needs("stops_kernels")
def test_an_endless_kernel_does_not_block_other_contexts(device: Device) -> None:
    hog, users = PortUser.on(device, client=1), [PortUser.on(device, client=client) for client in (2, 3)]
    hog.launch("endless", grid=(10_000, 1, 1), block=(1024, 1, 1))
    for user in users:
        word = user.words()
        for value in range(5):
            user.launch("store", word, value)
        assert user.word(word) == 4
    assert not hog.default.idle


@pytest.mark.needs("stops_kernels")
def test_a_context_is_destroyed_while_its_kernel_runs(device: Device) -> None:
    other, hog = PortUser.on(device, client=2), PortUser.on(device, client=1)
    before = other.context.memory_info()
    hog.context.allocate(1 << 30)
    hog.launch("endless", grid=(100, 1, 1), block=(256, 1, 1))
    hog.launch("endless", stream=hog.context.create_stream(True, 0))
    hog.context.destroy()
    hog.context.destroy()
    assert other.context.memory_info()[0] > before[0]
    other.launch("empty")
    assert other.synchronize() == Result.SUCCESS


def test_a_device_closes_while_a_kernel_runs(device: Device) -> None:
    user = PortUser.on(device)
    user.launch("endless")
    notified = Notified()
    user.default.notify(notified)
    device.close()
    assert notified.wait() == Result.ERROR_CONTEXT_IS_DESTROYED
    with expect_refusal(Result.ERROR_DEINITIALIZED):
        PortUser.on(device)


@pytest.mark.needs("limits_multiprocessors", "sees_blocks")
def test_a_context_keeps_to_its_multiprocessors(device: Device) -> None:
    user = PortUser.on(device, multiprocessors=2)
    user.launch("gather", user.words(), grid=(60, 1, 1), block=(32, 1, 1))
    assert user.synchronize() == Result.SUCCESS
    assert device.trace["resident_blocks_high_water"] == 60
    user.launch("endless", grid=(1000, 1, 1), block=(1024, 1, 1))
    waiting = Notified()
    user.default.notify(waiting)
    assert waiting.stays_silent()
    assert device.trace["resident_blocks_high_water"] == 60  # 4 of 1,024 threads fit two multiprocessors


@pytest.mark.needs("limits_multiprocessors")
def test_a_context_of_a_partition_has_its_multiprocessors_and_no_others(
    device: Device, properties: DeviceProperties
) -> None:
    size, count = chunk_size(properties), chunk_count(properties)
    rest = properties.multiprocessors - size * count
    users = [PortUser.on(device, chunks=chunks) for chunks in ((0, 1), (2,), (3, 4, count))]
    for user in users:
        words = user.words()
        user.launch("add", words, 1, grid=(1, 1, 1), block=(32, 1, 1))
        assert user.synchronize() == Result.SUCCESS
    traces = [set(trace.multiprocessors) for trace in device.context_traces]
    assert [len(trace) for trace in traces] == [2 * size, size, 2 * size + rest]
    assert len(set().union(*traces)) == 5 * size + rest
    inner = PortUser.on(device, chunks=(2,), multiprocessors=size)
    assert set(device.context_traces[-1].multiprocessors) == traces[1]
    assert inner.synchronize() == Result.SUCCESS


@pytest.mark.needs("limits_multiprocessors")
def test_a_limit_in_a_partition_holds_for_any_last_chunk(device: Device, properties: DeviceProperties) -> None:
    size, count = chunk_size(properties), chunk_count(properties)
    users = [PortUser.on(device, chunks=(0, 1, 2, count), multiprocessors=2 * size - 1) for _ in range(3)]
    assert all(user.synchronize() == Result.SUCCESS for user in users)
    assert {len(trace.multiprocessors) for trace in device.context_traces} <= {2 * size - 1, 2 * size}


def test_the_trace_counts(user: PortUser) -> None:
    user.launch("add", user.words(100_000), 100_000, grid=(400, 1, 1), block=(256, 1, 1))
    assert user.synchronize() == Result.SUCCESS
    trace = user.device.trace
    assert trace["kernels_started"] == trace["kernels_finished"] == 1
    assert trace.get("batches", 0) >= user.device.capabilities.sees_blocks
    assert trace["contexts"] == 1
    assert trace["bytes_allocated"] == 400_000
    assert trace["bytes_used"] > 400_000


def test_allocating_during_a_kernel_does_not_disturb_it(user: PortUser) -> None:
    others = [user.words() for _ in range(50)]
    for address in others[::2]:
        assert user.free(address).wait() == Result.SUCCESS
    gate = Gate.closed(user, user.context.create_stream(True, 0))
    kept = [user.context.allocate(1 + number % 5000) for number in range(1000)]
    assert not user.fault.called
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    for address in kept:
        assert user.free(address).wait() == Result.SUCCESS
