"""Page-locked host memory that kernels, fills and copies of the device reach by its address."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok
from tests.client.test_client_pinned import view_at
from tests.support.client_kernels import BASIC, MORE

R = cuda.CUresult
DONE = (R.CUDA_SUCCESS,)
WORDS = 1000


def kernel(image: bytes, name: bytes) -> Any:
    """Load a kernel of the client program."""
    return ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), name))


def launch(function: Any, *arguments: tuple[int, Any], blocks: int = 1, threads: int = 1, stream: Any = 0) -> None:
    """Launch a kernel with values and their ctypes types."""
    values, types = tuple(item for item, _ in arguments), tuple(kind for _, kind in arguments)
    answer = cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, (values, types), 0)
    assert answer == DONE, last_error()


@pytest.mark.parametrize("flags", [0, 1, 2, 4, 7])
def test_kernels_read_and_write_mapped_memory(context: Any, flags: int) -> None:
    address = ok(cuda.cuMemHostAlloc(4 * WORDS, flags))
    memory = view_at(address, 4 * WORDS).view(np.float32)
    memory[:] = np.arange(WORDS)
    pointer = int(ok(cuda.cuMemHostGetDevicePointer(address, 0)))
    assert pointer == address, "one address on both sides"
    launch(kernel(BASIC, b"add_one"), (pointer, ctypes.c_uint64), (WORDS, ctypes.c_uint32), blocks=4, threads=256)
    assert cuda.cuCtxSynchronize() == DONE
    assert (memory == np.arange(WORDS) + 1).all()
    attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    assert int(ok(cuda.cuPointerGetAttribute(attribute, address + 4))) == address + 4
    assert cuda.cuMemFreeHost(address) == DONE


def test_a_running_kernel_sees_what_the_program_writes(context: Any) -> None:
    address = ok(cuda.cuMemHostAlloc(64, 2))
    words = view_at(address, 64).view(np.uint32)
    stream = ok(cuda.cuStreamCreate(1))
    launch(kernel(MORE, b"wait_for_word"), (address, ctypes.c_uint64), stream=stream)
    assert cuda.cuStreamQuery(stream)[0] == R.CUDA_ERROR_NOT_READY
    words[0] = 1
    assert cuda.cuStreamSynchronize(stream) == DONE


def test_fills_and_copies_of_the_device_change_mapped_memory(context: Any) -> None:
    address = ok(cuda.cuMemHostAlloc(4 * WORDS, 0))
    memory = view_at(address, 4 * WORDS)
    device = ok(cuda.cuMemAlloc(4 * WORDS))
    assert cuda.cuMemsetD8(address, 7, WORDS) == DONE
    assert cuda.cuMemsetD16(address + 1000, 0x0102, 500) == DONE
    assert cuda.cuMemsetD32Async(address + 2000, 0x01020304, 250, 0) == DONE
    assert cuda.cuMemsetD2D8(address + 3000, 100, 9, 50, 10) == DONE
    assert cuda.cuCtxSynchronize() == DONE
    assert (memory[:1000] == 7).all()
    assert (memory[1000:2000].view(np.uint16) == 0x0102).all()
    assert (memory[2000:3000].view(np.uint32) == 0x01020304).all()
    assert memory[3000:].sum() == 9 * 50 * 10
    assert cuda.cuMemcpyDtoD(device, address, 4 * WORDS) == DONE
    memory[:] = 0
    assert cuda.cuMemcpyDtoDAsync(address, device, 1000, 0) == DONE
    assert cuda.cuCtxSynchronize() == DONE
    assert (memory[:1000] == 7).all()
    assert not memory[1000:].any()


def test_sizes_beyond_its_end_are_refused(context: Any) -> None:
    address = ok(cuda.cuMemHostAlloc(100, 0))
    beyond = (R.CUDA_ERROR_INVALID_VALUE,)
    assert cuda.cuMemsetD8(address, 1, 8192) == beyond
    assert not view_at(address, 100).any()
    assert cuda.cuMemFreeHost(address) == DONE
    assert cuda.cuMemsetD8(address, 1, 8) == beyond, "it is freed"


def test_a_freed_address_is_not_memory_of_kernels(context: Any) -> None:
    address = ok(cuda.cuMemHostAlloc(4096, 2))
    function = kernel(BASIC, b"add_one")
    assert cuda.cuMemFreeHost(address) == DONE
    launch(function, (address, ctypes.c_uint64), (1, ctypes.c_uint32))
    assert cuda.cuCtxSynchronize() == (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
    assert cuda.cuMemHostGetDevicePointer(address, 0)[0] == R.CUDA_ERROR_ILLEGAL_ADDRESS, "the context is in error"


def test_another_context_of_the_process_accesses_mapped_memory(context: Any) -> None:
    address = ok(cuda.cuMemHostAlloc(4096, 1))
    memory = view_at(address, 4096).view(np.float32)
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (10, ctypes.c_uint32), threads=32)
    assert cuda.cuCtxSynchronize() == DONE
    assert memory.sum() == 10
    assert cuda.cuCtxDestroy(other) == DONE
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (10, ctypes.c_uint32), threads=32)
    assert cuda.cuCtxSynchronize() == DONE
    assert memory.sum() == 20, "it ends with the context in which it was allocated, not with another"


def test_registered_memory_is_not_mapped_without_the_flag(context: Any) -> None:
    mine = np.zeros(4096, np.uint8)
    assert cuda.cuMemHostRegister(mine, 4096, 0) == DONE
    assert cuda.cuMemHostGetDevicePointer(mine.ctypes.data, 0) == (R.CUDA_ERROR_INVALID_VALUE, None)
    assert "DEVICEMAP" in last_error()
    assert cuda.cuMemHostUnregister(mine) == DONE


def test_kernels_add_to_mapped_memory_while_the_program_adds_too(context: Any) -> None:
    """The pages are the same ones: what either side writes to its own words stays."""
    address = ok(cuda.cuMemHostAlloc(8 * WORDS, 2))
    memory = view_at(address, 8 * WORDS).view(np.float32)
    mine, theirs = memory[WORDS:], memory[:WORDS]
    function, stop = kernel(BASIC, b"add_one"), threading.Event()

    def add() -> None:
        while not stop.is_set():
            mine[:] += 1

    adding = threading.Thread(target=add)
    adding.start()
    try:
        for _ in range(20):
            launch(function, (address, ctypes.c_uint64), (WORDS, ctypes.c_uint32), blocks=4, threads=256)
        assert cuda.cuCtxSynchronize() == DONE
    finally:
        stop.set()
        adding.join(10)
    assert (theirs == 20).all()
    assert (mine == mine[0]).all()
    assert mine[0] > 0
