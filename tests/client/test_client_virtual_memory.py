"""Virtual memory management: reserving, creating, mapping, access, sharing between processes, bad input."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.memory.virtual import Reservations
from pympsd_server.backends.emulated.memory.mapped_memory import MAX_MEMORIES
from tests.client.conftest import ok
from tests.client.test_client_managed import make_location
from tests.client.test_client_mapped import kernel, launch
from tests.support.client_kernels import BASIC

R = cuda.CUresult
DONE = (R.CUDA_SUCCESS,)
INVALID = R.CUDA_ERROR_INVALID_VALUE
NOT_SUPPORTED = R.CUDA_ERROR_NOT_SUPPORTED
GRANULE = 2 << 20
DESCRIPTOR = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
BOTH = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NONE = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE


def properties(device: int = 0, shareable: bool = False) -> Any:
    description = cuda.CUmemAllocationProp()
    description.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    description.location = make_location("DEVICE", device)
    if shareable:
        description.requestedHandleTypes = DESCRIPTOR
    return description


def access(flags: Any = BOTH, device: int = 0) -> Any:
    description = cuda.CUmemAccessDesc()
    description.location, description.flags = make_location("DEVICE", device), flags
    return description


def reserve(size: int = GRANULE) -> int:
    return int(ok(cuda.cuMemAddressReserve(size, 0, 0, 0)))


def create(size: int = GRANULE, shareable: bool = False) -> Any:
    return ok(cuda.cuMemCreate(size, properties(shareable=shareable), 0))


def map_memory(size: int = GRANULE, handle: Any = None) -> int:
    """Return where new memory is mapped and accessible."""
    address = reserve(size)
    assert cuda.cuMemMap(address, size, 0, handle or create(size), 0) == DONE, last_error()
    assert cuda.cuMemSetAccess(address, size, [access()], 1) == DONE, last_error()
    return address


def bytes_at(address: int, count: int) -> np.ndarray[Any, Any]:
    back = np.zeros(count, np.uint8)
    assert cuda.cuMemcpyDtoH(back, address, count) == DONE, last_error()
    return back


def test_kernels_fills_and_copies_reach_mapped_memory(context: Any) -> None:
    address = map_memory()
    assert not bytes_at(address, 1000).any()
    assert cuda.cuMemsetD8(address, 7, GRANULE) == DONE
    assert (bytes_at(address, GRANULE) == 7).all()
    data = np.arange(1000, dtype=np.float32)
    assert cuda.cuMemcpyHtoD(address, data, 4000) == DONE
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (1000, ctypes.c_uint32), blocks=4, threads=256)
    assert (bytes_at(address, 4000).view(np.float32) == data + 1).all()


def test_memory_is_the_same_wherever_it_is_mapped(context: Any) -> None:
    handle = create()
    item, other = map_memory(handle=handle), map_memory(handle=handle)
    assert cuda.cuMemsetD8(item, 5, 100) == DONE
    assert (bytes_at(other, 100) == 5).all()
    assert cuda.cuMemUnmap(item, GRANULE) == DONE
    assert cuda.cuMemRelease(handle) == DONE
    assert (bytes_at(other, 100) == 5).all(), "it lives while it is mapped"


def test_neighbouring_mappings_are_one_range(context: Any) -> None:
    address = reserve(3 * GRANULE)
    handles = [create() for _ in range(3)]
    for number in (1, 0, 2):
        assert cuda.cuMemMap(address + number * GRANULE, GRANULE, 0, handles[number], 0) == DONE
    assert cuda.cuMemSetAccess(address + GRANULE, GRANULE, [access()], 1) == DONE
    assert cuda.cuMemSetAccess(address, 3 * GRANULE, [access()], 1) == DONE
    assert cuda.cuMemsetD8(address, 3, 3 * GRANULE) == DONE
    assert (bytes_at(address, 3 * GRANULE) == 3).all()
    assert cuda.cuMemSetAccess(address + GRANULE, GRANULE, [access(NONE)], 1) == DONE
    assert cuda.cuMemcpyDtoH(np.zeros(8, np.uint8), address + GRANULE, 8) == (INVALID,)
    assert cuda.cuMemcpyDtoH(np.zeros(8, np.uint8), address + GRANULE - 4, 8) == (INVALID,)
    assert (bytes_at(address + 2 * GRANULE, 8) == 3).all()
    assert (bytes_at(address, GRANULE) == 3).all()
    assert cuda.cuMemUnmap(address, 3 * GRANULE) == DONE
    assert cuda.cuMemcpyDtoH(np.zeros(8, np.uint8), address, 8) == (INVALID,)
    assert cuda.cuMemAddressFree(address, 3 * GRANULE) == DONE


def test_without_access_a_kernel_faults(context: Any) -> None:
    address = reserve()
    assert cuda.cuMemMap(address, GRANULE, 0, create(), 0) == DONE
    assert int(ok(cuda.cuMemGetAccess(make_location("DEVICE"), address))) == 0
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (1, ctypes.c_uint32))
    assert cuda.cuCtxSynchronize() == (R.CUDA_ERROR_ILLEGAL_ADDRESS,)


def test_without_access_a_copy_or_fill_is_refused_at_the_call(context: Any) -> None:
    address, other = reserve(2 * GRANULE), int(ok(cuda.cuMemAlloc(64)))
    assert cuda.cuMemMap(address, GRANULE, 0, create(), 0) == DONE
    for start in (address, address + GRANULE):  # no access, and nothing mapped
        assert cuda.cuMemsetD8(start, 1, 16) == (INVALID,)
        assert cuda.cuMemcpyDtoDAsync(start, other, 16, 0) == (INVALID,)
        assert cuda.cuMemcpyDtoDAsync(other, start, 16, 0) == (INVALID,)
        assert cuda.cuMemcpyHtoDAsync(start, bytes(16), 16, 0) == (INVALID,)
    assert cuda.cuMemSetAccess(address, GRANULE, [access()], 1) == DONE
    assert cuda.cuMemsetD8(address + GRANULE - 16, 1, 17) == (INVALID,)
    assert cuda.cuMemsetD8(address + GRANULE - 16, 1, 16) == DONE
    assert cuda.cuCtxSynchronize() == DONE


def test_virtual_memory_is_accounted_and_freed(context: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    handle = create(10 * GRANULE)
    assert ok(cuda.cuMemGetInfo())[0] == free - 10 * GRANULE
    address = map_memory(10 * GRANULE, handle)
    assert cuda.cuMemRelease(handle) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == free - 10 * GRANULE, "it is still mapped"
    assert cuda.cuMemUnmap(address, 10 * GRANULE) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == free
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    map_memory(10 * GRANULE)
    create(GRANULE)
    assert cuda.cuCtxDestroy(other) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == free, "what a context created ends with it"
    assert cuda.cuMemCreate(1 << 40, properties(), 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)


def test_the_pieces_of_a_client_are_limited_whatever_its_contexts(context: Any) -> None:
    handles = [create() for _ in range(MAX_MEMORIES - 1)]
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    create()
    assert cuda.cuMemCreate(GRANULE, properties(), 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    assert str(MAX_MEMORIES) in last_error()
    assert cuda.cuCtxDestroy(other) == DONE
    for handle in (*handles, create()):
        assert cuda.cuMemRelease(handle) == DONE


def test_handles_are_counted(context: Any) -> None:
    handle = create()
    address = map_memory(handle=handle)
    assert cuda.cuMemRelease(handle) == DONE
    assert cuda.cuMemRelease(handle) == (INVALID,)
    again = ok(cuda.cuMemRetainAllocationHandle(address + 5))
    assert int(again) == int(handle)
    assert ok(cuda.cuMemGetAllocationPropertiesFromHandle(again)).location.id == 0
    assert cuda.cuMemUnmap(address, GRANULE) == DONE
    assert cuda.cuMemMap(address, GRANULE, 0, again, 0) == DONE
    assert cuda.cuMemRetainAllocationHandle(12345) == (INVALID, None)


def test_granularity_and_attributes(context: Any) -> None:
    for option in cuda.CUmemAllocationGranularity_flags:
        assert ok(cuda.cuMemGetAllocationGranularity(properties(), option)) == GRANULE
    address = map_memory(handle=create(shareable=True))

    def of(name: str) -> Any:
        return ok(
            cuda.cuPointerGetAttribute(getattr(cuda.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}"), address)
        )

    assert (int(of("CONTEXT")), of("RANGE_SIZE"), of("ALLOWED_HANDLE_TYPES")) == (0, GRANULE, int(DESCRIPTOR))
    assert of("ACCESS_FLAGS") == int(BOTH)
    assert int(ok(cuda.cuMemGetAccess(make_location("DEVICE"), address))) == int(BOTH)
    assert int(ok(cuda.cuMemGetAccess(make_location("DEVICE", 1), address))) == 0
    assert cuda.cuMemFree(address) == (INVALID,)
    assert cuda.cuMemFreeAsync(address, 0) == (INVALID,)
    assert (bytes_at(address, 8) == 0).all(), "it is as it was"


def test_a_descriptor_is_imported(context: Any) -> None:
    handle = create(shareable=True)
    address = map_memory(handle=handle)
    assert cuda.cuMemsetD8(address, 9, GRANULE) == DONE
    fd = ok(cuda.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0))
    again = os.dup(fd)
    os.close(fd)
    imported = ok(cuda.cuMemImportFromShareableHandle(again, DESCRIPTOR))
    os.close(again)
    assert int(imported) != int(handle)
    other = map_memory(handle=imported)
    assert (bytes_at(other, 100) == 9).all()
    assert cuda.cuMemRelease(handle) == DONE
    assert cuda.cuMemUnmap(address, GRANULE) == DONE
    assert (bytes_at(other, 100) == 9).all()
    assert cuda.cuMemExportToShareableHandle(create(), DESCRIPTOR, 0) == (INVALID, None)


def test_descriptors_of_anything_else_are_refused(context: Any) -> None:
    for fd in (-1, 0, 9999, 1 << 31):
        assert cuda.cuMemImportFromShareableHandle(fd, DESCRIPTOR) == (INVALID, None)
    forged = os.memfd_create("pympsd-memory-" + "0" * 32)
    assert cuda.cuMemImportFromShareableHandle(forged, DESCRIPTOR) == (INVALID, None)
    os.close(forged)
    handle = create(shareable=True)
    fd = ok(cuda.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0))
    assert cuda.cuMemImportFromShareableHandle(fd, 0) == (INVALID, None)
    assert cuda.cuMemRelease(handle) == DONE
    assert cuda.cuMemImportFromShareableHandle(fd, DESCRIPTOR) == (INVALID, None), "nobody uses it any more"
    os.close(fd)


def test_bad_reservations_are_refused(context: Any) -> None:
    for size, alignment, flags in ((0, 0, 0), (1, 0, 0), (GRANULE + 1, 0, 0), (GRANULE, 3, 0), (GRANULE, 0, 1)):
        assert cuda.cuMemAddressReserve(size, alignment, 0, flags) == (INVALID, None)
    for size, alignment in ((1 << 40, 0), (1 << 63, 0), (GRANULE, 1 << 62)):
        assert cuda.cuMemAddressReserve(size, alignment, 0, 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    first = reserve(4 * GRANULE)
    aligned = int(ok(cuda.cuMemAddressReserve(GRANULE, 1 << 30, 0, 0)))
    assert aligned % (1 << 30) == 0
    assert cuda.cuMemAddressFree(aligned, GRANULE) == DONE
    assert int(ok(cuda.cuMemAddressReserve(GRANULE, 0, aligned, 0))) == aligned, "the address that is asked for"
    assert int(ok(cuda.cuMemAddressReserve(GRANULE, 0, aligned, 0))) != aligned, "unless it is taken"
    for address, size in ((first, GRANULE), (first + GRANULE, GRANULE), (0, GRANULE), (first, 0), (1 << 63, GRANULE)):
        assert cuda.cuMemAddressFree(address, size) == (INVALID,)
    assert cuda.cuMemAddressFree(first, 4 * GRANULE) == DONE
    assert cuda.cuMemAddressFree(first, 4 * GRANULE) == (INVALID,)


def test_bad_memory_is_refused(context: Any) -> None:
    for size in (0, 1, GRANULE + 1, GRANULE - 1):
        assert cuda.cuMemCreate(size, properties(), 0) == (INVALID, None)
    assert cuda.cuMemCreate(GRANULE, None, 0) == (INVALID, None)
    assert cuda.cuMemCreate(GRANULE, properties(), 1) == (INVALID, None)
    assert cuda.cuMemCreate(GRANULE, properties(5), 0) == (R.CUDA_ERROR_INVALID_DEVICE, None)
    assert cuda.cuMemCreate(1 << 63, properties(), 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    fabric = properties()
    fabric.requestedHandleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
    assert cuda.cuMemCreate(GRANULE, fabric, 0) == (NOT_SUPPORTED, None)
    with pytest.raises(TypeError):
        cuda.cuMemCreate(GRANULE, 3, 0)
    for handle in (0, 12345, 1 << 63):
        assert cuda.cuMemRelease(handle) == (INVALID,)
        assert cuda.cuMemGetAllocationPropertiesFromHandle(handle) == (INVALID, None)
        assert cuda.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0) == (INVALID, None)


def test_bad_mappings_are_refused(context: Any) -> None:
    address, handle = reserve(2 * GRANULE), create()
    for start, size, offset in (
        (0, GRANULE, 0), (address + 1, GRANULE, 0), (address, 2 * GRANULE, 0), (address, GRANULE // 2, 0),
        (address, GRANULE, 1), (address + 2 * GRANULE, GRANULE, 0), (address, 0, 0), (1 << 63, GRANULE, 0),
    ):  # fmt: skip
        assert cuda.cuMemMap(start, size, offset, handle, 0) == (INVALID,)
    assert cuda.cuMemMap(address, GRANULE, 0, handle, 1) == (INVALID,)
    assert cuda.cuMemMap(address, GRANULE, 0, 12345, 0) == (INVALID,)
    assert cuda.cuMemMap(address, GRANULE, 0, handle, 0) == DONE
    assert cuda.cuMemMap(address, GRANULE, 0, create(), 0) == (INVALID,)
    assert cuda.cuMemAddressFree(address, 2 * GRANULE) == (INVALID,), "something is mapped there"
    for start, size in ((address, 2 * GRANULE), (address + GRANULE, GRANULE), (address, 0), (0, GRANULE)):
        assert cuda.cuMemSetAccess(start, size, [access()], 1) == (INVALID,)
    for start, size in ((address, 0), (0, GRANULE), (address, GRANULE // 2), (address, 3 * GRANULE)):
        assert cuda.cuMemUnmap(start, size) == (INVALID,)
    assert cuda.cuMemSetAccess(address, GRANULE, [], 0) == (INVALID,)
    assert cuda.cuMemSetAccess(address, GRANULE, [access()], 2) == (INVALID,)
    assert cuda.cuMemSetAccess(address, GRANULE, [access(BOTH, 2)], 1) == (R.CUDA_ERROR_INVALID_VALUE,)
    reading = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    assert cuda.cuMemSetAccess(address, GRANULE, [access(reading)], 1) == (NOT_SUPPORTED,)
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    where = properties(1)
    where.location = make_location("HOST_NUMA", 0)
    foreign = ok(cuda.cuMemCreate(GRANULE, where, 0))
    assert cuda.cuMemMap(address + GRANULE, GRANULE, 0, foreign, 0) == (NOT_SUPPORTED,)
    assert "a device other than" in last_error()
    assert cuda.cuCtxDestroy(elsewhere) == DONE


def test_a_range_may_have_addresses_to_which_nothing_is_mapped(context: Any) -> None:
    """As recorded with an H100."""
    address = reserve(8 * GRANULE)
    for place, count in ((0, 1), (2, 1), (4, 2)):
        at, size = address + place * GRANULE, count * GRANULE
        assert cuda.cuMemMap(at, size, 0, create(size), 0) == DONE
    for place, count in ((4, 1), (5, 1), (0, 5)):
        assert cuda.cuMemUnmap(address + place * GRANULE, count * GRANULE) == (INVALID,)
    for place, count in ((0, 3), (0, 3), (0, 8), (6, 1)):
        assert cuda.cuMemUnmap(address + place * GRANULE, count * GRANULE) == DONE
    assert cuda.cuMemAddressFree(address, 8 * GRANULE) == DONE


def test_mappings_of_a_context_that_was_destroyed_are_unmapped_as_usual(context: Any) -> None:
    """As cuda-samples' memMapIPCDrv does."""
    own = ok(cuda.cuCtxCreate(None, 0, 0))
    address = reserve(4 * GRANULE)
    for index in range(3):
        assert cuda.cuMemMap(address + index * GRANULE, GRANULE, 0, create(), 0) == DONE
    assert cuda.cuCtxDestroy(own) == DONE
    assert cuda.cuMemSetAccess(address, GRANULE, [access()], 1) == (INVALID,)
    assert cuda.cuMemUnmap(address, 4 * GRANULE) == DONE
    assert cuda.cuMemUnmap(address, GRANULE) == DONE
    assert cuda.cuCtxSetCurrent(context) == DONE
    assert cuda.cuMemMap(address + GRANULE, GRANULE, 0, create(), 0) == DONE
    assert cuda.cuMemUnmap(address + GRANULE, 2 * GRANULE) == DONE
    assert cuda.cuMemAddressFree(address, 4 * GRANULE) == DONE


def test_a_device_without_virtual_memory_refuses_it_by_name(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pympsd_client._objects.context import contexts

    entry = contexts[int(context)]
    without = {**entry.device.properties.attributes, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0}
    monkeypatch.setattr(
        entry, "device", evolve(entry.device, properties=evolve(entry.device.properties, attributes=without))
    )
    assert cuda.cuMemAddressReserve(GRANULE, 0, 0, 0) == (NOT_SUPPORTED, None)
    assert last_error().startswith("cuMemAddressReserve: virtual memory management is not supported")


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 4]), st.integers(0, 40)), max_size=40))
def test_reservations_never_overlap(steps: list[tuple[int, int, int]]) -> None:
    table, kept_open = Reservations(8, 40), dict[int, int]()
    for size, alignment, expected in steps:
        if kept_open and expected % 3 == 0:
            start = sorted(kept_open)[expected % len(kept_open)]
            assert not table.free(start, kept_open[start] + 1)
            assert table.free(start, kept_open.pop(start))
            continue
        start = table.reserve(size, alignment, expected)
        if start is None:
            continue
        assert start >= 8
        assert start + size <= 40
        assert start % alignment == 0
        assert all(start >= other + length or other >= start + size for other, length in kept_open.items())
        kept_open[start] = size
        assert table.is_reserved(start, size)


def test_threads_create_and_release_memory_without_a_context(devices: None) -> None:
    """The client opens and closes contexts for it; the locks of both must not wait for each other."""
    created: list[int] = []

    def create_often(device: int) -> None:
        for _ in range(50):
            handle = ok(cuda.cuMemCreate(GRANULE, properties(device), 0))
            assert cuda.cuMemRelease(handle) == DONE
        created.append(device)

    threads = [threading.Thread(target=create_often, args=(device % 2,), daemon=True) for device in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(created) == [0, 0, 1, 1]
