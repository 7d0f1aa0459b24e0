"""Memory on real emulated devices: allocation, copies of any size, fills, host pointers of every kind."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pympsd.vocabulary.device_properties import ordinal_of, window_of
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.memory import allocations as device_memory
from tests.client.conftest import ok

INVALID_VALUE = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)
SIZES = [1, 3, 4095, 65536, 65537, (4 << 20) - 1, 4 << 20, (16 << 20) + 5, 40 << 20]


@pytest.fixture
def device_bytes(context: Any) -> Any:
    """Allocate 64 MiB."""
    return ok(cuda.cuMemAlloc(64 << 20))


def _random(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_copies_bring_back_what_was_sent(device_bytes: Any, size: int) -> None:
    sent, back = _random(size), np.zeros(size + 16, dtype=np.uint8)
    ok(cuda.cuMemcpyHtoD(device_bytes, sent, size))
    ok(cuda.cuMemcpyDtoH(back, device_bytes, size))
    assert (back[:size] == sent).all()
    assert not back[size:].any()


@pytest.mark.parametrize("size", [5, 4 << 20, 40 << 20])
def test_asynchronous_copies_keep_stream_order(device_bytes: Any, size: int) -> None:
    stream = ok(cuda.cuStreamCreate(1))
    sent, back = _random(size), np.zeros(size, dtype=np.uint8)
    source = sent.copy()
    ok(cuda.cuMemcpyHtoDAsync(device_bytes, source, size, stream))
    source[:] = 0  # it may change as soon as the call has returned
    ok(cuda.cuMemcpyDtoHAsync(back, device_bytes, size, stream))
    assert (back == sent).all()
    ok(cuda.cuStreamSynchronize(stream))


def _copy_rows(destination_type: str, destination: int, source_type: str, source: int, size: int) -> tuple[Any, ...]:
    rows = cuda.CUDA_MEMCPY2D()
    for side, kind, address in (("dst", destination_type, destination), ("src", source_type, source)):
        setattr(rows, f"{side}MemoryType", getattr(cuda.CUmemorytype, f"CU_MEMORYTYPE_{kind}"))
        setattr(rows, f"{side}Host" if kind == "HOST" else f"{side}Device", address)
    rows.WidthInBytes, rows.Height = size // 4, 4
    return cuda.cuMemcpy2D(rows)


@pytest.mark.parametrize(
    "copy",
    [
        lambda to, start, size: cuda.cuMemcpyHtoD(to, start, size),
        lambda to, start, size: cuda.cuMemcpyHtoDAsync(to, start, size, 0),
        lambda to, start, size: cuda.cuMemcpyDtoH(to, start, size),
        lambda to, start, size: cuda.cuMemcpyDtoHAsync(to, start, size, 0),
        lambda to, start, size: _copy_rows("DEVICE", to, "HOST", start, size),
        lambda to, start, size: _copy_rows("HOST", to, "DEVICE", start, size),
        lambda to, start, size: _copy_rows("HOST", to, "HOST", start, size),
    ],
    ids=["HtoD", "HtoDAsync", "DtoH", "DtoHAsync", "rows from", "rows to", "rows between"],
)
def test_a_host_pointer_may_be_an_address_on_a_device(device_bytes: Any, copy: Any) -> None:
    sent, back, to = _random(4096), np.zeros(4096, np.uint8), int(device_bytes) + 8192
    ok(cuda.cuMemcpyHtoD(device_bytes, sent, 4096))
    ok(copy(to, int(device_bytes), 4096))
    ok(cuda.cuMemcpyDtoH(back, to, 4096))
    assert (back == sent).all()
    assert copy(to, int(device_bytes) + (64 << 20) - 8, 4096) == INVALID_VALUE, "it ends beyond the allocation"


def test_large_allocations_begin_at_pages(context: Any) -> None:
    sizes = (700, 1 << 20, 700, (1 << 20) + 1, 5 << 20)
    addresses = [int(ok(cuda.cuMemAlloc(size))) for size in sizes]
    assert [address % (2 << 20) for address, size in zip(addresses, sizes, strict=True) if size > 700] == [0, 0, 0]
    assert addresses[2] - addresses[0] < 2 << 20, "small ones lie close together"


@pytest.mark.parametrize("copy", ["cuMemcpyDtoD", "cuMemcpy"])
def test_copies_within_a_device(device_bytes: Any, copy: str) -> None:
    sent, back = _random(1000), np.zeros(1000, dtype=np.uint8)
    ok(cuda.cuMemcpyHtoD(device_bytes, sent, 1000))
    ok(getattr(cuda, copy)(int(device_bytes) + 5000, device_bytes, 1000))
    ok(cuda.cuMemcpyDtoH(back, int(device_bytes) + 5000, 1000))
    assert (back == sent).all()


@pytest.mark.parametrize("copy", ["cuMemcpyDtoDAsync", "cuMemcpyAsync"])
def test_copies_between_devices_are_staged(device_bytes: Any, copy: str) -> None:
    size = (9 << 20) + 1
    sent, back = _random(size), np.zeros(size, dtype=np.uint8)
    stream = ok(cuda.cuStreamCreate(0))
    other = ok(cuda.cuCtxCreate(None, 0, 1))
    elsewhere = ok(cuda.cuMemAlloc(size))
    assert (ordinal_of(int(device_bytes)), ordinal_of(int(elsewhere))) == (0, 1)
    ok(cuda.cuCtxPopCurrent())
    ok(cuda.cuMemcpyHtoDAsync(device_bytes, sent, size, stream))
    ok(getattr(cuda, copy)(elsewhere, device_bytes, size, stream))
    ok(cuda.cuMemcpyDtoH(back, elsewhere, size))  # found by its window, whatever context is current
    assert (back == sent).all()
    ok(cuda.cuCtxDestroy(other))


HOSTS = {
    "bytes": lambda data: data,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "ctypes": lambda data: (ctypes.c_char * len(data)).from_buffer_copy(data),
    "array of floats": lambda data: np.frombuffer(data, dtype=np.float32),
    "Fortran order": lambda data: np.asfortranarray(np.frombuffer(data, dtype=np.uint8).reshape(4, -1).T).T,
}


@pytest.mark.parametrize("kind", HOSTS)
def test_anything_with_a_buffer_is_a_host_pointer(device_bytes: Any, kind: str) -> None:
    data = bytes(range(64))
    ok(cuda.cuMemcpyHtoD(device_bytes, HOSTS[kind](data), 64))
    back = bytearray(64)
    ok(cuda.cuMemcpyDtoH(back, device_bytes, 64))
    assert bytes(back) == data


@pytest.mark.parametrize("kind", ["int", "numpy integer", "c_void_p value"])
def test_an_address_is_a_host_pointer(device_bytes: Any, kind: str) -> None:
    array = _random(100)
    address = {"int": int, "numpy integer": np.uint64, "c_void_p value": lambda at: ctypes.c_void_p(at).value}[kind](
        array.ctypes.data
    )
    ok(cuda.cuMemcpyHtoD(device_bytes, address, 100))
    back = np.zeros(100, dtype=np.uint8)
    ok(cuda.cuMemcpyDtoH(back.ctypes.data, device_bytes, 100))
    assert (back == array).all()


def test_an_array_of_one_element_is_a_buffer_and_not_an_address(device_bytes: Any) -> None:
    ok(cuda.cuMemcpyHtoD(device_bytes, np.array([7], dtype=np.int32), 4))
    back = np.zeros(1, dtype=np.int32)
    ok(cuda.cuMemcpyDtoH(back, device_bytes, 4))
    assert back[0] == 7


@pytest.mark.parametrize("host", ["text", 1.5j, [1, 2], {}])
def test_what_is_not_a_host_pointer_is_a_type_error(device_bytes: Any, host: object) -> None:
    with pytest.raises(TypeError):
        cuda.cuMemcpyHtoD(device_bytes, host, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda at: cuda.cuMemcpyHtoD(at, bytes(10), 11), "11 bytes are more than the host buffer has: 10"),
        (lambda at: cuda.cuMemcpyDtoH(bytearray(10), at, 11), "11 bytes are more than the host buffer has: 10"),
        (lambda at: cuda.cuMemcpyDtoH(bytes(10), at, 10), "read-only"),
        (lambda at: cuda.cuMemcpyHtoD(at, 0, 10), "NULL"),
        (lambda at: cuda.cuMemcpyHtoD(at, None, 10), "NULL"),
        (lambda at: cuda.cuMemcpyHtoD(0x1000, bytes(10), 10), "not an address of a visible device"),
        (lambda at: cuda.cuMemcpyHtoD(window_of(2), bytes(10), 10), "not an address of a visible device"),
        (lambda at: cuda.cuMemcpyHtoD(window_of(1), bytes(10), 10), "no usable context"),
        (lambda at: cuda.cuMemcpyDtoH(bytearray(10), 0, 10), "not an address of a visible device"),
        (lambda at: cuda.cuMemcpy(at, 0x1000, 10), "neither all this process's nor a visible device's"),
        (lambda at: cuda.cuMemcpy(0, at, 10), "neither all this process's nor a visible device's"),
        (lambda at: cuda.cuMemsetD32(int(at) + 2, 0, 1), "not aligned"),
        (lambda at: cuda.cuMemsetD16(int(at) + 1, 0, 1), "not aligned"),
        (lambda at: cuda.cuMemFree(int(at) + 1), "not the start of an allocation"),
        (lambda at: cuda.cuMemFree(0x1234), "not the start of an allocation"),
        (lambda at: cuda.cuMemcpyHtoD(int(at) + (64 << 20), bytes(10), 10), "in no memory of this process"),
        (lambda at: cuda.cuMemcpyDtoD(at, at, 1 << 33), "not all within the 67108864 bytes"),
        (lambda at: cuda.cuMemcpyDtoDAsync(int(at) + 1, at, 64 << 20, 0), "not all within"),
        (lambda at: cuda.cuMemsetD8(at, 0, (64 << 20) + 1), "not all within"),
        (lambda at: cuda.cuMemsetD32Async(at, 0, 1 << 62, 0), "not all within"),
        (lambda at: cuda.cuMemsetD2D8(at, 32 << 20, 0, 16, 4), "not all within"),
    ],
)
def test_bad_addresses_and_sizes_are_named(device_bytes: Any, call: Any, words: str) -> None:
    assert call(device_bytes) == INVALID_VALUE
    assert words in last_error()
    ok(cuda.cuCtxSynchronize())


@pytest.mark.parametrize(
    "name", ["cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpy", "cuMemcpyDtoH", "cuMemcpyDtoHAsync"]
)
@pytest.mark.parametrize("size", [1 << 22, 1 << 33, 1 << 63])
def test_more_than_the_device_memory_has_is_refused_before_the_host_memory_is_read(
    context: Any, name: str, size: int
) -> None:
    memory, host = ok(cuda.cuMemAlloc(1 << 20)), np.full(1 << 20, 7, np.uint8)
    sides = (host.ctypes.data, memory) if "DtoH" in name else (memory, host.ctypes.data)
    stream = (ok(cuda.cuStreamCreate(0)),) if name.endswith("Async") else ()
    assert getattr(cuda, name)(*sides, size, *stream) == INVALID_VALUE
    ok(cuda.cuMemFree(memory))
    assert getattr(cuda, name)(*sides, size, *stream) == INVALID_VALUE
    ok(cuda.cuCtxSynchronize())
    assert (host == 7).all()


@pytest.mark.parametrize("stream", [(), (0,)])
def test_memory_that_is_not_registered_is_the_hosts(device_bytes: Any, stream: tuple[int, ...]) -> None:
    copy = cuda.cuMemcpyAsync if stream else cuda.cuMemcpy
    sent, between, back = _random(1000), np.zeros(1000, np.uint8), np.zeros(1000, np.uint8)
    ok(copy(device_bytes, sent.ctypes.data, 1000, *stream))
    ok(copy(between.ctypes.data, device_bytes, 1000, *stream))
    ok(copy(back.ctypes.data, between.ctypes.data, 1000, *stream))
    assert (back == sent).all()


def test_an_asynchronous_error_is_returned_once_by_a_later_call(
    device_bytes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory, "check_range", lambda *_: None)  # the executor does not rely on it
    ok(cuda.cuMemsetD8(int(device_bytes) + (64 << 20) - 1, 0, 2))
    assert cuda.cuCtxSynchronize() == INVALID_VALUE
    ok(cuda.cuCtxSynchronize())


def test_nothing_is_copied_or_set_for_a_size_of_zero(context: Any) -> None:
    for call in (
        lambda: cuda.cuMemcpyHtoD(0, b"", 0),
        lambda: cuda.cuMemcpyDtoH(bytearray(), 0, 0),
        lambda: cuda.cuMemcpyDtoD(0, 0, 0),
        lambda: cuda.cuMemsetD8(0, 0, 0),
    ):
        ok(call())


@pytest.mark.parametrize(("width", "value"), [(8, 0xA5), (16, 0xBEEF), (32, 0xDEADBEEF)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_fills_write_their_elements_and_no_others(
    device_bytes: Any, width: int, value: int, asynchronous: bool
) -> None:
    count, kind = 1003, {8: np.uint8, 16: np.uint16, 32: np.uint32}[width]
    ok(cuda.cuMemsetD8(device_bytes, 0, 8192))
    if asynchronous:
        ok(getattr(cuda, f"cuMemsetD{width}Async")(device_bytes, value, count, cuda.CU_STREAM_LEGACY))
    else:
        ok(getattr(cuda, f"cuMemsetD{width}")(device_bytes, value, count))
    back = np.zeros(count + 1, dtype=kind)
    ok(cuda.cuMemcpyDtoH(back, device_bytes, back.nbytes))
    assert (back[:count] == value).all()
    assert back[count] == 0


def test_memory_is_counted_and_freed(context: Any) -> None:
    free, total = ok(cuda.cuMemGetInfo())
    address = ok(cuda.cuMemAlloc(1 << 30))
    less, same = ok(cuda.cuMemGetInfo())
    assert same == total
    assert free - less >= 1 << 30
    ok(cuda.cuMemFree(address))
    assert ok(cuda.cuMemGetInfo()) == (free, total)
    assert cuda.cuMemFree(address) == INVALID_VALUE


def test_more_than_there_is_is_out_of_memory(context: Any) -> None:
    assert cuda.cuMemAlloc(1 << 39) == (cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    assert cuda.cuMemAlloc(0) == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE, None)
    ok(cuda.cuMemAlloc(1))


def test_freeing_nothing_is_fine(context: Any) -> None:
    ok(cuda.cuMemFree(0))
    ok(cuda.cuMemFree(cuda.CUdeviceptr()))
