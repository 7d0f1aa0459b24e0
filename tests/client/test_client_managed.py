"""Managed memory: reached by program and kernels at any time, advice, prefetching, its end, bad input."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.memory.allocations import PAGE_BYTES, PageState, PageStates
from tests.client.conftest import ok
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_pinned import view_at
from tests.support.client_kernels import BASIC, MORE

R = cuda.CUresult
A = cuda.CUmem_range_attribute
ADVISE = cuda.CUmem_advise
DONE = (R.CUDA_SUCCESS,)
INVALID = R.CUDA_ERROR_INVALID_VALUE
GLOBAL = 1
SIZE = 5 * PAGE_BYTES


def make_location(kind: str, number: int = 0) -> Any:
    description = cuda.CUmemLocation()
    description.type = getattr(cuda.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
    description.id = number
    return description


@pytest.fixture
def managed(context: Any) -> int:
    return int(ok(cuda.cuMemAllocManaged(SIZE, GLOBAL)))


def get(name: str, address: int, count: int = SIZE, size: int = 4) -> Any:
    return ok(cuda.cuMemRangeGetAttribute(size, getattr(A, f"CU_MEM_RANGE_ATTRIBUTE_{name}"), address, count))


def test_program_and_kernels_access_managed_memory(managed: int) -> None:
    memory = view_at(managed, SIZE).view(np.float32)
    assert not memory.any()
    memory[:] = np.arange(memory.size)
    count = memory.size
    launch(kernel(BASIC, b"add_one"), (managed, ctypes.c_uint64), (count, ctypes.c_uint32), blocks=20, threads=256)
    assert cuda.cuCtxSynchronize() == DONE
    assert (memory == np.arange(count) + 1).all()
    assert cuda.cuMemsetD32(managed, 7, 100) == DONE
    assert (memory.view(np.uint32)[:100] == 7).all(), "a synchronous fill of it has waited"
    other = ok(cuda.cuMemAlloc(SIZE))
    assert cuda.cuMemcpyHtoD(other, managed, SIZE) == DONE
    memory[:] = 0
    assert cuda.cuMemcpy(managed, other, SIZE) == DONE
    assert (memory.view(np.uint32)[:100] == 7).all()
    assert cuda.cuMemFree(managed) == DONE


def test_a_running_kernel_sees_what_the_program_writes(managed: int) -> None:
    stream = ok(cuda.cuStreamCreate(1))
    launch(kernel(MORE, b"wait_for_word"), (managed, ctypes.c_uint64), stream=stream)
    view_at(managed, 4)[0] = 1
    assert cuda.cuStreamSynchronize(stream) == DONE


def test_managed_addresses_have_attributes(managed: int, context: Any) -> None:
    def of(name: str) -> Any:
        attribute = getattr(cuda.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
        return ok(cuda.cuPointerGetAttribute(attribute, managed + 3))

    assert of("IS_MANAGED") is True
    assert of("HOST_POINTER") == int(of("DEVICE_POINTER")) == managed + 3
    assert (int(of("CONTEXT")), of("RANGE_SIZE")) == (int(context), SIZE)
    assert of("MEMORY_TYPE") == cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE


def test_managed_memory_ends_with_its_context_and_with_cuMemFree(devices: None) -> None:
    for frees in (True, False):
        context = ok(cuda.cuCtxCreate(None, 0, 0))
        address = int(ok(cuda.cuMemAllocManaged(SIZE, GLOBAL)))
        if frees:
            assert cuda.cuMemFree(address) == DONE
            assert cuda.cuMemFree(address) == (INVALID,)
        assert cuda.cuCtxDestroy(context) == DONE
        maps = Path("/proc/self/maps").read_text()
        assert f"{address:x}-" not in maps, "this process has it mapped no more"


def test_advice_and_prefetching_are_returned(managed: int) -> None:
    middle, end = managed + PAGE_BYTES, managed + SIZE
    everywhere, device, host = make_location("INVALID"), make_location("DEVICE"), make_location("HOST")
    assert get("READ_MOSTLY", managed) == 0
    assert cuda.cuMemAdvise(middle, PAGE_BYTES, ADVISE.CU_MEM_ADVISE_SET_READ_MOSTLY, everywhere) == DONE
    assert (get("READ_MOSTLY", managed), get("READ_MOSTLY", middle, 1)) == (0, 1)
    assert cuda.cuMemAdvise(managed, SIZE, ADVISE.CU_MEM_ADVISE_SET_READ_MOSTLY, everywhere) == DONE
    assert get("READ_MOSTLY", managed) == 1
    assert cuda.cuMemAdvise(end - 1, 1, ADVISE.CU_MEM_ADVISE_UNSET_READ_MOSTLY, everywhere) == DONE
    assert get("READ_MOSTLY", managed) == 0
    assert get("PREFERRED_LOCATION", managed) == -2
    assert (
        cuda.cuMemAdvise(managed, SIZE, ADVISE.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, make_location("DEVICE", 1))
        == DONE
    )
    assert get("PREFERRED_LOCATION", managed) == 1
    assert get("PREFERRED_LOCATION_TYPE", managed) == int(device.type)
    assert get("PREFERRED_LOCATION_ID", managed) == 1
    assert cuda.cuMemAdvise(middle, 1, ADVISE.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host) == DONE
    assert (get("PREFERRED_LOCATION", managed), get("PREFERRED_LOCATION", middle, 1)) == (-2, -1)
    assert cuda.cuMemAdvise(managed, SIZE, ADVISE.CU_MEM_ADVISE_SET_ACCESSED_BY, make_location("DEVICE", 1)) == DONE
    assert cuda.cuMemAdvise(middle, 1, ADVISE.CU_MEM_ADVISE_SET_ACCESSED_BY, host) == DONE
    assert get("ACCESSED_BY", managed, size=8) == [1, -2]
    assert get("ACCESSED_BY", middle, 1, size=12) == [1, -1, -2]
    assert cuda.cuMemAdvise(managed, SIZE, ADVISE.CU_MEM_ADVISE_UNSET_ACCESSED_BY, make_location("DEVICE", 1)) == DONE
    assert get("ACCESSED_BY", managed, size=4) == [-2]
    assert cuda.cuMemPrefetchAsync(managed, SIZE, device, 0, 0) == DONE
    assert get("LAST_PREFETCH_LOCATION", managed) == 0
    assert cuda.cuMemPrefetchAsync(managed, SIZE, host, 0, 0) == DONE
    assert get("LAST_PREFETCH_LOCATION", managed) == -1
    attribute = [A.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, A.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY]
    assert ok(cuda.cuMemRangeGetAttributes([4, 8], attribute, 2, managed, SIZE)) == [0, [-2, -2]]


needs_batches = pytest.mark.skipif(
    not hasattr(cuda, "cuMemDiscardBatchAsync"), reason="this version of cuda-bindings has no batches of discards"
)


@needs_batches
@pytest.mark.parametrize("name", ["cuMemPrefetchBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"])
def test_a_batch_has_a_place_for_each_range(managed: int, name: str) -> None:
    stream, batch = ok(cuda.cuStreamCreate(0)), getattr(cuda, name)
    starts = [managed + index * PAGE_BYTES for index in range(4)]
    sizes, places = [PAGE_BYTES] * 4, [make_location("DEVICE", 1), make_location("HOST"), make_location("DEVICE")]
    assert batch(starts, sizes, 4, places, [0, 1, 3], 3, 0, stream) == DONE, last_error()
    assert [get("LAST_PREFETCH_LOCATION", start, PAGE_BYTES) for start in starts] == [1, -1, -1, 0]
    assert get("LAST_PREFETCH_LOCATION", managed + 4 * PAGE_BYTES, PAGE_BYTES) == -2
    for count, firsts, changes in (
        (0, [0], 1), (4, [0], 0), (4, [1], 1), (4, [0, 4], 2), (4, [0, 2, 2], 3), (4, [0, 3, 1], 3), (5, [0], 1),
        (1, [0, 1], 2), (4, [0], 2), (4, [0, 1, 2, 3], 4), (1 << 63, [0], 1), (4, [0], 1 << 63),
    ):  # fmt: skip
        assert batch(starts, sizes, count, places, firsts, changes, 0, stream) == (INVALID,), (count, firsts, changes)
    for wrong in ([8], [0], [managed - 1]):
        assert batch(wrong, [8], 1, places[:1], [0], 1, 0, stream) == (INVALID,)
    for size in (0, SIZE + 1, 1 << 63):
        assert batch([managed], [size], 1, places[:1], [0], 1, 0, stream) == (INVALID,)
    both = ([managed, 8], [8, 8], 2, places[1:2], [0], 1)
    assert batch(*both, 0, stream) == (INVALID,)
    assert get("LAST_PREFETCH_LOCATION", managed, 8) == 1, "one wrong range, and none is done"
    good = ([managed], [8], 1, places[:1], [0], 1)
    assert batch(*good, 1, stream) == (INVALID,)
    assert batch(*good, 0, 0) == (INVALID,), "not in the legacy stream"
    assert batch(*good, 0, 12345) == (R.CUDA_ERROR_INVALID_HANDLE,)
    nowhere = ([managed], [8], 1, [make_location("DEVICE", 9)], [0], 1)
    assert batch(*nowhere, 0, stream) == (R.CUDA_ERROR_INVALID_DEVICE,)
    assert batch([managed], [8], 1, [make_location("INVALID")], [0], 1, 0, stream) == (INVALID,)
    with pytest.raises(TypeError):
        batch([managed], [8], 1, [5], [0], 1, 0, stream)


@needs_batches
def test_a_batch_of_discards(managed: int, context: Any) -> None:
    stream = ok(cuda.cuStreamCreate(0))
    assert cuda.cuMemDiscardBatchAsync([managed, managed + 8], [8, 8], 2, 0, stream) == DONE
    view_at(managed, 16)[:] = 4
    assert (view_at(managed, 16) == 4).all(), "a write makes it valid again"
    plain = int(ok(cuda.cuMemAlloc(8)))
    for starts, sizes, count, flags, where in (
        ([managed], [8], 0, 0, stream), ([managed], [8], 2, 0, stream), ([managed], [8], 1, 1, stream),
        ([managed], [0], 1, 0, stream), ([managed], [1 << 63], 1, 0, stream), ([plain], [8], 1, 0, stream),
        ([0], [8], 1, 0, stream), ([managed], [8], 1, 0, 0), (None, [8], 1, 0, stream), ([managed], [], 1, 0, stream),
    ):  # fmt: skip
        assert cuda.cuMemDiscardBatchAsync(starts, sizes, count, flags, where) == (INVALID,)
    assert cuda.cuMemDiscardBatchAsync([managed], [8], 1, 0, 12345) == (R.CUDA_ERROR_INVALID_HANDLE,)
    assert cuda.cuMemFree(managed) == DONE
    assert cuda.cuMemDiscardBatchAsync([managed], [8], 1, 0, stream) == (INVALID,), "it is freed"


def test_bad_sizes_flags_and_addresses(managed: int) -> None:
    place, advice = make_location("DEVICE"), ADVISE.CU_MEM_ADVISE_SET_ACCESSED_BY
    plain = int(ok(cuda.cuMemAlloc(SIZE)))
    for size, flags in ((0, 1), (8, 0), (8, 3), (8, 4), (8, 8)):
        assert cuda.cuMemAllocManaged(size, flags) == (INVALID, None)
    for size in (1 << 46, 1 << 63, (1 << 64) - 1):
        assert cuda.cuMemAllocManaged(size, GLOBAL) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    for address, count in (
        (0, 8),
        (plain, 8),
        (managed, SIZE + 1),
        (managed, 0),
        (managed + SIZE, 1),
        (managed, 1 << 63),
    ):
        assert cuda.cuMemAdvise(address, count, advice, place) == (INVALID,)
        assert cuda.cuMemPrefetchAsync(address, count, place, 0, 0) == (INVALID,)
        attribute = A.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY
        assert cuda.cuMemRangeGetAttribute(4, attribute, address, count) == (INVALID, None)
    assert cuda.cuMemAdvise(managed, 8, 99, place) == (INVALID,)
    assert cuda.cuMemAdvise(managed, 8, advice, make_location("INVALID")) == (INVALID,)
    assert cuda.cuMemAdvise(managed, 8, advice, make_location("DEVICE", 7)) == (R.CUDA_ERROR_INVALID_DEVICE,)
    assert cuda.cuMemPrefetchAsync(managed, 8, place, 1, 0) == (INVALID,)
    assert cuda.cuMemPrefetchAsync(managed, 8, place, 0, 12345) == (R.CUDA_ERROR_INVALID_HANDLE,)
    for size in (0, 3, 5, 8):
        assert cuda.cuMemRangeGetAttribute(size, attribute, managed, 8) == (INVALID, None)
    assert cuda.cuMemRangeGetAttribute(6, A.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, 8) == (INVALID, None)
    assert cuda.cuMemRangeGetAttributes([4], [attribute], 2, managed, 8) == (INVALID, None)


def test_attaching_to_a_stream(managed: int) -> None:
    stream = ok(cuda.cuStreamCreate(1))
    for flags in (1, 2, 4):
        assert cuda.cuStreamAttachMemAsync(stream, managed, 0, flags) == DONE
    assert cuda.cuStreamAttachMemAsync(stream, managed, SIZE, 4) == DONE
    assert cuda.cuStreamAttachMemAsync(stream, managed, 8, 4) == (INVALID,)
    assert cuda.cuStreamAttachMemAsync(stream, managed + 8, 0, 4) == (INVALID,)
    assert cuda.cuStreamAttachMemAsync(stream, managed, 0, 3) == (INVALID,)
    assert cuda.cuStreamAttachMemAsync(0, managed, 0, 4) == (INVALID,)
    assert cuda.cuStreamAttachMemAsync(12345, managed, 0, 4) == (R.CUDA_ERROR_INVALID_HANDLE,)


def test_a_device_without_managed_memory_refuses_it_by_name(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pympsd_client._objects.context import contexts

    entry = contexts[int(context)]
    properties = evolve(
        entry.device.properties, attributes={**entry.device.properties.attributes, "MANAGED_MEMORY": 0}
    )
    monkeypatch.setattr(entry, "device", evolve(entry.device, properties=properties))
    assert cuda.cuMemAllocManaged(8, GLOBAL) == (R.CUDA_ERROR_NOT_SUPPORTED, None)
    assert last_error().startswith("cuMemAllocManaged: managed memory is not supported")
    answer = cuda.cuMemAdvise(8, 8, ADVISE.CU_MEM_ADVISE_SET_READ_MOSTLY, make_location("DEVICE"))
    assert answer == (R.CUDA_ERROR_NOT_SUPPORTED,)


@given(
    st.lists(st.tuples(st.integers(0, 9 * PAGE_BYTES), st.integers(0, 9 * PAGE_BYTES), st.booleans()), max_size=20)
)
def test_states_of_pages(changes: list[tuple[int, int, bool]]) -> None:
    states, model = PageStates(9 * PAGE_BYTES - 5), [False] * 9
    for item, other, value in changes:
        start, end = sorted((item, other))
        if start == end:
            continue
        states.change(start, end, lambda state, value=value: evolve(state, is_read_mostly=value))
        for page in range(start // PAGE_BYTES, min(9, -(-end // PAGE_BYTES))):
            model[page] = value
    for page, value in enumerate(model):
        page_states = set(states.list_states(page * PAGE_BYTES, page * PAGE_BYTES + 1))
        assert page_states == {PageState(is_read_mostly=value)}
    assert {item.is_read_mostly for item in states.list_states(0, 9 * PAGE_BYTES)} == set(model)
