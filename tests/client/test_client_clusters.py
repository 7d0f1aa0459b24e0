"""Kernels that run in clusters, with more of them than the device holds at once."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from tests.client.conftest import ok

KERNEL = b"""
.version 8.3
.target sm_90
.address_size 64
.visible .entry next(.param .u64 out) .explicitcluster .reqnctapercluster 4, 1, 1
{
  .shared .b32 own; .reg .b32 %r<9>; .reg .b64 %d<4>; .reg .pred %p;
  ld.param.u64 %d0, [out]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0;
  @!%p st.shared.u32 [own], %r0;
  barrier.cluster.arrive; barrier.cluster.wait;
  mov.u32 %r2, %cluster_ctarank; add.u32 %r2, %r2, 1; and.b32 %r2, %r2, 3; mov.u32 %r3, own;
  mapa.shared::cluster.u32 %r4, %r3, %r2; ld.shared::cluster.u32 %r5, [%r4];
  barrier.cluster.arrive; barrier.cluster.wait;
  mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
  @!%p st.global.u32 [%d1], %r5;
  ret;
}
"""


def _launch(blocks: int, threads: int, address: Any) -> tuple[Any, ...]:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL)), b"next"))
    answer: tuple[Any, ...] = cuda.cuLaunchKernel(
        function, blocks, 1, 1, threads, 1, 1, 0, 0, ((address,), (ctypes.c_void_p,)), 0
    )
    return answer


@pytest.mark.parametrize("threads", [1, 96, 1024])
def test_many_clusters(context: Any, threads: int) -> None:
    blocks = 2000
    address = ok(cuda.cuMemAlloc(4 * blocks))
    ok(_launch(blocks, threads, address))
    got = np.zeros(blocks, "u4")
    ok(cuda.cuMemcpyDtoH(got, address, got.nbytes))
    np.testing.assert_array_equal(got, [n - n % 4 + (n + 1) % 4 for n in range(blocks)])


def test_a_grid_of_parts_of_clusters_is_refused(context: Any) -> None:
    ok(_launch(6, 32, 0))  # the device refuses it: the next call that waits says so
    assert cuda.cuCtxSynchronize() == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)


def test_the_size_of_its_clusters_is_an_attribute_of_the_kernel(context: Any) -> None:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL)), b"next"))
    attribute = cuda.CUfunction_attribute
    names = ("WIDTH", "HEIGHT", "DEPTH")
    found = [
        ok(cuda.cuFuncGetAttribute(getattr(attribute, f"CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_{name}"), function))
        for name in names
    ]
    assert found == [4, 1, 1]
