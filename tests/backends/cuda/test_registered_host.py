"""Page-locked memory of clients: registered in parts, copied part by part, unregistered whole; with a fake driver."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.memory.address_ranges import REGISTERED_BYTES, split_at_registered_parts
from pympsd_server.backends.cuda.memory.staging import RegisteredMemory
from pympsd_server.backends.interface import BackendError


@given(st.integers(0, 1 << 47), st.integers(0, 5 * REGISTERED_BYTES))
def test_parts_cover_a_range_and_end_where_registrations_do(address: int, count: int) -> None:
    at = address
    for offset, start, length in split_at_registered_parts(address, count):
        assert (offset, start) == (at - address, at)
        assert 0 < length <= REGISTERED_BYTES
        assert start // REGISTERED_BYTES == (start + length - 1) // REGISTERED_BYTES
        at += length
    assert at == address + count


@given(
    st.integers(0, 1 << 20), st.integers(1, 4 * REGISTERED_BYTES), st.integers(0, 1 << 30), st.integers(1, 1 << 26)
)
def test_every_part_of_a_copy_lies_in_one_registration(base: int, size: int, offset: int, count: int) -> None:
    start = base * mmap.PAGESIZE
    offset %= size
    count = min(count, size - offset)
    registered = [(at, at + length) for _, at, length in split_at_registered_parts(start, size)]
    for _, at, length in split_at_registered_parts(start + offset, count):
        assert any(low <= at and at + length <= high for low, high in registered)


@define
class RegisteringDriver:
    """Records registrations; refuses the one with this number."""

    refuses: int = -1
    registered: dict[int, int] = field(factory=dict)
    calls: int = 0

    def call(self, function: Callable[..., Any], *arguments: int) -> None:
        """Do what cuMemHostRegister and cuMemHostUnregister do."""
        if function.__name__ == "cuMemHostUnregister":
            del self.registered[arguments[0]]
            return
        assert function.__name__ == "cuMemHostRegister"
        address, length, flags = arguments
        assert flags == 3, "for all contexts, and mapped for kernels"
        if self.calls == self.refuses:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, "no more")
        self.calls += 1
        self.registered[address] = length


def pages(size: int) -> tuple[int, memoryview]:
    """Return the address of some memory, and the memory."""
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    return int(memory.ctypes.data), memory.data


def test_all_parts_are_registered_and_unregistered() -> None:
    driver, (address, memory) = RegisteringDriver(), pages(3 * REGISTERED_BYTES)
    pinned = RegisteredMemory(driver, address, memory)  # type: ignore[arg-type]
    pinned.register()
    assert sum(driver.registered.values()) == 3 * REGISTERED_BYTES
    assert len(driver.registered) in (3, 4)
    pinned.release()
    assert driver.registered == {}


@pytest.mark.parametrize("refuses", [0, 2])
def test_parts_registered_before_a_refusal_are_unregistered(refuses: int) -> None:
    driver, (address, memory) = RegisteringDriver(refuses), pages(4 * REGISTERED_BYTES)
    pinned = RegisteredMemory(driver, address, memory)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="no more"):
        pinned.register()
    assert len(driver.registered) == refuses
    pinned.release()
    assert driver.registered == {}


def test_memory_that_the_system_lacks_is_refused_without_a_driver_call() -> None:
    driver, (address, memory) = RegisteringDriver(), pages(mmap.PAGESIZE)
    pinned = RegisteredMemory(driver, 1 << 20, memory)  # type: ignore[arg-type]  # where nothing is mapped
    with pytest.raises(BackendError, match="page-locked memory"):
        pinned.register()
    assert driver.calls == 0
    assert address
