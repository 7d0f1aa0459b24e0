"""Kernels that run in clusters, with more of them than the device holds at the same time."""

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
def test_more_clusters_than_fit_all_run(context: Any, threads: int) -> None:
    blocks = 2000
    address = ok(cuda.cuMemAlloc(4 * blocks))
    ok(_launch(blocks, threads, address))
    actual = np.zeros(blocks, "u4")
    ok(cuda.cuMemcpyDtoH(actual, address, actual.nbytes))
    np.testing.assert_array_equal(actual, [n - n % 4 + (n + 1) % 4 for n in range(blocks)])


def test_a_grid_of_parts_of_clusters_is_refused(context: Any) -> None:
    ok(_launch(6, 32, 0))  # the device refuses it: the next call that waits reports it
    assert cuda.cuCtxSynchronize() == (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)


def test_the_size_of_its_clusters_is_an_attribute_of_the_kernel(context: Any) -> None:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(KERNEL)), b"next"))
    attribute = cuda.CUfunction_attribute
    names = ("WIDTH", "HEIGHT", "DEPTH")
    sizes = [
        ok(cuda.cuFuncGetAttribute(getattr(attribute, f"CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_{name}"), function))
        for name in names
    ]
    assert sizes == [4, 1, 1]


ANY = KERNEL.replace(b" .explicitcluster .reqnctapercluster 4, 1, 1", b"")


def _query(
    function: Any, blocks: int, address: Any, cluster: tuple[int, int, int], stream: Any = 0
) -> tuple[Any, ...]:
    """Launch a kernel in clusters that only the launch asks for."""
    attribute, config = cuda.CUlaunchAttribute(), cuda.CUlaunchConfig()
    attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = attribute.value.clusterDim
    size.x, size.y, size.z = cluster
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream, config.attrs, config.numAttrs = stream, [attribute], 1
    answer: tuple[Any, ...] = cuda.cuLaunchKernelEx(config, function, ((address,), (ctypes.c_void_p,)), 0)
    return answer


def function_of(image: bytes) -> Any:
    return ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), b"next"))


@pytest.mark.parametrize("captured", [False, True])
def test_clusters_that_the_launch_asks_for(context: Any, captured: bool) -> None:
    blocks, function, stream = 64, function_of(ANY), ok(cuda.cuStreamCreate(1))
    address = ok(cuda.cuMemAlloc(4 * blocks))
    for size in (4, 8):
        if captured:
            ok((*cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode(2)), None))
        ok((*_query(function, blocks, address, (size, 1, 1), stream), None))
        if captured:
            graph = ok(cuda.cuStreamEndCapture(stream))
            ok((*cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), stream), None))
        ok((*cuda.cuStreamSynchronize(stream), None))
        actual = np.zeros(blocks, "u4")
        ok((*cuda.cuMemcpyDtoH(actual, address, actual.nbytes), None))
        np.testing.assert_array_equal(actual, [n - n % size + ((n % size + 1) & 3) for n in range(blocks)])


def test_clusters_that_cannot_be(context: Any) -> None:
    function, wrong = function_of(ANY), cuda.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE
    for cluster in ((0, 1, 1), (17, 1, 1), (16, 1, 1), (4, 4, 1), (3, 1, 1), (1, 2, 1)):
        assert _query(function, 64, 0, cluster) == (wrong,), cluster
    assert cuda.cuCtxSynchronize() == (cuda.CUresult.CUDA_SUCCESS,)
    ok((*_query(function_of(KERNEL), 64, 0, (8, 1, 1)), None))
    assert cuda.cuCtxSynchronize() == (wrong,), "it was compiled for another size"
