"""Launches by settings of a kernel, as before CUDA 4."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok

KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 number, .param .f32 real, .param .u64 last)
{ .reg .b64 %d, %x; .reg .b32 %r; .reg .pred %p;
  ld.param.u64 %d, [out]; setp.eq.u64 %p, %d, 0; @%p ret;
  ld.param.u32 %r, [number]; st.global.u32 [%d], %r; ld.param.u32 %r, [real]; st.global.u32 [%d+4], %r;
  mov.u32 %r, %nctaid.x; st.global.u32 [%d+8], %r; mov.u32 %r, %nctaid.y; st.global.u32 [%d+12], %r;
  mov.u32 %r, %ntid.x; st.global.u32 [%d+16], %r; mov.u32 %r, %ntid.y; st.global.u32 [%d+20], %r;
  mov.u32 %r, %dynamic_smem_size; st.global.u32 [%d+24], %r; ld.param.u64 %x, [last];
  st.global.u64 [%d+32], %x; ret; }
"""
INVALID = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)


@pytest.fixture
def kernel(context: Any) -> Any:
    """A kernel that writes its parameters and its shape."""
    return ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL)), b"k"))


def test_a_kernel_is_launched_with_its_settings(kernel: Any) -> None:
    ok(cuda.cuLaunch(kernel))
    ok(cuda.cuCtxSynchronize())
    address, stream, back = ok(cuda.cuMemAlloc(40)), ok(cuda.cuStreamCreate(1)), np.zeros(10, "u4")
    ok(cuda.cuFuncSetBlockShape(kernel, 8, 4, 1))
    ok(cuda.cuFuncSetSharedSize(kernel, 256))
    ok(cuda.cuParamSetv(kernel, 0, ctypes.c_uint64(int(address)), 8))
    ok(cuda.cuParamSeti(kernel, 8, 77))
    ok(cuda.cuParamSetf(kernel, 12, 1.5))
    ok(cuda.cuParamSetv(kernel, 16, ctypes.c_uint64(5 << 32), 8))
    ok(cuda.cuParamSetSize(kernel, 24))
    for launch, grid in (
        (lambda: cuda.cuLaunch(kernel), (1, 1)),
        (lambda: cuda.cuLaunchGrid(kernel, 3, 2), (3, 2)),
        (lambda: cuda.cuLaunchGridAsync(kernel, 2, 1, stream), (2, 1)),
    ):
        ok(launch())
        ok(cuda.cuCtxSynchronize())
        ok(cuda.cuMemcpyDtoH(back, address, 40))
        real = int(np.float32(1.5).view("u4"))
        assert back.tolist() == [77, real, *grid, 8, 4, 256, 0, 0, 5]


def test_settings_beyond_the_kernel_are_refused(kernel: Any) -> None:
    word = ctypes.c_uint64()
    for answer in (
        cuda.cuFuncSetBlockShape(kernel, 0, 1, 1),
        cuda.cuFuncSetBlockShape(kernel, 2000, 1, 1),
        cuda.cuFuncSetSharedSize(kernel, 1 << 30),
        cuda.cuParamSetv(kernel, 20, word, 8),
        cuda.cuParamSetv(kernel, -4, word, 8),
        cuda.cuParamSetv(kernel, 0, 0, 8),
        cuda.cuParamSeti(kernel, 24, 1),
        cuda.cuLaunchGrid(kernel, 0, 1),
        cuda.cuParamSetSize(kernel, 25),
    ):
        assert answer == INVALID
    assert "the parameters of k have 24 bytes" in last_error()
    assert cuda.cuLaunch(12345) == (cuda.CUresult.CUDA_ERROR_INVALID_HANDLE,)
