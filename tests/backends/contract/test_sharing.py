"""The resources that clients of one device share, as its capabilities say."""

from __future__ import annotations

import struct

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from tests.backends.contract.conftest import DEVICE_BYTES
from tests.backends.contract.port_user import Gate, PortUser, copy_on_device, fill
from tests.backends.contract.test_memory import expect_refusal

VALUE = Result.ERROR_INVALID_VALUE


def test_contexts_of_a_client_share_its_memory(any_device: Device) -> None:
    entry, same = PortUser.on(any_device), PortUser.on(any_device)
    address = entry.words()
    entry.put(address, 9)
    assert same.word(address) == 9


def test_calls_access_only_the_clients_own_allocations(any_device: Device) -> None:
    owner, neighbour = (PortUser.on(any_device, client=client) for client in (1, 2))
    own = neighbour.context.allocate(64)
    owner.context.allocate(1 << 20)  # so that the neighbour has no allocation at the addresses that follow
    (counter,) = owner.module.globals
    for address in (owner.context.allocate(64), counter.address):
        before = owner.read(address, 4)
        with expect_refusal(VALUE):
            neighbour.write(address, b"1234")
        with expect_refusal(VALUE):
            neighbour.read(address, 4)
        with expect_refusal(VALUE):
            neighbour.default.fill(fill(address, 1, 4, 1))
        with expect_refusal(VALUE):
            neighbour.default.copy(copy_on_device(own, address, 4))
        with expect_refusal(VALUE):
            neighbour.default.copy(copy_on_device(address, own, 4))
        with expect_refusal(VALUE):
            neighbour.free(address)
        assert owner.read(address, 4) == before
    assert neighbour.word(neighbour.module.globals[0].address) == 5


def test_kernels_access_a_neighbours_memory_if_spaces_are_not_isolated(any_device: Device) -> None:
    owner, neighbour = (PortUser.on(any_device, client=client) for client in (1, 2))
    # Different allocations, so that the neighbour has none in the page of this address itself.
    neighbour.words()
    owner.context.allocate(4 << 20)
    address, own = owner.words(2), neighbour.words(64)
    owner.put(address, 41)
    neighbour.launch("store", address, 42)
    if any_device.capabilities.isolates_address_spaces:
        assert neighbour.synchronize() == Result.ERROR_ILLEGAL_ADDRESS
        assert owner.word(address) == 41
        return
    assert neighbour.synchronize() == Result.SUCCESS
    assert owner.word(address) == 42
    # Reading works as well: the neighbour's kernel sees what the owner writes.
    neighbour.launch("until", address + 4, 7)
    neighbour.launch("store", own, 1)
    owner.put(address + 4, 7)
    assert neighbour.synchronize() == Result.SUCCESS
    assert neighbour.word(own) == 1
    assert not owner.fault.called


@pytest.mark.needs("contains_faults")
def test_an_unallocated_address_is_a_fault_of_one_client(any_device: Device) -> None:
    owner, neighbour = (PortUser.on(any_device, client=client) for client in (1, 2))
    neighbour.launch("store", 0x1234_5678_0000, 1)
    assert neighbour.synchronize() == Result.ERROR_ILLEGAL_ADDRESS
    assert owner.synchronize() == Result.SUCCESS


@pytest.mark.needs("stops_kernels")
def test_the_end_of_a_client_frees_its_memory_and_no_other(any_device: Device) -> None:
    stays, goes = (PortUser.on(any_device, client=client) for client in (1, 2))
    address = stays.words()
    stays.put(address, 3)
    free, _ = stays.context.memory_info()
    gate = Gate.closed(goes)
    assert gate
    goes.context.allocate(1 << 30)
    goes.context.destroy()
    assert stays.context.memory_info()[0] > free
    assert stays.word(address) == 3
    late = PortUser.on(any_device, client=2)
    assert late.read(late.context.allocate(4096), 4096) == bytes(4096)
    stays.context.destroy()
    late.context.destroy()
    assert PortUser.on(any_device, client=3).words()


def test_limits_hold_if_the_device_can_limit(any_device: Device) -> None:
    can, (everything,) = any_device.capabilities, [PortUser.on(any_device, client=2, context_id=1)]
    user = PortUser.on(any_device, multiprocessors=2, memory_bytes=1 << 30, context_id=2)
    all_traced, traced = any_device.context_traces
    assert (all_traced.context, traced.context) == (1, 2)
    assert len(traced.multiprocessors) == (2 if can.limits_multiprocessors else len(all_traced.multiprocessors))
    assert user.context.memory_info()[1] == (1 << 30 if can.limits_memory else DEVICE_BYTES)
    assert everything.context.memory_info()[1] == DEVICE_BYTES


def test_kernels_read_their_multiprocessor(any_device: Device) -> None:
    users = [PortUser.on(any_device, client=client, multiprocessors=5) for client in (1, 2)]
    seen = []
    for user in users:
        words = user.words(400)
        user.launch("where_am_i", words, grid=(400, 1, 1), block=(32, 1, 1))
        assert user.synchronize() == Result.SUCCESS
        seen.append(frozenset(struct.unpack("=400I", user.read(words, 1600))))
    allowed = [frozenset(traced.multiprocessors) for traced in any_device.context_traces]
    assert seen == allowed
    assert bool(seen[0] & seen[1]) != any_device.capabilities.limits_multiprocessors
