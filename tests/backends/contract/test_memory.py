"""The port's memory: allocations, copies, fills, limits."""

from __future__ import annotations

import os

import pytest

from pympsd.vocabulary.device_properties import window_of
from pympsd.vocabulary.limits import MemoryGroup
from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import Shortage
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError, Status
from tests.backends.contract.conftest import DEVICE_BYTES
from tests.backends.contract.port_user import (
    Gate,
    Notified,
    PortUser,
    copy_from_device,
    copy_on_device,
    copy_to_device,
    fill,
)

VALUE, MEMORY = Result.ERROR_INVALID_VALUE, Result.ERROR_OUT_OF_MEMORY


def expect_refusal(code: Result) -> pytest.RaisesExc[BackendError]:
    """Expect a BackendError with this code and a reason."""
    return pytest.raises(BackendError, check=lambda error: error.code == code and bool(error.reason))


def test_new_memory_is_zero_and_in_the_window(user: PortUser) -> None:
    address = user.context.allocate(5000)
    assert window_of(0) <= address < address + 5000 <= window_of(1)
    assert user.read(address, 5000) == bytes(5000)


def test_reused_memory_is_zero_again(user: PortUser) -> None:
    address = user.context.allocate(100_000)
    user.write(address, b"s" * 100_000)
    user.free(address)
    assert user.read(user.context.allocate(100_000), 100_000) == bytes(100_000)


@pytest.mark.parametrize("count", [1, 4096, (4 << 20) + 5, 20 << 20])
def test_copies_of_every_size(user: PortUser, count: int) -> None:
    data, first, second = os.urandom(count), user.context.allocate(count), user.context.allocate(count)
    written = user.write(first, data)
    user.default.copy(copy_on_device(second, first, count))
    assert written.wait() == Result.SUCCESS  # both at the same time may be more than a client's staging memory
    assert user.read(second, count) == data


def test_overlapping_copies_move_as_if_through_a_buffer(user: PortUser) -> None:
    data, size = os.urandom(9 << 20), 9 << 20
    address = user.context.allocate(size)
    user.write(address, data)
    user.default.copy(copy_on_device(address + 1000, address, size - 1000))
    assert user.read(address, size) == data[:1000] + data[:-1000]
    user.default.copy(copy_on_device(address, address + 1000, size - 1000))
    assert user.read(address, size - 1000) == data[:-1000]


@pytest.mark.parametrize(("width", "value"), [(1, 0xAB), (2, 0xABCD), (4, 0x12345678)])
def test_fills_of_every_width(user: PortUser, width: int, value: int) -> None:
    address = user.context.allocate(64)
    user.default.fill(fill(address + width, value, width, 3))
    assert user.read(address, 5 * width) == bytes(width) + value.to_bytes(width, "little") * 3 + bytes(width)


def test_a_fill_takes_the_low_bytes_of_its_value(user: PortUser) -> None:
    address = user.context.allocate(64)
    user.default.fill(fill(address, 0xFFFF_FF07, 1, 2))
    assert user.read(address, 3) == b"\7\7\0"


def test_a_large_fill_writes_every_element(user: PortUser) -> None:
    address = user.context.allocate(20 << 20)
    user.default.fill(fill(address, 0x01020304, 4, 5 << 20))
    assert user.read(address, 20 << 20) == bytes((4, 3, 2, 1)) * (5 << 20)


def test_addresses_outside_the_allocations_are_refused(user: PortUser) -> None:
    address = user.context.allocate(100)
    stream = user.default
    for where, count in ((address + 90, 11), (address - 1, 1), (0, 1), (2**64 - 4, 8), (address, 2**62)):
        with expect_refusal(VALUE):
            stream.fill(fill(where, 0, 1, count))
        with expect_refusal(VALUE):
            stream.copy(copy_on_device(address, where, count))
        with expect_refusal(VALUE):
            stream.copy(copy_on_device(where, address, count))
    with expect_refusal(VALUE):
        stream.copy(copy_to_device(address + 99, memoryview(bytes(2))), Notified())
    with expect_refusal(VALUE):
        stream.copy(copy_from_device(memoryview(bytearray(2)), address + 99), Notified())
    for width in (0, 3, 8):
        with expect_refusal(VALUE):
            stream.fill(fill(address, 0, width, 1))
    with expect_refusal(VALUE):
        stream.fill(fill(address + 1, 0, 2, 1))
    assert user.synchronize() == Result.SUCCESS


def test_empty_copies_and_fills_succeed(user: PortUser) -> None:
    notified = Notified()
    user.default.copy(copy_to_device(0, memoryview(b"")), notified)
    user.default.fill(fill(0, 0, 4, 0))
    user.default.copy(copy_on_device(0, 0, 0))
    assert notified.wait() == Result.SUCCESS


def test_memory_is_freed_once(user: PortUser) -> None:
    before, address = user.context.memory_info(), user.context.allocate(1 << 20)
    with expect_refusal(VALUE):
        user.context.free(address + 512, Notified())
    assert user.free(address).wait() == Result.SUCCESS
    assert user.context.memory_info() == before
    with expect_refusal(VALUE):
        user.context.free(address, Notified())


def test_memory_is_freed_after_the_work_that_may_use_it(user: PortUser) -> None:
    kept, address = user.context.memory_info()[0], user.words()
    gate = Gate.closed(user, user.context.create_stream(True, 0))
    freed = user.free(address)
    assert freed.stays_silent()
    with expect_refusal(VALUE):
        user.context.free(address, Notified())
    gate.open()
    assert freed.wait() == Result.SUCCESS
    assert kept - user.context.memory_info()[0] < 1 << 20


def test_impossible_allocations_are_refused(user: PortUser) -> None:
    with expect_refusal(VALUE):
        user.context.allocate(0)
    for count in (DEVICE_BYTES, 1 << 62, 2**64 - 1):
        with expect_refusal(MEMORY):
            user.context.allocate(count)


def test_fragmented_memory_can_be_allocated_in_one_piece(user: PortUser) -> None:
    part = user.context.memory_info()[0] // 64 // 512 * 512
    addresses = [user.context.allocate(part) for _ in range(64)]
    for address in addresses[::2]:
        assert user.free(address).wait() == Result.SUCCESS
    # Half the memory is free, in holes: a device moves its pages, so one allocation has it all.
    assert user.context.allocate(part * 32)


def test_contexts_share_the_devices_memory(device: Device) -> None:
    first, second = PortUser.on(device, client=1), PortUser.on(device, client=2)
    free, total = second.context.memory_info()
    assert total == DEVICE_BYTES
    first.context.allocate(6 << 30)
    assert second.context.memory_info()[0] == free - (6 << 30)
    with expect_refusal(MEMORY):
        second.context.allocate(3 << 30)
    first.context.destroy()
    assert second.context.memory_info()[0] > free
    assert second.context.allocate(6 << 30)


def test_a_limit_covers_all_memory_of_a_context(device: Device) -> None:
    user = PortUser.on(device, memory_bytes=1 << 30)
    free, total = user.context.memory_info()
    assert total == 1 << 30
    assert 0 < free < total
    with expect_refusal(MEMORY):
        user.context.allocate(free + 1)
    address = user.context.allocate(free)
    with expect_refusal(MEMORY):
        user.context.load_module(b".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 table[4096];\n")
    user.free(address)
    assert user.module.functions


def test_a_limit_too_low_for_a_context_is_refused_and_leaves_nothing(device: Device) -> None:
    before = dict(device.trace)
    with expect_refusal(MEMORY):
        PortUser.on(device, memory_bytes=1024)
    assert dict(device.trace) == before


def test_a_limit_is_that_of_all_contexts_of_a_client(device: Device) -> None:
    first = PortUser.on(device, memory_bytes=2 << 30)
    free, _ = first.context.memory_info()
    second = PortUser.on(device, memory_bytes=2 << 30)
    remaining, total = second.context.memory_info()
    assert total == 2 << 30
    assert remaining < free
    assert first.context.memory_info() == (remaining, total)
    address = second.context.allocate(remaining)
    with expect_refusal(MEMORY):
        first.context.allocate(1)
    with expect_refusal(MEMORY):
        PortUser.on(device, memory_bytes=2 << 30)
    assert PortUser.on(device, client=2, memory_bytes=2 << 30).context.allocate(remaining)
    assert second.free(address).wait() == Result.SUCCESS
    assert first.context.memory_info() == (remaining, total)
    assert first.context.allocate(remaining)
    second.context.destroy()
    assert first.context.memory_info() == (free - remaining, total)


def test_a_client_that_comes_again_has_its_new_limit(device: Device) -> None:
    PortUser.on(device, memory_bytes=1 << 30).context.destroy()
    assert PortUser.on(device, memory_bytes=2 << 30).context.memory_info()[1] == 2 << 30


def test_a_limit_above_the_device_is_the_devices(device: Device) -> None:
    assert PortUser.on(device, memory_bytes=DEVICE_BYTES + 1).context.memory_info()[1] == DEVICE_BYTES


@pytest.mark.needs("isolates_address_spaces")
def test_a_context_on_fewer_multiprocessors_costs_less(device: Device) -> None:
    costs = []
    for count in (0, 66, 1):
        user = PortUser.on(device, multiprocessors=count)
        costs.append(DEVICE_BYTES - user.context.memory_info()[0])
        user.context.destroy()
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 3


def test_clients_of_a_group_have_its_memory_together(device: Device) -> None:
    limit = DEVICE_BYTES // 2
    group = MemoryGroup("cgroup /x", limit)
    first, second = (PortUser.on(device, client, groups=(group,)) for client in (1, 2))
    alone = PortUser.on(device, 3)
    assert [user.context.memory_info()[1] for user in (first, second, alone)] == [limit, limit, DEVICE_BYTES]
    free, _ = second.context.memory_info()
    address = first.context.allocate(free // 2)
    with expect_refusal(MEMORY):
        second.context.allocate(free - free // 4)
    assert free // 2 - (1 << 20) <= second.context.memory_info()[0] <= free // 2
    alone.context.allocate(free // 2)
    assert first.free(address).wait() == Result.SUCCESS
    second.context.allocate(free - free // 4)


def test_a_client_within_its_soft_limit_reports_what_it_lacks(device: Device) -> None:
    guaranteed = MemoryGroup("cgroup /x", DEVICE_BYTES * 2, soft=DEVICE_BYTES // 2)
    owner, guest = PortUser.on(device, 1, groups=(guaranteed,)), PortUser.on(device, 2)
    taken = guest.context.allocate(guest.context.memory_info()[0] - (8 << 20))
    with expect_refusal(MEMORY) as caught:
        owner.context.allocate(64 << 20)
    assert isinstance(caught.value, Shortage)
    assert 48 << 20 < caught.value.short <= 64 << 20
    for user, count in ((guest, 64 << 20), (owner, DEVICE_BYTES // 2)):  # guaranteed nothing, and beyond it
        with expect_refusal(MEMORY) as plain:
            user.context.allocate(count)
        assert not isinstance(plain.value, Shortage)
    assert guest.free(taken).wait() == Result.SUCCESS
    owner.context.allocate(64 << 20)


def test_what_a_terminated_context_held_is_free(device: Device) -> None:
    first, second = PortUser.on(device, 1), PortUser.on(device, 2)
    count = second.context.memory_info()[0] * 3 // 4
    first.context.allocate(count)
    with expect_refusal(MEMORY):
        second.context.allocate(count)
    first.context.terminate(Status(Result.ERROR_MPS_CLIENT_TERMINATED, "ended"))
    second.context.allocate(count)
    with expect_refusal(Result.ERROR_MPS_CLIENT_TERMINATED):
        first.launch("empty")
    used = device.memory_used[2]
    first.context.terminate(Status(Result.ERROR_MPS_CLIENT_TERMINATED, "ended"))
    first.context.destroy()
    assert device.memory_used == {2: used}
