"""Page-locked and managed memory of one device in kernels of another, for which no peer access is needed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pympsd.vocabulary.results import Result
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context, contexts
from pympsd_client._objects.memory.peer_access import peer_access
from pympsd_client._objects.memory.shared_pages import share
from tests.client.conftest import ok
from tests.client.test_client_managed_variables import PTX
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_peer_access import DONE, ILLEGAL, WORDS, add_one, numbers, peers, read, use
from tests.client.test_client_pinned import view_at
from tests.support.client_kernels import MORE

__all__ = ["peers"]
SIZE = 4 * WORDS
DEVICE_MAP = 2
ATTACH_GLOBAL = 1
_kept: list[mmap.mmap] = []


def _allocate() -> tuple[int, int]:
    address = int(ok(cuda.cuMemHostAlloc(SIZE, DEVICE_MAP)))
    return address, address


def _allocate_managed() -> tuple[int, int]:
    address = int(ok(cuda.cuMemAllocManaged(SIZE, ATTACH_GLOBAL)))
    return address, address


def _register() -> tuple[int, int]:
    pages = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _kept.append(pages)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ok(cuda.cuMemHostRegister(address, SIZE, DEVICE_MAP))
    return address, int(ok(cuda.cuMemHostGetDevicePointer(address, 0)))


def _free(make: Callable[[], tuple[int, int]], address: int) -> None:
    free = {_allocate: cuda.cuMemFreeHost, _allocate_managed: cuda.cuMemFree, _register: cuda.cuMemHostUnregister}
    ok(free[make](address))


KINDS = pytest.mark.parametrize("make", [_allocate, _allocate_managed, _register])
"""Each returns the program's address and that of kernels."""


def test_the_managed_variables_of_a_library_are_the_same_on_all_devices(peers: list[Any]) -> None:
    """CUDA driver API, cuLibraryGetManaged."""
    library = ok(cuda.cuLibraryLoadData(PTX, None, None, 0, None, None, 0))
    by_one = ok(cuda.cuLibraryGetKernel(library, b"count"))
    addresses = set()
    for context in (*peers, *peers):
        use(context)
        addresses.add(int(ok(cuda.cuLibraryGetManaged(library, b"counter"))[0]))
        launch(ok(cuda.cuKernelGetFunction(by_one)), (10, ctypes.c_uint64))
        ok(cuda.cuCtxSynchronize())
    (address,) = addresses
    assert view_at(address, 4).view(np.uint32)[0] == 5 + 4 * 11
    ok(cuda.cuLibraryUnload(library))


@KINDS
@pytest.mark.parametrize("own", [0, 1])
def test_kernels_of_another_device_read_and_write_host_memory(
    make: Callable[[], tuple[int, int]], own: int, peers: list[Any]
) -> None:
    use(peers[1 - own])
    address, of_kernels = make()
    memory = view_at(address, SIZE).view(np.float32)
    memory[:] = np.arange(WORDS)
    for context in (peers[own], peers[1 - own], peers[own]):
        use(context)
        assert add_one(of_kernels) == DONE, last_error()
    assert (memory == np.arange(WORDS) + 3).all()


def test_a_context_that_is_created_later_accesses_host_memory(context: Any) -> None:
    address, _ = _allocate()
    view_at(address, SIZE).view(np.float32)[:] = 0
    ok(cuda.cuCtxCreate(None, 0, 1))
    assert add_one(address) == DONE, last_error()
    ok(cuda.cuMemsetD32(address + 4, 0, 1))
    assert view_at(address, SIZE).view(np.float32)[:3].tolist() == [1, 0, 1]


def _begin_to_wait_for(word: int) -> Any:
    """Return a stream of the current context with a kernel that runs until a word in memory is not 0."""
    stream = ok(cuda.cuStreamCreate(1))
    launch(kernel(MORE, b"wait_for_word"), (word, ctypes.c_uint64), stream=stream)
    return stream


def test_a_running_kernel_sees_what_the_program_writes(peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    use(peers[0])
    stream = _begin_to_wait_for(address)
    assert cuda.cuStreamQuery(stream)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    view_at(address, 4)[0] = 1
    assert cuda.cuStreamSynchronize(stream) == DONE


def test_host_memory_has_the_same_address_for_both_devices(peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    registered, of_kernels = _register()
    use(peers[0])
    assert int(ok(cuda.cuMemHostGetDevicePointer(address, 0))) == address
    assert int(ok(cuda.cuMemHostGetDevicePointer(registered, 0))) == of_kernels


@pytest.mark.parametrize("what", ["device memory", "device memory after peer access", "freed"])
def test_what_kernels_of_another_device_do_not_reach(what: str, peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    wrong = numbers(peers[1])
    use(peers[0])
    if what == "device memory after peer access":
        ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
        assert add_one(wrong) == DONE
        ok(cuda.cuCtxDisablePeerAccess(peers[1]))
    assert add_one(address) == DONE, last_error()
    if what == "freed":
        ok(cuda.cuMemFreeHost(address))
        wrong = address
    assert add_one(wrong) == ILLEGAL
    assert f"{wrong:#x}" in last_error()


def test_a_running_kernel_continues_when_peer_access_ends(peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    use(peers[0])
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    stream = _begin_to_wait_for(address)
    for _ in range(3):
        ok(cuda.cuCtxDisablePeerAccess(peers[1]))
        ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    assert cuda.cuStreamQuery(stream)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    view_at(address, 4)[0] = 1
    assert cuda.cuStreamSynchronize(stream) == DONE


def test_kernels_do_not_reach_memory_of_a_destroyed_context(peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    use(peers[0])
    assert add_one(address) == DONE, last_error()
    ok(cuda.cuCtxDestroy(peers[1]))
    ok(cuda.cuCtxCreate(None, 0, 1))
    use(peers[0])
    assert add_one(address) == ILLEGAL


def test_many_pieces_and_device_memory_beside_them(peers: list[Any]) -> None:
    use(peers[1])
    pieces = [_allocate()[0] for _ in range(50)]
    for piece in pieces[::2]:
        ok(cuda.cuMemFreeHost(piece))
    use(peers[0])
    own = numbers(peers[0])
    for piece in pieces[1::2]:
        view_at(piece, SIZE)[:] = 0
        assert add_one(piece) == DONE, last_error()
        assert (view_at(piece, SIZE).view(np.float32) == 1).all()
    assert add_one(own) == DONE
    assert (read(own) == np.arange(WORDS) + 1).all()


@KINDS
def test_freeing_waits_for_kernels_of_another_device(
    make: Callable[[], tuple[int, int]], peers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(peers[1])
    word, _ = _allocate()
    address, _ = make()
    use(peers[0])
    stream = _begin_to_wait_for(word)
    call = Context.call
    waited = []

    def end_kernel(context: Context, operation: Any, *operands: int) -> bytes:
        if operation is operations.SYNCHRONIZE_CONTEXT and context is contexts[int(peers[0])]:
            waited.append(cuda.cuStreamQuery(stream)[0])
            view_at(word, 4)[0] = 1
        return call(context, operation, *operands)

    use(peers[1])
    with monkeypatch.context() as patch:
        patch.setattr(Context, "call", end_kernel)
        _free(make, address)
    assert waited[:1] == [cuda.CUresult.CUDA_ERROR_NOT_READY]
    assert cuda.cuStreamQuery(stream) == DONE, "nothing else waits for it"
    ok(cuda.cuMemFreeHost(word))


def test_freeing_within_a_host_function_waits_for_nothing(peers: list[Any]) -> None:
    """As a finalizer may: the function would wait for itself."""
    pages = share(contexts[int(peers[1])], SIZE)
    use(peers[0])
    assert add_one(pages.address) == DONE, last_error()
    ok(cuda.cuLaunchHostFunc(0, lambda _: pages.close(), None))
    assert cuda.cuStreamSynchronize(0) == DONE
    assert add_one(pages.address) == ILLEGAL


def _refuse_mapping(patch: pytest.MonkeyPatch, code: Result) -> None:
    call = Context.call

    def refuse_mapping(context: Context, operation: Any, *operands: int) -> bytes:
        if operation is operations.MAP_PEER:
            raise CudaError(code, "the memory of the peer cannot be mapped")
        return call(context, operation, *operands)

    patch.setattr(Context, "call", refuse_mapping)


@pytest.mark.parametrize("code", [Result.ERROR_OUT_OF_MEMORY, Result.ERROR_ILLEGAL_ADDRESS])
@pytest.mark.parametrize("is_primary", [False, True])
def test_a_context_whose_device_cannot_map_it_is_refused_unless_a_device_has_failed(
    is_primary: bool, code: Result, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the refusal its kernels would fault later, in memory that is valid."""

    def create() -> tuple[Any, Any]:
        return cuda.cuDevicePrimaryCtxRetain(1) if is_primary else cuda.cuCtxCreate(None, 0, 1)

    address, _ = _allocate()
    view_at(address, SIZE)[:] = 0
    before = len(contexts)
    with monkeypatch.context() as patch:
        _refuse_mapping(patch, code)
        if code == Result.ERROR_OUT_OF_MEMORY:
            assert create() == (cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
            assert "cannot be mapped" in last_error()
            assert len(contexts) == before
        else:
            created = ok(create())
            ok(cuda.cuDevicePrimaryCtxRelease(1) if is_primary else cuda.cuCtxDestroy(created))
    use(context)
    assert add_one(address) == DONE, last_error()
    use(ok(create()))
    assert add_one(address) == DONE, last_error()
    assert (view_at(address, SIZE).view(np.float32) == 2).all()


@pytest.mark.parametrize("code", [Result.ERROR_OUT_OF_MEMORY, Result.ERROR_ILLEGAL_ADDRESS])
def test_memory_that_another_device_cannot_map_is_refused_unless_it_has_failed(
    code: Result, peers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(cuda.cuCtxDestroy(peers[1]))
    monkeypatch.setattr(peer_access, "_sharing", set())  # earlier tests have allocated such memory
    with monkeypatch.context() as patch:
        _refuse_mapping(patch, code)
        again = ok(cuda.cuCtxCreate(None, 0, 1))
        use(peers[0])
        if code == Result.ERROR_OUT_OF_MEMORY:
            assert cuda.cuMemHostAlloc(SIZE, DEVICE_MAP) == (cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
            assert "cannot be mapped" in last_error()
        else:
            ok(cuda.cuMemFreeHost(ok(cuda.cuMemHostAlloc(SIZE, DEVICE_MAP))))
    address, _ = _allocate()
    view_at(address, SIZE)[:] = 0
    use(again)
    assert add_one(address) == DONE, last_error()
