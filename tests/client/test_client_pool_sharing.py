"""Pools between processes, at their ends: descriptors, data, errors, counting. Two processes: tests/routing."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.process import process
from tests.client.conftest import ok
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_pools import Held, get, keep, properties
from tests.client.test_client_virtual_memory import bytes_at
from tests.support.client_kernels import BASIC

A = cuda.CUmemPool_attribute
P = cuda.CUpointer_attribute
R = cuda.CUresult
DONE = (R.CUDA_SUCCESS,)
INVALID = R.CUDA_ERROR_INVALID_VALUE
NOT_SUPPORTED = R.CUDA_ERROR_NOT_SUPPORTED
DESCRIPTOR = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
MIB = 1 << 20


def shareable(device: int = 0, most: int = 0) -> Any:
    description = properties(device, most)
    description.handleTypes = DESCRIPTOR
    return description


@pytest.fixture
def pool(context: Any) -> Any:
    return ok(cuda.cuMemPoolCreate(shareable()))


def import_again(pool: Any) -> Any:
    """Return the pool as another process imports it; this one can, too."""
    fd = ok(cuda.cuMemPoolExportToShareableHandle(pool, DESCRIPTOR, 0))
    try:
        return ok(cuda.cuMemPoolImportFromShareableHandle(fd, DESCRIPTOR, 0))
    finally:
        os.close(fd)


def allocate(pool: Any, size: int = 4000) -> int:
    return int(ok(cuda.cuMemAllocFromPoolAsync(size, pool, 0)))


def pass_on(pool: Any, address: int) -> int:
    """Return where an allocation is in an imported pool."""
    return int(ok(cuda.cuMemPoolImportPointer(pool, ok(cuda.cuMemPoolExportPointer(address)))))


def test_an_imported_allocation_is_the_same(pool: Any) -> None:
    theirs = import_again(pool)
    data = np.arange(1000, dtype=np.float32)
    first, second = allocate(pool), allocate(pool)
    assert cuda.cuMemcpyHtoD(second, data, 4000) == DONE
    place, neighbour = pass_on(theirs, second), pass_on(theirs, first)
    assert place not in (first, second)
    assert place - neighbour == second - first, "a chunk is mapped once"
    launch(kernel(BASIC, b"add_one"), (place, ctypes.c_uint64), (1000, ctypes.c_uint32), blocks=4, threads=256)
    assert (bytes_at(second, 4000).view(np.float32) == data + 1).all()
    assert [int(item) for item in ok(cuda.cuMemGetAddressRange(place + 9))] == [place, 4000]
    assert pass_on(theirs, second) == place, "it is counted"
    assert cuda.cuMemFree(place) == DONE
    assert (bytes_at(place, 4000).view(np.float32) == data + 1).all()
    assert cuda.cuMemFree(place) == DONE
    assert cuda.cuMemFree(place) == (INVALID,)
    assert cuda.cuMemFreeAsync(neighbour, 0) == DONE
    assert (bytes_at(second, 4000).view(np.float32) == data + 1).all()


def test_what_is_freed_stays_while_it_is_imported(pool: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    theirs = import_again(pool)
    mine = allocate(pool, 2 * MIB)
    assert ok(cuda.cuMemGetInfo())[0] == free - 2 * MIB
    assert cuda.cuMemsetD8(mine, 7, 2 * MIB) == DONE
    place = pass_on(theirs, mine)
    assert ok(cuda.cuMemGetInfo())[0] == free - 2 * MIB, "it is charged once"
    assert cuda.cuMemFree(mine) == DONE
    assert cuda.cuMemPoolTrimTo(pool, 0) == DONE
    assert get(pool, "RESERVED_MEM_CURRENT") == 0
    assert ok(cuda.cuMemGetInfo())[0] == free - 2 * MIB
    assert (bytes_at(place, 100) == 7).all()
    assert cuda.cuMemFree(place) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == free


def test_freed_in_order_it_stays_until_the_stream_comes_there(pool: Any) -> None:
    theirs = import_again(pool)
    mine = allocate(pool)
    place = pass_on(theirs, mine)
    kept_open = Held()
    assert cuda.cuMemsetD8Async(place, 5, 4000, kept_open.stream) == DONE
    assert cuda.cuMemFreeAsync(place, kept_open.stream) == DONE
    assert cuda.cuMemFreeAsync(place, kept_open.stream) == (INVALID,)
    assert not bytes_at(mine, 4000).any()
    kept_open.let_go()
    assert cuda.cuStreamSynchronize(kept_open.stream) == DONE
    assert (bytes_at(mine, 4000) == 5).all()
    assert cuda.cuMemcpyDtoH(np.zeros(8, np.uint8), place, 8) == (INVALID,), "it is unmapped"
    again = pass_on(theirs, mine)
    other = ok(cuda.cuStreamCreate(1))
    assert cuda.cuMemFreeAsync(again, other) == DONE
    assert cuda.cuStreamDestroy(other) == DONE
    assert cuda.cuCtxSynchronize() == DONE
    assert cuda.cuMemcpyDtoH(np.zeros(8, np.uint8), again, 8) == (INVALID,)


def test_pools_grow_and_shrink_as_others_do(pool: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    keep(pool)
    blocks = [allocate(pool, 3 * MIB) for _ in range(4)]
    for number, address in enumerate(blocks):
        assert cuda.cuMemsetD8(address, number, 3 * MIB) == DONE
    assert [int(bytes_at(address, 1)[0]) for address in blocks] == [0, 1, 2, 3]
    for address in blocks:
        assert cuda.cuMemFreeAsync(address, 0) == DONE
    assert cuda.cuCtxSynchronize() == DONE
    assert allocate(pool, 3 * MIB) == blocks[0]
    assert cuda.cuMemPoolTrimTo(pool, 0) == DONE
    assert cuda.cuMemFree(blocks[0]) == DONE
    assert cuda.cuMemPoolDestroy(pool) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == free
    small = ok(cuda.cuMemPoolCreate(shareable(most=2 * MIB)))
    assert cuda.cuMemAllocFromPoolAsync(3 * MIB, small, 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    assert cuda.cuMemAllocFromPoolAsync(1 << 37, small, 0) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)


def test_contexts_end_with_what_they_imported(pool: Any) -> None:
    mine = allocate(pool)
    theirs = import_again(pool)
    exported = ok(cuda.cuMemPoolExportPointer(mine))
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    place = int(ok(cuda.cuMemPoolImportPointer(theirs, exported)))
    owned = allocate(pool)
    assert cuda.cuCtxDestroy(other) == DONE
    assert cuda.cuMemFree(place) == (INVALID,)
    assert cuda.cuMemFree(owned) == (INVALID,)
    place = int(ok(cuda.cuMemPoolImportPointer(theirs, exported)))
    assert cuda.cuMemPoolDestroy(theirs) == DONE
    assert not bytes_at(place, 8).any(), "what was imported stays"
    assert cuda.cuMemPoolImportPointer(theirs, exported) == (INVALID, None)
    assert cuda.cuMemFree(place) == DONE


def test_attributes_of_memory_need_no_context(pool: Any) -> None:
    mine = allocate(pool)
    place = pass_on(import_again(pool), mine)
    plain = int(ok(cuda.cuMemAlloc(100)))
    assert cuda.cuCtxPopCurrent()[0] == R.CUDA_SUCCESS
    for address in (mine, place):
        for name, value in (("CONTEXT", 0), ("DEVICE_ORDINAL", 0), ("RANGE_SIZE", 4000), ("MEMORY_TYPE", 2)):
            assert int(ok(cuda.cuPointerGetAttribute(getattr(P, f"CU_POINTER_ATTRIBUTE_{name}"), address))) == value
    types = P.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
    assert ok(cuda.cuPointerGetAttribute(types, mine)) == int(DESCRIPTOR)
    capable = P.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
    assert ok(cuda.cuPointerGetAttributes(1, [capable], plain)) == [True]
    assert ok(cuda.cuPointerGetAttributes(1, [capable], mine)) == [False]
    assert cuda.cuPointerGetAttribute(types, plain) == (R.CUDA_ERROR_INVALID_CONTEXT, None)


def test_devices_report_the_handle_types_of_pools(pool: Any) -> None:
    attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
    assert ok(cuda.cuDeviceGetAttribute(attribute, 0)) == int(DESCRIPTOR)
    if hasattr(A, "CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES"):
        assert get(pool, "EXPORT_HANDLE_TYPES") == int(DESCRIPTOR)
    theirs = import_again(pool)
    assert get(theirs, "RESERVED_MEM_CURRENT") == 0
    assert cuda.cuMemPoolTrimTo(theirs, 0) == DONE


def test_wrong_exports_and_imports_of_pools_are_refused(pool: Any) -> None:
    plain = ok(cuda.cuMemPoolCreate(properties()))
    assert cuda.cuMemPoolExportToShareableHandle(plain, DESCRIPTOR, 0) == (INVALID, None)
    assert cuda.cuMemPoolExportToShareableHandle(0, DESCRIPTOR, 0) == (INVALID, None)
    assert cuda.cuMemPoolExportToShareableHandle(pool, DESCRIPTOR, 1) == (INVALID, None)
    assert cuda.cuMemPoolExportToShareableHandle(pool, 2, 0) == (INVALID, None)
    fd = ok(cuda.cuMemPoolExportToShareableHandle(pool, DESCRIPTOR, 0))
    forged = os.memfd_create("pympsd-pool-" + "0" * 32 + "-77")
    for bad, kind, flags in ((-1, 1, 0), (0, 1, 0), (9999, 1, 0), (forged, 1, 0), (fd, 0, 0), (fd, 1, 1)):
        assert cuda.cuMemPoolImportFromShareableHandle(bad, kind, flags) == (INVALID, None)
    theirs = ok(cuda.cuMemPoolImportFromShareableHandle(fd, DESCRIPTOR, 0))
    os.close(fd)
    os.close(forged)
    assert cuda.cuMemAllocFromPoolAsync(100, theirs, 0) == (INVALID, None)
    assert "another process's" in last_error()
    assert cuda.cuDeviceSetMemPool(0, theirs) == (INVALID,)
    assert cuda.cuMemPoolExportToShareableHandle(theirs, DESCRIPTOR, 0) == (INVALID, None)
    mine = allocate(pool)
    ordinary = int(ok(cuda.cuMemAllocAsync(100, 0)))
    for address in (0, 1, mine + 1, ordinary, 1 << 63):
        assert cuda.cuMemPoolExportPointer(address) == (INVALID, None)
    exported = ok(cuda.cuMemPoolExportPointer(mine))
    for into in (pool, plain, 0):
        assert cuda.cuMemPoolImportPointer(into, exported) == (INVALID, None)
    other = import_again(ok(cuda.cuMemPoolCreate(shareable())))
    assert cuda.cuMemPoolImportPointer(other, exported) == (INVALID, None)
    assert "a pool other than" in last_error()
    assert cuda.cuMemPoolImportPointer(theirs, cuda.CUmemPoolPtrExportData()) == (INVALID, None)
    for at in (8, 55, 63):  # the secret, the offset, the size
        changed, raw = cuda.CUmemPoolPtrExportData(), bytearray(ctypes.string_at(exported.getPtr(), 64))
        raw[at] ^= 1
        ctypes.memmove(changed.getPtr(), bytes(raw), 64)
        assert cuda.cuMemPoolImportPointer(theirs, changed) == (INVALID, None)
    for wrong in (None, 0, cuda.CUipcMemHandle()):
        with pytest.raises(TypeError):
            cuda.cuMemPoolImportPointer(theirs, wrong)
    assert cuda.cuMemFree(pass_on(theirs, mine)) == DONE
    assert cuda.cuMemFree(mine) == DONE
    assert cuda.cuMemPoolTrimTo(pool, 0) == DONE
    assert cuda.cuMemPoolImportPointer(theirs, exported) == (INVALID, None), "it is freed, and its chunk released"


def test_what_pools_are_not_exported(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = shareable()
    managed.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
    assert cuda.cuMemPoolCreate(managed) == (NOT_SUPPORTED, None)
    fabric = properties()
    fabric.handleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
    assert cuda.cuMemPoolCreate(fabric) == (NOT_SUPPORTED, None)
    devices = tuple(
        evolve(
            item,
            properties=evolve(
                item.properties, attributes={**item.properties.attributes, "MEMPOOL_SUPPORTED_HANDLE_TYPES": 0}
            ),
        )
        for item in process.require().devices
    )
    monkeypatch.setattr(process.connection, "devices", devices)
    assert cuda.cuMemPoolCreate(shareable()) == (NOT_SUPPORTED, None)
    assert last_error().startswith("cuMemPoolCreate: ")
    assert "which is 0" in last_error()
