"""Tensor maps: what cuTensorMapEncode* makes and refuses, and kernels that copy by them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.context import contexts
from tests.client.conftest import ok

DONE = (cuda.CUresult.CUDA_SUCCESS,)
INVALID = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE, None)
NOT_SUPPORTED = (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED, None)
Type, Interleave = cuda.CUtensorMapDataType, cuda.CUtensorMapInterleave
Swizzle, Promotion, Fill = cuda.CUtensorMapSwizzle, cuda.CUtensorMapL2promotion, cuda.CUtensorMapFloatOOBfill
FLOAT32, UINT8 = Type.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, Type.CU_TENSOR_MAP_DATA_TYPE_UINT8
NONE, BYTES_16, BYTES_32 = (Interleave(value) for value in range(3))
NAN = Fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA

TILED: dict[str, Any] = {
    "tensorDataType": FLOAT32,
    "tensorRank": 3,
    "globalAddress": 1 << 20,
    "globalDim": [100, 20, 3],
    "globalStrides": [400, 8000],
    "boxDim": [32, 8, 2],
    "elementStrides": [1, 1, 2],
    "interleave": NONE,
    "swizzle": Swizzle.CU_TENSOR_MAP_SWIZZLE_128B,
    "l2Promotion": Promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    "oobFill": NAN,
}
IM2COL: dict[str, Any] = {
    **{name: value for name, value in TILED.items() if name != "boxDim"},
    "pixelBoxLowerCorner": [-1],
    "pixelBoxUpperCorner": [-1],
    "channelsPerPixel": 32,
    "pixelsPerColumn": 8,
}


def encode_tiled(**more: Any) -> Any:
    return cuda.cuTensorMapEncodeTiled(**{**TILED, **more})


def im2col(**more: Any) -> Any:
    return cuda.cuTensorMapEncodeIm2col(**{**IM2COL, **more})


def bytes_of(map: Any) -> bytes:
    return ctypes.string_at(map.getPtr(), 128)


PACKED = [Type(value) for value in (13, 14, 15) if value in set(map(int, Type))]
BOTH: list[tuple[dict[str, Any], str]] = [
    ({"tensorRank": 0}, "tensorRank is 0"),
    ({"tensorRank": 6}, "tensorRank is 6"),
    ({"tensorRank": 4}, "elements; "),
    ({"globalDim": None}, "globalDim has 0 elements"),
    ({"globalStrides": [400]}, "globalStrides has 1 elements"),
    ({"elementStrides": None}, "elementStrides has 0"),
    ({"globalAddress": (1 << 20) + 8}, "a multiple of 16"),
    ({"globalDim": [100, 0, 3]}, r"globalDim[1] is 0; 1 to 2**32"),
    ({"globalDim": [100, 20, (1 << 32) + 1]}, "globalDim[2]"),
    ({"globalStrides": [408, 8000]}, "globalStrides[0] is 408; multiples of 16"),
    ({"globalStrides": [400, 1 << 40]}, "below 2**40"),
    ({"elementStrides": [1, 0, 1]}, "elementStrides[1] is 0; 1 to 8"),
    ({"elementStrides": [1, 1, 9]}, "elementStrides[2] is 9"),
    ({"interleave": BYTES_32}, "interleave 32B is allowed with swizzle 32B only"),
    ({"interleave": BYTES_32, "swizzle": 1, "globalAddress": 16}, "a multiple of 32"),
    ({"interleave": BYTES_32, "swizzle": 1, "globalStrides": [400, 8000]}, "multiples of 32"),
    ({"interleave": BYTES_16, "elementStrides": [9, 1, 1]}, "elementStrides[0] is 9"),
    ({"interleave": 3}, "interleave is 3; 0 to 2"),
    ({"swizzle": 4}, "128B_ATOM_32B needs a device of compute capability 10.0"),
    ({"swizzle": 7}, "swizzle is 7"),
    ({"l2Promotion": 4}, "l2Promotion is 4"),
    ({"oobFill": 2}, "oobFill is 2"),
    ({"tensorDataType": UINT8}, "floating-point types only"),
    ({"tensorDataType": 16, "oobFill": 0}, "tensorDataType is 16"),
    *(({"tensorDataType": packed, "oobFill": 0}, "needs a device of compute capability 10.0") for packed in PACKED),
]
"""What is not allowed of either kind."""
OF_TILES: list[tuple[dict[str, Any], str]] = [
    ({"boxDim": [32, 0, 2]}, "boxDim[1] is 0; 1 to 256"),
    ({"boxDim": [32, 257, 2]}, "boxDim[1] is 257"),
    ({"boxDim": [30, 8, 2]}, "not a multiple of 16 bytes"),
    ({"boxDim": [36, 8, 2]}, "boxDim[0] is 144 bytes; the swizzle allows 128"),
    ({"boxDim": [32, 8, 2], "swizzle": 2}, "the swizzle allows 64"),
    ({"boxDim": [16, 8, 2], "swizzle": 1}, "the swizzle allows 32"),
    ({"boxDim": None}, "boxDim has 0 elements"),
    ({"tensorRank": 2, "interleave": BYTES_16}, "tensorRank is 2; 3 to 5"),
]
OF_COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"tensorRank": 2}, "tensorRank is 2; 3 to 5"),
    ({"pixelBoxLowerCorner": [-32769]}, "pixelBoxLowerCorner[0] is -32769; -32768 to 32767"),
    ({"pixelBoxUpperCorner": [32768]}, "pixelBoxUpperCorner[0]"),
    ({"pixelBoxUpperCorner": [-21]}, "the box of pixels is empty along dimension 1"),
    ({"pixelBoxLowerCorner": []}, "pixelBoxLowerCorner has 0 elements"),
    ({"channelsPerPixel": 257}, "channelsPerPixel is 257; 1 to 256"),
    ({"channelsPerPixel": 64}, "channelsPerPixel is 256 bytes; the swizzle allows 128"),
    ({"pixelsPerColumn": 1025}, "pixelsPerColumn is 1025; 1 to 1024"),
]


@pytest.mark.parametrize(
    ("encode", "arguments", "words"),
    [*((encode_tiled, *one) for one in BOTH + OF_TILES), *((im2col, *one) for one in BOTH + OF_COLUMNS)],
)
def test_a_tensor_map_that_cuda_does_not_allow_is_refused(
    context: Any, encode: Any, arguments: dict[str, Any], words: str
) -> None:
    assert encode(**arguments) == INVALID
    assert words in last_error()


@pytest.mark.parametrize(("rank", "most"), [(4, 128), (5, 16)])
def test_the_corners_of_more_dimensions_are_smaller(context: Any, rank: int, most: int) -> None:
    more = {
        "tensorRank": rank, "globalDim": [100] * rank, "globalStrides": [400, 40000, 4000000, 400000000],
        "elementStrides": [1] * rank, "pixelBoxLowerCorner": [-most] * 3, "pixelBoxUpperCorner": [most - 1] * 3,
    }  # fmt: skip
    assert isinstance(ok(im2col(**more)), cuda.CUtensorMap)
    assert im2col(**{**more, "pixelBoxUpperCorner": [most] * 3}) == INVALID


@pytest.mark.parametrize(
    "arguments",
    [
        {"elementStrides": [9, 1, 1]},
        {"elementStrides": [1 << 20, 1, 1]},
        {"globalStrides": [0, 16]},
        {"globalDim": [1 << 32] * 3},
        {"boxDim": [256, 256, 256], "swizzle": 0},
        {"tensorRank": 1, "globalStrides": None},
        {"tensorDataType": UINT8, "oobFill": 0, "boxDim": [128, 1, 1]},
        {"globalDim": [cuda.cuuint64_t(5)] * 3, "boxDim": [cuda.cuuint32_t(4)] * 3},
    ],
)
def test_tensor_maps_ignore_the_first_stride_and_allow_short_strides(context: Any, arguments: dict[str, Any]) -> None:
    """The first element stride is ignored; a stride may be shorter than the extent of the dimension below it."""
    assert len(bytes_of(ok(encode_tiled(**arguments)))) == 128


def test_tensor_maps_that_are_not_emulated_are_refused_by_name(context: Any) -> None:
    assert encode_tiled(interleave=BYTES_16) == NOT_SUPPORTED
    assert "interleaved layouts" in last_error()
    if hasattr(cuda, "cuTensorMapEncodeIm2colWide"):
        wide = {**IM2COL, "pixelBoxLowerCornerWidth": 0, "pixelBoxUpperCornerWidth": 0, "mode": 0}
        del wide["pixelBoxLowerCorner"], wide["pixelBoxUpperCorner"]
        assert cuda.cuTensorMapEncodeIm2colWide(**wide) == NOT_SUPPORTED
        assert "compute capability 10.0" in last_error()


def test_a_tensor_map_gets_another_address(context: Any) -> None:
    map = ok(encode_tiled())
    assert cuda.cuTensorMapReplaceAddress(map, 4096) == DONE
    assert bytes_of(map) == bytes_of(ok(encode_tiled(globalAddress=4096)))
    before = bytes_of(map)
    assert cuda.cuTensorMapReplaceAddress(map, 8) == INVALID[:1]
    assert bytes_of(map) == before
    assert cuda.cuTensorMapReplaceAddress(None, 4096) == INVALID[:1]
    assert cuda.cuTensorMapReplaceAddress(cuda.CUtensorMap(), 4096) == INVALID[:1]
    assert "not a tensor map" in last_error()


def test_a_context_and_a_device_that_has_them_are_needed(devices: None) -> None:
    assert encode_tiled()[0] == cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT
    context = contexts[int(ok(cuda.cuCtxCreate(None, 0, 0)))]
    assert ok(cuda.cuDeviceGetAttribute(127, 0)) == 1
    without = {**context.device.properties.attributes, "TENSOR_MAP_ACCESS_SUPPORTED": 0}
    properties = evolve(context.device.properties, attributes=without)
    object.__setattr__(context, "device", evolve(context.device, properties=properties))
    assert encode_tiled() == im2col() == NOT_SUPPORTED
    assert "TENSOR_MAP_ACCESS_SUPPORTED" in last_error()


KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry turn(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128])
{ .reg .b64 %d<5>; .reg .b32 %r<9>; .reg .pred %p<3>; .shared .align 128 .b8 s[4096]; .shared .align 8 .b64 bar;
mov.b64 %d0, from; cvta.param.u64 %d0, %d0; mov.b64 %d1, to; cvta.param.u64 %d1, %d1;
mov.u32 %r0, s; mov.u32 %r1, bar; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;
shl.b32 %r2, %r2, 5; shl.b32 %r3, %r3, 5;
mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 4096;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {%r2, %r3}], [%r1];
wait: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0; @!%p0 bra wait;
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {%r3, %r2}], [%r0];
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }
"""


def test_a_kernel_copies_by_maps(context: Any) -> None:
    """The kernel exchanges rows and columns of blocks of 32 by 32 elements, or of what is left at the edges."""
    data = np.arange(70 * 100, dtype="f4").reshape(70, 100)
    source, target = (ok(cuda.cuMemAlloc(4 * 8000)) for _ in range(2))
    assert cuda.cuMemcpyHtoD(source, data, data.nbytes) == DONE
    assert cuda.cuMemsetD8(target, 0, 4 * 8000) == DONE
    plain = {"tensorRank": 2, "boxDim": [32, 32], "elementStrides": [1, 1], "swizzle": 0, "oobFill": 0}
    first = ok(encode_tiled(**plain, globalAddress=source, globalDim=[100, 70], globalStrides=[400]))
    second = ok(encode_tiled(**plain, globalAddress=target, globalDim=[70, 100], globalStrides=[320]))
    module = ok(cuda.cuModuleLoadData(KERNEL.encode()))
    kernel = ok(cuda.cuModuleGetFunction(module, b"turn"))
    assert cuda.cuLaunchKernel(kernel, 4, 3, 1, 1, 1, 1, 0, 0, ((first, second), (None, None)), 0) == DONE
    back = np.zeros((100, 80), "f4")
    assert cuda.cuMemcpyDtoH(back, target, back.nbytes) == DONE
    expected = np.zeros((128, 96), "f4")
    for x in range(4):
        for y in range(3):
            part = data[32 * y : 32 * y + 32, 32 * x : 32 * x + 32]
            expected[32 * x : 32 * x + part.shape[0], 32 * y : 32 * y + part.shape[1]] = part
    np.testing.assert_array_equal(back[:, :70], expected[:100, :70])


def test_a_map_of_memory_that_is_not_there(context: Any) -> None:
    """Encoding does not check the address: a kernel that uses the map faults, as with any other access."""
    map = ok(encode_tiled(tensorRank=2, boxDim=[32, 32], globalDim=[100, 70], globalStrides=[400], swizzle=0))
    kernel = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL.encode())), b"turn"))
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((map, map), (None, None)), 0) == DONE
    assert cuda.cuCtxSynchronize() == (cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
    assert "outside of the allocations" in last_error()


def test_a_map_that_does_not_fit_the_instruction(context: Any) -> None:
    kernel = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL.encode())), b"turn"))
    map = ok(encode_tiled())
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((map, map), (None, None)), 0) == DONE
    assert cuda.cuCtxSynchronize() == (cuda.CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,)
    assert "2 coordinates for a tensor map of 3 dimensions" in last_error()
