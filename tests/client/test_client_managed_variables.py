"""Managed variables of modules: one address for program and kernels, their attributes, and their end."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client._objects.memory.pinned import is_memory
from tests.client.conftest import ok
from tests.client.test_client_mapped import launch
from tests.client.test_client_pinned import view_at

R = cuda.CUresult
A = cuda.CUpointer_attribute
PTX = b""".version 8.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 counter = 5;
.global .align 8 .attribute(.managed) .u64 sums[4] = {1, 2, 3, 4};
.global .attribute(.managed) .align 8 .u64 pointer = sums+8;
.global .u32 plain = 7;
.visible .entry count(.param .u64 by)
{
 .global .attribute(.managed) .u32 hidden = 1;
 .reg .b32 %r1, %r2; .reg .b64 %p0;
 ld.param.u64 %p0, [by];
 cvt.u32.u64 %r1, %p0;
 ld.global.u32 %r2, [hidden];
 add.u32 %r1, %r1, %r2;
 red.global.add.u32 [counter], %r1;
 ld.global.u64 %p0, [pointer];
 st.global.u64 [%p0], %p0;
 ret;
}
"""


def attribute(name: str, address: int) -> Any:
    return ok(cuda.cuPointerGetAttribute(getattr(A, f"CU_POINTER_ATTRIBUTE_{name}"), address))


@pytest.fixture
def module(context: Any) -> Any:
    return ok(cuda.cuModuleLoadData(PTX))


def address_of(module: Any, name: bytes) -> int:
    return int(ok(cuda.cuModuleGetGlobal(module, name))[0])


def count(module: Any, by: int) -> None:
    launch(ok(cuda.cuModuleGetFunction(module, b"count")), (by, ctypes.c_uint64))
    ok(cuda.cuCtxSynchronize())


def test_program_and_kernels_reach_managed_variables(module: Any) -> None:
    counter = view_at(address_of(module, b"counter"), 4).view(np.uint32)
    sums = view_at(address_of(module, b"sums"), 32).view(np.uint64)
    assert counter[0] == 5
    assert sums.tolist() == [1, 2, 3, 4]
    counter[0] += 10
    count(module, 100)
    assert counter[0] == 116
    assert sums.tolist() == [1, address_of(module, b"sums") + 8, 3, 4]
    ok(cuda.cuMemcpyHtoD(address_of(module, b"counter"), np.array([42], np.uint32).ctypes.data, 4))
    assert counter[0] == 42


def test_attributes_of_managed_variables(module: Any) -> None:
    """As on an H100, each variable is a range of its own that belongs to no context and cannot be freed."""
    address, size = ok(cuda.cuModuleGetGlobal(module, b"sums"))
    address = int(address)
    assert size == 32
    assert attribute("IS_MANAGED", address + 8) is True
    assert attribute("MEMORY_TYPE", address) == cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert int(attribute("HOST_POINTER", address + 8)) == int(attribute("DEVICE_POINTER", address + 8)) == address + 8
    assert int(attribute("CONTEXT", address)) == 0
    assert (int(attribute("RANGE_START_ADDR", address + 8)), attribute("RANGE_SIZE", address + 8)) == (address, 32)
    start, length = ok(cuda.cuMemGetAddressRange(address + 8))
    assert (int(start), length) == (address, 32)
    assert cuda.cuMemFree(address)[0] == R.CUDA_ERROR_INVALID_VALUE
    assert cuda.cuMemAdvise(address, 32, cuda.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY, 0)[0] == R.CUDA_SUCCESS
    plain = address_of(module, b"plain")
    assert attribute("IS_MANAGED", plain) is False
    assert cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_HOST_POINTER, plain)[0] == R.CUDA_ERROR_INVALID_VALUE
    assert cuda.cuModuleGetGlobal(module, b"hidden")[0] == R.CUDA_ERROR_NOT_FOUND


def test_unloading_frees_managed_variables(module: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    address = address_of(module, b"counter")
    ok(cuda.cuModuleUnload(module))
    unknown = cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)
    assert unknown[0] == R.CUDA_ERROR_INVALID_VALUE
    again = ok(cuda.cuModuleLoadData(PTX))
    assert view_at(address_of(again, b"counter"), 4).view(np.uint32)[0] == 5
    assert ok(cuda.cuMemGetInfo())[0] == free


def test_each_module_has_managed_variables_of_its_own(module: Any) -> None:
    other = ok(cuda.cuModuleLoadData(PTX))
    first, second = address_of(module, b"counter"), address_of(other, b"counter")
    assert first != second
    count(other, 1)
    assert [int(view_at(item, 4).view(np.uint32)[0]) for item in (first, second)] == [5, 7]


def test_managed_variables_of_libraries(context: Any) -> None:
    library = ok(cuda.cuLibraryLoadData(PTX, None, None, 0, None, None, 0))
    address, size = ok(cuda.cuLibraryGetManaged(library, b"counter"))
    assert size == 4
    assert view_at(int(address), 4).view(np.uint32)[0] == 5
    assert int(ok(cuda.cuLibraryGetGlobal(library, b"counter"))[0]) == int(address)
    assert cuda.cuLibraryGetManaged(library, b"plain")[0] == R.CUDA_ERROR_NOT_FOUND
    ok(cuda.cuLibraryUnload(library))
    assert (
        cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_IS_MANAGED, int(address))[0] == R.CUDA_ERROR_INVALID_VALUE
    )


def test_the_contexts_that_use_a_library_have_its_managed_variables_in_common(context: Any) -> None:
    """Their values stay when contexts close. Recorded of a reset device: H200, driver 580.159, CUDA 13.0."""
    library = ok(cuda.cuLibraryLoadData(PTX, None, None, 0, None, None, 0))
    kernel = ok(cuda.cuLibraryGetKernel(library, b"count"))
    first = ok(cuda.cuCtxCreate(None, 0, 0))
    address = int(ok(cuda.cuLibraryGetManaged(library, b"counter"))[0])
    counter = view_at(address, 4).view(np.uint32)
    launch(ok(cuda.cuKernelGetFunction(kernel)), (10, ctypes.c_uint64))
    ok(cuda.cuCtxSynchronize())
    ok(cuda.cuCtxDestroy(first))
    assert counter[0] == 16
    launch(ok(cuda.cuKernelGetFunction(kernel)), (100, ctypes.c_uint64))
    ok(cuda.cuCtxSynchronize())
    assert int(ok(cuda.cuLibraryGetManaged(library, b"counter"))[0]) == address
    assert attribute("IS_MANAGED", address)
    assert counter[0] == 117
    ok(cuda.cuLibraryUnload(library))


def test_unloading_a_library_frees_the_managed_variables_that_no_context_uses(context: Any) -> None:
    library = ok(cuda.cuLibraryLoadData(PTX, None, None, 0, None, None, 0))
    first = ok(cuda.cuCtxCreate(None, 0, 0))
    address = int(ok(cuda.cuLibraryGetManaged(library, b"counter"))[0])
    ok(cuda.cuCtxDestroy(first))
    assert is_memory(address, 4)
    ok(cuda.cuLibraryUnload(library))
    assert not is_memory(address, 4)
