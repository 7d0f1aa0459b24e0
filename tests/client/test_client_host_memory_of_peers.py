"""Page-locked and managed memory of one device in kernels of another, for which no peer access is needed."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok
from tests.client.test_client_mapped import kernel, launch
from tests.client.test_client_peer_access import DONE, ILLEGAL, WORDS, add_one, numbers, peers, read, use
from tests.client.test_client_pinned import at
from tests.support.client_kernels import MORE

__all__ = ["peers"]
SIZE = 4 * WORDS
DEVICE_MAP = 2
ATTACH_GLOBAL = 1
_undo: list[Callable[[], object]] = []


@pytest.fixture(autouse=True)
def leave_nothing(devices: None) -> Iterator[None]:
    """Free and unregister what a test has made; what it has freed itself is refused."""
    yield
    while _undo:
        _undo.pop()()


def _allocate() -> tuple[int, int]:
    address = int(ok(cuda.cuMemHostAlloc(SIZE, DEVICE_MAP)))
    _undo.append(lambda: cuda.cuMemFreeHost(address))
    return address, address


def _allocate_managed() -> tuple[int, int]:
    address = int(ok(cuda.cuMemAllocManaged(SIZE, ATTACH_GLOBAL)))
    _undo.append(lambda: cuda.cuMemFree(address))
    return address, address


def _register() -> tuple[int, int]:
    pages = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = ctypes.c_char.from_buffer(pages)  # keeps them
    address = ctypes.addressof(first)
    ok(cuda.cuMemHostRegister(address, SIZE, DEVICE_MAP))
    _undo.append(lambda: (cuda.cuMemHostUnregister(address), first))
    return address, int(ok(cuda.cuMemHostGetDevicePointer(address, 0)))


KINDS = pytest.mark.parametrize("make", [_allocate, _allocate_managed, _register])
"""Each returns the program's address and that of kernels."""


@KINDS
@pytest.mark.parametrize("own", [0, 1])
def test_kernels_of_another_device_read_and_write_it(
    make: Callable[[], tuple[int, int]], own: int, peers: list[Any]
) -> None:
    use(peers[1 - own])
    address, of_kernels = make()
    memory = at(address, SIZE).view(np.float32)
    memory[:] = np.arange(WORDS)
    for context in (peers[own], peers[1 - own], peers[own]):
        use(context)
        assert add_one(of_kernels) == DONE, last_error()
    assert (memory == np.arange(WORDS) + 3).all()


def test_a_context_that_is_created_later_reaches_it(context: Any) -> None:
    address, _ = _allocate()
    at(address, SIZE).view(np.float32)[:] = 0
    ok(cuda.cuCtxCreate(None, 0, 1))
    assert add_one(address) == DONE, last_error()
    ok(cuda.cuMemsetD32(address + 4, 0, 1))
    assert at(address, SIZE).view(np.float32)[:3].tolist() == [1, 0, 1]


def test_a_running_kernel_sees_what_the_program_writes(peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    use(peers[0])
    stream = ok(cuda.cuStreamCreate(1))
    launch(kernel(MORE, b"wait_for_word"), (address, ctypes.c_uint64), stream=stream)
    assert cuda.cuStreamQuery(stream)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    at(address, 4)[0] = 1
    assert cuda.cuStreamSynchronize(stream) == DONE


def test_its_address_is_the_same_for_both(peers: list[Any]) -> None:
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


def test_a_running_kernel_goes_on_when_peer_access_ends(peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    use(peers[0])
    ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    stream = ok(cuda.cuStreamCreate(1))
    launch(kernel(MORE, b"wait_for_word"), (address, ctypes.c_uint64), stream=stream)
    for _ in range(3):
        ok(cuda.cuCtxDisablePeerAccess(peers[1]))
        ok(cuda.cuCtxEnablePeerAccess(peers[1], 0))
    assert cuda.cuStreamQuery(stream)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    at(address, 4)[0] = 1
    assert cuda.cuStreamSynchronize(stream) == DONE


def test_without_a_context_of_its_device_kernels_do_not_reach_it(peers: list[Any]) -> None:
    use(peers[1])
    address, _ = _allocate()
    at(address, SIZE)[:] = 0
    ok(cuda.cuCtxDestroy(peers[1]))
    again = ok(cuda.cuCtxCreate(None, 0, 1))
    use(peers[0])
    assert add_one(address) == DONE, last_error()
    assert (at(address, SIZE).view(np.float32) == 1).all()
    ok(cuda.cuCtxDestroy(again))
    assert add_one(address) == ILLEGAL


def test_many_pieces_and_device_memory_beside_them(peers: list[Any]) -> None:
    use(peers[1])
    pieces = [_allocate()[0] for _ in range(50)]
    for piece in pieces[::2]:
        ok(cuda.cuMemFreeHost(piece))
    use(peers[0])
    own = numbers(peers[0])
    for piece in pieces[1::2]:
        at(piece, SIZE)[:] = 0
        assert add_one(piece) == DONE, last_error()
        assert (at(piece, SIZE).view(np.float32) == 1).all()
    assert add_one(own) == DONE
    assert (read(own) == np.arange(WORDS) + 1).all()
