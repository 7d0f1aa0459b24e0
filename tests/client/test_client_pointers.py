"""Attributes of addresses: what cuda.bindings returns of device, page-locked and registered memory and of none."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client._arguments.values import InMemory
from pympsd_client._objects.memory.allocations import Allocation, Allocations
from tests.client.conftest import ok

PTX = Path(__file__).with_name("kernels.ptx").read_bytes()

A = cuda.CUpointer_attribute
INVALID = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
NOT_FOUND = cuda.CUresult.CUDA_ERROR_NOT_FOUND
BYTES = 1000


def _get(name: str, address: int) -> Any:
    return cuda.cuPointerGetAttribute(getattr(A, f"CU_POINTER_ATTRIBUTE_{name}"), address)


def test_the_range_of_an_inner_address(context: Any) -> None:
    first, second = (int(ok(cuda.cuMemAlloc(BYTES))) for _ in range(2))
    for start in (first, second):
        for inner in (start, start + 1, start + BYTES - 1):
            base, size = ok(cuda.cuMemGetAddressRange(inner))
            assert (int(base), size) == (start, BYTES)
            assert int(ok(_get("RANGE_START_ADDR", inner))) == start
            assert ok(_get("RANGE_SIZE", inner)) == BYTES
    ok((*cuda.cuMemFree(first), None))
    assert cuda.cuMemGetAddressRange(first) == (NOT_FOUND, None, None)
    assert int(ok(cuda.cuMemGetAddressRange(second))[0]) == second
    third = int(ok(cuda.cuMemAlloc(3 * BYTES)))
    assert ok(cuda.cuMemGetAddressRange(third + BYTES))[1] == 3 * BYTES


@pytest.mark.parametrize("address", [0, 1, 1 << 63, (1 << 64) - 1, 0x6000_0000_0000])
def test_addresses_of_no_memory(context: Any, address: int) -> None:
    assert cuda.cuMemGetAddressRange(address) == (NOT_FOUND, None, None)
    assert _get("MEMORY_TYPE", address) == (INVALID, None)
    attribute = [A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]
    assert ok(cuda.cuPointerGetAttributes(2, attribute, address)) == [0, -2]
    everything = list(A)
    assert len(ok(cuda.cuPointerGetAttributes(len(everything), everything, address))) == len(everything)


def test_several_attributes_need_no_context(context: Any) -> None:
    address = int(ok(cuda.cuMemAlloc(BYTES)))
    attribute = [A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]
    ok((*cuda.cuCtxSetCurrent(None), None))
    assert _get("MEMORY_TYPE", address) == (cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)
    assert ok(cuda.cuPointerGetAttributes(2, attribute, address)) == [cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, 0]
    assert ok(cuda.cuPointerGetAttributes(2, attribute, 1)) == [0, -2]


def test_attributes_of_device_memory(context: Any) -> None:
    address = int(ok(cuda.cuMemAlloc(BYTES)))
    inner = address + 7
    assert int(ok(_get("CONTEXT", inner))) == int(context)
    assert ok(_get("MEMORY_TYPE", inner)) == cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert ok(_get("DEVICE_ORDINAL", inner)) == 0
    pointer = ok(_get("DEVICE_POINTER", inner))
    assert isinstance(pointer, cuda.CUdeviceptr)
    assert int(pointer) == inner
    assert _get("HOST_POINTER", inner) == (INVALID, None)
    assert _get("P2P_TOKENS", inner) == (INVALID, None)
    assert ok(_get("IS_MANAGED", inner)) is False
    assert ok(_get("MAPPED", inner)) is True
    assert int(ok(_get("MEMPOOL_HANDLE", inner))) == 0
    other = int(ok(cuda.cuMemAlloc(BYTES)))
    ids = [ok(_get("BUFFER_ID", item)) for item in (address, inner, other)]
    assert ids[0] == ids[1] != ids[2]
    ok((*cuda.cuMemFree(address), None))
    again = int(ok(cuda.cuMemAlloc(BYTES)))
    assert again == address, "the address is reused"
    assert ok(_get("BUFFER_ID", again)) not in ids, "and the id is not"


def test_attributes_of_host_memory(context: Any) -> None:
    pinned = ok(cuda.cuMemAllocHost(BYTES))
    mine = np.zeros(BYTES, np.uint8)
    ok((*cuda.cuMemHostRegister(mine, BYTES, 0), None))
    for address in (pinned + 3, mine.ctypes.data + 3):
        assert ok(_get("MEMORY_TYPE", address)) == cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        assert ok(_get("HOST_POINTER", address)) == address
        assert int(ok(_get("CONTEXT", address))) == int(context)
        assert int(ok(cuda.cuMemGetAddressRange(address))[0]) == address - 3
    assert _get("DEVICE_POINTER", mine.ctypes.data) == (INVALID, None), "no kernel reaches registered memory"
    ok((*cuda.cuMemHostUnregister(mine), None))
    assert _get("MEMORY_TYPE", mine.ctypes.data) == (INVALID, None)
    ok((*cuda.cuMemFreeHost(pinned), None))
    assert _get("MEMORY_TYPE", pinned) == (INVALID, None)


def test_a_modules_variable_is_known(context: Any) -> None:
    module = ok(cuda.cuModuleLoadData(PTX))
    address, size = ok(cuda.cuModuleGetGlobal(module, b"counter"))
    base, nbytes = ok(cuda.cuMemGetAddressRange(int(address) + 1))
    assert (int(base), nbytes) == (int(address), size)


def test_attributes_are_returned_for_those_that_an_address_has(context: Any) -> None:
    address = int(ok(cuda.cuMemAlloc(BYTES)))
    attribute = [
        A.CU_POINTER_ATTRIBUTE_HOST_POINTER,
        A.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        A.CU_POINTER_ATTRIBUTE_CONTEXT,
    ]
    host, size, owner = ok(cuda.cuPointerGetAttributes(3, attribute, address))
    assert (host, size, int(owner)) == (0, BYTES, int(context))
    assert ok(cuda.cuPointerGetAttributes(1, attribute, address)) == [0]
    in_c = (ctypes.c_int * 2)(*(int(item) for item in attribute[:2]))
    assert ok(cuda.cuPointerGetAttributes(2, InMemory(ctypes.addressof(in_c)), address)) == [0, BYTES]


def test_bad_arguments_of_pointer_attributes_are_refused(context: Any) -> None:
    address = int(ok(cuda.cuMemAlloc(BYTES)))
    assert cuda.cuPointerGetAttribute(1000, address) == (INVALID, None)
    assert cuda.cuPointerGetAttributes(0, [], address) == (INVALID, None)
    assert cuda.cuPointerGetAttributes(2, [A.CU_POINTER_ATTRIBUTE_MAPPED], address) == (INVALID, None)
    assert cuda.cuPointerGetAttributes(1, [1000], address) == (INVALID, None)
    with pytest.raises(TypeError):
        cuda.cuPointerGetAttributes(1, 3.5, address)
    assert cuda.cuPointerSetAttribute(True, A.CU_POINTER_ATTRIBUTE_MAPPED, address) == (INVALID,)
    assert cuda.cuPointerSetAttribute(True, 1000, address) == (INVALID,)
    assert cuda.cuPointerSetAttribute(True, A.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 64) == (INVALID,)


def test_pointer_attributes_need_a_context(devices: None) -> None:
    no_context = cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT
    assert cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MAPPED, 64) == (no_context, None)
    assert cuda.cuMemGetAddressRange(64) == (no_context, None, None)


def test_synchronous_memory_operations(context: Any) -> None:
    """A fill of an allocation with SYNC_MEMOPS returns when it is done, even if earlier work of the stream waits."""
    address = int(ok(cuda.cuMemAlloc(BYTES)))
    sync = A.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    assert ok(_get("SYNC_MEMOPS", address)) is False
    ok((*cuda.cuPointerSetAttribute(True, sync, address + 5), None))
    assert ok(_get("SYNC_MEMOPS", address)) is True
    stream = ok(cuda.cuStreamCreate(1))
    done: list[int] = []
    ok((*cuda.cuLaunchHostFunc(stream, lambda _: done.append(1), None), None))
    ok((*cuda.cuMemsetD8Async(address, 1, BYTES, stream), None))
    assert done == [1], "it has waited for what was before it"
    ok((*cuda.cuPointerSetAttribute(False, sync, address), None))
    assert ok(_get("SYNC_MEMOPS", address)) is False


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 15)), max_size=60))
def test_the_allocation_that_contains_an_address(steps: list[tuple[bool, int]]) -> None:
    table, model = Allocations(), {}
    for adds, place in steps:
        if adds and place not in model:
            model[place] = table.add(Allocation(place * 100, None, 60))  # type: ignore[arg-type]
        elif not adds and place in model:
            table.remove(model.pop(place).handle)
        for item in range(16):
            assert table.find_containing(item * 100 + 59) is model.get(item)
            assert table.find_containing(item * 100 + 60) is None
