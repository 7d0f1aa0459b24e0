"""Memory pools: stream order, reuse, attributes, trimming, limits, bad input."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.values import InMemory
from pympsd_client._objects.pools.arena import Ranges
from tests.client.conftest import ok

A = cuda.CUmemPool_attribute
R = cuda.CUresult
INVALID = R.CUDA_ERROR_INVALID_VALUE
NOT_SUPPORTED = R.CUDA_ERROR_NOT_SUPPORTED
MIB = 1 << 20


def check_done(answer: tuple[Any, ...]) -> None:
    """Fail unless a call without outputs was successful."""
    assert answer == (R.CUDA_SUCCESS,), f"{answer[0]}: {last_error()}"


def properties(device: int = 0, most: int = 0) -> Any:
    """Return the properties of a pool of device memory."""
    description = cuda.CUmemPoolProps()
    description.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    description.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = device
    description.maxSize = most
    return description


@pytest.fixture
def pool(context: Any) -> Any:
    return ok(cuda.cuMemPoolCreate(properties()))


def get(pool: Any, name: str) -> int:
    return int(ok(cuda.cuMemPoolGetAttribute(pool, getattr(A, f"CU_MEMPOOL_ATTR_{name}"))))


def put(pool: Any, name: str, value: Any) -> None:
    check_done(cuda.cuMemPoolSetAttribute(pool, getattr(A, f"CU_MEMPOOL_ATTR_{name}"), value))


def keep(pool: Any) -> None:
    """Have a pool keep all that it has."""
    put(pool, "RELEASE_THRESHOLD", cuda.cuuint64_t((1 << 64) - 1))


class Held:
    """A stream whose work waits until it is let go."""

    def __init__(self) -> None:
        self.stream = ok(cuda.cuStreamCreate(1))
        self._go = threading.Event()
        self._began = threading.Event()
        check_done(cuda.cuLaunchHostFunc(self.stream, self._wait, None))
        assert self._began.wait(10)

    def _wait(self, _: Any) -> None:
        self._began.set()
        self._go.wait(20)

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def held(context: Any) -> Iterator[Held]:
    allocations = Held()
    yield allocations
    allocations.let_go()


def take(pool: Any, size: int, stream: Any = 0) -> int:
    return int(ok(cuda.cuMemAllocFromPoolAsync(size, pool, stream)))


def test_memory_is_memory(pool: Any) -> None:
    stream = ok(cuda.cuStreamCreate(1))
    first, second = take(pool, 1000, stream), take(pool, 5 * MIB + 3, stream)
    data = np.random.default_rng(1).integers(0, 256, 5 * MIB + 3, np.uint8)
    back = np.zeros_like(data)
    check_done(cuda.cuMemsetD8Async(first, 7, 1000, stream))
    check_done(cuda.cuMemcpyHtoDAsync(second, data, data.size, stream))
    check_done(cuda.cuMemcpyDtoHAsync(back, second, data.size, stream))
    check_done(cuda.cuStreamSynchronize(stream))
    assert (back == data).all()
    check_done(cuda.cuMemcpyDtoH(back, first, 1000))
    assert (back[:1000] == 7).all()


def test_memory_freed_in_a_stream_is_reused_in_it_immediately(pool: Any, held: Held) -> None:
    first = take(pool, 3000, held.stream)
    check_done(cuda.cuMemFreeAsync(first, held.stream))
    assert take(pool, 3000, held.stream) == first


def test_another_stream_reuses_memory_only_after_the_free_in_its_stream(pool: Any, held: Held) -> None:
    keep(pool)
    other = ok(cuda.cuStreamCreate(1))
    first = take(pool, 2 * MIB, held.stream)
    check_done(cuda.cuMemFreeAsync(first, held.stream))
    second = take(pool, 2 * MIB, other)
    assert second != first
    assert get(pool, "USED_MEM_CURRENT") == 4 * MIB, "the free has not taken effect"
    held.let_go()
    check_done(cuda.cuStreamSynchronize(held.stream))
    assert get(pool, "USED_MEM_CURRENT") == 2 * MIB
    assert take(pool, 2 * MIB, other) == first


def test_a_stream_that_is_done_is_noticed_without_a_wait(pool: Any) -> None:
    item, other = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
    first = take(pool, 2 * MIB, item)
    check_done(cuda.cuMemFreeAsync(first, item))
    while cuda.cuStreamQuery(item)[0] != R.CUDA_SUCCESS:
        pass
    assert take(pool, 2 * MIB, other) == first


def test_freed_memory_is_not_reused_without_opportunistic_reuse(pool: Any) -> None:
    put(pool, "REUSE_ALLOW_OPPORTUNISTIC", 0)
    item, other = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
    first = take(pool, 2 * MIB, item)
    check_done(cuda.cuMemFreeAsync(first, item))
    while cuda.cuStreamQuery(item)[0] != R.CUDA_SUCCESS:
        pass
    assert take(pool, 2 * MIB, other) != first


def test_at_the_limit_a_stream_is_made_to_wait_for_what_another_freed(context: Any, held: Held) -> None:
    pool = ok(cuda.cuMemPoolCreate(properties(most=4 * MIB)))
    assert get(pool, "MAX_POOL_SIZE") == 4 * MIB
    other = ok(cuda.cuStreamCreate(1))
    first = take(pool, 4 * MIB, held.stream)
    assert cuda.cuMemAllocFromPoolAsync(1, pool, other) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    check_done(cuda.cuMemsetD8Async(first, 1, 4 * MIB, held.stream))
    check_done(cuda.cuMemFreeAsync(first, held.stream))
    put(pool, "REUSE_ALLOW_INTERNAL_DEPENDENCIES", 0)
    assert cuda.cuMemAllocFromPoolAsync(4 * MIB, pool, other) == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    put(pool, "REUSE_ALLOW_INTERNAL_DEPENDENCIES", 1)
    assert take(pool, 4 * MIB, other) == first
    check_done(cuda.cuMemsetD8Async(first, 2, 4 * MIB, other))
    assert cuda.cuStreamQuery(other)[0] == R.CUDA_ERROR_NOT_READY, "it waits for the stream that freed it"
    held.let_go()
    check_done(cuda.cuStreamSynchronize(other))
    back = np.zeros(4 * MIB, np.uint8)
    check_done(cuda.cuMemcpyDtoH(back, first, back.size))
    assert (back == 2).all()


def test_what_a_destroyed_stream_freed_is_free_when_its_work_is_done(pool: Any, held: Held) -> None:
    keep(pool)
    other = ok(cuda.cuStreamCreate(1))
    first = take(pool, 2 * MIB, held.stream)
    check_done(cuda.cuMemFreeAsync(first, held.stream))
    check_done(cuda.cuStreamDestroy(held.stream))
    assert take(pool, 2 * MIB, other) != first
    held.let_go()
    check_done(cuda.cuCtxSynchronize())
    assert take(pool, 2 * MIB, other) == first


def test_neighbours_are_joined(pool: Any) -> None:
    keep(pool)
    blocks = [take(pool, MIB // 2) for _ in range(4)]
    for item in (1, 3, 0, 2):
        check_done(cuda.cuMemFreeAsync(blocks[item], 0))
    assert take(pool, 2 * MIB) == blocks[0]
    assert get(pool, "RESERVED_MEM_CURRENT") == 2 * MIB


def test_reserved_and_used_memory(pool: Any) -> None:
    assert [get(pool, name) for name in ("RESERVED_MEM_CURRENT", "USED_MEM_CURRENT", "RESERVED_MEM_HIGH")] == [0] * 3
    keep(pool)
    free = ok(cuda.cuMemGetInfo())[0]
    first = take(pool, 1000)
    assert get(pool, "USED_MEM_CURRENT") == 1024
    assert get(pool, "RESERVED_MEM_CURRENT") == free - ok(cuda.cuMemGetInfo())[0] == 2 * MIB
    second = take(pool, 8 * MIB)
    assert get(pool, "USED_MEM_HIGH") == 1024 + 8 * MIB
    check_done(cuda.cuMemFreeAsync(second, 0))
    check_done(cuda.cuStreamSynchronize(0))
    assert get(pool, "USED_MEM_CURRENT") == 1024
    assert get(pool, "USED_MEM_HIGH") == 1024 + 8 * MIB
    put(pool, "USED_MEM_HIGH", cuda.cuuint64_t(0))
    assert get(pool, "USED_MEM_HIGH") == 1024
    check_done(cuda.cuMemFreeAsync(first, 0))
    check_done(cuda.cuStreamSynchronize(0))
    assert get(pool, "RESERVED_MEM_CURRENT") == 10 * MIB, "it is held on to"
    check_done(cuda.cuMemPoolTrimTo(pool, 3 * MIB))
    assert get(pool, "RESERVED_MEM_CURRENT") == 8 * MIB, "at least that many bytes stay"
    check_done(cuda.cuMemPoolTrimTo(pool, 0))
    assert get(pool, "RESERVED_MEM_CURRENT") == 0
    assert get(pool, "RESERVED_MEM_HIGH") == 10 * MIB
    put(pool, "RESERVED_MEM_HIGH", cuda.cuuint64_t(0))
    assert get(pool, "RESERVED_MEM_HIGH") == 0
    check_done(cuda.cuCtxSynchronize())
    assert ok(cuda.cuMemGetInfo())[0] == free


@pytest.mark.parametrize("wait", ["stream", "context", "event"])
def test_a_wait_releases_what_is_above_the_threshold(pool: Any, wait: str) -> None:
    stream = ok(cuda.cuStreamCreate(0))
    check_done(cuda.cuMemFreeAsync(take(pool, 5 * MIB, stream), stream))
    assert get(pool, "RESERVED_MEM_CURRENT") == 6 * MIB
    if wait == "stream":
        check_done(cuda.cuStreamSynchronize(stream))
    elif wait == "context":
        check_done(cuda.cuCtxSynchronize())
    else:
        event = ok(cuda.cuEventCreate(0))
        check_done(cuda.cuEventRecord(event, stream))
        check_done(cuda.cuEventSynchronize(event))
    assert get(pool, "RESERVED_MEM_CURRENT") == 0


def test_memory_in_use_is_never_released(pool: Any) -> None:
    address = take(pool, 100)
    check_done(cuda.cuMemsetD8(address, 5, 100))
    check_done(cuda.cuMemPoolTrimTo(pool, 0))
    check_done(cuda.cuCtxSynchronize())
    back = np.zeros(100, np.uint8)
    check_done(cuda.cuMemcpyDtoH(back, address, 100))
    assert (back == 5).all()


def test_the_pools_of_a_device(context: Any) -> None:
    default = ok(cuda.cuDeviceGetDefaultMemPool(0))
    assert int(default) != int(ok(cuda.cuDeviceGetDefaultMemPool(1)))
    assert int(ok(cuda.cuDeviceGetMemPool(0))) == int(default)
    mine = ok(cuda.cuMemPoolCreate(properties()))
    check_done(cuda.cuDeviceSetMemPool(0, mine))
    assert int(ok(cuda.cuDeviceGetMemPool(0))) == int(mine)
    address = int(ok(cuda.cuMemAllocAsync(100, 0)))
    attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    assert int(ok(cuda.cuPointerGetAttribute(attribute, address + 50))) == int(mine)
    check_done(cuda.cuMemPoolDestroy(mine))
    assert int(ok(cuda.cuDeviceGetMemPool(0))) == int(default), "the default one is current again"
    assert cuda.cuMemAllocFromPoolAsync(8, mine, 0) == (INVALID, None)
    check_done(cuda.cuMemsetD8(address, 1, 100))
    check_done(cuda.cuMemFreeAsync(address, 0))
    assert cuda.cuMemPoolDestroy(default) == (INVALID,)
    assert cuda.cuMemPoolDestroy(mine) == (INVALID,)


def test_a_destroyed_pool_gives_its_memory_back(pool: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    address = take(pool, MIB)
    check_done(cuda.cuMemPoolDestroy(pool))
    assert ok(cuda.cuMemGetInfo())[0] == free - 2 * MIB
    check_done(cuda.cuMemFreeAsync(address, 0))
    check_done(cuda.cuCtxSynchronize())
    assert ok(cuda.cuMemGetInfo())[0] == free


def test_pools_by_location(context: Any) -> None:
    location = properties().location
    kind = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert int(ok(cuda.cuMemGetDefaultMemPool(location, kind))) == int(ok(cuda.cuDeviceGetDefaultMemPool(0)))
    mine = ok(cuda.cuMemPoolCreate(properties()))
    check_done(cuda.cuMemSetMemPool(location, kind, mine))
    assert int(ok(cuda.cuMemGetMemPool(location, kind))) == int(mine)
    location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_INVALID
    assert cuda.cuMemGetMemPool(location, kind) == (INVALID, None)
    assert cuda.cuMemGetMemPool(None, kind) == (INVALID, None)


def test_any_allocation_can_be_freed_in_either_way(pool: Any) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    plain, block = int(ok(cuda.cuMemAlloc(3 * MIB))), take(pool, 3 * MIB)
    check_done(cuda.cuMemFreeAsync(plain, 0))
    check_done(cuda.cuMemFree(block))
    assert cuda.cuMemFree(block) == (INVALID,)
    assert cuda.cuMemFreeAsync(plain, 0) == (INVALID,)
    check_done(cuda.cuCtxSynchronize())
    assert ok(cuda.cuMemGetInfo())[0] == free


def test_memory_of_a_pool_is_freed_with_its_context(devices: None) -> None:
    pool = ok(cuda.cuMemPoolCreate(properties()))
    first = ok(cuda.cuCtxCreate(None, 0, 0))
    address = take(pool, MIB)
    check_done(cuda.cuMemFreeAsync(take(pool, MIB), 0))
    check_done(cuda.cuCtxDestroy(first))
    assert [get(pool, name) for name in ("RESERVED_MEM_CURRENT", "USED_MEM_CURRENT")] == [0, 0]
    second = ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuMemFreeAsync(address, 0) == (INVALID,)
    check_done(cuda.cuMemsetD8(take(pool, MIB), 1, MIB))
    check_done(cuda.cuCtxDestroy(second))


def test_a_block_is_freed_in_a_stream_of_another_context(context: Any) -> None:
    pool = ok(cuda.cuMemPoolCreate(properties()))
    keep(pool)
    address = take(pool, 2 * MIB)
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    slow = Held()
    check_done(cuda.cuMemFreeAsync(address, slow.stream))
    check_done(cuda.cuCtxSetCurrent(context))
    assert take(pool, 2 * MIB) != address
    slow.let_go()
    check_done(cuda.cuCtxSetCurrent(other))
    check_done(cuda.cuStreamSynchronize(slow.stream))
    check_done(cuda.cuCtxSetCurrent(context))
    assert take(pool, 2 * MIB) == address
    check_done(cuda.cuCtxDestroy(other))


def test_bad_sizes_pools_and_streams(pool: Any) -> None:
    stream = ok(cuda.cuStreamCreate(0))
    for size in (1 << 62, 1 << 63, (1 << 64) - 1):
        assert cuda.cuMemAllocFromPoolAsync(size, pool, stream)[0] in (INVALID, R.CUDA_ERROR_OUT_OF_MEMORY)
    with pytest.raises(OverflowError):
        cuda.cuMemAllocAsync(1 << 64, stream)
    assert cuda.cuMemAllocFromPoolAsync(1, 12345, stream) == (INVALID, None)
    assert cuda.cuMemAllocFromPoolAsync(1, None, stream) == (INVALID, None)
    assert cuda.cuMemAllocAsync(1, 12345) == (R.CUDA_ERROR_INVALID_HANDLE, None)
    address = take(pool, 1000, stream)
    for wrong in (address + 1, address + 512, 1 << 63):
        assert cuda.cuMemFreeAsync(wrong, stream) == (INVALID,)
    assert cuda.cuMemFreeAsync(address, 12345) == (R.CUDA_ERROR_INVALID_HANDLE,)
    check_done(cuda.cuMemFreeAsync(address, stream))
    assert cuda.cuMemFreeAsync(address, stream) == (INVALID,)
    assert cuda.cuDeviceSetMemPool(0, ok(cuda.cuMemPoolCreate(properties(1)))) == (INVALID,)
    assert cuda.cuDeviceGetMemPool(2) == (R.CUDA_ERROR_INVALID_DEVICE, None)


def test_bad_properties_and_attributes(pool: Any) -> None:
    assert cuda.cuMemPoolCreate(None) == (INVALID, None)
    with pytest.raises(TypeError):
        cuda.cuMemPoolCreate(5)
    assert cuda.cuMemPoolCreate(properties(2)) == (R.CUDA_ERROR_INVALID_VALUE, None)
    assert cuda.cuMemPoolCreate(properties(most=1 << 63)) == (INVALID, None)
    assert cuda.cuMemPoolCreate(cuda.CUmemPoolProps()) == (INVALID, None)
    managed = properties(most=5)
    managed.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
    assert cuda.cuMemPoolCreate(managed) == (INVALID, None)
    assert cuda.cuMemPoolGetAttribute(pool, 99) == (INVALID, None)
    assert cuda.cuMemPoolGetAttribute(5, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == (INVALID, None)
    for name in ("RESERVED_MEM_CURRENT", "LOCATION_ID", "USED_MEM_HIGH"):
        attribute = getattr(A, f"CU_MEMPOOL_ATTR_{name}")
        assert cuda.cuMemPoolSetAttribute(pool, attribute, cuda.cuuint64_t(1)) == (INVALID,)


def test_values_have_the_types_of_cuda_bindings(pool: Any) -> None:
    threshold = ok(cuda.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD))
    assert isinstance(threshold, cuda.cuuint64_t)
    assert ok(cuda.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC)) == 1
    in_c = ctypes.c_uint64(77)
    put(pool, "RELEASE_THRESHOLD", InMemory(ctypes.addressof(in_c)))
    assert get(pool, "RELEASE_THRESHOLD") == 77


def test_pools_report_and_set_the_access_of_devices(pool: Any) -> None:
    mine, other = cuda.CUmemAccessDesc(), cuda.CUmemAccessDesc()
    both = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    for item, device in ((mine, 0), (other, 1)):
        item.location = properties(device).location
        item.flags = both
    check_done(cuda.cuMemPoolSetAccess(pool, [mine], 1))
    wrong = cuda.CUmemAccessDesc()
    wrong.location, wrong.flags = properties(2).location, both
    assert cuda.cuMemPoolSetAccess(pool, [other, wrong], 2) == (R.CUDA_ERROR_INVALID_DEVICE,)
    assert cuda.cuMemPoolSetAccess(pool, [mine], 2) == (INVALID,)
    assert ok(cuda.cuMemPoolGetAccess(pool, mine.location)) == both
    assert int(ok(cuda.cuMemPoolGetAccess(pool, other.location))) == 0
    mine.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    assert cuda.cuMemPoolSetAccess(pool, [mine], 1) == (R.CUDA_ERROR_INVALID_DEVICE,)
    assert cuda.cuMemPoolGetAccess(pool, None) == (INVALID, None)


def test_an_allocation_of_no_bytes_has_address_0(pool: Any) -> None:
    assert take(pool, 0) == 0, "as the driver answers"
    assert int(ok(cuda.cuMemAllocAsync(0, 0))) == 0
    check_done(cuda.cuMemFreeAsync(0, 0))


@pytest.mark.parametrize("kind", ["MANAGED", "HOST"])
def test_pools_of_memory_that_the_program_reaches_too(context: Any, kind: str) -> None:
    expected = properties()
    if kind == "MANAGED":
        expected.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
    else:
        expected.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    pool = ok(cuda.cuMemPoolCreate(expected))
    address = take(pool, 1000)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * 1000).from_address(address))
    memory[:] = 3
    back = np.zeros(1000, np.uint8)
    check_done(cuda.cuMemcpyDtoH(back, address, 1000))
    assert (back == 3).all()
    check_done(cuda.cuMemsetD8(address, 4, 1000))
    assert (memory == 4).all()
    managed = ok(cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, address))
    assert managed is (kind == "MANAGED")
    host = ok(cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER, address))
    assert host == address
    assert get(pool, "LOCATION_TYPE") == int(expected.location.type)
    assert get(pool, "ALLOCATION_TYPE") == int(expected.allocType)
    assert int(ok(cuda.cuMemPoolGetAccess(pool, properties().location))) == 3
    advice = cuda.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY
    answer = cuda.cuMemAdvise(address, 100, advice, properties().location)
    assert answer == ((R.CUDA_SUCCESS,) if kind == "MANAGED" else (INVALID,))
    check_done(cuda.cuMemFreeAsync(address, 0))
    check_done(cuda.cuMemPoolTrimTo(pool, 0))
    check_done(cuda.cuCtxSynchronize())
    assert get(pool, "RESERVED_MEM_CURRENT") == 0
    take(pool, 5000)
    check_done(cuda.cuCtxDestroy(context))


def test_threads_allocate_from_one_pool(pool: Any, context: Any) -> None:
    keep(pool)
    wrong: list[str] = []

    def work(number: int) -> None:
        check_done(cuda.cuCtxSetCurrent(context))
        stream = ok(cuda.cuStreamCreate(1))
        mine = [take(pool, 4000 + number, stream) for _ in range(20)]
        for turn in range(20):
            for item in mine:
                check_done(cuda.cuMemsetD32Async(item, number * 1000 + turn, 1000, stream))
            back = np.zeros(1000, np.uint32)
            check_done(cuda.cuMemcpyDtoHAsync(back, mine[turn], 4000, stream))
            if (back != number * 1000 + turn).any():
                wrong.append(f"{number}, {turn}")
            check_done(cuda.cuMemFreeAsync(mine[turn], stream))
            mine[turn] = take(pool, 4000 + number, stream)
        for item in mine:
            check_done(cuda.cuMemFreeAsync(item, stream))
        check_done(cuda.cuStreamSynchronize(stream))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert get(pool, "USED_MEM_CURRENT") == 0


def test_a_pool_in_a_context_in_error_gives_its_error(pool: Any, context: Any) -> None:
    from pympsd_client._objects.context import contexts

    entry = contexts[int(context)]
    entry.fault(entry.id, int(R.CUDA_ERROR_ILLEGAL_ADDRESS), "a fault")
    assert cuda.cuMemAllocFromPoolAsync(8, pool, 0) == (R.CUDA_ERROR_ILLEGAL_ADDRESS, None)
    check_done(cuda.cuCtxDestroy(context))
    gc.collect()


def test_another_context_that_was_ended_leaves_a_pool_whole(context: Any) -> None:
    from pympsd_client._objects.context import contexts

    pool = ok(cuda.cuMemPoolCreate(properties()))
    keep(pool)
    addresses = [take(pool, 2 * MIB) for _ in range(2)]
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    check_done(cuda.cuMemFreeAsync(addresses[0], ok(cuda.cuStreamCreate(0))))
    slow = Held()
    check_done(cuda.cuMemFreeAsync(addresses[1], slow.stream))
    entry = contexts[int(other)]
    entry.fault(entry.id, int(R.CUDA_ERROR_MPS_CLIENT_TERMINATED), "it was ended")
    slow.let_go()
    check_done(cuda.cuCtxSetCurrent(context))
    assert {take(pool, 2 * MIB), take(pool, 2 * MIB)} == set(addresses)
    assert get(pool, "USED_MEM_CURRENT") == 4 * MIB
    check_done(cuda.cuCtxDestroy(other))


CHUNKS = [(0, 64), (64, 128), (256, 320)]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 70)), max_size=80))
def test_ranges_never_overlap_and_never_cross_a_chunk(steps: list[tuple[bool, int]]) -> None:
    ranges, taken = Ranges(), {}
    for start, end in CHUNKS:
        ranges.give(start, end, start, end)
    for takes, number in steps:
        if takes:
            start = ranges.take(number)
            largest = max((end - start for start, end in ranges), default=0)
            if start is None:
                assert largest < number
                continue
            assert any(low <= start and start + number <= high for low, high in CHUNKS)
            assert all(start >= other + size or other >= start + number for other, size in taken.items())
            taken[start] = number
        elif taken:
            start = sorted(taken)[number % len(taken)]
            size = taken.pop(start)
            low, high = next(chunk for chunk in CHUNKS if chunk[0] <= start < chunk[1])
            ranges.give(start, start + size, low, high)
        assert ranges.bytes + sum(taken.values()) == sum(end - start for start, end in CHUNKS)
    for start, size in taken.items():
        low, high = next(chunk for chunk in CHUNKS if chunk[0] <= start < chunk[1])
        ranges.give(start, start + size, low, high)
    assert list(ranges) == CHUNKS
    assert ranges.remove(64, 128)
    assert not ranges.remove(0, 32)
