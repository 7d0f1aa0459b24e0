"""Page-locked host memory: shared with the executor, copied by its device, and the bound it has before Volta."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.channel.mapping import map_nothing, unmap
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._objects.memory.pinned import Pinned, is_memory, pinned
from tests.client.conftest import ok

COUNT = 100_000
INVALID = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
PAGE = mmap.PAGESIZE


def view_at(address: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    """The bytes at an address, as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


@pytest.fixture
def host(context: Any) -> Any:
    """Page-locked memory of COUNT bytes."""
    address = ok(cuda.cuMemAllocHost(COUNT))
    yield address
    if pinned.region_at(address) is not None:
        ok((*cuda.cuMemFreeHost(address), None))


def test_copies_read_and_write_pinned_memory(host: int) -> None:
    device_memory = ok(cuda.cuMemAlloc(COUNT))
    memory = view_at(host)
    assert not memory.any()
    memory[:] = np.arange(COUNT) % 251
    assert cuda.cuMemcpyHtoDAsync(device_memory, host, COUNT, 0) == (cuda.CUresult.CUDA_SUCCESS,)
    assert cuda.cuMemcpyDtoHAsync(host, device_memory, COUNT, 0) == (cuda.CUresult.CUDA_SUCCESS,)
    back = np.zeros(COUNT, np.uint8)
    assert cuda.cuMemcpyDtoH(back, device_memory, COUNT) == (cuda.CUresult.CUDA_SUCCESS,)
    assert (back == memory).all()
    assert (back == np.arange(COUNT) % 251).all()


def test_unified_addressing_copies_either_way(host: int) -> None:
    device_memory, other = ok(cuda.cuMemAlloc(COUNT)), ok(cuda.cuMemHostAlloc(COUNT, 1))
    view_at(host)[:] = np.arange(COUNT) % 253
    assert cuda.cuMemcpy(device_memory, host, COUNT) == (cuda.CUresult.CUDA_SUCCESS,)
    assert cuda.cuMemcpyAsync(other, device_memory, COUNT, 0) == (cuda.CUresult.CUDA_SUCCESS,)
    assert cuda.cuStreamSynchronize(0) == (cuda.CUresult.CUDA_SUCCESS,)
    assert (view_at(other) == np.arange(COUNT) % 253).all()
    view_at(host)[:] = 7
    assert cuda.cuMemcpy(other, host, COUNT) == (cuda.CUresult.CUDA_SUCCESS,)
    assert (view_at(other) == 7).all()
    assert cuda.cuMemcpy(device_memory, host + 1, COUNT) == (INVALID,)
    assert "not all within page-locked memory" in last_error()
    assert cuda.cuMemFreeHost(other) == (cuda.CUresult.CUDA_SUCCESS,)


@pytest.mark.usefixtures("context")
def test_it_ends_with_the_context_in_which_it_was_allocated_or_registered(host: int) -> None:
    """As on an H200."""
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    address, registered = ok(cuda.cuMemAllocHost(COUNT)), np.zeros(COUNT, np.uint8)
    ok(cuda.cuMemHostRegister(registered, COUNT, 2))
    ok(cuda.cuCtxDestroy(other))
    assert not is_memory(address, 1)
    assert cuda.cuMemFreeHost(address) == (INVALID,)
    assert not view_at(host).any(), "the memory of another context stays"
    not_registered = cuda.CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    assert cuda.cuMemHostUnregister(registered) == (not_registered,)
    ok(cuda.cuMemHostRegister(registered, COUNT, 2))
    ok(cuda.cuMemHostUnregister(registered))


@pytest.mark.parametrize(("size", "number"), [(PAGE, 20), (16 << 20, 3)])
def test_pinned_memory_lies_elsewhere_than_the_programs_own(host: int, size: int, number: int) -> None:
    """The program may have mapped anything, here pages at the addresses that the executor would give next."""
    start, own = host + (1 << 20), 8 << 20
    assert map_nothing(own, start) == start
    try:
        for _ in range(number):
            address = ok(cuda.cuMemAllocHost(size))
            assert address + size <= start or address >= start + own
            view_at(address)[:PAGE] = 5
    finally:
        unmap(start, own)


def test_sizes_flags_and_addresses_are_checked(host: int) -> None:
    assert int(ok(cuda.cuMemAllocHost(0))) == int(ok(cuda.cuMemHostAlloc(0, 0))) == 0
    assert cuda.cuMemHostAlloc(8, 8) == (INVALID, None)
    assert cuda.cuMemAllocHost(1 << 62) == (cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    assert cuda.cuMemFreeHost(host + 1) == (INVALID,)
    assert cuda.cuMemFreeHost(host) == (cuda.CUresult.CUDA_SUCCESS,)
    assert cuda.cuMemFreeHost(host) == (INVALID,)
    assert cuda.cuMemFreeHost(0) == (cuda.CUresult.CUDA_SUCCESS,)


def test_flags_are_those_it_was_allocated_with(host: int) -> None:
    flagged = ok(cuda.cuMemHostAlloc(PAGE, 1 | 2 | 4))
    assert ok(cuda.cuMemHostGetFlags(flagged + PAGE - 1)) == 7
    assert ok(cuda.cuMemHostGetFlags(host)) == 0
    assert cuda.cuMemFreeHost(flagged) == (cuda.CUresult.CUDA_SUCCESS,)
    assert cuda.cuMemHostGetFlags(flagged) == (INVALID, None)


def test_memory_of_the_program_is_registered_and_unregistered(context: Any) -> None:
    array = np.arange(COUNT, dtype=np.uint8)
    address = array.ctypes.data
    assert cuda.cuMemHostRegister(array, COUNT, 1) == (cuda.CUresult.CUDA_SUCCESS,)
    for again in (address, address + COUNT - 1):
        already = cuda.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        assert cuda.cuMemHostRegister(again, 1, 0) == (already,)
    device_memory = ok(cuda.cuMemAlloc(COUNT))
    assert cuda.cuMemcpy(device_memory, address, COUNT) == (cuda.CUresult.CUDA_SUCCESS,)
    assert cuda.cuMemFreeHost(address) == (INVALID,)
    assert ok(cuda.cuMemHostGetFlags(address)) == 1
    not_registered = cuda.CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    assert cuda.cuMemHostUnregister(address + 1) == (INVALID,)
    assert cuda.cuMemHostUnregister(address - 1) == (not_registered,)
    assert cuda.cuMemHostUnregister(address) == (cuda.CUresult.CUDA_SUCCESS,)
    assert cuda.cuMemHostUnregister(address) == (not_registered,)


def test_what_cannot_be_registered_is_refused(context: Any) -> None:
    array = np.zeros(COUNT, np.uint8)
    assert cuda.cuMemHostRegister(array, COUNT + 1, 0) == (INVALID,)
    assert cuda.cuMemHostRegister(0, 8, 0) == (INVALID,)
    assert cuda.cuMemHostRegister(array, 0, 0) == (INVALID,)
    assert cuda.cuMemHostRegister(array, 8, 16) == (INVALID,)
    for flag in (4, 8):
        assert cuda.cuMemHostRegister(array, 8, flag) == (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED,)
    pages = mmap.mmap(-1, 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    pages.close()
    assert cuda.cuMemHostRegister(address, PAGE, 0) == (INVALID,)
    assert "not all memory of this process" in last_error()
    assert cuda.cuMemHostRegister((1 << 64) - 8, 8, 0) == (INVALID,)


def test_pinned_memory_is_unbounded_from_volta_on(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_shared_memory", "/no such folder")
    address = ok(cuda.cuMemAllocHost(COUNT))
    assert cuda.cuMemFreeHost(address) == (cuda.CUresult.CUDA_SUCCESS,)


# --- the bound


class PagesOfOurOwn:
    """Pages that no executor has."""

    transport = None

    def __init__(self, size: int) -> None:
        self._pages = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.close = self._pages.close
        self.device = SimpleNamespace(ordinal=0)


def allocate(table: Pinned, size: int, *, bounded: bool) -> int:
    """Allocate without an executor."""
    return table.allocate(size, 0, bounded, PagesOfOurOwn)  # type: ignore[arg-type]


def size_of(path: Path) -> int:
    """The size of the file system that a path is on."""
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


def test_the_bound_is_the_size_of_the_file_system(tmp_path: Path) -> None:
    table = Pinned(str(tmp_path))
    size = size_of(tmp_path)
    with pytest.raises(CudaError) as caught:
        allocate(table, size + 1, bounded=True)
    assert caught.value.code == 2
    assert f"{tmp_path} has: {size} bytes" in caught.value.reason
    small = allocate(table, 1, bounded=True)
    with pytest.raises(CudaError, match=f"with {PAGE} in use"):
        allocate(table, size, bounded=True)
    table.free(small)


def test_registered_memory_counts_too(tmp_path: Path) -> None:
    table = Pinned(str(tmp_path / "no such folder"))
    array = np.zeros(COUNT, np.uint8)
    with pytest.raises(CudaError, match="has: 0 bytes"):
        table.register(array.ctypes.data, COUNT, 0, bounded=True)
    with pytest.raises(CudaError, match="has: 0 bytes"):
        allocate(table, 1, bounded=True)
    table.register(array.ctypes.data, COUNT, 0, bounded=False)


@given(st.lists(st.tuples(st.sampled_from(["allocate", "register", "free"]), st.integers(1, 6 * PAGE)), max_size=30))
def test_the_sum_never_exceeds_the_bound_and_what_is_freed_counts_again(steps: list[tuple[str, int]]) -> None:
    bound = 8 * PAGE
    table = Pinned()
    table._size = lambda: bound  # type: ignore[method-assign]
    block = mmap.mmap(-1, 64 * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(block))
    kept_open: dict[int, tuple[str, int]] = {}
    for kind, size in steps:
        pages = -(-size // PAGE) * PAGE
        used = sum(cost for _, cost in kept_open.values())
        if kind == "free" and kept_open:
            address, (how, _) = kept_open.popitem()
            (table.free if how == "allocate" else table.unregister)(address)
            continue
        if kind == "free":
            continue
        address = next(base + 6 * PAGE * n for n in range(10) if base + 6 * PAGE * n not in kept_open)
        refused = False
        try:
            if kind == "allocate":
                address = allocate(table, size, bounded=True)
            else:
                table.register(address, size, 0, bounded=True)
            kept_open[address] = (kind, pages)
        except CudaError:
            refused = True
        assert refused == (used + pages > bound)
    for address, (how, _) in kept_open.items():
        (table.free if how == "allocate" else table.unregister)(address)
