"""Memory without an address of its own: what it costs the executor, and what other executors map of it."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pympsd.devices.machine import describe
from pympsd.vocabulary.device_properties import MAPPING_GRANULE, VIRTUAL_OFFSET, window_of
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.context import EmulatedContext
from pympsd_server.backends.emulated.device.device import EmulatedDevice
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.backends.virtual_memory import File, PhysicalMemory


def ignore(status: Status) -> None:
    """Nothing faults here."""


@pytest.fixture
def devices() -> Iterator[list[EmulatedDevice]]:
    opened = [EmulatedDevice(properties, number) for number, properties in enumerate(describe("2xH200"))]
    yield opened
    for device in opened:
        device.close()


@pytest.fixture
def contexts(devices: list[EmulatedDevice]) -> list[EmulatedContext]:
    """A context of one client on each of two devices."""
    return [device.create_context(1, Quota(0, 0, 0), ignore) for device in devices]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def map_memory(context: EmulatedContext, memory: PhysicalMemory, place: int, ordinal: int) -> int:
    """Map memory in a context of a device; return the address."""
    address = window_of(ordinal) + VIRTUAL_OFFSET + place * MAPPING_GRANULE
    context.mapped.map(memory, address)
    context.mapped.set_access(address, memory.size, True)
    return address


def expect_refusal(code: Result, why: str) -> pytest.RaisesExc[BackendError]:
    return pytest.raises(BackendError, check=lambda error: error.code is code and why in error.reason)


def test_only_what_can_be_exported_has_a_descriptor(contexts: list[EmulatedContext]) -> None:
    before = descriptors()
    memories = [contexts[0].mapped.create(MAPPING_GRANULE, False) for _ in range(20)]
    for place, memory in enumerate(memories):
        map_memory(contexts[0], memory, place, 0)
    assert descriptors() == before
    memories += [contexts[0].mapped.create(MAPPING_GRANULE, True) for _ in range(3)]
    assert descriptors() == before + 3
    contexts[0].destroy()
    assert descriptors() == before - 1, "the window's own"


def test_the_error_without_descriptors_names_the_reason(contexts: list[EmulatedContext]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with expect_refusal(Result.ERROR_OPERATING_SYSTEM, "file descriptors"):
            contexts[0].mapped.create(MAPPING_GRANULE, True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    free = contexts[0].memory_info()
    contexts[0].mapped.create(MAPPING_GRANULE, True).release()
    assert contexts[0].memory_info() == free


@pytest.mark.parametrize("shareable", [False, True])
def test_each_piece_is_itself_on_another_device(shareable: bool, contexts: list[EmulatedContext]) -> None:
    before = descriptors()
    owner, peer = contexts
    for place in range(3):
        memory = owner.mapped.create(MAPPING_GRANULE, shareable)
        owner.memory.space.write(map_memory(owner, memory, place, 0), bytes([place + 1]) * MAPPING_GRANULE)
        imported = peer.mapped.import_peers(os.getpid(), memory.publish(), memory.size)
        address = map_memory(peer, imported, place, 1)
        assert (np.frombuffer(peer.memory.space.view(address, MAPPING_GRANULE), np.uint8) == place + 1).all()
        peer.mapped.unmap(address, MAPPING_GRANULE)
        imported.release()
    assert descriptors() == before + 3 * shareable


def test_freed_memory_is_zero_and_counted_no_more(contexts: list[EmulatedContext]) -> None:
    context, free = contexts[0], contexts[0].memory_info()
    memory = context.mapped.create(4 * MAPPING_GRANULE, False)
    address = map_memory(context, memory, 0, 0)
    context.memory.space.write(address, b"x" * memory.size)
    memory.release()
    assert context.memory_info()[0] == free[0] - memory.size, "it is mapped"
    context.mapped.unmap(address, memory.size)
    assert context.memory_info() == free
    again = context.mapped.create(4 * MAPPING_GRANULE, False)
    assert context.memory.space.read(map_memory(context, again, 1, 0), again.size) == bytes(again.size)
    allocation = context.allocate(again.size)
    assert context.memory.space.read(allocation, again.size) == bytes(again.size), "of its own"


def test_who_imports_an_allocation_learns_nothing_of_the_rest(devices: list[EmulatedDevice]) -> None:
    owner, other = (devices[0].create_context(client, Quota(0, 0, 0), ignore) for client in (1, 2))
    secret, _ = owner.share_allocation(owner.allocate(4096))
    with expect_refusal(Result.ERROR_INVALID_VALUE, "not created to be exported"):
        other.mapped.import_(secret).publish()
    with expect_refusal(Result.ERROR_INVALID_VALUE, "not created to be exported"):
        owner.mapped.create(MAPPING_GRANULE, False).export()


def test_files_of_peers_end_where_they_end(contexts: list[EmulatedContext]) -> None:
    owner, peer = contexts
    file = owner.mapped.create(MAPPING_GRANULE, True).publish()
    for offset in (MAPPING_GRANULE, 1 << 63, (1 << 64) - MAPPING_GRANULE):
        with expect_refusal(Result.ERROR_INVALID_VALUE, "fewer than"):
            peer.mapped.import_peers(os.getpid(), File(file.descriptor, file.secret, offset), MAPPING_GRANULE)


@pytest.fixture
def often_switching() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_context_closes_while_its_memory_is_released(devices: list[EmulatedDevice], often_switching: None) -> None:
    fake_context = devices[0].create_context(1, Quota(0, 0, 0), ignore)
    before = fake_context.memory_info()
    for _ in range(3):
        context = devices[0].create_context(2, Quota(0, 0, 0), ignore)
        memories = [context.mapped.create(MAPPING_GRANULE, False) for _ in range(1000)]
        begin = threading.Barrier(2)

        def release(memories: list[PhysicalMemory] = memories, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for memory in memories:
                memory.release()

        releasing = threading.Thread(target=release)
        releasing.start()
        begin.wait()
        context.destroy()
        releasing.join()
        assert fake_context.memory_info() == before
