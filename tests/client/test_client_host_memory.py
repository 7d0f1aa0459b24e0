"""Host memory that is mapped by cuMemMap, or that pools of the host have: program, kernels and importers reach it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from pympsd.channel.mapping import map_nothing, unmap
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.context import contexts
from pympsd_client._objects.process import process
from tests.client.conftest import ok
from tests.client.test_client_managed import make_location
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_pinned import view_at
from tests.client.test_client_pool_sharing import allocate, import_again, pass_on, shareable
from tests.client.test_client_pools import Held, get
from tests.client.test_client_virtual_memory import (
    BOTH,
    DESCRIPTOR,
    DONE,
    GRANULE,
    INVALID,
    NONE,
    NOT_SUPPORTED,
    bytes_at,
    properties,
    reserve,
)
from tests.client.test_client_virtual_memory import access as of_device
from tests.support.client_kernels import BASIC

R = cuda.CUresult
P = cuda.CUpointer_attribute
A = cuda.CUdevice_attribute
PLACES = ("HOST", "DEVICE")


def of_host(kind: str = "HOST_NUMA", number: int = 0, is_exported: bool = False) -> Any:
    description = properties(shareable=is_exported)
    description.location = make_location(kind, number)
    return description


def access(kind: str = "HOST", flags: Any = BOTH) -> Any:
    description = cuda.CUmemAccessDesc()
    description.location, description.flags = make_location(kind), flags
    return description


def map_memory(handle: Any) -> int:
    """Return where memory of the host is mapped, for the program and the device."""
    address = reserve()
    assert cuda.cuMemMap(address, GRANULE, 0, handle, 0) == DONE, last_error()
    assert cuda.cuMemSetAccess(address, GRANULE, [access(), of_device()], 2) == DONE, last_error()
    return address


def is_mapped(address: int) -> bool:
    """Return whether this process has memory at an address."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


def test_devices_name_a_node_and_serve_its_memory(context: Any) -> None:
    for name, value in (
        ("HOST_NUMA_ID", 0), ("HOST_NUMA_MEMORY_POOLS_SUPPORTED", 1), ("HOST_MEMORY_POOLS_SUPPORTED", 1),
        ("HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 1), ("HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 1),
    ):  # fmt: skip
        attribute = getattr(A, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if attribute is not None:  # older versions of cuda-bindings have fewer
            assert ok(cuda.cuDeviceGetAttribute(attribute, 0)) == value, name


@pytest.mark.parametrize("kind", ["HOST", "HOST_NUMA"])
def test_program_and_kernels_reach_what_is_mapped(context: Any, kind: str) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    handle = ok(cuda.cuMemCreate(GRANULE, of_host(kind), 0))
    assert ok(cuda.cuMemGetInfo())[0] == free, "it is not the device's"
    address = map_memory(handle)
    memory = view_at(address, 4000).view(np.float32)
    assert not memory.any()
    memory[:] = np.arange(1000)
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (1000, ctypes.c_uint32), blocks=4, threads=256)
    assert cuda.cuCtxSynchronize() == DONE
    assert (memory == np.arange(1000) + 1).all()
    assert cuda.cuMemsetD8(address, 7, 100) == DONE
    assert bytes(memory.view(np.uint8)[:101]) == b"\7" * 100 + bytes([memory.view(np.uint8)[100]])
    assert ok(cuda.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)) == 1, "the host's"
    assert int(ok(cuda.cuMemGetAccess(make_location(kind), address))) == int(BOTH)
    assert ok(cuda.cuMemGetAllocationPropertiesFromHandle(handle)).location.type == make_location(kind).type
    assert cuda.cuMemSetAccess(address, GRANULE, [access(kind, NONE)], 1) == DONE
    assert not is_mapped(address)
    assert int(ok(cuda.cuMemGetAccess(make_location(kind), address))) == 0
    assert (bytes_at(address, 100) == 7).all(), "the device reaches it still"
    assert cuda.cuMemSetAccess(address, GRANULE, [access(kind)], 1) == DONE
    assert view_at(address, 1)[0] == 7
    assert cuda.cuMemUnmap(address, GRANULE) == DONE
    assert not is_mapped(address)
    assert cuda.cuMemRelease(handle) == DONE
    assert cuda.cuMemRelease(handle) == (INVALID,)


def test_a_descriptor_of_a_nodes_memory_is_imported(context: Any) -> None:
    handle = ok(cuda.cuMemCreate(GRANULE, of_host(is_exported=True), 0))
    mine = map_memory(handle)
    fd = ok(cuda.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0))
    theirs = ok(cuda.cuMemImportFromShareableHandle(fd, DESCRIPTOR))
    os.close(fd)
    again = map_memory(theirs)
    view_at(again, 5)[:] = 9
    assert (view_at(mine, 5) == 9).all()
    assert ok(cuda.cuMemGetAllocationPropertiesFromHandle(theirs)).location.type == make_location("HOST_NUMA").type


def test_a_context_takes_its_host_memory_along(context: Any) -> None:
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    address = map_memory(ok(cuda.cuMemCreate(GRANULE, of_host(), 0)))
    pool = ok(cuda.cuMemPoolCreate(pool_at()))
    block = allocate(pool)
    assert is_mapped(address)
    assert is_mapped(block)
    assert cuda.cuCtxDestroy(other) == DONE
    assert not is_mapped(address)
    assert not is_mapped(block)


def test_memory_of_the_host_that_cannot_be(context: Any) -> None:
    for size in (0, 1, GRANULE + 1):
        assert cuda.cuMemCreate(size, of_host(), 0) == (INVALID, None)
    for size in (1 << 46, 1 << 63):
        assert cuda.cuMemCreate(size, of_host(), 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None), "more than the machine has"
    assert cuda.cuMemCreate(GRANULE, of_host(number=1), 0) == (INVALID, None)
    assert "HOST_NUMA_ID" in last_error()
    assert cuda.cuMemCreate(GRANULE, of_host("HOST_NUMA_CURRENT"), 0) == (INVALID, None)
    assert cuda.cuMemCreate(GRANULE, of_host("HOST", is_exported=True), 0) == (INVALID, None)
    handle = ok(cuda.cuMemCreate(GRANULE, of_host(), 0))
    assert cuda.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0) == (INVALID, None), "it was not created so"
    address = map_memory(handle)
    reading = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    assert cuda.cuMemSetAccess(address, GRANULE, [access(flags=reading)], 1) == (NOT_SUPPORTED,)
    assert cuda.cuMemSetAccess(address, GRANULE, [access("HOST_NUMA_CURRENT")], 1) == (INVALID,)
    device = reserve()
    assert cuda.cuMemMap(device, GRANULE, 0, ok(cuda.cuMemCreate(GRANULE, properties(), 0)), 0) == DONE
    for kind in ("HOST", "HOST_NUMA"):
        assert cuda.cuMemSetAccess(device, GRANULE, [access(kind)], 1) == (INVALID,)


def occupy(address: int) -> Callable[[], None]:
    """Have the program use a page at an address; return what frees it."""
    assert map_nothing(mmap.PAGESIZE, address) == address
    return lambda: unmap(address, mmap.PAGESIZE)


def test_addresses_that_the_program_uses_are_not_taken_over(context: Any) -> None:
    handle, address = ok(cuda.cuMemCreate(GRANULE, of_host(), 0)), reserve()
    assert cuda.cuMemMap(address, GRANULE, 0, handle, 0) == DONE
    free = occupy(address)
    assert cuda.cuMemSetAccess(address, GRANULE, [access()], 1) == (R.CUDA_ERROR_OUT_OF_MEMORY,)
    assert f"{address:#x}" in last_error()
    assert cuda.cuMemUnmap(address, GRANULE) == DONE
    assert is_mapped(address), "the program's own"
    free()


@pytest.mark.parametrize("kind", ["HOST", "HOST_NUMA"])
def test_a_device_without_host_memory_pools_refuses_them(
    context: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lacking = dict.fromkeys((f"{kind}_MEMORY_POOLS_SUPPORTED", "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"), 0)
    devices = tuple(
        evolve(item, properties=evolve(item.properties, attributes={**item.properties.attributes, **lacking}))
        for item in process.require().devices
    )
    entry = contexts[int(context)]
    monkeypatch.setattr(entry, "device", devices[entry.device.number])
    monkeypatch.setattr(process.connection, "devices", devices)
    assert cuda.cuMemPoolCreate(pool_at(kind)) == (NOT_SUPPORTED, None)
    assert f"{kind}_MEMORY_POOLS_SUPPORTED is 0" in last_error()
    assert cuda.cuMemCreate(GRANULE, of_host(kind), 0) == (NOT_SUPPORTED, None)


def test_a_chunk_that_cannot_be_mapped_leaves_nothing(context: Any) -> None:
    pool = ok(cuda.cuMemPoolCreate(pool_at()))
    first = reserve()
    assert cuda.cuMemAddressFree(first, GRANULE) == DONE
    taken = occupy(first)
    assert cuda.cuMemAllocFromPoolAsync(100, pool, 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    taken()
    assert allocate(pool) == first, "addresses and memory are free again"


def pool_at(kind: str = "HOST_NUMA", number: int = 0) -> Any:
    description = shareable()
    description.location = make_location(kind, number)
    return description


def test_a_pool_of_a_node_is_imported(context: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    pool = ok(cuda.cuMemPoolCreate(pool_at()))
    block = allocate(pool)
    view_at(block, 4000)[:] = 3
    assert ok(cuda.cuMemGetInfo())[0] == free, "it is not the device's"
    theirs = import_again(pool)
    place = pass_on(theirs, block)
    assert place != block
    assert (view_at(place, 4000) == 3).all()
    view_at(place, 4000).view(np.float32)[:] = 1
    launch(kernel(BASIC, b"add_one"), (place, ctypes.c_uint64), (1000, ctypes.c_uint32), blocks=4, threads=256)
    assert cuda.cuCtxSynchronize() == DONE
    assert (view_at(block, 4000).view(np.float32) == 2).all()
    for address in (block, place):
        assert ok(cuda.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)) == 1
        assert ok(cuda.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_HOST_POINTER, address)) == address
    assert get(pool, "LOCATION_TYPE") == get(theirs, "LOCATION_TYPE") == int(make_location("HOST_NUMA").type)
    assert int(ok(cuda.cuMemPoolGetAccess(pool, make_location("HOST_NUMA")))) == 3
    assert cuda.cuMemFree(block) == DONE
    assert cuda.cuMemPoolTrimTo(pool, 0) == DONE
    assert not is_mapped(block)
    assert (view_at(place, 4000).view(np.float32) == 2).all(), "it lives while it is imported"
    assert cuda.cuMemFree(place) == DONE
    assert not is_mapped(place)


def test_pools_of_the_host_that_cannot_be(context: Any) -> None:
    assert cuda.cuMemPoolCreate(pool_at("HOST")) == (INVALID, None), "it is not exported"
    assert cuda.cuMemPoolCreate(pool_at("HOST_NUMA_CURRENT")) == (INVALID, None)
    for number in (-1, 1, 1 << 30):
        assert cuda.cuMemPoolCreate(pool_at(number=number)) == (INVALID, None)
    pool = ok(cuda.cuMemPoolCreate(pool_at()))
    assert cuda.cuMemAllocFromPoolAsync(1 << 63, pool, 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    of_a_device = ok(cuda.cuMemPoolCreate(shareable()))
    exported = ok(cuda.cuMemPoolExportPointer(allocate(of_a_device)))
    assert cuda.cuMemPoolImportPointer(import_again(pool), exported) == (INVALID, None), "another pool's"


def memory_of(kind: str) -> tuple[int, int]:
    """Return where the program and where kernels have new memory of a kind."""
    if kind == "registered":
        own = map_nothing(4096)
        assert cuda.cuMemHostRegister(own, 4096, 2) == DONE
        return own, int(ok(cuda.cuMemHostGetDevicePointer(own, 0)))
    if kind == "mapped":
        address = map_memory(ok(cuda.cuMemCreate(GRANULE, of_host(), 0)))
    elif kind == "managed":
        address = int(ok(cuda.cuMemAllocManaged(4096, 1)))
    else:
        address = allocate(ok(cuda.cuMemPoolCreate(pool_at())), 4096)
    return address, address


@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize("kind", ["managed", "pool", "mapped", "registered"])
def test_a_copy_from_it_comes_after_the_streams_earlier_work(context: Any, kind: str, has_rows: bool) -> None:
    (mine, theirs), device, kept_open = memory_of(kind), ok(cuda.cuMemAlloc(8192)), Held()
    assert cuda.cuMemsetD8Async(theirs, 7, 4096, kept_open.stream) == DONE
    if has_rows:
        rows = cuda.CUDA_MEMCPY2D()
        rows.srcMemoryType, rows.dstMemoryType = (getattr(cuda.CUmemorytype, f"CU_MEMORYTYPE_{to}") for to in PLACES)
        rows.srcHost, rows.dstDevice, rows.srcPitch, rows.dstPitch = mine, device, 64, 64
        rows.WidthInBytes, rows.Height = 64, 64
        assert cuda.cuMemcpy2DAsync(rows, kept_open.stream) == DONE
    else:
        assert cuda.cuMemcpyHtoDAsync(device, mine, 4096, kept_open.stream) == DONE
    kept_open.let_go()
    assert cuda.cuStreamSynchronize(kept_open.stream) == DONE
    assert (bytes_at(int(device), 4096) == 7).all()
    view_at(mine, 4096)[:] = 8
    assert cuda.cuMemcpyHtoD(device, mine + 96, 4000) == DONE
    assert (bytes_at(int(device), 4000) == 8).all()
    other = ok(cuda.cuCtxCreate(None, 0, 1))
    elsewhere = ok(cuda.cuMemAlloc(4096))
    assert cuda.cuMemcpyHtoD(elsewhere, mine, 4096) == DONE, "its device does not reach it"
    assert (bytes_at(int(elsewhere), 4096) == 8).all()
    assert cuda.cuCtxDestroy(other) == DONE
    if kind == "registered":
        assert cuda.cuMemHostUnregister(mine) == DONE
        unmap(mine, 4096)
