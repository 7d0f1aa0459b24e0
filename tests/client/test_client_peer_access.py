"""Peer access: kernels of one device read and write what the process has allocated on another."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.context import contexts
from tests.client.conftest import ok
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_pool_sharing import import_again, pass_on
from tests.client.test_client_pools import properties as pool_properties
from tests.client.test_client_virtual_memory import BOTH, GRANULE, access, map_memory, properties, reserve
from tests.support.client_kernels import BASIC, HEADER, MORE

R = cuda.CUresult
DONE = (R.CUDA_SUCCESS,)
INVALID_CONTEXT = (R.CUDA_ERROR_INVALID_CONTEXT,)
ILLEGAL = (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
WORDS = 1000
ATTRIBUTES = cuda.CUdevice_P2PAttribute
NO_ACCESS = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE

GATHER = (
    HEADER
    + b"""
.visible .entry gather(.param .u64 places, .param .u64 out) {
    .reg .b32 %r<3>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [places]; ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 8; add.s64 %rd4, %rd1, %rd3; ld.global.u64 %rd5, [%rd4];
    ld.u32 %r2, [%rd5];
    mul.wide.u32 %rd6, %r1, 4; add.s64 %rd7, %rd2, %rd6; st.global.u32 [%rd7], %r2;
    ret;
}
"""
)
"""Each thread loads a word from an address of its own."""


@pytest.fixture
def peers(devices: None) -> list[Any]:
    """A context on each of two devices, the first one's current."""
    contexts = [ok(cuda.cuCtxCreate(None, 0, number)) for number in (1, 0)]
    return contexts[::-1]


def numbers(context: Any, count: int = WORDS) -> int:
    """Return the address of the floats 0, 1, 2 ... in a context."""
    ok(cuda.cuCtxPushCurrent(context))
    address = int(ok(cuda.cuMemAlloc(4 * count)))
    ok(cuda.cuMemcpyHtoD(address, np.arange(count, dtype=np.float32), 4 * count))
    ok(cuda.cuCtxPopCurrent())
    return address


def read(address: int, count: int = WORDS) -> Any:
    values = np.zeros(count, np.float32)
    ok(cuda.cuMemcpyDtoH(values, address, 4 * count))
    return values


def add_one(address: int, count: int = WORDS) -> tuple[Any, ...]:
    """Add 1 to floats in the current context; return the result of waiting for that."""
    launch(kernel(BASIC, b"add_one"), (address, ctypes.c_uint64), (count, ctypes.c_uint32), blocks=4, threads=256)
    answer: tuple[Any, ...] = cuda.cuCtxSynchronize()
    return answer


def use(context: Any) -> None:
    ok(cuda.cuCtxSetCurrent(context))


def test_devices_report_peer_access(devices: None) -> None:
    for item, other in ((0, 1), (1, 0)):
        assert ok(cuda.cuDeviceCanAccessPeer(item, other)) == 1
        kept_open = {
            name: ok(cuda.cuDeviceGetP2PAttribute(value, item, other))
            for name, value in ATTRIBUTES.__members__.items()
        }
        assert {name for name, value in kept_open.items() if value} == {"CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED"}
    assert ok(cuda.cuDeviceCanAccessPeer(0, 0)) == 0, "no peer of itself"


@pytest.mark.parametrize("own", [0, 1], ids=["a greater ordinal", "a lower ordinal"])
def test_kernels_read_and_write_memory_of_a_peer(own: int, peers: list[Any]) -> None:
    before = numbers(peers[1 - own])
    use(peers[own])
    assert cuda.cuCtxEnablePeerAccess(peers[1 - own], 0) == DONE, last_error()
    after = numbers(peers[1 - own])
    for address in (before, after):
        assert add_one(address) == DONE, last_error()
        assert (read(address) == np.arange(WORDS) + 1).all()


def test_kernels_of_two_devices_use_each_others_memory_concurrently(peers: list[Any]) -> None:
    places = [numbers(context) for context in peers]
    for own in (0, 1):
        use(peers[own])
        ok(cuda.cuCtxEnablePeerAccess(peers[1 - own], 0))
        launch(
            kernel(BASIC, b"add_one"),
            (places[1 - own], ctypes.c_uint64),
            (WORDS, ctypes.c_uint32),
            blocks=4,
            threads=256,
        )
    for own in (0, 1):
        use(peers[own])
        assert cuda.cuCtxSynchronize() == DONE
        assert (read(places[1 - own]) == np.arange(WORDS) + 1).all()


def test_a_running_kernel_sees_what_the_peer_writes(peers: list[Any]) -> None:
    use(peers[1])
    words = ok(cuda.cuMemAlloc(64))
    ok(cuda.cuMemsetD8(words, 0, 64))
    ok(cuda.cuCtxSynchronize())
    use(peers[0])
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    stream = ok(cuda.cuStreamCreate(1))
    launch(kernel(MORE, b"wait_for_word"), (int(words), ctypes.c_uint64), stream=stream)
    assert cuda.cuStreamQuery(stream)[0] == R.CUDA_ERROR_NOT_READY
    use(peers[1])
    ok(cuda.cuMemsetD32(words, 1, 1))
    use(peers[0])
    assert cuda.cuStreamSynchronize(stream) == DONE


@pytest.mark.parametrize("own", [0, 1])
def test_threads_of_one_kernel_use_memory_of_both_devices(own: int, peers: list[Any]) -> None:
    places = [numbers(context, 16) for context in peers]
    use(peers[own])
    ok(cuda.cuCtxEnablePeerAccess(peers[1 - own], 0))
    expected = np.array([places[thread % 2] + 4 * (thread // 2) for thread in range(32)], np.uint64)
    arguments, out = (int(ok(cuda.cuMemAlloc(size))) for size in (expected.nbytes, 4 * 32))
    ok(cuda.cuMemcpyHtoD(arguments, expected, expected.nbytes))
    launch(kernel(GATHER, b"gather"), (arguments, ctypes.c_uint64), (out, ctypes.c_uint64), threads=32)
    assert cuda.cuCtxSynchronize() == DONE, last_error()
    assert (read(out, 32) == [thread // 2 for thread in range(32)]).all()


def test_later_work_of_a_stream_follows_a_fill_of_a_peers_memory(peers: list[Any]) -> None:
    use(peers[1])
    size = 64 << 20
    address = int(ok(cuda.cuMemAlloc(size)))
    ok(cuda.cuCtxSynchronize())
    use(peers[0])
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    stream = ok(cuda.cuStreamCreate(1))
    ok(cuda.cuMemsetD8Async(address, 1, size, stream))
    use(peers[1])
    assert cuda.cuStreamQuery(0) == DONE, "the fill is done"


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("what", ["never enabled", "disabled", "freed", "beyond", "before", "misaligned"])
def test_kernels_fault_at_inaccessible_memory_of_a_peer(what: str, own: int, peers: list[Any]) -> None:
    address = numbers(peers[1 - own])
    use(peers[own])
    if what != "never enabled":
        ok(cuda.cuCtxEnablePeerAccess(peers[1 - own], 0))
        assert add_one(address) == DONE
    if what == "disabled":
        ok(cuda.cuCtxDisablePeerAccess(peers[1 - own]))
    if what == "freed":
        ok(cuda.cuMemFree(address))
    beyond = GRANULE - address % GRANULE  # the end of the page, as on the own device
    address += {"beyond": beyond, "before": -512, "misaligned": 2}.get(what, 0)
    code = R.CUDA_ERROR_MISALIGNED_ADDRESS if what == "misaligned" else R.CUDA_ERROR_ILLEGAL_ADDRESS
    assert add_one(address, 100) == (code,)
    assert f"{address:#x}" in last_error()
    use(peers[1 - own])
    assert cuda.cuCtxSynchronize() == (code,), "a fault ends all contexts of the process"


def test_the_peers_memory_ends_with_its_context(peers: list[Any]) -> None:
    use(peers[0])
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    address = numbers(peers[1])
    ok(cuda.cuCtxDestroy(peers[1]))
    assert cuda.cuCtxEnablePeerAccess(peers[1], 0) == INVALID_CONTEXT
    again = ok(cuda.cuCtxCreate(None, 0, 1))
    use(peers[0])
    ok(cuda.cuCtxEnablePeerAccess(again, 0))
    other = numbers(again)
    assert other == address, "the addresses are used again"
    assert add_one(other) == DONE
    ok(cuda.cuCtxDestroy(again))
    assert add_one(other) == ILLEGAL


def test_access_ends_with_the_context_that_has_it(peers: list[Any]) -> None:
    address = numbers(peers[1])
    use(peers[0])
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    ok(cuda.cuCtxDestroy(peers[0]))
    use(other)
    assert add_one(address) == ILLEGAL


def test_one_of_two_contexts_gives_its_access_up(peers: list[Any]) -> None:
    address = numbers(peers[1])
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    for context in (peers[0], other):
        use(context)
        ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    ok(cuda.cuCtxDisablePeerAccess(peers[1]))
    use(peers[0])
    assert add_one(address) == DONE
    for _ in range(3):  # as often as one likes
        ok(cuda.cuCtxDisablePeerAccess(peers[1]))
        ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    assert add_one(address) == DONE


def test_memory_that_was_mapped_before_stays_accessible(peers: list[Any]) -> None:
    use(peers[0])
    host = ok(cuda.cuMemHostAlloc(4 * WORDS, 2))
    own = map_memory()
    ok(cuda.cuMemsetD8(own, 0, 4 * WORDS))
    ok(cuda.cuCtxSynchronize())
    ctypes.memset(int(host), 0, 4 * WORDS)
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    more = map_memory()
    for address in (int(host), own, more, numbers(peers[1])):
        assert add_one(address) == DONE, last_error()
    assert (np.frombuffer(ctypes.string_at(int(host), 4 * WORDS), np.float32) == 1).all()
    assert (read(own) == 1).all()
    assert cuda.cuMemFreeHost(host) == DONE


def test_wrong_peer_access_is_refused(peers: list[Any]) -> None:
    assert cuda.cuCtxEnablePeerAccess(peers[0], 0) == (R.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,), "the current one"
    assert cuda.cuCtxDisablePeerAccess(peers[0]) == (R.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,)
    assert cuda.cuCtxEnablePeerAccess(peers[1], 1) == (R.CUDA_ERROR_INVALID_VALUE,)
    same = ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuCtxEnablePeerAccess(peers[0], 0) == (R.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,), "of the same device"
    assert "cuMemcpyPeer" in last_error()
    assert cuda.cuCtxDisablePeerAccess(peers[1]) == (R.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,)
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    assert cuda.cuCtxEnablePeerAccess(peers[1], 0) == (R.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,)
    for call, rest in ((cuda.cuCtxEnablePeerAccess, (0,)), (cuda.cuCtxDisablePeerAccess, ())):
        for wrong in (0, 12345, 1 << 63):
            assert call(wrong, *rest) == INVALID_CONTEXT
    ok(cuda.cuCtxDestroy(same))
    while int(ok(cuda.cuCtxGetCurrent())):
        ok(cuda.cuCtxPopCurrent())
    assert cuda.cuCtxEnablePeerAccess(peers[1], 0) == INVALID_CONTEXT, "a context must be current"
    for item, other in ((0, 0), (0, 2), (-1, 0)):
        rank = ATTRIBUTES.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
        assert cuda.cuDeviceGetP2PAttribute(rank, item, other) == (R.CUDA_ERROR_INVALID_DEVICE, None)
    assert cuda.cuDeviceCanAccessPeer(0, 2) == (R.CUDA_ERROR_INVALID_DEVICE, None)
    assert cuda.cuDeviceGetP2PAttribute(99, 0, 1) == (R.CUDA_ERROR_INVALID_VALUE, None)


# --- mapped memory


def make(address: int, device: int, size: int = GRANULE) -> Any:
    """Map new memory of a device at an address."""
    handle = ok(cuda.cuMemCreate(size, properties(device), 0))
    assert cuda.cuMemMap(address, size, 0, handle, 0) == DONE, last_error()
    return handle


def give(address: int, size: int, *devices: int, flags: Any = BOTH) -> None:
    expected = [access(flags, device) for device in devices]
    assert cuda.cuMemSetAccess(address, size, expected, len(expected)) == DONE, last_error()


@pytest.mark.parametrize("own", [0, 1])
def test_mapped_memory_is_accessible_as_it_is_set(own: int, peers: list[Any]) -> None:
    use(peers[1 - own])
    address = reserve(2 * GRANULE)
    for at in (address, address + GRANULE):
        make(at, 1 - own)
    give(address, 2 * GRANULE, 0, 1)
    ok(cuda.cuMemsetD8(address, 0, 2 * GRANULE))
    ok(cuda.cuCtxSynchronize())
    for context in peers:
        use(context)
        assert add_one(address + GRANULE - 2000) == DONE, "over the border of the two"
    assert (read(address + GRANULE - 2000) == 2).all()
    where = access(device=own).location
    assert int(ok(cuda.cuMemGetAccess(where, address))) == 3
    give(address, 2 * GRANULE, own, flags=NO_ACCESS)
    assert int(ok(cuda.cuMemGetAccess(where, address))) == 0
    use(peers[1 - own])
    assert add_one(address) == DONE
    use(peers[own])
    assert add_one(address) == ILLEGAL


@pytest.mark.parametrize("own", [0, 1])
def test_a_fill_needs_access_to_all_mappings_of_its_range(own: int, peers: list[Any]) -> None:
    use(peers[own])
    address = reserve(2 * GRANULE)
    for at in (address, address + GRANULE):
        make(at, 0)
    give(address, 2 * GRANULE, 0, 1)
    give(address + GRANULE, GRANULE, own, flags=NO_ACCESS)
    border = address + GRANULE - 8
    ok(cuda.cuMemsetD8(border, 1, 8))
    for answer in (cuda.cuMemsetD8(border, 2, 9), cuda.cuMemsetD2D8Async(border, 8, 2, 8, 2, 0)):
        assert answer == (R.CUDA_ERROR_INVALID_VALUE,)
        assert f"not accessible to the stream's device {own}" in last_error()
    use(peers[1 - own])
    ok(cuda.cuMemsetD8(border, 3, 16))


@pytest.mark.parametrize("shared", [True, False], ids=["both have access", "the memory's device alone has access"])
def test_memory_of_several_devices_in_one_range_of_addresses(shared: bool, peers: list[Any]) -> None:
    """NVIDIA's vectorAddMMAP does this: the addresses belong to the current device, the memory to both devices."""
    use(peers[1])
    before = ok(cuda.cuMemGetInfo())[0]
    use(peers[0])
    address = reserve(2 * GRANULE)
    handles = [make(address + number * GRANULE, number) for number in (0, 1)]
    if shared:
        give(address, 2 * GRANULE, 0, 1)
    else:
        give(address + GRANULE, GRANULE, 1)
    assert cuda.cuMemsetD8(address + GRANULE, 0, GRANULE) == (DONE if shared else (R.CUDA_ERROR_INVALID_VALUE,))
    use(peers[1])
    ok(cuda.cuMemsetD8(address + GRANULE, 0, GRANULE))
    assert add_one(address + GRANULE) == DONE, last_error()
    assert (read(address + GRANULE) == 1).all()
    for number, handle in enumerate(handles):
        assert cuda.cuMemUnmap(address + number * GRANULE, GRANULE) == DONE
        assert cuda.cuMemRelease(handle) == DONE
    assert cuda.cuMemAddressFree(address, 2 * GRANULE) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == before
    use(peers[0])
    assert add_one(address + GRANULE) == ILLEGAL


def test_memory_needs_no_context_of_its_device(context: Any) -> None:
    address = reserve(2 * GRANULE)
    handles = [make(address + number * GRANULE, number) for number in (0, 1)]
    give(address, 2 * GRANULE, 0, 1)
    ok(cuda.cuMemsetD8(address, 0, 2 * GRANULE))
    ok(cuda.cuCtxSynchronize())
    assert add_one(address + GRANULE) == DONE, last_error()
    assert int(ok(cuda.cuDevicePrimaryCtxGetState(1))[1]) == 0, "the program has not asked for a context there"
    assert cuda.cuMemUnmap(address, 2 * GRANULE) == DONE
    for handle in handles:
        assert cuda.cuMemRelease(handle) == DONE
    assert [item.device.ordinal for item in contexts.values()] == [0]


def test_the_memory_of_a_closed_context_is_unmapped_everywhere(peers: list[Any]) -> None:
    address = reserve(2 * GRANULE)
    for number in (0, 1):
        make(address + number * GRANULE, number)
    give(address, 2 * GRANULE, 0, 1)
    ok(cuda.cuCtxDestroy(peers[1]))
    use(peers[0])
    assert add_one(address) == DONE
    assert cuda.cuMemUnmap(address + GRANULE, GRANULE) == DONE
    assert add_one(address + GRANULE) == ILLEGAL


def test_the_memory_of_another_device_is_freed_when_the_addresses_context_has_closed(peers: list[Any]) -> None:
    use(peers[1])
    before = ok(cuda.cuMemGetInfo())[0]
    use(peers[0])
    address = reserve(GRANULE)
    handle = make(address, 1)
    ok(cuda.cuCtxDestroy(peers[0]))
    use(peers[1])
    assert cuda.cuMemUnmap(address, GRANULE) == DONE
    assert cuda.cuMemRelease(handle) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == before


@pytest.mark.parametrize("first", [0, 1])
def test_contexts_that_have_failed_are_closed_with_what_is_mapped(first: int, peers: list[Any]) -> None:
    free = ok(cuda.cuMemGetInfo())[0]
    address = reserve(GRANULE)
    handle = make(address, 1)
    assert cuda.cuMemRelease(handle) == DONE
    for peer in peers:
        entry = contexts[int(peer)]
        entry.fault(entry.id, int(R.CUDA_ERROR_MPS_CLIENT_TERMINATED), "it was ended")
    for number in (first, 1 - first):
        assert cuda.cuCtxDestroy(peers[number]) == DONE, last_error()
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert ok(cuda.cuMemGetInfo())[0] == free
    ok(cuda.cuCtxCreate(None, 0, 1))
    assert ok(cuda.cuMemGetInfo())[0] == free


def test_all_of_a_range_is_unmapped_though_the_memory_s_context_has_failed(peers: list[Any]) -> None:
    address = reserve(2 * GRANULE)
    for at in (address, address + GRANULE):
        assert cuda.cuMemRelease(make(at, 1)) == DONE
    entry = contexts[int(peers[1])]
    entry.fault(entry.id, int(R.CUDA_ERROR_MPS_CLIENT_TERMINATED), "it was ended")
    assert cuda.cuMemUnmap(address, 2 * GRANULE) == DONE, last_error()
    assert cuda.cuMemAddressFree(address, 2 * GRANULE) == DONE
    ok(cuda.cuCtxSynchronize())


def test_memory_stays_mapped_where_that_of_the_addresses_device_is_freed(devices: None) -> None:
    """The program has no context. Mapping memory opens one, which stays open as long as it is needed."""
    address = reserve(2 * GRANULE)
    handles = [make(address + number * GRANULE, number) for number in (0, 1)]
    for number in (0, 1):
        assert cuda.cuMemUnmap(address + number * GRANULE, GRANULE) == DONE, last_error()
        assert cuda.cuMemRelease(handles[number]) == DONE
    assert not contexts


# --- memory pools


def test_a_pool_gives_and_takes_access(peers: list[Any]) -> None:
    use(peers[1])
    pool = ok(cuda.cuDeviceGetDefaultMemPool(1))
    address = int(ok(cuda.cuMemAllocAsync(4 * WORDS, 0)))
    ok(cuda.cuMemsetD8Async(address, 0, 4 * WORDS, 0))
    ok(cuda.cuStreamSynchronize(0))
    use(peers[0])
    assert cuda.cuMemPoolSetAccess(pool, [access(device=0)], 1) == DONE, last_error()
    assert int(ok(cuda.cuMemPoolGetAccess(pool, access(device=0).location))) == 3
    assert add_one(address) == DONE, last_error()
    assert (read(address) == 1).all()
    assert cuda.cuMemPoolSetAccess(pool, [access(NO_ACCESS, 0)], 1) == DONE
    assert int(ok(cuda.cuMemPoolGetAccess(pool, access(device=0).location))) == 0
    assert add_one(address) == ILLEGAL


def test_a_pools_access_holds_for_later_contexts(devices: None) -> None:
    pool = ok(cuda.cuDeviceGetDefaultMemPool(1))
    assert cuda.cuMemPoolSetAccess(pool, [access(device=0)], 1) == DONE, last_error()
    for _ in range(2):
        item, other = (ok(cuda.cuCtxCreate(None, 0, number)) for number in (0, 1))
        address = int(ok(cuda.cuMemAllocAsync(4 * WORDS, 0)))
        ok(cuda.cuStreamSynchronize(0))
        use(item)
        assert add_one(address) == DONE, last_error()
        for context in (other, item):
            ok(cuda.cuCtxDestroy(context))
    assert cuda.cuMemPoolSetAccess(pool, [access(NO_ACCESS, 0)], 1) == DONE


def test_copies_reach_a_pools_memory_with_its_access_alone(peers: list[Any]) -> None:
    """As on a GPU, copies need the pool's access. (Copies of memory of cuMemAlloc need none.)"""
    use(peers[1])
    pool = ok(cuda.cuDeviceGetDefaultMemPool(1))
    theirs = int(ok(cuda.cuMemAllocAsync(64, 0)))
    ok(cuda.cuStreamSynchronize(0))
    use(peers[0])
    mine = ok(cuda.cuMemAlloc(64))
    for expected in (R.CUDA_ERROR_INVALID_VALUE, R.CUDA_SUCCESS, R.CUDA_ERROR_INVALID_VALUE):
        assert cuda.cuMemcpyDtoDAsync(mine, theirs, 64, 0) == (expected,)
        assert cuda.cuMemcpyDtoDAsync(theirs, mine, 64, 0) == (expected,)
        flags = NO_ACCESS if expected == R.CUDA_SUCCESS else BOTH
        assert cuda.cuMemPoolSetAccess(pool, [access(flags, 0)], 1) == DONE
    assert cuda.cuMemPoolSetAccess(pool, [access(NO_ACCESS, 0)], 1) == DONE


def test_a_pool_for_export_gives_access_too(peers: list[Any]) -> None:
    expected = cuda.CUmemPoolProps()
    expected.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    expected.handleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    expected.location = access(device=1).location
    use(peers[1])
    pool = ok(cuda.cuMemPoolCreate(expected))
    address = int(ok(cuda.cuMemAllocFromPoolAsync(4 * WORDS, pool, 0)))
    ok(cuda.cuMemsetD8(address, 0, 4 * WORDS))
    ok(cuda.cuCtxSynchronize())
    use(peers[0])
    assert cuda.cuMemPoolSetAccess(pool, [access(device=0)], 1) == DONE, last_error()
    assert add_one(address) == DONE, last_error()
    assert (read(address) == 1).all()
    use(peers[1])
    ok(cuda.cuMemFreeAsync(address, 0))
    assert cuda.cuMemPoolDestroy(pool) == DONE


@pytest.mark.parametrize("has_context", [True, False])
def test_a_pools_memory_for_the_stream_of_another_device(has_context: bool, devices: None) -> None:
    for number in (1, 0) if has_context else (0,):
        ok(cuda.cuCtxCreate(None, 0, number))
    pool = ok(cuda.cuMemPoolCreate(pool_properties(1)))
    ok(cuda.cuMemPoolSetAccess(pool, [access(device=0)], 1))
    stream = ok(cuda.cuStreamCreate(0))
    first = int(ok(cuda.cuMemAllocFromPoolAsync(4 * WORDS, pool, stream)))
    attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert ok(cuda.cuPointerGetAttribute(attribute, first)) == 1
    ok(cuda.cuMemcpyHtoD(first, np.zeros(WORDS, np.float32), 4 * WORDS))
    assert add_one(first) == DONE, last_error()
    assert (read(first) == 1).all()
    assert cuda.cuMemFreeAsync(first, stream) == DONE
    assert int(ok(cuda.cuMemAllocFromPoolAsync(4 * WORDS, pool, stream))) == first, "it is free for the same stream"
    second = int(ok(cuda.cuMemAllocFromPoolAsync(4 * WORDS, pool, stream)))
    assert second != first
    for address in (first, second):
        ok(cuda.cuMemFreeAsync(address, stream))
    ok(cuda.cuStreamDestroy(stream))
    assert ok(cuda.cuDevicePrimaryCtxGetState(1))[1] == (not has_context), "the pool retains it, if it must"
    assert cuda.cuMemPoolDestroy(pool) == DONE
    assert ok(cuda.cuDevicePrimaryCtxGetState(1))[1] == 0


def test_no_graph_of_one_device_allocates_from_a_pool_of_another(peers: list[Any]) -> None:
    stream, pool = ok(cuda.cuStreamCreate(0)), ok(cuda.cuDeviceGetDefaultMemPool(1))
    ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    assert cuda.cuMemAllocFromPoolAsync(64, pool, stream)[0] == R.CUDA_ERROR_NOT_SUPPORTED
    assert "the pool is of device 1" in last_error()
    ok(cuda.cuGraphDestroy(ok(cuda.cuStreamEndCapture(stream))))


def test_an_imported_pool_begins_without_access(peers: list[Any]) -> None:
    expected = pool_properties(1)
    expected.handleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    use(peers[1])
    pool = ok(cuda.cuMemPoolCreate(expected))
    ok(cuda.cuMemPoolSetAccess(pool, [access(device=0)], 1))
    theirs = import_again(pool)
    exported = int(ok(cuda.cuMemAllocFromPoolAsync(4 * WORDS, pool, 0)))
    place = pass_on(theirs, exported)
    ok(cuda.cuMemsetD8(place, 0, 4 * WORDS))
    use(peers[0])
    mine = ok(cuda.cuMemAlloc(64))
    for is_given in (False, True, False):
        flags = BOTH if is_given else NO_ACCESS
        assert cuda.cuMemPoolSetAccess(theirs, [access(flags, 0)], 1) == DONE
        expected = R.CUDA_SUCCESS if is_given else R.CUDA_ERROR_INVALID_VALUE
        assert cuda.cuMemcpyDtoDAsync(mine, place, 64, 0) == (expected,)
        assert cuda.cuMemcpyDtoDAsync(place, mine, 64, 0) == (expected,)
        if is_given:
            assert add_one(place) == DONE, last_error()
            assert (read(place, 8) == 1).all()
    assert ok(cuda.cuMemPoolGetAccess(pool, access(device=0).location)) == 3, "the exporter's is its own"
    use(peers[1])
    for address, opened in ((place, theirs), (exported, pool)):
        assert cuda.cuMemFree(address) == DONE, last_error()
        assert cuda.cuMemPoolDestroy(opened) == DONE
