"""Lookups of addresses while allocations change."""

from __future__ import annotations

import errno
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.device import EmulatedDevice
from pympsd_server.backends.emulated.memory import address_space
from pympsd_server.backends.emulated.memory.address_space import STRICT, AddressSpace
from pympsd_server.backends.emulated.memory.peer_windows import Range
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.backends.virtual_memory import File
from pympsd_server.ptx.isa.faults import IllegalAddress
from tests.backends.contract.pinned_memory import PinnedMemory

BASE = 0x6000_0000_0000


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty")
def test_a_lookup_never_sees_half_a_change() -> None:
    space, stop = AddressSpace(BASE, 1 << 26), threading.Event()
    space.bounds = STRICT
    held = [space.allocate(64) for _ in range(100)]
    for address in held[:50:2]:
        space.free(address)
    last = held[-1] - BASE

    def change() -> None:
        while not stop.is_set():
            for address in [space.allocate(64) for _ in range(20)]:
                space.free(address)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3000):
            assert space.contains(last, last + 64)
            assert not space.contains(last, last + 128)
        for _ in range(300):
            space.locate(np.array([last, last + 8]), 8, 8)
            with pytest.raises(IllegalAddress):
                space.locate(np.array([last, last + 64]), 8, 8)
    finally:
        stop.set()
        thread.join()
    space.close()


@pytest.mark.parametrize("is_freed", [False, True])
def test_a_lookup_searches_again_if_the_ranges_have_moved(is_freed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may allocate or free between the search and the use of its result."""
    space = AddressSpace(BASE, 1 << 20)
    first, second, _ = (space.allocate(512) for _ in range(3))
    if not is_freed:
        space.free(first)
    changes = [partial(space.free, first) if is_freed else partial(space.allocate, 512)]

    def search(ranges: list[Range], item: Range) -> int:
        at = bisect_right(ranges, item)
        while changes:
            changes.pop()()
        return at

    monkeypatch.setattr(address_space, "bisect_right", search)
    assert space.find(second + 8) == (second, 512)
    assert not changes
    monkeypatch.undo()
    space.close()


@pytest.mark.parametrize("model", ["H200", "P100"])
def test_a_client_whose_host_memory_cannot_be_mapped_is_not_counted(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ignore(status: Status) -> None:
        """Nothing faults here."""

    attach, attached = AddressSpace.attach, list[int]()

    def attach_once(space: AddressSpace, address: int, memory: memoryview, file: File) -> None:
        if attached:
            raise OSError(errno.ENOMEM, "no memory")
        attached.append(address)
        attach(space, address, memory, file)

    device = EmulatedDevice(describe(model)[0], 0)
    pieces = [PinnedMemory(device, 4096) for _ in range(2)]
    try:
        with monkeypatch.context() as patch:
            patch.setattr(AddressSpace, "attach", attach_once)
            with pytest.raises(BackendError) as refused:
                device.create_context(1, Quota(0, 0, 0), ignore)
        assert refused.value.code == Result.ERROR_OUT_OF_MEMORY
        assert device.memory_used == {}
        context = device.create_context(1, Quota(0, 0, 0), ignore)
        free = context.memory_info()
        context.destroy()
        assert device.memory_used == {}
        context = device.create_context(1, Quota(0, 0, 0), ignore)
        assert context.memory_info() == free
        context.destroy()
    finally:
        for piece in pieces:
            piece.unregister()
        device.close()
