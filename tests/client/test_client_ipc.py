"""Memory and events between processes, at their ends: handles, errors, counting. Two processes: tests/routing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._api.memory import ipc
from pympsd_client._objects.context import contexts
from tests.client.conftest import ok
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_virtual_memory import bytes_at, map_memory
from tests.support.client_kernels import BASIC

R = cuda.CUresult
DONE = (R.CUDA_SUCCESS,)
INVALID = R.CUDA_ERROR_INVALID_VALUE
INVALID_HANDLE = R.CUDA_ERROR_INVALID_HANDLE
MAP_FAILED = R.CUDA_ERROR_MAP_FAILED
SHARED_EVENT = int(cuda.CUevent_flags.CU_EVENT_INTERPROCESS | cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)
NAMES = (
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcCloseMemHandle",
    "cuIpcGetEventHandle",
    "cuIpcOpenEventHandle",
)


@pytest.fixture
def as_another() -> Iterator[Any]:
    """Make a handle of this process's memory look like another process's."""
    yield lambda: ipc._given.clear()
    ipc._given.clear()


def make_arguments(name: str) -> tuple[Any, ...]:
    """Return arguments of the right types."""
    if name == "cuIpcOpenMemHandle":
        return cuda.CUipcMemHandle(), 0
    return (cuda.CUipcEventHandle(),) if name == "cuIpcOpenEventHandle" else (8,)


def allocate(size: int = 4096) -> int:
    return int(ok(cuda.cuMemAlloc(size)))


def change(handle: Any, at: int) -> Any:
    """Return a handle with another byte."""
    changed = type(handle)()
    data = bytearray(ctypes.string_at(handle.getPtr(), 64))
    data[at] ^= 1
    ctypes.memmove(changed.getPtr(), bytes(data), 64)
    return changed


def test_opened_memory_is_the_same(context: Any, as_another: Any) -> None:
    mine = allocate(4000)
    data = np.arange(1000, dtype=np.float32)
    assert cuda.cuMemcpyHtoD(mine, data, 4000) == DONE
    handle = ok(cuda.cuIpcGetMemHandle(mine))
    assert type(handle) is cuda.CUipcMemHandle
    as_another()
    theirs = int(ok(cuda.cuIpcOpenMemHandle(handle, 1)))
    assert theirs != mine
    launch(kernel(BASIC, b"add_one"), (theirs, ctypes.c_uint64), (1000, ctypes.c_uint32), blocks=4, threads=256)
    assert (bytes_at(mine, 4000).view(np.float32) == data + 1).all()
    assert [int(item) for item in ok(cuda.cuMemGetAddressRange(theirs + 10))] == [theirs, 4000]
    assert int(ok(cuda.cuIpcOpenMemHandle(handle, 0))) == theirs, "it is counted"
    assert cuda.cuIpcCloseMemHandle(theirs) == DONE
    assert (bytes_at(theirs, 4000).view(np.float32) == data + 1).all()
    assert cuda.cuMemFree(theirs) == (INVALID,)
    assert "cuIpcCloseMemHandle" in last_error()
    assert cuda.cuMemFreeAsync(theirs, 0) == (INVALID,)
    assert cuda.cuIpcCloseMemHandle(theirs) == DONE
    assert cuda.cuMemcpyDtoH(np.zeros(8, np.uint8), theirs, 8) == (INVALID,)
    assert cuda.cuIpcCloseMemHandle(theirs) == (INVALID,)
    assert (bytes_at(mine, 4000).view(np.float32) == data + 1).all()


def test_addresses_and_memory_are_given_back(context: Any, as_another: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    mine = allocate(3 << 20)
    handle = ok(cuda.cuIpcGetMemHandle(mine))
    as_another()
    places = set()
    for _ in range(3):
        place = int(ok(cuda.cuIpcOpenMemHandle(handle, 0)))
        places.add(place)
        assert cuda.cuIpcCloseMemHandle(place) == DONE
    assert len(places) == 1
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    elsewhere = int(ok(cuda.cuIpcOpenMemHandle(handle, 0)))
    assert elsewhere in places
    assert cuda.cuCtxDestroy(other) == DONE
    assert cuda.cuIpcCloseMemHandle(elsewhere) == (INVALID,), "it ended with its context"
    assert int(ok(cuda.cuIpcOpenMemHandle(handle, 0))) == elsewhere
    assert cuda.cuMemFree(mine) == DONE
    assert ok(cuda.cuMemGetInfo())[0] < free
    assert not bytes_at(elsewhere, 100).any()
    assert cuda.cuIpcCloseMemHandle(elsewhere) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == free


def test_mistakes_with_memory(context: Any, as_another: Any) -> None:
    mine = allocate()
    pooled = int(ok(cuda.cuMemAllocAsync(4096, 0)))
    managed = int(ok(cuda.cuMemAllocManaged(4096, 1)))
    for address in (0, 1, mine + 1, 1 << 63, pooled, managed):
        assert cuda.cuIpcGetMemHandle(address) == (INVALID, None)
    handle = ok(cuda.cuIpcGetMemHandle(mine))
    assert cuda.cuIpcOpenMemHandle(handle, 0) == (R.CUDA_ERROR_INVALID_CONTEXT, None)
    assert "this process's own" in last_error()
    as_another()
    for flags in (2, 3, 1 << 31):
        assert cuda.cuIpcOpenMemHandle(handle, flags) == (INVALID, None)
    assert cuda.cuIpcOpenMemHandle(cuda.CUipcMemHandle(), 0) == (INVALID_HANDLE, None)
    assert cuda.cuIpcOpenMemHandle(change(handle, 0), 0) == (INVALID_HANDLE, None)
    assert cuda.cuIpcOpenMemHandle(change(handle, 8), 0) == (MAP_FAILED, None), "the secret"
    assert cuda.cuIpcOpenMemHandle(change(handle, 55), 0) == (INVALID_HANDLE, None), "the offset"
    for wrong in (None, 0, bytearray(64), cuda.CUipcEventHandle()):
        with pytest.raises(TypeError):
            cuda.cuIpcOpenMemHandle(wrong, 0)
    for address in (0, 1, mine, pooled, 1 << 63):
        assert cuda.cuIpcCloseMemHandle(address) == (INVALID,)
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    assert cuda.cuIpcOpenMemHandle(handle, 0) == (INVALID, None), "another device's needs peer access"
    assert cuda.cuCtxDestroy(elsewhere) == DONE
    assert cuda.cuMemFree(mine) == DONE
    assert cuda.cuIpcOpenMemHandle(handle, 0) == (MAP_FAILED, None), "it is freed"
    assert cuda.cuIpcGetMemHandle(mine) == (INVALID, None)


def test_memory_of_another_device_is_opened_with_peer_access(context: Any, as_another: Any) -> None:
    """The pointer attributes and errors are those of two H200."""
    mine = allocate()
    assert cuda.cuMemsetD32(mine, 1, 1024) == DONE
    handle = ok(cuda.cuIpcGetMemHandle(mine))
    as_another()
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    theirs = int(ok(cuda.cuIpcOpenMemHandle(handle, 1)))
    attributes = cuda.CUpointer_attribute
    assert ok(cuda.cuPointerGetAttribute(attributes.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, theirs)) == 1
    assert ok(cuda.cuPointerGetAttribute(attributes.CU_POINTER_ATTRIBUTE_CONTEXT, theirs)) == elsewhere
    launch(kernel(BASIC, b"add_one"), (theirs, ctypes.c_uint64), (1, ctypes.c_uint32))
    assert cuda.cuMemsetD32(theirs + 4, 7, 1) == DONE
    assert bytes_at(mine, 12).view(np.float32)[0] == np.int32(1).view(np.float32) + 1
    assert bytes_at(mine, 12).view(np.uint32)[1:].tolist() == [7, 1]
    assert int(ok(cuda.cuIpcOpenMemHandle(handle, 1))) == theirs, "it is counted"
    assert cuda.cuCtxSetCurrent(context) == DONE
    assert cuda.cuMemsetD8(theirs, 0, 4) == (INVALID,), "only the opener's device has access"
    again = int(ok(cuda.cuIpcOpenMemHandle(handle, 1)))
    assert again not in (mine, theirs)
    assert cuda.cuIpcCloseMemHandle(again) == DONE
    assert cuda.cuIpcCloseMemHandle(theirs) == DONE
    assert bytes_at(theirs, 8).view(np.uint32)[1] == 7
    assert cuda.cuIpcCloseMemHandle(theirs) == DONE
    assert cuda.cuIpcCloseMemHandle(theirs) == (INVALID,)
    assert cuda.cuMemsetD8(theirs, 0, 4) == (INVALID,)
    assert cuda.cuCtxDestroy(elsewhere) == DONE


def test_memory_of_another_device_is_closed_with_the_context_that_opened_it(context: Any, as_another: Any) -> None:
    handle = ok(cuda.cuIpcGetMemHandle(allocate()))
    as_another()
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    theirs = int(ok(cuda.cuIpcOpenMemHandle(handle, 1)))
    assert cuda.cuCtxDestroy(elsewhere) == DONE
    assert cuda.cuCtxSetCurrent(context) == DONE
    assert cuda.cuMemcpyDtoH(bytearray(4), theirs, 4) == (INVALID,)
    assert int(ok(cuda.cuIpcOpenMemHandle(handle, 1))) == theirs, "its addresses are free again"


def test_an_event_of_another_device_is_waited_for_and_recorded(context: Any) -> None:
    mine = ok(cuda.cuEventCreate(SHARED_EVENT))
    handle = ok(cuda.cuIpcGetEventHandle(mine))
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    theirs = ok(cuda.cuIpcOpenEventHandle(handle))
    stream = ok(cuda.cuStreamCreate(1))
    for call in (cuda.cuStreamWaitEvent(stream, theirs, 0), cuda.cuEventRecord(theirs, stream)):
        assert call == DONE
    assert cuda.cuEventSynchronize(theirs) == DONE
    assert cuda.cuEventQuery(mine) == DONE
    assert cuda.cuEventDestroy(theirs) == DONE
    assert cuda.cuCtxDestroy(elsewhere) == DONE


def test_an_event_of_another_device_ends_with_the_context_that_opened_it(context: Any) -> None:
    handle = ok(cuda.cuIpcGetEventHandle(ok(cuda.cuEventCreate(SHARED_EVENT))))
    elsewhere = ok(cuda.cuCtxCreate(None, 0, 1))
    theirs = ok(cuda.cuIpcOpenEventHandle(handle))
    assert cuda.cuCtxDestroy(elsewhere) == DONE
    assert cuda.cuCtxSetCurrent(context) == DONE
    assert cuda.cuEventQuery(theirs) == (INVALID_HANDLE,)


def test_mapped_memory_is_shared_by_descriptors_only(context: Any) -> None:
    assert cuda.cuIpcGetMemHandle(map_memory()) == (INVALID, None)


def test_an_opened_event_is_the_same(context: Any) -> None:
    mine = ok(cuda.cuEventCreate(SHARED_EVENT))
    theirs = ok(cuda.cuIpcOpenEventHandle(ok(cuda.cuIpcGetEventHandle(mine))))
    assert cuda.cuEventQuery(theirs) == DONE, "never recorded"
    assert cuda.cuEventQuery(mine) == DONE
    assert cuda.cuEventRecord(theirs, 0) == DONE
    assert cuda.cuEventSynchronize(mine) == DONE
    assert cuda.cuStreamWaitEvent(0, theirs, 0) == DONE
    assert cuda.cuEventDestroy(mine) == DONE
    assert cuda.cuEventRecord(theirs, 0) == DONE
    assert cuda.cuEventSynchronize(theirs) == DONE
    assert cuda.cuEventElapsedTime(theirs, theirs) == (INVALID_HANDLE, None)


def test_mistakes_with_events(context: Any) -> None:
    for flags in (0, 2, 4, 5):
        answer = cuda.cuEventCreate(flags)
        if flags & 4:
            assert answer == (INVALID, None)
            continue
        assert cuda.cuIpcGetEventHandle(ok(answer)) == (INVALID_HANDLE, None)
    assert cuda.cuIpcGetEventHandle(12345) == (INVALID_HANDLE, None)
    mine = ok(cuda.cuEventCreate(SHARED_EVENT))
    handle = ok(cuda.cuIpcGetEventHandle(mine))
    assert cuda.cuIpcOpenEventHandle(cuda.CUipcEventHandle()) == (INVALID_HANDLE, None)
    assert cuda.cuIpcOpenEventHandle(change(handle, 3)) == (INVALID_HANDLE, None)
    assert cuda.cuIpcOpenEventHandle(change(handle, 9)) == (MAP_FAILED, None)
    opened = ok(cuda.cuIpcOpenEventHandle(handle))
    assert cuda.cuIpcGetEventHandle(opened) == (INVALID_HANDLE, None)
    for wrong in (None, 0, cuda.CUipcMemHandle()):
        with pytest.raises(TypeError):
            cuda.cuIpcOpenEventHandle(wrong)
    assert cuda.cuEventDestroy(mine) == DONE
    assert cuda.cuIpcOpenEventHandle(handle) == (MAP_FAILED, None)


def test_a_device_without_ipc_handles_refuses_them_by_name(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = contexts[int(context)]
    without = {**entry.device.properties.attributes, "IPC_EVENT_SUPPORTED": 0}
    monkeypatch.setattr(
        entry, "device", evolve(entry.device, properties=evolve(entry.device.properties, attributes=without))
    )
    for name in NAMES:
        answer = getattr(cuda, name)(*make_arguments(name))
        assert answer[0] == R.CUDA_ERROR_NOT_SUPPORTED
        assert last_error().startswith(f"{name}: ")
        assert "multiprocessing.shared_memory" in last_error()
    assert cuda.cuEventCreate(SHARED_EVENT) == (R.CUDA_ERROR_NOT_SUPPORTED, None)


@pytest.mark.parametrize("name", NAMES)
def test_ipc_functions_need_a_context(devices: None, name: str) -> None:
    assert getattr(cuda, name)(*make_arguments(name))[0] == R.CUDA_ERROR_INVALID_CONTEXT
