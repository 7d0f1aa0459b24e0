"""Copies and fills of rows and slices: every direction against a model of bytes, and what is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from attrs import define
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd.wire.records import BY_NAME
from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.memory import region_copy
from pympsd_client._objects.memory.region_copy import CopyExtent
from tests.client.conftest import ok
from tests.client.fake_executor import FakeExecutor

DONE = (cuda.CUresult.CUDA_SUCCESS,)
INVALID = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)
HOST, DEVICE, UNIFIED = (
    getattr(cuda.CUmemorytype, f"CU_MEMORYTYPE_{name}") for name in ("HOST", "DEVICE", "UNIFIED")
)
SIZE = 1 << 14
"""Bytes of each piece of memory that copies go between."""
KINDS = ("pageable", "pinned", "device", "other device")


@define(eq=False)
class Memory:
    """One piece of memory of each kind, and streams to copy in."""

    addresses: dict[str, int]
    kept: Any
    stream: Any

    def write(self, kind: str, data: bytes) -> None:
        """Put bytes there."""
        if "device" in kind:
            assert cuda.cuMemcpyHtoD(self.addresses[kind], data, SIZE) == DONE
        else:
            ctypes.memmove(self.addresses[kind], data, SIZE)

    def read(self, kind: str) -> bytes:
        """Return what is there."""
        back = bytearray(SIZE)
        if "device" in kind:
            assert cuda.cuMemcpyDtoH(back, self.addresses[kind], SIZE) == DONE
            return bytes(back)
        return ctypes.string_at(self.addresses[kind], SIZE)


@pytest.fixture
def memory(devices: None) -> Memory:
    """Memory of every kind; device 0 has the current context."""
    other = ok(cuda.cuCtxCreate(None, 0, 1))
    elsewhere = ok(cuda.cuMemAlloc(SIZE))
    ok(cuda.cuCtxPopCurrent())
    ok(cuda.cuCtxCreate(None, 0, 0))
    pageable = np.zeros(SIZE, np.uint8)
    addresses = {
        "pageable": pageable.ctypes.data,
        "pinned": ok(cuda.cuMemAllocHost(SIZE)),
        "device": int(ok(cuda.cuMemAlloc(SIZE))),
        "other device": int(elsewhere),
    }
    return Memory(addresses, (pageable, other), ok(cuda.cuStreamCreate(1)))


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    """A copy that fits into SIZE bytes on both sides: fields of CUDA_MEMCPY3D."""
    width, height, depth = (draw(st.integers(1, most)) for most in (50, 8, 4))
    shape = {"WidthInBytes": width, "Height": height, "Depth": depth}
    for side in ("src", "dst"):
        x, y, z = (draw(st.integers(0, most)) for most in (20, 3, 2))
        shape |= {f"{side}XInBytes": x, f"{side}Y": y, f"{side}Z": z}
        shape[f"{side}Pitch"] = draw(st.one_of(st.just(0), st.integers(width + x, 100)))
        shape[f"{side}Height"] = draw(st.one_of(st.just(0), st.integers(height + y, 14)))
    return shape


def indexes(shape: dict[str, int], side: str) -> list[int]:
    """The bytes of a side that a copy touches, in its order."""
    width, height, depth = shape["WidthInBytes"], shape["Height"], shape["Depth"]
    x, y, z = (shape[f"{side}{name}"] for name in ("XInBytes", "Y", "Z"))
    pitch, rows = shape[f"{side}Pitch"] or width + x, shape[f"{side}Height"] or height + y
    return [
        ((z + k) * rows + y + j) * pitch + x + i for k in range(depth) for j in range(height) for i in range(width)
    ]


def describe(shape: dict[str, int], source: tuple[Any, int], destination: tuple[Any, int], fields: Any = None) -> Any:
    """The structure of a copy; each side is a memory type and an address."""
    fields = cuda.CUDA_MEMCPY3D() if fields is None else fields
    for name, value in shape.items():
        if hasattr(fields, name):
            setattr(fields, name, value)
    for side, (kind, address) in (("src", source), ("dst", destination)):
        setattr(fields, f"{side}MemoryType", kind)
        if kind == HOST:
            setattr(fields, f"{side}Host", address)
        else:
            setattr(fields, f"{side}Device", cuda.CUdeviceptr(address))
    return fields


def type_of(kind: str, unified: bool) -> Any:
    """The memory type of a kind."""
    if unified:
        return UNIFIED
    return HOST if kind in ("pageable", "pinned") else DEVICE


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=shapes(),
    source=st.sampled_from(KINDS),
    destination=st.sampled_from(KINDS),
    call=st.sampled_from(["cuMemcpy3D", "cuMemcpy3DAsync", "cuMemcpy2D", "cuMemcpy2DAsync", "cuMemcpy2DUnaligned"]),
    unified=st.booleans(),
    limit=st.integers(16, 4000),
)
def test_copies_of_every_direction_move_the_bytes_of_the_model(
    memory: Memory, shape: dict[str, int], source: str, destination: str, call: str, unified: bool, limit: int
) -> None:
    description = cuda.CUDA_MEMCPY3D()
    if "2D" in call:
        shape |= {"Depth": 1, "srcZ": 0, "dstZ": 0, "srcHeight": 0, "dstHeight": 0}
        description = cuda.CUDA_MEMCPY2D()
    before = {kind: np.random.default_rng(number).bytes(SIZE) for number, kind in enumerate(KINDS)}
    for kind in {source, destination}:
        memory.write(kind, before[kind])
    expected = bytearray(before[destination])
    if source == destination:  # the two regions may overlap: one half for each
        shape |= {"srcZ": 0, "dstZ": 0, "Depth": 1}
        offset = SIZE // 2
    else:
        offset = 0
    taken, put = indexes(shape, "src"), indexes(shape, "dst")
    for at, to in zip(taken, put, strict=True):
        expected[to + offset] = before[source][at]
    copied = describe(
        shape,
        (type_of(source, unified), memory.addresses[source]),
        (type_of(destination, unified), memory.addresses[destination] + offset),
        description,
    )
    with pytest.MonkeyPatch.context() as patch:
        real = region_copy._boxes
        patch.setattr(region_copy, "_boxes", lambda extent, most: real(extent, min(most, limit)))
        stream = (memory.stream,) if call.endswith("Async") else ()
        assert getattr(cuda, call)(copied, *stream) == DONE, last_error()
    assert cuda.cuStreamSynchronize(memory.stream) == DONE
    assert memory.read(destination) == bytes(expected)


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(1, 9)),
    st.integers(1, 700),
)
def test_boxes_cover_an_extent_once_and_are_within_the_limit(sizes: tuple[int, int, int], limit: int) -> None:
    seen = np.zeros(sizes[::-1], np.uint8)
    for (x, y, z), box in region_copy._boxes(CopyExtent(*sizes), limit):
        assert box.bytes <= limit
        seen[z : z + box.depth, y : y + box.height, x : x + box.width] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_many_large_rows_go_through_the_staging_memory(context: Any, asynchronous: bool) -> None:
    width, height, pitch = 3001, 5000, 3584
    sent = np.random.default_rng(3).integers(0, 256, (height, width), np.uint8)
    back = np.zeros((height, width), np.uint8)
    address, arguments = ok(cuda.cuMemAllocPitch(width, height, 4))
    assert arguments == 3072
    ok(cuda.cuMemFree(address))
    address = ok(cuda.cuMemAlloc(pitch * height))
    shape = {"WidthInBytes": width, "Height": height}
    device = (DEVICE, int(address))
    there = describe(shape | {"dstPitch": pitch}, (HOST, sent.ctypes.data), device, cuda.CUDA_MEMCPY2D())
    if asynchronous:
        assert cuda.cuMemcpy2DAsync(there, 0) == DONE
    else:
        assert cuda.cuMemcpy2D(there) == DONE
    here = describe(shape | {"srcPitch": pitch}, device, (HOST, back.ctypes.data), cuda.CUDA_MEMCPY2D())
    assert cuda.cuMemcpy2D(here) == DONE
    assert (back == sent).all()


# --- fills of rows


@pytest.mark.parametrize(("bits", "value"), [(8, 0xA5), (16, 0xBEEF), (32, 0xDEADBEEF)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_fill_sets_the_elements_of_each_row(context: Any, bits: int, value: int, asynchronous: bool) -> None:
    width, height, kind = 37, 6, {8: np.uint8, 16: np.uint16, 32: np.uint32}[bits]
    address, pitch = ok(cuda.cuMemAllocPitch(width * bits // 8, height, 4))
    assert cuda.cuMemsetD8(address, 7, pitch * height) == DONE
    name, stream = (f"cuMemsetD2D{bits}Async", (0,)) if asynchronous else (f"cuMemsetD2D{bits}", ())
    assert getattr(cuda, name)(address, pitch, value, width, height, *stream) == DONE
    back = np.zeros(pitch * height, np.uint8)
    assert cuda.cuMemcpyDtoH(back, address, back.nbytes) == DONE
    rows = back.reshape(height, pitch)
    assert (rows[:, : width * bits // 8].copy().view(kind) == value).all()
    assert (rows[:, width * bits // 8 :] == 7).all()


@pytest.mark.parametrize(
    ("pitch", "width", "height", "offset", "words"),
    [
        (18, 8, 2, 0, "it is 18"),
        (28, 8, 2, 0, "at least a row, 32 bytes"),
        (32, 8, 2, 2, "not aligned"),
        (32, 8, 1 << 60, 0, "not all within the 256 bytes"),
    ],
)
def test_rows_that_cannot_be_filled_are_refused(
    context: Any, pitch: int, width: int, height: int, offset: int, words: str
) -> None:
    address = int(ok(cuda.cuMemAlloc(256))) + offset
    assert cuda.cuMemsetD2D32(address, pitch, 0, width, height) == INVALID
    assert words in last_error()


def test_a_fill_of_one_row_needs_no_pitch_and_one_of_no_rows_does_nothing(context: Any) -> None:
    address = ok(cuda.cuMemAlloc(256))
    assert cuda.cuMemsetD2D32(address, 1, 0, 64, 1) == DONE
    assert cuda.cuMemsetD2D8(address, 0, 0, 64, 0) == DONE
    assert cuda.cuMemsetD2D8(0, 0, 0, 0, 9) == DONE
    assert cuda.cuCtxSynchronize() == DONE


# --- what is refused


@pytest.mark.parametrize(("width", "height", "element"), [(100, 10, 2), (0, 10, 4), (100, 0, 4)])
def test_a_pitched_allocation_has_rows_and_elements_of_4_8_or_16_bytes(
    context: Any, width: int, height: int, element: int
) -> None:
    assert cuda.cuMemAllocPitch(width, height, element) == (*INVALID, None, None)


def test_a_pitched_allocation_beyond_any_device_is_out_of_memory(context: Any) -> None:
    answer = cuda.cuMemAllocPitch((1 << 64) - 1, 1 << 40, 4)
    assert answer == (cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None, None)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"srcPitch": 9}, "srcPitch is 9: less than srcXInBytes and the width, 10"),
        ({"dstPitch": 13, "dstXInBytes": 4}, "dstPitch is 13: less than dstXInBytes and the width, 14"),
        ({"srcPitch": 1 << 31}, "srcPitch is 2147483648: more than the device's MAX_PITCH"),
        ({"srcHeight": 2}, "srcHeight is 2: less than srcY and the height, 3"),
        ({"dstHeight": 4, "dstY": 2}, "dstHeight is 4: less than dstY and the height, 5"),
        ({"srcHeight": 2, "Depth": 1}, "srcHeight is 2: less than srcY and the height, 3"),
        ({"srcPitch": 1 << 30, "srcHeight": 1 << 34}, "does not end within the address space"),
        ({"srcLOD": 1}, "srcLOD must be 0, not 1"),
    ],
)
def test_a_copy_that_cannot_be_is_refused(context: Any, shape: dict[str, int], words: str) -> None:
    device, host = (DEVICE, int(ok(cuda.cuMemAlloc(4096)))), (HOST, np.zeros(4096, np.uint8).ctypes.data)
    full = {"WidthInBytes": 10, "Height": 3, "Depth": 2} | shape
    for source, destination in ((host, device), (device, host), (device, device)):
        assert cuda.cuMemcpy3D(describe(full, source, destination)) == INVALID
        assert words in last_error()


def test_sides_are_of_the_types_of_memory_that_there_are(context: Any) -> None:
    device, shape = (DEVICE, int(ok(cuda.cuMemAlloc(4096)))), {"WidthInBytes": 10, "Height": 3, "Depth": 1}
    assert cuda.cuMemcpy3D(describe(shape, (9, 1), device)) == INVALID
    assert "srcMemoryType must be HOST, DEVICE, ARRAY or UNIFIED (1 to 4), not 9" in last_error()
    unset = cuda.CUDA_MEMCPY2D()
    unset.WidthInBytes = unset.Height = 1
    assert cuda.cuMemcpy2D(unset) == INVALID
    assert "dstMemoryType must be HOST, DEVICE, ARRAY or UNIFIED (1 to 4), not 0" in last_error()
    assert cuda.cuMemcpy2D(describe(shape, (HOST, 0), device, cuda.CUDA_MEMCPY2D())) == INVALID
    assert "NULL" in last_error()
    assert cuda.cuMemcpy2D(describe(shape, device, (DEVICE, 0x1000), cuda.CUDA_MEMCPY2D())) == INVALID
    assert "not an address of a visible device" in last_error()
    assert cuda.cuMemcpy3D(None) == INVALID
    with pytest.raises(TypeError, match="CUDA_MEMCPY3D is required"):
        cuda.cuMemcpy3D(cuda.CUDA_MEMCPY2D())


@pytest.mark.parametrize("name", ["WidthInBytes", "Height", "Depth"])
def test_a_copy_of_nothing_succeeds_whatever_its_sides_are(context: Any, name: str) -> None:
    shape = {"WidthInBytes": 10, "Height": 3, "Depth": 2, "srcPitch": 9} | {name: 0}
    assert cuda.cuMemcpy3D(describe(shape, (DEVICE, 0), (DEVICE, 0))) == DONE


def test_a_copy_beyond_an_allocation_is_an_error(context: Any) -> None:
    device, host = (DEVICE, int(ok(cuda.cuMemAlloc(4096)))), (HOST, np.zeros(1 << 20, np.uint8).ctypes.data)
    shape = {"WidthInBytes": 1024, "Height": 1 << 9, "Depth": 1}
    for height in (1 << 9, 1 << 40):
        shape["Height"] = height
        for source, destination in ((host, device), (device, host), (device, device)):
            assert cuda.cuMemcpy3D(describe(shape, source, destination)) == INVALID
            assert cuda.cuMemcpy3DAsync(describe(shape, source, destination), 0) == INVALID
    assert cuda.cuCtxSynchronize() == DONE


def test_host_memory_that_is_found_by_its_address_has_to_be_there(context: Any) -> None:
    device, nowhere = (DEVICE, int(ok(cuda.cuMemAlloc(4096)))), (UNIFIED, 0x1000)
    shape = {"WidthInBytes": 64, "Height": 2, "Depth": 1}
    for source, destination in ((nowhere, device), (device, nowhere)):
        assert cuda.cuMemcpy3D(describe(shape, source, destination)) == INVALID


# --- the records


def test_a_copy_on_one_device_is_one_record_and_a_wait_when_it_is_synchronous(
    executor: FakeExecutor, fresh_process: Any
) -> None:
    fresh_process(executor)
    ok(cuda.cuCtxCreate(None, 0, 0))
    first = int(ok(cuda.cuMemAlloc(4096)))
    shape = {"WidthInBytes": 8, "Height": 3, "Depth": 2, "srcPitch": 16, "dstXInBytes": 4}
    copied = describe(shape, (DEVICE, first), (DEVICE, first + 2048))
    assert cuda.cuMemcpy3D(copied) == DONE
    assert cuda.cuMemcpy3DAsync(copied, 0) == DONE
    assert cuda.cuCtxSynchronize() == DONE
    sent = [record for record in executor.seen if record.opcode == BY_NAME["COPY_3D"].opcode]
    waits = [record for record in executor.seen if record.opcode == BY_NAME["SYNCHRONIZE_STREAM"].opcode]
    assert (len(sent), len(waits)) == (2, 1)
    operands = (0, 0, first + 2052, 12, 36, 0, first, 16, 48, 8, 3, 2)
    assert [executor.operands(record) for record in sent] == [operands, operands]
