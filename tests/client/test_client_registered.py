"""Memory that the program registers and kernels reach: the same bytes on both sides, its end, forks, bad input."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pympsd.channel.mapping import map_nothing, unmap
from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok
from tests.client.test_client_mapped import kernel, launch
from tests.support.client_kernels import BASIC, MORE

pytest.importorskip("pympsd_client.native._pages")

R = cuda.CUresult
P = cuda.CUpointer_attribute
DONE = (R.CUDA_SUCCESS,)
INVALID = R.CUDA_ERROR_INVALID_VALUE
NOT_SUPPORTED = R.CUDA_ERROR_NOT_SUPPORTED
MAP = 2
PAGE = mmap.PAGESIZE


@pytest.fixture
def memory(context: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Registered words in the midst of the heap, with a neighbour on each side."""
    whole = np.arange(5000, dtype=np.float32)
    mine = whole[1001:4001]
    assert cuda.cuMemHostRegister(mine.ctypes.data, mine.nbytes, MAP) == DONE
    yield mine
    assert (whole[:1001] == np.arange(1001)).all()
    assert (whole[4001:] == np.arange(4001, 5000)).all()


def pointer(mine: np.ndarray[Any, Any]) -> int:
    return int(ok(cuda.cuMemHostGetDevicePointer(mine.ctypes.data, 0)))


def add_one(address: int, count: int) -> None:
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (count, ctypes.c_uint32), blocks=12, threads=256)
    assert cuda.cuCtxSynchronize() == DONE


def test_kernels_and_program_have_the_same_bytes(memory: np.ndarray[Any, Any]) -> None:
    start = np.arange(1001, 4001)
    address = pointer(memory)
    assert address != memory.ctypes.data, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0"
    assert pointer(memory) == address
    assert int(ok(cuda.cuMemHostGetDevicePointer(memory.ctypes.data + 100, 0))) == address + 100
    add_one(address, 3000)
    assert (memory == start + 1).all()
    memory += 1
    add_one(address, 3000)
    assert (memory == start + 3).all()
    assert cuda.cuMemsetD32(address, 0, 3000) == DONE
    assert not memory.any()
    device = ok(cuda.cuMemAlloc(memory.nbytes))
    memory[:] = 5
    assert cuda.cuMemcpyHtoD(device, memory, memory.nbytes) == DONE
    assert cuda.cuMemsetD32(device, 0, 1000) == DONE
    assert cuda.cuMemcpyDtoH(memory, device, memory.nbytes) == DONE
    assert not memory[:1000].any()
    assert (memory[1000:] == 5).all()
    assert cuda.cuMemHostUnregister(memory) == DONE
    assert (memory[1000:] == 5).all(), "the bytes stay"
    assert cuda.cuMemcpyDtoH(np.zeros(8, np.uint8), address, 8) == (INVALID,)
    memory[:] = 6


def test_a_running_kernel_sees_what_the_program_writes(context: Any) -> None:
    words = np.zeros(16, np.uint32)
    assert cuda.cuMemHostRegister(words, 64, MAP) == DONE
    stream = ok(cuda.cuStreamCreate(1))
    launch(kernel(MORE, b"wait_for_word"), (pointer(words), ctypes.c_uint64), stream=stream)
    assert cuda.cuStreamQuery(stream)[0] == R.CUDA_ERROR_NOT_READY
    words[0] = 1
    assert cuda.cuStreamSynchronize(stream) == DONE
    assert cuda.cuMemHostUnregister(words) == DONE


def test_unregistering_waits_for_the_work(memory: np.ndarray[Any, Any]) -> None:
    address = pointer(memory)
    for _ in range(20):
        assert cuda.cuMemsetD32Async(address, 0x3F800000, 3000, 0) == DONE
        launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (3000, ctypes.c_uint32), blocks=12, threads=256)
    assert cuda.cuMemHostUnregister(memory) == DONE
    assert (memory == 2).all()


def test_both_addresses_are_the_memorys(memory: np.ndarray[Any, Any]) -> None:
    mine, result = memory.ctypes.data, pointer(memory)
    for address in (mine + 8, result + 8):
        for name, value in (("DEVICE_POINTER", result + 8), ("HOST_POINTER", mine + 8), ("MEMORY_TYPE", 1)):
            attribute = getattr(P, f"CU_POINTER_ATTRIBUTE_{name}")
            assert int(ok(cuda.cuPointerGetAttribute(attribute, address))) == value, name
    assert cuda.cuMemHostUnregister(memory) == DONE
    assert cuda.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, result) == (INVALID, None)


def test_memory_is_registered_and_mapped_again_and_again(context: Any) -> None:
    mine = np.zeros(100, np.float32)
    for round in range(50):
        assert cuda.cuMemHostRegister(mine, 400, MAP) == DONE
        add_one(pointer(mine), 100)
        assert cuda.cuMemHostUnregister(mine) == DONE
        assert (mine == round + 1).all()


def test_a_forked_child_has_memory_of_its_own(memory: np.ndarray[Any, Any]) -> None:
    address = pointer(memory)
    memory[:] = 1
    child = os.fork()
    if child == 0:
        memory[:] = 9
        os._exit(int(memory[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (memory == 1).all(), "what the child wrote is the child's"
    add_one(address, 3000)
    assert (memory == 2).all(), "and kernels reach the parent's still"
    assert cuda.cuMemHostUnregister(memory) == DONE


def test_what_the_program_has_mapped_there_since_is_left(context: Any) -> None:
    address = map_nothing(3 * PAGE)
    assert cuda.cuMemHostRegister(address, 3 * PAGE, MAP) == DONE
    assert cuda.cuMemsetD8(ok(cuda.cuMemHostGetDevicePointer(address, 0)), 7, 3 * PAGE) == DONE
    map_nothing(PAGE, address + PAGE)
    ctypes.memset(address + PAGE, 3, PAGE)
    unmap(address + 2 * PAGE, PAGE)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert cuda.cuMemHostUnregister(address) == DONE
    assert ctypes.string_at(address, 2 * PAGE) == b"\7" * PAGE + b"\3" * PAGE
    unmap(address, 2 * PAGE)


def test_pages_that_cannot_be_replaced(context: Any) -> None:
    shared = mmap.mmap(-1, PAGE)
    mine = np.frombuffer(shared, np.uint8)
    reading = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    theirs = np.frombuffer(reading, np.uint8)
    for wrong in (mine, theirs):
        assert cuda.cuMemHostRegister(wrong.ctypes.data, PAGE, MAP) == DONE
        assert cuda.cuMemHostGetDevicePointer(wrong.ctypes.data, 0) == (NOT_SUPPORTED, None)
        assert "private memory" in last_error()
        assert cuda.cuMemHostUnregister(wrong.ctypes.data) == DONE
    del mine, theirs, wrong
    shared.close()
    reading.close()
    page = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    item = np.frombuffer(page, np.uint8)
    first, second = item[:100], item[200:]
    for entry in (first, second):
        assert cuda.cuMemHostRegister(entry.ctypes.data, entry.nbytes, MAP) == DONE
    assert cuda.cuMemsetD8(pointer(first), 4, 100) == DONE
    assert cuda.cuMemHostGetDevicePointer(second.ctypes.data, 0) == (NOT_SUPPORTED, None)
    assert "other registered memory" in last_error()
    assert cuda.cuMemHostUnregister(first.ctypes.data) == DONE
    assert cuda.cuMemsetD8(pointer(second), 5, 100) == DONE
    assert (item[:100] == 4).all()
    assert (item[200:300] == 5).all()
    assert cuda.cuMemHostUnregister(second.ctypes.data) == DONE


def test_another_devices_kernels_have_the_same_address(memory: np.ndarray[Any, Any]) -> None:
    before = pointer(memory)
    other = ok(cuda.cuCtxCreate(None, 0, 1))
    assert pointer(memory) == before
    assert cuda.cuCtxDestroy(other) == DONE
    assert pointer(memory) == before
    for flags in (1, 1 << 31):
        assert cuda.cuMemHostGetDevicePointer(memory.ctypes.data, flags) == (INVALID, None)
    for address in (0, memory.ctypes.data + memory.nbytes, 1 << 63):
        assert cuda.cuMemHostGetDevicePointer(address, 0) == (INVALID, None)
    assert cuda.cuMemHostUnregister(memory.ctypes.data + 8) == (INVALID,)
    assert cuda.cuMemHostUnregister(memory) == DONE
    assert cuda.cuMemHostGetDevicePointer(memory.ctypes.data, 0) == (INVALID, None)
