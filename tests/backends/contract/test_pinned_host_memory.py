"""The port's host memory: copied by the device itself, in stream order, and released once nothing works on it."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError
from tests.backends.contract.pinned_memory import PinnedMemory
from tests.backends.contract.port_user import SECONDS, Gate, PortUser, copy_from_pinned, copy_to_pinned

VALUE = Result.ERROR_INVALID_VALUE
SIZE = (36 << 20) + 5 * mmap.PAGESIZE
"""More than a real device registers in one part."""


@pytest.fixture
def host(device: Device) -> Iterator[PinnedMemory]:
    """Registered memory of SIZE bytes."""
    pinned_memory = PinnedMemory(device, SIZE)
    yield pinned_memory
    pinned_memory.unregister()


def test_bytes_copied_in_and_out_are_equal(user: PortUser, host: PinnedMemory) -> None:
    data = os.urandom(SIZE)
    host.memory[:] = data
    address = user.context.allocate(SIZE)
    user.default.copy(copy_from_pinned(address, host.memory))
    user.default.copy(copy_to_pinned(host.memory[4096 + 3 : 4096 + 3 + (30 << 20)], address))
    assert user.synchronize() == Result.SUCCESS
    assert host.memory[: 4096 + 3] == data[: 4096 + 3]
    assert host.memory[4096 + 3 : 4096 + 3 + (30 << 20)] == data[: 30 << 20]
    assert host.memory[4096 + 3 + (30 << 20) :] == data[4096 + 3 + (30 << 20) :]
    assert user.read(address, 4096) == data[:4096]


def test_copies_keep_to_the_order_of_their_stream(user: PortUser, host: PinnedMemory) -> None:
    stream, address = user.context.create_stream(True, 0), user.context.allocate(4096)
    user.write(address, b"0" * 4096).wait()
    gate = Gate.closed(user, stream)
    host.memory[:4096] = b"a" * 4096
    stream.copy(copy_from_pinned(address, host.memory[:4096]))
    stream.copy(copy_to_pinned(host.memory[8192:12288], address))
    host.memory[:4096] = b"b" * 4096
    assert user.read(address, 4096, user.context.create_stream(True, 0)) == b"0" * 4096
    assert host.memory[8192:12288] == bytes(4096)
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    assert user.read(address, 4096) == b"b" * 4096
    assert host.memory[8192:12288] == b"b" * 4096


def test_addresses_outside_the_allocations_are_refused(user: PortUser, host: PinnedMemory) -> None:
    address = user.context.allocate(100)
    for where, size in ((address + 90, 11), (address - 1, 1), (0, 1), (2**64 - 4, 8)):
        for call in (
            lambda where=where, size=size: user.default.copy(copy_from_pinned(where, host.memory[:size])),
            lambda where=where, size=size: user.default.copy(copy_to_pinned(host.memory[:size], where)),
        ):
            with pytest.raises(BackendError, check=lambda error: error.code == VALUE):
                call()
    user.default.copy(copy_from_pinned(0, host.memory[:0]))
    user.default.copy(copy_to_pinned(host.memory[:0], 0))
    assert user.synchronize() == Result.SUCCESS
    assert not any(host.memory[:4096])


def test_unregistered_memory_stays_for_the_work_that_uses_it(device: Device, user: PortUser) -> None:
    host = PinnedMemory(device, 1 << 20)
    stream, address = user.context.create_stream(True, 0), user.context.allocate(1 << 20)
    host.memory[:] = b"w" * (1 << 20)
    gate = Gate.closed(user, stream)
    stream.copy(copy_from_pinned(address, host.memory))
    host.unregister()
    assert not host.gone.wait(0.05)
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    assert user.read(address, 1 << 20) == b"w" * (1 << 20)
    assert host.gone.wait(SECONDS)


def test_memory_used_by_a_destroyed_context_is_released(device: Device) -> None:
    user, host = PortUser.on(device), PinnedMemory(device, 20 << 20)
    stream, address = user.context.create_stream(True, 0), user.context.allocate(20 << 20)
    for _ in range(5):
        stream.copy(copy_from_pinned(address, host.memory))
        stream.copy(copy_to_pinned(host.memory, address))
    user.context.destroy()
    host.unregister()
    gc.collect()
    assert host.gone.wait(SECONDS)
    assert PortUser.on(device).synchronize() == Result.SUCCESS


@pytest.mark.needs("maps_host_memory")
def test_kernels_access_host_memory_by_its_address(user: PortUser, host: PinnedMemory) -> None:
    for offset in (0, 4096, (16 << 20) - 4, 16 << 20, SIZE - 4):
        user.launch("store", host.address + offset, 0x1234ABCD)
        assert user.synchronize() == Result.SUCCESS
        assert host.memory[offset : offset + 4] == (0x1234ABCD).to_bytes(4, "little")


@pytest.mark.needs("maps_host_memory", "isolates_address_spaces")
def test_no_kernel_of_another_client_accesses_host_memory(device: Device, user: PortUser, host: PinnedMemory) -> None:
    port_user = PortUser.on(device, client=2)
    port_user.launch("store", host.address, 1)
    assert port_user.synchronize() == Result.ERROR_ILLEGAL_ADDRESS
    assert not any(host.memory[:4096])
    port_user.context.destroy()
    assert user.synchronize() == Result.SUCCESS


@pytest.mark.needs("maps_host_memory")
def test_host_memory_is_accessible_to_later_contexts_of_its_client(device: Device) -> None:
    host = PinnedMemory(device, 4096, client=5)
    for value in (1, 2):
        user = PortUser.on(device, client=5)
        user.launch("store", host.address, value)
        assert user.synchronize() == Result.SUCCESS
        assert host.memory[0] == value
        user.context.destroy()
    host.unregister()


@pytest.mark.needs("maps_host_memory", "contains_faults")
def test_what_is_unregistered_is_out_of_reach(device: Device, user: PortUser) -> None:
    host = PinnedMemory(device, 4096)
    address = host.address
    host.unregister()
    gc.collect()
    assert host.gone.wait(SECONDS)
    user.launch("store", address, 1)
    assert user.synchronize() == Result.ERROR_ILLEGAL_ADDRESS
