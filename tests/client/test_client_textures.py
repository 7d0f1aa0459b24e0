"""Texture and surface objects: what is made and refused, and kernels that read and write by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok
from tests.client.test_client_arrays import (
    CUBEMAP,
    FLOAT,
    LAYERED,
    NO_HANDLE,
    SURFACE,
    Format,
    Result,
    describe,
    fill,
    read,
)

DONE = (Result.CUDA_SUCCESS,)
INVALID = Result.CUDA_ERROR_INVALID_VALUE
Type, Mode, Filter = cuda.CUresourcetype, cuda.CUaddress_mode, cuda.CUfilter_mode
AS_INTEGER, NORMALIZED = 1, 2
KERNELS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry sample(.param .u64 out, .param .u64 tex, .param .f32 x, .param .f32 y)
{ .reg .b64 %d<9>; .reg .f32 %f<9>;
ld.param.u64 %d0, [out]; ld.param.u64 %d1, [tex]; ld.param.f32 %f4, [x]; ld.param.f32 %f5, [y];
tex.level.a2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d1, {0, %f4, %f5, %f5}], 0f00000000;
st.global.v4.f32 [%d0], {%f0, %f1, %f2, %f3}; ret; }
.visible .entry turn(.param .u64 from, .param .u64 to)
{ .reg .b64 %d<9>; .reg .b32 %r<9>;
ld.param.u64 %d0, [from]; ld.param.u64 %d1, [to]; mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, %ctaid.x;
shl.b32 %r3, %r2, 2;
suld.b.2d.b32.trap {%r4}, [%d0, {%r1, %r2}]; sust.b.2d.b32.trap [%d1, {%r3, %r0}], {%r4}; ret; }
"""


def of_array(array: Any) -> Any:
    """Return the CUDA_RESOURCE_DESC of an array."""
    description = cuda.CUDA_RESOURCE_DESC()
    description.resType = Type.CU_RESOURCE_TYPE_ARRAY
    description.res.array.hArray = array
    return description


def of_levels(array: Any) -> Any:
    """Return the CUDA_RESOURCE_DESC of a mipmapped array."""
    description = cuda.CUDA_RESOURCE_DESC()
    description.resType = Type.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
    description.res.mipmap.hMipmappedArray = array
    return description


def of_memory(address: Any, size: int, format: Any = FLOAT, channels: int = 1) -> Any:
    """Return the CUDA_RESOURCE_DESC of linear memory."""
    description = cuda.CUDA_RESOURCE_DESC()
    description.resType = Type.CU_RESOURCE_TYPE_LINEAR
    description.res.linear.devPtr, description.res.linear.format = address, format
    description.res.linear.numChannels, description.res.linear.sizeInBytes = channels, size
    return description


def of_rows(address: Any, width: int, height: int, pitch: int) -> Any:
    """Return the CUDA_RESOURCE_DESC of rows of floats."""
    description = cuda.CUDA_RESOURCE_DESC()
    description.resType = Type.CU_RESOURCE_TYPE_PITCH2D
    description.res.pitch2D.devPtr, description.res.pitch2D.format, description.res.pitch2D.numChannels = (
        address,
        FLOAT,
        1,
    )
    description.res.pitch2D.width, description.res.pitch2D.height, description.res.pitch2D.pitchInBytes = (
        width,
        height,
        pitch,
    )
    return description


def make_sampling(flags: int = 0, linear: bool = False, mode: Any = Mode.CU_TR_ADDRESS_MODE_CLAMP) -> Any:
    """Return a CUDA_TEXTURE_DESC."""
    description = cuda.CUDA_TEXTURE_DESC()
    description.addressMode, description.flags = [mode] * 3, flags
    description.filterMode = Filter.CU_TR_FILTER_MODE_LINEAR if linear else Filter.CU_TR_FILTER_MODE_POINT
    description.maxMipmapLevelClamp, description.borderColor = 9.0, [1.0, 2.0, 3.0, 4.0]
    return description


def make_view(format: int, size: tuple[int, int, int], levels: tuple[int, int], layers: tuple[int, int]) -> Any:
    """Return a CUDA_RESOURCE_VIEW_DESC."""
    description = cuda.CUDA_RESOURCE_VIEW_DESC()
    description.format = cuda.CUresourceViewFormat(format)
    description.width, description.height, description.depth = size
    description.firstMipmapLevel, description.lastMipmapLevel = levels
    description.firstLayer, description.lastLayer = layers
    return description


class Sampler:
    """The kernel `sample`, and memory for what it reads."""

    def __init__(self) -> None:
        module = ok(cuda.cuModuleLoadData(KERNELS.encode()))
        self.kernel, self.turn = (ok(cuda.cuModuleGetFunction(module, name)) for name in (b"sample", b"turn"))
        self.out = ok(cuda.cuMemAlloc(16))

    def __call__(self, texture: Any, x: float, y: float) -> list[float]:
        arguments = [np.uint64(int(self.out)), np.uint64(int(texture)), np.float32(x), np.float32(y)]
        kept_open = [np.atleast_1d(item) for item in arguments]
        places = np.array([item.ctypes.data for item in kept_open], np.uint64)
        assert cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, 0, places.ctypes.data, 0) == DONE
        back = np.zeros(4, "f4")
        assert cuda.cuMemcpyDtoH(back, self.out, 16) == DONE
        return [float(item) for item in back]


@pytest.fixture
def sample(context: Any) -> Sampler:
    return Sampler()


def make_filled(*shape: Any, **more: Any) -> tuple[Any, Any]:
    """Return an array and its contents, all different."""
    description = describe(*shape, **more)
    array = ok(cuda.cuArray3DCreate(description))
    slices, rows, width = max(description.Depth, 1), max(description.Height, 1), description.Width
    elements = np.arange(slices * rows * width, dtype="f4").reshape(slices, rows, width)
    fill(array, elements)
    return array, elements


def test_a_kernel_reads_an_array_by_a_texture(sample: Sampler) -> None:
    array, data = make_filled(8, 4, 0)
    near, smooth = (
        ok(cuda.cuTexObjectCreate(of_array(array), make_sampling(0, item), None)) for item in (False, True)
    )
    assert sample(near, 3.75, 2.25) == [data[0, 2, 3], 0, 0, 0]
    assert sample(smooth, 3.0, 2.25)[0] == (data[0, 1, 2] + data[0, 1, 3]) / 2 + 0.75 * 8
    edge = make_sampling(mode=Mode.CU_TR_ADDRESS_MODE_BORDER)
    assert sample(ok(cuda.cuTexObjectCreate(of_array(array), edge, None)), -1, 0) == [1, 0, 0, 0]
    # The texture sees what is copied to the array later.
    assert cuda.cuMemcpyHtoA(array, 0, np.full(1, 77, "f4"), 4) == DONE
    assert sample(near, 0, 0)[0] == 77
    assert cuda.cuTexObjectDestroy(near) == DONE
    assert cuda.cuTexObjectDestroy(near) == NO_HANDLE


def test_linear_memory_and_levels(sample: Sampler) -> None:
    memory, pitch = ok(cuda.cuMemAllocPitch(12, 5, 4))
    data = np.arange(15, dtype="f4").reshape(5, 3)
    for row in range(5):
        assert cuda.cuMemcpyHtoD(int(memory) + row * pitch, data[row], 12) == DONE
    rows = ok(cuda.cuTexObjectCreate(of_rows(memory, 3, 5, pitch), make_sampling(), None))
    assert sample(rows, 2, 4)[0] == 14
    assert sample(rows, 99, -1)[0] == 2
    line = ok(
        cuda.cuTexObjectCreate(of_memory(memory, 8, Format.CU_AD_FORMAT_UNSIGNED_INT8, 4), make_sampling(), None)
    )
    assert sample(line, 1, 0) == [0, 0, np.float32(128 / 255), np.float32(63 / 255)]
    assert sample(line, 2, 0) == [0, 0, 0, 0]
    pyramid = ok(cuda.cuMipmappedArrayCreate(describe(4, 4, 0), 3))
    for number in range(3):
        level = ok(cuda.cuMipmappedArrayGetLevel(pyramid, number))
        fill(level, np.full((1, 4 >> number, 4 >> number), number + 1, "f4"))
    levels = ok(cuda.cuTexObjectCreate(of_levels(pyramid), make_sampling(NORMALIZED), None))
    assert sample(levels, 0.5, 0.5)[0] == 1
    last = make_view(0, (4, 4, 0), (2, 2), (0, 0))
    assert sample(ok(cuda.cuTexObjectCreate(of_levels(pyramid), make_sampling(NORMALIZED), last)), 0.5, 0.5)[0] == 3


def test_views_of_arrays(sample: Sampler) -> None:
    """A view has some of the layers, or other elements of the same size."""
    array, data = make_filled(4, 2, 3, flags=LAYERED)
    view = make_view(0, (4, 2, 3), (0, 0), (1, 2))
    texture = ok(cuda.cuTexObjectCreate(of_array(array), make_sampling(), view))
    assert sample(texture, 2, 1)[0] == data[1, 1, 2]
    assert ok(cuda.cuTexObjectGetResourceViewDesc(texture)).lastLayer == 2
    bytes_of = make_view(0x03, (4, 2, 3), (0, 0), (0, 0))  # UINT_4X8
    texture = ok(cuda.cuTexObjectCreate(of_array(array), make_sampling(), bytes_of))
    assert sample(texture, 1, 0) == [0, 0, np.float32(128 / 255), np.float32(63 / 255)]


def test_a_kernel_writes_an_array_by_a_surface(sample: Sampler) -> None:
    source, data = make_filled(4, 4, 0, flags=SURFACE)
    target = ok(cuda.cuArray3DCreate(describe(4, 4, 0, flags=SURFACE)))
    both = [ok(cuda.cuSurfObjectCreate(of_array(item))) for item in (source, target)]
    kept_open = [np.array([int(item)], np.uint64) for item in both]
    places = np.array([item.ctypes.data for item in kept_open], np.uint64)
    assert cuda.cuLaunchKernel(sample.turn, 4, 1, 1, 4, 1, 1, 0, 0, places.ctypes.data, 0) == DONE
    np.testing.assert_array_equal(read(target, data)[0], data[0].T)
    assert int(ok(cuda.cuSurfObjectGetResourceDesc(both[0])).res.array.hArray) == int(source)
    assert cuda.cuSurfObjectDestroy(both[0]) == DONE
    assert cuda.cuSurfObjectDestroy(both[0]) == NO_HANDLE


def test_objects_report_what_they_were_made_of(context: Any) -> None:
    memory = ok(cuda.cuMemAlloc(4096))
    texture = ok(
        cuda.cuTexObjectCreate(of_memory(memory, 4096, FLOAT, 2), make_sampling(NORMALIZED, mode=Mode(2)), None)
    )
    assert isinstance(texture, cuda.CUtexObject)
    resource, how = ok(cuda.cuTexObjectGetResourceDesc(texture)), ok(cuda.cuTexObjectGetTextureDesc(texture))
    assert resource.resType == Type.CU_RESOURCE_TYPE_LINEAR
    assert (int(resource.res.linear.devPtr), resource.res.linear.numChannels) == (int(memory), 2)
    assert (resource.res.linear.format, resource.res.linear.sizeInBytes) == (FLOAT, 4096)
    assert (how.flags, list(how.borderColor), how.maxMipmapLevelClamp) == (NORMALIZED, [1.0, 2.0, 3.0, 4.0], 9.0)
    assert [int(item) for item in how.addressMode] == [2, 2, 2]
    assert cuda.cuTexObjectGetResourceViewDesc(texture)[0] == INVALID
    for call in ("cuTexObjectGetResourceDesc", "cuTexObjectGetTextureDesc", "cuTexObjectGetResourceViewDesc"):
        assert getattr(cuda, call)(int(texture) + 8)[0] == NO_HANDLE[0]
    assert cuda.cuSurfObjectGetResourceDesc(int(texture))[0] == NO_HANDLE[0]
    assert cuda.cuSurfObjectDestroy(int(texture)) == NO_HANDLE
    assert cuda.cuMemFree(int(texture))[0] == INVALID


def cube() -> Any:
    """Return a cubemap."""
    return ok(cuda.cuArray3DCreate(describe(4, 4, 6, flags=CUBEMAP)))


REFUSED = {
    "no resource": (lambda m, a, p: (None, make_sampling(), None), INVALID, "NULL"),
    "no description": (lambda m, a, p: (of_array(a), None, None), INVALID, "NULL"),
    "a freed array": (lambda m, a, p: (of_array(77), make_sampling(), None), NO_HANDLE[0], "not a CUDA array"),
    "a host address": (lambda m, a, p: (of_memory(4096, 64), make_sampling(), None), INVALID, "not an address"),
    "not aligned": (lambda m, a, p: (of_memory(m + 4, 64), make_sampling(), None), INVALID, "TEXTURE_ALIGNMENT"),
    "empty": (lambda m, a, p: (of_memory(m, 3), make_sampling(), None), INVALID, "elements, not 0"),
    "too long": (lambda m, a, p: (of_memory(m, 1 << 40), make_sampling(), None), INVALID, "elements"),
    "channels": (lambda m, a, p: (of_memory(m, 64, FLOAT, 3), make_sampling(), None), INVALID, "1, 2 or 4 channels"),
    "pitch": (lambda m, a, p: (of_rows(m, 8, 2, 40), make_sampling(), None), INVALID, "TEXTURE_PITCH_ALIGNMENT"),
    "short pitch": (lambda m, a, p: (of_rows(m, 16, 2, 32), make_sampling(), None), INVALID, "hold a row of 64"),
    "no rows": (lambda m, a, p: (of_rows(m, 8, 0, 64), make_sampling(), None), INVALID, "the height must be 1 to"),
    "levels": (lambda m, a, p: (of_levels(p), make_sampling(), None), INVALID, "NORMALIZED_COORDINATES"),
    "flags": (lambda m, a, p: (of_array(a), make_sampling(1 << 9), None), INVALID, "no CU_TRSF"),
    "a view of memory": (
        lambda m, a, p: (of_memory(m, 64), make_sampling(), make_view(0, (16, 0, 0), (0, 0), (0, 0))),
        INVALID, "linear",
    ),
    "a view's size": (
        lambda m, a, p: (of_array(a), make_sampling(), make_view(0, (8, 5, 0), (0, 0), (0, 0))),
        INVALID, "size of its",
    ),
    "a view's level": (
        lambda m, a, p: (of_array(a), make_sampling(), make_view(0, (8, 4, 0), (0, 1), (0, 0))),
        INVALID, "levels 0 to 1 of 1",
    ),
    "a view's layer": (
        lambda m, a, p: (of_array(a), make_sampling(), make_view(0, (8, 4, 0), (0, 0), (0, 1))),
        INVALID, "layers 0 to 1 of 1",
    ),
    "a view's format": (
        lambda m, a, p: (of_array(a), make_sampling(), make_view(1, (8, 4, 0), (0, 0), (0, 0))),
        INVALID, "as many bytes",
    ),
    "blocks": (
        lambda m, a, p: (of_array(a), make_sampling(), make_view(0x19, (8, 4, 0), (0, 0), (0, 0))),
        Result.CUDA_ERROR_NOT_SUPPORTED, "block compression",
    ),
    "seamless": (
        lambda m, a, p: (of_array(cube()), make_sampling(0x40, True), None), Result.CUDA_ERROR_NOT_SUPPORTED,
        "SEAMLESS",
    ),
    "filtered integers": (
        lambda m, a, p: (of_memory(m, 64, Format.CU_AD_FORMAT_SIGNED_INT32), make_sampling(0, True), None),
        INVALID, "LINEAR filtering",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_texture_that_cannot_be_is_refused(context: Any, case: str) -> None:
    memory, array = ok(cuda.cuMemAlloc(4096)), ok(cuda.cuArray3DCreate(describe(8, 4, 0)))
    pyramid = ok(cuda.cuMipmappedArrayCreate(describe(8, 4, 0), 2))
    make, code, words = REFUSED[case]
    arguments = make(int(memory), array, pyramid)
    free = ok(cuda.cuMemGetInfo())[0]
    assert cuda.cuTexObjectCreate(*arguments) == (code, None)
    assert words in last_error()
    assert ok(cuda.cuMemGetInfo())[0] == free


def test_a_surface_is_of_an_array_that_is_made_for_it(context: Any) -> None:
    array, memory = ok(cuda.cuArray3DCreate(describe(8, 8, 6, flags=CUBEMAP))), ok(cuda.cuMemAlloc(64))
    for arguments, words in ((of_array(array), "SURFACE_LDST"), (of_memory(memory, 64), "type 0"), (None, "NULL")):
        assert cuda.cuSurfObjectCreate(arguments) == (INVALID, None)
        assert words in last_error()


def test_a_wrong_handle_in_a_kernel_is_an_illegal_address(sample: Sampler) -> None:
    texture = np.array([4096], np.uint64)
    kept_open = [np.array([int(sample.out)], np.uint64), texture, np.zeros(1, "f4"), np.zeros(1, "f4")]
    places = np.array([item.ctypes.data for item in kept_open], np.uint64)
    assert cuda.cuLaunchKernel(sample.kernel, 1, 1, 1, 1, 1, 1, 0, 0, places.ctypes.data, 0) == DONE
    assert cuda.cuCtxSynchronize() == (Result.CUDA_ERROR_ILLEGAL_ADDRESS,)
    assert "not the handle of a texture or surface object" in last_error()
