"""CUDA arrays and mipmapped arrays: what is made and refused, and copies against a model of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.context import contexts
from tests.client.conftest import ok

Result = cuda.CUresult
Format = cuda.CUarray_format
DONE = (Result.CUDA_SUCCESS,)
INVALID = (Result.CUDA_ERROR_INVALID_VALUE,)
NO_HANDLE = (Result.CUDA_ERROR_INVALID_HANDLE,)
HOST, DEVICE, ARRAY = (getattr(cuda.CUmemorytype, f"CU_MEMORYTYPE_{name}") for name in ("HOST", "DEVICE", "ARRAY"))
LAYERED, SURFACE, CUBEMAP, GATHER, SPARSE, DEFERRED = 1, 2, 4, 8, 0x40, 0x80
FLOAT = Format.CU_AD_FORMAT_FLOAT


def describe(width: int, height: int, depth: int, format: Any = FLOAT, channels: int = 1, flags: int = 0) -> Any:
    """Return a CUDA_ARRAY3D_DESCRIPTOR."""
    description = cuda.CUDA_ARRAY3D_DESCRIPTOR()
    description.Width, description.Height, description.Depth = width, height, depth
    description.NumChannels, description.Flags = channels, flags
    if format is not None:
        description.Format = format
    return description


def copy(extent: tuple[int, int, int], **sides: tuple[Any, Any, tuple[int, int, int]]) -> Any:
    """Return a CUDA_MEMCPY3D. A side is a memory type, an address or array, and the place where the copy begins."""
    description = cuda.CUDA_MEMCPY3D()
    description.WidthInBytes, description.Height, description.Depth = extent
    for name, (kind, operand, (x, y, z)) in sides.items():
        field = {HOST: "Host", DEVICE: "Device", ARRAY: "Array"}[kind]
        for key, value in {"MemoryType": kind, field: operand, "XInBytes": x, "Y": y, "Z": z}.items():
            setattr(description, name + key, value)
    return description


def _extent(elements: np.ndarray) -> tuple[int, int, int]:
    slices, rows, width = elements.shape
    return width * elements.itemsize, rows, slices


def fill(array: Any, elements: np.ndarray) -> None:
    """Copy elements to an array: its slices, their rows, the elements of a row."""
    sides = {"src": (HOST, elements.ctypes.data, (0, 0, 0)), "dst": (ARRAY, array, (0, 0, 0))}
    assert cuda.cuMemcpy3D(copy(_extent(elements), **sides)) == DONE


def read(array: Any, like: np.ndarray) -> np.ndarray:
    """Return an array's elements, as many and of the same type as those of `like`."""
    elements = np.zeros_like(like)
    sides = {"src": (ARRAY, array, (0, 0, 0)), "dst": (HOST, elements.ctypes.data, (0, 0, 0))}
    assert cuda.cuMemcpy3D(copy(_extent(elements), **sides)) == DONE
    return elements


@pytest.mark.parametrize("format", [Format.CU_AD_FORMAT_UNSIGNED_INT8, Format.CU_AD_FORMAT_HALF, FLOAT])
@pytest.mark.parametrize(
    "shape", [(7, 0, 0, 0), (7, 5, 0, 0), (7, 5, 3, 0), (7, 0, 3, LAYERED), (4, 4, 6, CUBEMAP), (8, 8, 0, GATHER)]
)
def test_an_array_reports_its_description(context: Any, format: Any, shape: tuple[int, int, int, int]) -> None:
    width, height, depth, flags = shape
    array = ok(cuda.cuArray3DCreate(describe(width, height, depth, format, 2, flags)))
    description, plain = ok(cuda.cuArray3DGetDescriptor(array)), ok(cuda.cuArrayGetDescriptor(array))
    assert (description.Width, description.Height, description.Depth, description.Flags) == shape
    assert (description.Format, description.NumChannels) == (plain.Format, plain.NumChannels) == (format, 2)
    assert (plain.Width, plain.Height) == (width, height)
    assert isinstance(array, cuda.CUarray)
    assert cuda.cuArrayDestroy(array) == DONE
    assert cuda.cuArrayDestroy(array) == NO_HANDLE
    assert cuda.cuArrayGetDescriptor(array)[0] == NO_HANDLE[0]


def test_an_array_of_packed_channels_has_elements_of_four_bytes(context: Any) -> None:
    array = ok(cuda.cuArray3DCreate(describe(5, 0, 0, Format.CU_AD_FORMAT_UNORM_INT_101010_2, 4)))
    assert ok(cuda.cuArray3DGetDescriptor(array)).Format == Format.CU_AD_FORMAT_UNORM_INT_101010_2
    elements, copied = np.arange(5, dtype=np.uint32), np.zeros(5, np.uint32)
    ok(cuda.cuMemcpyHtoA(array, 0, elements, 20))
    ok(cuda.cuMemcpyAtoH(copied, array, 0, 20))
    assert (copied == elements).all()


@pytest.mark.parametrize(
    ("description", "result", "words"),
    [
        ((0, 5, 0), Result.CUDA_ERROR_INVALID_VALUE, "at least 1"),
        ((7, 0, 3), Result.CUDA_ERROR_INVALID_VALUE, "a height too"),
        ((7, 5, 0, FLOAT, 3), Result.CUDA_ERROR_INVALID_VALUE, "1, 2 or 4 channels"),
        ((7, 5, 0, None), Result.CUDA_ERROR_INVALID_VALUE, "not a CUarray_format"),
        ((7, 5, 0, Format.CU_AD_FORMAT_NV12), Result.CUDA_ERROR_NOT_SUPPORTED, "CU_AD_FORMAT_NV12 is not"),
        ((8, 8, 0, Format.CU_AD_FORMAT_BC1_UNORM), Result.CUDA_ERROR_NOT_SUPPORTED, "CU_AD_FORMAT_BC1_UNORM is not"),
        ((7, 5, 0, Format.CU_AD_FORMAT_UNORM_INT_101010_2), Result.CUDA_ERROR_INVALID_VALUE, "have 4 channels"),
        ((7, 5, 0, Format.CU_AD_FORMAT_UNORM_INT8X2), Result.CUDA_ERROR_INVALID_VALUE, "have 2 channels"),
        ((7, 5, 0, FLOAT, 1, LAYERED), Result.CUDA_ERROR_INVALID_VALUE, "number of its layers"),
        ((7, 5, 6, FLOAT, 1, CUBEMAP), Result.CUDA_ERROR_INVALID_VALUE, "as high as it is wide"),
        ((7, 7, 5, FLOAT, 1, CUBEMAP), Result.CUDA_ERROR_INVALID_VALUE, "depth of a cubemap must be 6"),
        ((7, 7, 13, FLOAT, 1, CUBEMAP | LAYERED), Result.CUDA_ERROR_INVALID_VALUE, "a multiple of 6"),
        ((7, 5, 3, FLOAT, 1, GATHER), Result.CUDA_ERROR_INVALID_VALUE, "two dimensions"),
        ((7, 5, 0, FLOAT, 1, SPARSE), Result.CUDA_ERROR_NOT_SUPPORTED, "SPARSE"),
        ((7, 5, 0, FLOAT, 1, DEFERRED), Result.CUDA_ERROR_NOT_SUPPORTED, "DEFERRED_MAPPING"),
        ((7, 5, 0, FLOAT, 1, 1 << 20), Result.CUDA_ERROR_INVALID_VALUE, "no CUDA_ARRAY3D flag"),
        ((1 << 20, 5, 0), Result.CUDA_ERROR_INVALID_VALUE, "MAXIMUM_TEXTURE2D_"),
        ((1 << 63, 0, 0), Result.CUDA_ERROR_INVALID_VALUE, "MAXIMUM_TEXTURE1D_"),
        ((8, 8, 4096, FLOAT, 1, LAYERED), Result.CUDA_ERROR_INVALID_VALUE, "MAXIMUM_TEXTURE2D_LAYERED_"),
        ((65536, 0, 0, FLOAT, 1, SURFACE), Result.CUDA_ERROR_INVALID_VALUE, "MAXIMUM_SURFACE1D_"),
        ((16384, 16384, 16384), Result.CUDA_ERROR_OUT_OF_MEMORY, ""),
    ],
)
def test_an_array_that_cannot_be_is_refused(context: Any, description: Any, result: Any, words: str) -> None:
    for answer in (
        cuda.cuArray3DCreate(describe(*description)),
        cuda.cuMipmappedArrayCreate(describe(*description), 1),
    ):
        assert answer == (result, None)
        assert words in last_error()


def test_arrays_need_a_context_and_a_device_that_has_them(devices: None) -> None:
    assert cuda.cuArrayCreate(cuda.CUDA_ARRAY_DESCRIPTOR())[0] == Result.CUDA_ERROR_INVALID_CONTEXT
    handle = ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuArrayCreate(None) == (*INVALID, None)
    context = contexts[int(handle)]
    without = {**context.device.properties.attributes, "MAXIMUM_TEXTURE2D_WIDTH": 0}
    object.__setattr__(
        context, "device", evolve(context.device, properties=evolve(context.device.properties, attributes=without))
    )
    assert cuda.cuArray3DCreate(describe(4, 4, 0)) == (Result.CUDA_ERROR_NOT_SUPPORTED, None)
    assert "linear memory" in last_error()


def test_an_array_is_not_linear_memory(context: Any) -> None:
    before = ok(cuda.cuMemGetInfo())[0]
    array = ok(cuda.cuArray3DCreate(describe(1024, 1024, 0)))
    assert before - ok(cuda.cuMemGetInfo())[0] >= 4 << 20
    assert cuda.cuMemFree(int(array)) == INVALID
    assert cuda.cuArrayDestroy(array) == DONE
    assert ok(cuda.cuMemGetInfo())[0] == before


def test_each_level_has_half_the_size_of_the_one_before(context: Any) -> None:
    mipmap = ok(cuda.cuMipmappedArrayCreate(describe(20, 5, 6, flags=LAYERED), 99))
    levels = [ok(cuda.cuMipmappedArrayGetLevel(mipmap, number)) for number in range(5)]
    sizes = [
        (item.Width, item.Height, item.Depth) for item in (ok(cuda.cuArray3DGetDescriptor(level)) for level in levels)
    ]
    assert sizes == [(20, 5, 6), (10, 2, 6), (5, 1, 6), (2, 1, 6), (1, 1, 6)]
    assert int(ok(cuda.cuMipmappedArrayGetLevel(mipmap, 1))) == int(levels[1])
    assert cuda.cuMipmappedArrayGetLevel(mipmap, 5)[0] == INVALID[0]
    assert cuda.cuArrayDestroy(levels[0]) == NO_HANDLE
    contents = [np.full(shape[::-1], number, "f4") for number, shape in enumerate(sizes)]
    for level, elements in zip(levels, contents, strict=True):
        fill(level, elements)
    for level, elements in zip(levels, contents, strict=True):  # none overlaps another
        np.testing.assert_array_equal(read(level, elements), elements)
    assert cuda.cuMipmappedArrayDestroy(mipmap) == DONE
    assert cuda.cuMipmappedArrayDestroy(mipmap) == NO_HANDLE
    assert cuda.cuArrayGetDescriptor(levels[0])[0] == NO_HANDLE[0]
    assert cuda.cuMipmappedArrayGetLevel(mipmap, 0)[0] == NO_HANDLE[0]


def test_bytes_of_arrays(context: Any) -> None:
    stream = ok(cuda.cuStreamCreate(1))
    first, second = (ok(cuda.cuArray3DCreate(describe(8, 2, 0))) for _ in range(2))
    memory, data = ok(cuda.cuMemAlloc(64)), bytes(range(32))
    assert cuda.cuMemcpyHtoAAsync(first, 4, data, 28, stream) == DONE
    assert cuda.cuStreamSynchronize(stream) == DONE
    assert cuda.cuMemcpyAtoA(second, 0, first, 4, 28) == DONE
    assert cuda.cuMemcpyAtoD(memory, second, 0, 32) == DONE
    assert cuda.cuMemcpyDtoA(first, 16, memory, 16) == DONE
    back = bytearray(32)
    assert cuda.cuMemcpyAtoHAsync(back, first, 0, 32, stream) == DONE
    assert cuda.cuStreamSynchronize(stream) == DONE
    assert back == bytes(4) + data[:12] + data[:16]
    assert cuda.cuMemcpyAtoD(memory, 77, 0, 4) == NO_HANDLE
    assert cuda.cuMemcpyAtoA(first, 30, second, 0, 4) == INVALID
    assert cuda.cuMemcpyHtoA(first, 1 << 63, data, 1 << 63) == INVALID


@pytest.mark.parametrize(
    "shape", [(64, 0, 0, 0), (16, 16, 0, 0), (16, 4, 4, 0), (16, 4, 4, LAYERED), (16, 0, 4, LAYERED)]
)
def test_bytes_are_of_the_first_row(context: Any, shape: tuple[int, int, int, int]) -> None:
    """As recorded on an H200: functions with a byte offset refuse the array's other rows."""
    width, height, depth, flags = shape
    array, other = (ok(cuda.cuArray3DCreate(describe(width, height, depth, flags=flags))) for _ in range(2))
    memory, host = ok(cuda.cuMemAlloc(4096)), bytearray(4096)
    row = 4 * width
    inside, beyond = [(0, row), (row - 4, 4), (row + 4, 0)], [(4, row), (row, 4), (0, row + 4)]
    for offset, count in inside + beyond:
        expected = DONE if (offset, count) in inside else INVALID
        assert cuda.cuMemcpyHtoA(array, offset, host, count) == expected
        assert cuda.cuMemcpyAtoH(host, array, offset, count) == expected
        assert cuda.cuMemcpyDtoA(array, offset, memory, count) == expected
        assert cuda.cuMemcpyAtoD(memory, array, offset, count) == expected
        assert cuda.cuMemcpyAtoA(other, 0, array, offset, count) == expected
        assert cuda.cuMemcpyAtoA(other, offset, array, 0, count) == expected


@st.composite
def parts(draw: st.DrawFn) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Where a copy begins in an array of 6 x 5 x 4 elements, and its extent, in elements."""
    corner = tuple(draw(st.integers(0, most - 1)) for most in (6, 5, 4))
    extent = tuple(draw(st.integers(1, most - at)) for most, at in zip((6, 5, 4), corner, strict=True))
    return corner, extent  # type: ignore[return-value]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts(), st.sampled_from([1, 4]))
def test_slices_of_rows_to_and_from_arrays(context: Any, part: Any, channels: int) -> None:
    """Host to array, array to device memory, device memory to another array, array to host: the box alone changes."""
    (x, y, z), (width, height, depth) = part
    size = 4 * channels
    rng = np.random.default_rng(1)
    whole = rng.integers(0, 256, (4, 5, 6 * size), np.uint8)
    first, second = (ok(cuda.cuArray3DCreate(describe(6, 5, 4, FLOAT, channels))) for _ in range(2))
    between = ok(cuda.cuMemAlloc(whole.nbytes))
    box, corner, start = (width * size, height, depth), (x * size, y, z), (0, 0, 0)
    fill(first, whole)
    fill(second, np.zeros_like(whole))
    assert cuda.cuMemcpy3D(copy(box, src=(ARRAY, first, corner), dst=(DEVICE, between, start))) == DONE
    assert cuda.cuMemcpy3D(copy(box, src=(DEVICE, between, start), dst=(ARRAY, second, corner))) == DONE
    part_back = np.zeros((depth, height, width * size), np.uint8)
    to_host = copy(box, src=(ARRAY, second, corner), dst=(HOST, part_back.ctypes.data, start))
    assert cuda.cuMemcpy3DAsync(to_host, 0) == DONE
    back = read(second, whole)
    box_of = np.s_[z : z + depth, y : y + height, x * size : (x + width) * size]
    expected = np.zeros_like(whole)
    expected[box_of] = whole[box_of]
    assert (back == expected).all()
    assert (part_back == whole[box_of]).all()
    for array in (first, second):
        assert cuda.cuArrayDestroy(array) == DONE
    assert cuda.cuMemFree(between) == DONE


@pytest.mark.parametrize(
    ("extent", "corner", "words"),
    [
        ((6, 1, 1), (0, 0, 0), "element of 4 bytes"),
        ((4, 1, 1), (2, 0, 0), "element of 4 bytes"),
        ((28, 1, 1), (0, 0, 0), "which has 4 slices of 5 rows of 24 bytes"),
        ((4, 2, 1), (0, 4, 0), "ends at 4 bytes of row 6"),
        ((4, 1, 4), (0, 0, 1), "of slice 5"),
        ((4, 1, 1), ((1 << 64) - 4, 0, 0), "24 bytes"),
    ],
)
def test_a_copy_beyond_an_array_is_refused(context: Any, extent: Any, corner: Any, words: str) -> None:
    array, memory = ok(cuda.cuArray3DCreate(describe(6, 5, 4))), ok(cuda.cuMemAlloc(4096))
    linear = (DEVICE, memory, (0, 0, 0))
    for sides in ({"src": (ARRAY, array, corner), "dst": linear}, {"src": linear, "dst": (ARRAY, array, corner)}):
        assert cuda.cuMemcpy3D(copy(extent, **sides)) == INVALID
        assert words in last_error()
    assert cuda.cuMemcpy3D(copy((4, 1, 1), src=(ARRAY, 0, (0, 0, 0)), dst=linear)) == NO_HANDLE


def test_arrays_of_a_context_end_with_it(devices: None) -> None:
    kept = ok(cuda.cuCtxCreate(None, 0, 0))
    mine = ok(cuda.cuArray3DCreate(describe(4, 4, 0)))
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    ended = ok(cuda.cuArray3DCreate(describe(4, 4, 0)))
    assert cuda.cuCtxDestroy(other) == DONE
    assert cuda.cuCtxSetCurrent(kept) == DONE
    assert cuda.cuArrayGetDescriptor(ended)[0] == NO_HANDLE[0]
    assert cuda.cuArrayDestroy(mine) == DONE


def test_a_graph_copies_arrays(context: Any) -> None:
    array, memory, data = ok(cuda.cuArray3DCreate(describe(4, 2, 0))), ok(cuda.cuMemAlloc(32)), bytes(range(32))
    assert cuda.cuMemcpyHtoD(memory, data, 32) == DONE
    graph = ok(cuda.cuGraphCreate(0))
    described_copy = copy((16, 2, 1), src=(DEVICE, memory, (0, 0, 0)), dst=(ARRAY, array, (0, 0, 0)))
    node = ok(cuda.cuGraphAddMemcpyNode(graph, [], 0, described_copy, context))
    assert int(ok(cuda.cuGraphMemcpyNodeGetParams(node)).dstArray) == int(array)
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    assert cuda.cuGraphLaunch(executable, 0) == DONE
    assert read(array, np.zeros((1, 2, 16), np.uint8)).tobytes() == data


def peer_copy(extent: tuple[int, int, int], source: Any, destination: Any) -> Any:
    """Return a CUDA_MEMCPY3D_PEER; each side is a context, a memory type and what it is."""
    description = cuda.CUDA_MEMCPY3D_PEER()
    description.WidthInBytes, description.Height, description.Depth = extent
    for name, (context, kind, operand) in (("src", source), ("dst", destination)):
        setattr(description, f"{name}Context", context)
        setattr(description, f"{name}MemoryType", kind)
        setattr(description, name + {DEVICE: "Device", ARRAY: "Array"}[kind], operand)
    return description


def test_copies_between_contexts(devices: None) -> None:
    """From memory of one device to an array of another, and back; a side is on the device of its context."""
    first, second = (ok(cuda.cuCtxCreate(None, 0, number)) for number in (0, 1))
    array, data = ok(cuda.cuArray3DCreate(describe(4, 2, 0))), bytes(range(32))
    assert cuda.cuCtxSetCurrent(first) == DONE
    memory = ok(cuda.cuMemAlloc(32))
    assert cuda.cuMemcpyHtoD(memory, data, 32) == DONE
    here, there = (first, DEVICE, memory), (second, ARRAY, array)
    assert cuda.cuMemcpy3DPeer(peer_copy((16, 2, 1), here, there)) == DONE
    assert cuda.cuMemsetD8(memory, 0, 32) == DONE
    assert cuda.cuMemcpy3DPeerAsync(peer_copy((16, 2, 1), there, here), 0) == DONE
    back = bytearray(32)
    assert cuda.cuMemcpyDtoH(back, memory, 32) == DONE
    assert back == data
    for wrong in ((first, ARRAY, array), (second, DEVICE, memory)):
        assert cuda.cuMemcpy3DPeer(peer_copy((16, 2, 1), wrong, here)) == INVALID
        assert "srcContext" in last_error()
    nowhere = peer_copy((16, 2, 1), (77, DEVICE, memory), there)
    assert cuda.cuMemcpy3DPeer(nowhere) == (Result.CUDA_ERROR_INVALID_CONTEXT,)
    assert cuda.cuMemcpy3DPeer(None) == INVALID
