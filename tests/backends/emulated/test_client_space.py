"""Lookups of addresses while allocations change."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pympsd_server.backends.emulated.memory.address_space import AddressSpace
from pympsd_server.backends.emulated.memory.bounds import STRICT
from pympsd_server.backends.emulated.ptx.faults import IllegalAddress

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
            space.check(np.array([last, last + 8]), 8)
            with pytest.raises(IllegalAddress):
                space.check(np.array([last, last + 64]), 8)
    finally:
        stop.set()
        thread.join()
    space.close()
