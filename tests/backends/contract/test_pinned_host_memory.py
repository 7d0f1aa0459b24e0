"""The port's host memory: copied by the device itself, in stream order, and let go of when nothing works on it."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from pympsd.vocabulary.device_facts import pinned_window_of
from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Device
from pympsd_server.executor.host_memory.pinned_mapping import mapped_at
from pympsd_server.executor.host_memory.shared import make_sealed
from tests.backends.contract.port_user import SECONDS, Gate, PortUser

VALUE = Result.ERROR_INVALID_VALUE
_NUMBER = count(1).__next__
SIZE = (36 << 20) + 5 * mmap.PAGESIZE
"""More than one part that a real device registers at once."""


class Host:
    """Host memory that the device reaches: ``gone`` is set when nobody refers to it any more."""

    def __init__(self, device: Device, size: int) -> None:
        self.gone = threading.Event()
        self.address = pinned_window_of(9) + _NUMBER() * (1 << 30) + 3 * mmap.PAGESIZE
        fd = make_sealed("host", size)
        try:
            self.bytes: memoryview | None = mapped_at(fd, self.address, size, self.gone.set)
        finally:
            os.close(fd)
        self._give_up: Callable[[], None] | None = device.reach_host(self.address, self.bytes)

    @property
    def memory(self) -> memoryview:
        """Its bytes."""
        assert self.bytes is not None
        return self.bytes

    def give_up(self) -> None:
        """Let go of it."""
        if self._give_up is not None:
            self._give_up()
        self._give_up = self.bytes = None


@pytest.fixture
def host(device: Device) -> Iterator[Host]:
    """Some of it."""
    made = Host(device, SIZE)
    yield made
    made.give_up()


def test_bytes_go_there_and_back(user: PortUser, host: Host) -> None:
    data = os.urandom(SIZE)
    host.memory[:] = data
    address = user.context.allocate(SIZE)
    user.default.copy_from_host(address, host.memory)
    user.default.copy_to_host(host.memory[4096 + 3 : 4096 + 3 + (30 << 20)], address)
    assert user.synchronize() == Result.SUCCESS
    assert host.memory[: 4096 + 3] == data[: 4096 + 3]
    assert host.memory[4096 + 3 : 4096 + 3 + (30 << 20)] == data[: 30 << 20]
    assert host.memory[4096 + 3 + (30 << 20) :] == data[4096 + 3 + (30 << 20) :]
    assert user.read(address, 4096) == data[:4096]


def test_copies_come_when_their_stream_does(user: PortUser, host: Host) -> None:
    stream, address = user.context.create_stream(True, 0), user.context.allocate(4096)
    user.write(address, b"0" * 4096).wait()
    gate = Gate.closed(user, stream)
    host.memory[:4096] = b"a" * 4096
    stream.copy_from_host(address, host.memory[:4096])
    stream.copy_to_host(host.memory[8192:12288], address)
    host.memory[:4096] = b"b" * 4096
    assert user.read(address, 4096, user.context.create_stream(True, 0)) == b"0" * 4096
    assert host.memory[8192:12288] == bytes(4096)
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    assert user.read(address, 4096) == b"b" * 4096
    assert host.memory[8192:12288] == b"b" * 4096


def test_calls_about_what_is_not_allocated(user: PortUser, host: Host) -> None:
    address = user.context.allocate(100)
    for where, size in ((address + 90, 11), (address - 1, 1), (0, 1), (host.address, 1), (2**64 - 4, 8)):
        for call in (
            lambda where=where, size=size: user.default.copy_from_host(where, host.memory[:size]),
            lambda where=where, size=size: user.default.copy_to_host(host.memory[:size], where),
        ):
            with pytest.raises(BackendError, check=lambda error: error.code == VALUE):
                call()
    user.default.copy_from_host(0, host.memory[:0])
    user.default.copy_to_host(host.memory[:0], 0)
    assert user.synchronize() == Result.SUCCESS
    assert not any(host.memory[:4096])


def test_given_up_it_stays_for_the_work_that_uses_it(device: Device, user: PortUser) -> None:
    host = Host(device, 1 << 20)
    stream, address = user.context.create_stream(True, 0), user.context.allocate(1 << 20)
    host.memory[:] = b"w" * (1 << 20)
    gate = Gate.closed(user, stream)
    stream.copy_from_host(address, host.memory)
    host.give_up()
    assert not host.gone.wait(0.05)
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    assert user.read(address, 1 << 20) == b"w" * (1 << 20)
    assert host.gone.wait(SECONDS)


def test_given_up_by_a_client_that_ends_it_goes(device: Device) -> None:
    user, host = PortUser.on(device), Host(device, 20 << 20)
    stream, address = user.context.create_stream(True, 0), user.context.allocate(20 << 20)
    for _ in range(5):
        stream.copy_from_host(address, host.memory)
        stream.copy_to_host(host.memory, address)
    user.context.destroy()
    host.give_up()
    gc.collect()
    assert host.gone.wait(SECONDS)
    assert PortUser.on(device).synchronize() == Result.SUCCESS


@pytest.mark.needs("maps_host_memory")
def test_kernels_reach_it_by_its_address(user: PortUser, host: Host) -> None:
    for offset in (0, 4096, (16 << 20) - 4, 16 << 20, SIZE - 4):
        user.launch("store", host.address + offset, 0x1234ABCD)
        assert user.synchronize() == Result.SUCCESS
        assert host.memory[offset : offset + 4] == (0x1234ABCD).to_bytes(4, "little")
