"""Occupancy, and the launches that need it, on a real emulated device of 132 multiprocessors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.errors import CudaError
from pympsd_client._objects.context import context_of
from pympsd_client.routing import by_address
from tests.client.conftest import ok

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 counter) {
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [counter]; cvta.to.global.u64 %rd1, %rd1;
    atom.global.add.u32 %r1, [%rd1], 1;
    ret;
}
.visible .entry small() .maxntid 64, 1, 1 { ret; }
.visible .entry shared() {
    .shared .align 4 .b8 room[40960];
    .reg .b32 %r<2>;
    mov.u32 %r1, 1;
    st.shared.u32 [room], %r1;
    ret;
}
"""
INVALID = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
TOO_LARGE = (cuda.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,)
MULTIPROCESSORS = 132


@pytest.fixture
def module(context: Any) -> Any:
    """Load the kernels."""
    return ok(cuda.cuModuleLoadData(PTX))


@pytest.fixture
def count(module: Any) -> Any:
    """A kernel whose threads count themselves."""
    return ok(cuda.cuModuleGetFunction(module, b"count"))


def _blocks(function: Any, threads: int, dynamic: int = 0) -> int:
    return int(ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic)))


# --- occupancy


@pytest.mark.parametrize(
    ("threads", "dynamic", "expected"),
    [
        (1, 0, 32), (32, 0, 32), (64, 0, 32), (128, 0, 16), (100, 0, 16), (1024, 0, 2), (1025, 0, 0),
        (32, 10_000, 20), (32, 49_152, 4), (32, 49_153, 0),
    ],
)  # fmt: skip
def test_blocks_threads_and_shared_memory_bound_the_occupancy(
    count: Any, threads: int, dynamic: int, expected: int
) -> None:
    """An H200 has 2048 threads, 32 blocks and 233472 bytes, 1024 of them reserved for each block."""
    assert _blocks(count, threads, dynamic) == expected


def test_static_shared_memory_counts(module: Any) -> None:
    function = ok(cuda.cuModuleGetFunction(module, b"shared"))
    assert _blocks(function, 32) == 5
    assert _blocks(function, 32, 8192) == 4


def test_a_kernel_holds_no_more_threads_than_it_was_built_for(module: Any) -> None:
    function = ok(cuda.cuModuleGetFunction(module, b"small"))
    assert (_blocks(function, 64), _blocks(function, 65)) == (32, 0)


def test_a_block_without_threads_is_refused(count: Any) -> None:
    assert cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(count, 0, 0) == (INVALID, None)


def test_flags_of_occupancy(count: Any) -> None:
    for flags in (0, 1):
        assert ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, 128, 0, flags)) == 16
        assert ok(cuda.cuOccupancyMaxPotentialBlockSizeWithFlags(count, None, 0, 0, flags)) == (264, 1024)
    assert cuda.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, 128, 0, 2) == (INVALID, None)
    assert cuda.cuOccupancyMaxPotentialBlockSizeWithFlags(count, None, 0, 0, 2) == (INVALID, None, None)


def test_the_block_that_fills_the_device(module: Any, count: Any) -> None:
    assert ok(cuda.cuOccupancyMaxPotentialBlockSize(count, None, 0, 0)) == (2 * MULTIPROCESSORS, 1024)
    assert ok(cuda.cuOccupancyMaxPotentialBlockSize(count, None, 0, 256)) == (8 * MULTIPROCESSORS, 256)
    small = ok(cuda.cuModuleGetFunction(module, b"small"))
    assert ok(cuda.cuOccupancyMaxPotentialBlockSize(small, None, 0, 0)) == (32 * MULTIPROCESSORS, 64)


def test_the_program_may_say_what_a_block_needs(count: Any) -> None:
    thread_counts = []

    def dynamic_bytes(threads: int) -> int:
        thread_counts.append(threads)
        return 48 << 10 if threads > 64 else 0

    function = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(dynamic_bytes)
    pointer = ctypes.cast(function, ctypes.c_void_p).value
    # 4 blocks of 1024 threads would do, but 2048 threads are all there is room for.
    assert ok(cuda.cuOccupancyMaxPotentialBlockSize(count, pointer, 0, 0)) == (2 * MULTIPROCESSORS, 1024)
    assert ok(cuda.cuOccupancyMaxPotentialBlockSize(count, pointer, 0, 96)) == (32 * MULTIPROCESSORS, 64)
    assert set(thread_counts) >= {1024, 96, 64, 32}


def test_a_kernel_of_which_no_block_fits_is_refused(count: Any) -> None:
    assert cuda.cuOccupancyMaxPotentialBlockSize(count, None, 1 << 20, 0) == (INVALID, None, None)
    assert "no block of count fits" in last_error()


# --- cooperative launches, launches by configuration


def _count(count: Any, launch: Any) -> int:
    counter = ok(cuda.cuMemAlloc(4))
    ok(cuda.cuMemsetD32(counter, 0, 1))
    ok(launch(((int(counter),), (ctypes.c_void_p,))))
    ok(cuda.cuCtxSynchronize())
    result = np.zeros(1, np.uint32)
    ok(cuda.cuMemcpyDtoH(result, counter, 4))
    ok(cuda.cuMemFree(counter))
    return int(result[0])


def _cooperative(count: Any, grid: tuple[int, int, int], threads: int, parameters: Any, shared: int = 0) -> Any:
    return cuda.cuLaunchCooperativeKernel(count, *grid, threads, 1, 1, shared, 0, parameters)


def test_a_cooperative_grid_may_fill_the_device(count: Any) -> None:
    full = (MULTIPROCESSORS, 4, 4)
    threads = _count(count, lambda parameters: _cooperative(count, full, 128, parameters))
    assert threads == 16 * MULTIPROCESSORS * 128


@pytest.mark.parametrize(
    ("grid", "threads", "shared"),
    [((16 * MULTIPROCESSORS + 1, 1, 1), 128, 0), ((MULTIPROCESSORS, 16, 2), 128, 0), ((5 * 132, 1, 1), 32, 49152)],
)
def test_a_cooperative_grid_that_is_too_large(
    count: Any, grid: tuple[int, int, int], threads: int, shared: int
) -> None:
    parameters = ((0,), (ctypes.c_void_p,))
    assert _cooperative(count, grid, threads, parameters, shared) == TOO_LARGE
    assert "on each of the context's 132 multiprocessors" in last_error()
    assert ok(cuda.cuCtxSynchronize()) == (), "nothing was launched"


def _configuration(**fields: Any) -> Any:
    configuration = cuda.CUlaunchConfig()
    shape = {f"gridDim{axis}": 1 for axis in "XYZ"} | {f"blockDim{axis}": 1 for axis in "XYZ"}
    for name, value in (shape | fields).items():
        setattr(configuration, name, value)
    return configuration


def _attribute(name: str, **values: int) -> Any:
    attribute = cuda.CUlaunchAttribute()
    attribute.id = getattr(cuda.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    for field, value in values.items():
        setattr(attribute.value, field, value)
    return attribute


def test_a_launch_by_configuration(count: Any) -> None:
    plain = _configuration(gridDimX=3, blockDimX=32)
    assert _count(count, lambda parameters: cuda.cuLaunchKernelEx(plain, count, parameters, 0)) == 96
    attributes = [_attribute("IGNORE"), _attribute("COOPERATIVE", cooperative=1)]
    fitting = _configuration(gridDimX=264, blockDimX=1024, attrs=attributes, numAttrs=2)
    assert _count(count, lambda parameters: cuda.cuLaunchKernelEx(fitting, count, parameters, 0)) == 264 * 1024
    too_large = _configuration(gridDimX=265, blockDimX=1024, attrs=attributes, numAttrs=2)
    assert cuda.cuLaunchKernelEx(too_large, count, ((0,), (ctypes.c_void_p,)), 0) == TOO_LARGE
    not_so = _configuration(gridDimX=265, attrs=[_attribute("COOPERATIVE", cooperative=0)], numAttrs=1)
    assert _count(count, lambda parameters: cuda.cuLaunchKernelEx(not_so, count, parameters, 0)) == 265


def test_a_launch_in_programmatic_stream_serialization(count: Any) -> None:
    """Its attributes are permissions and hints; the events of a launch stand for the kernel's end at the latest."""
    attributes = [
        _attribute("PROGRAMMATIC_STREAM_SERIALIZATION", programmaticStreamSerializationAllowed=1),
        _attribute("PRIORITY", priority=-1),
    ]
    marks = [ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)) for _ in range(2)]
    for name, field, event in (
        ("PROGRAMMATIC_EVENT", "programmaticEvent", marks[0]),
        ("LAUNCH_COMPLETION_EVENT", "launchCompletionEvent", marks[1]),
    ):
        attributes.append(_attribute(name))
        getattr(attributes[-1].value, field).event = event
    configuration = _configuration(gridDimX=3, blockDimX=32, attrs=attributes, numAttrs=4)
    assert _count(count, lambda parameters: cuda.cuLaunchKernelEx(configuration, count, parameters, 0)) == 96
    for event in marks:
        assert cuda.cuEventQuery(event) == (cuda.CUresult.CUDA_SUCCESS,)


def test_captured_programmatic_launches_have_programmatic_edges(count: Any) -> None:
    """As recorded with an H100; a program may add such edges to a graph itself, between kernels."""
    attribute = _attribute("PROGRAMMATIC_STREAM_SERIALIZATION", programmaticStreamSerializationAllowed=1)
    configuration = _configuration(gridDimX=3, blockDimX=32, attrs=[attribute], numAttrs=1)
    configuration.hStream = stream = ok(cuda.cuStreamCreate(1))

    def run(parameters: Any) -> Any:
        ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        for _ in range(2):
            ok(cuda.cuLaunchKernelEx(configuration, count, parameters, 0))
        graph = ok(cuda.cuStreamEndCapture(stream))
        (start,), (end,), (data,), _ = ok(cuda.cuGraphGetEdges(graph, 1))
        assert (data.from_port, data.to_port, int(data.type)) == (1, 0, 1)
        arrays, size = (ctypes.c_uint64 * 2)(), ctypes.c_uint64(1)
        get_edges, _ = by_address.resolve("cuGraphGetEdges") or pytest.fail("there is no such function")
        at = ctypes.addressof(arrays)
        with pytest.raises(CudaError, match="the edges have data"):  # as C calls the version without data
            get_edges(int(graph), at, at + 8, 0, ctypes.addressof(size))
        ok(cuda.cuGraphRemoveDependencies(graph, [start], [end], [data], 1))
        ok(cuda.cuGraphAddDependencies(graph, [start], [end], [data], 1))
        first = ok(cuda.cuGraphAddEmptyNode(graph, None, 0))
        assert cuda.cuGraphAddDependencies(graph, [first], [start], [data], 1) == (INVALID,)
        return cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), stream)

    assert _count(count, run) == 192


def _with_event(name: str, field: str, event: Any, flags: int = 0) -> Any:
    attribute = _attribute(name)
    value = getattr(attribute.value, field)
    value.event, value.flags = event, flags
    return attribute


def test_values_of_launch_attributes_that_are_refused(count: Any) -> None:
    """As recorded with an H100."""
    timed, shared = (ok(cuda.cuEventCreate(flags)) for flags in (0, 6))
    untimed = ok(cuda.cuEventCreate(2))
    not_supported, no_handle = cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED, cuda.CUresult.CUDA_ERROR_INVALID_HANDLE
    cases = [
        (_attribute("SYNCHRONIZATION_POLICY", syncPolicy=1), INVALID),
        (_attribute("PREFERRED_SHARED_MEMORY_CARVEOUT", sharedMemCarveout=500), INVALID),
    ]
    for event in (("PROGRAMMATIC_EVENT", "programmaticEvent"), ("LAUNCH_COMPLETION_EVENT", "launchCompletionEvent")):
        cases += [(_with_event(*event, item), not_supported) for item in (timed, shared)]
        cases += [(_with_event(*event, 0), no_handle), (_with_event(*event, untimed, 5), INVALID)]
    for attribute, result in cases:
        configuration = _configuration(attrs=[attribute], numAttrs=1)
        assert cuda.cuLaunchKernelEx(configuration, count, ((0,), (ctypes.c_void_p,)), 0) == (result,), attribute


def test_a_launch_attribute_that_is_not_there_is_named(count: Any) -> None:
    attribute = _attribute("DEVICE_UPDATABLE_KERNEL_NODE")
    attribute.value.deviceUpdatableKernelNode.deviceUpdatable = 1
    configuration = _configuration(attrs=[attribute], numAttrs=1)
    parameters = ((0,), (ctypes.c_void_p,))
    answer = cuda.cuLaunchKernelEx(configuration, count, parameters, 0)
    assert answer == (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED,)
    assert "launch attribute DEVICE_UPDATABLE_KERNEL_NODE" in last_error()
    configuration.numAttrs = 2
    assert cuda.cuLaunchKernelEx(configuration, count, parameters, 0) == (INVALID,)
    assert cuda.cuLaunchKernelEx(None, count, parameters, 0) == (INVALID,)


def test_a_device_without_cooperative_launches(count: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attributes = context_of(int(ok(cuda.cuCtxGetCurrent()))).device.properties.attributes
    monkeypatch.setitem(attributes, "COOPERATIVE_LAUNCH", 0)
    answer = _cooperative(count, (1, 1, 1), 1, ((0,), (ctypes.c_void_p,)))
    assert answer == (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED,)
    assert "NVIDIA H200 has no cooperative launches" in last_error()
