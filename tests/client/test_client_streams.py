"""Contexts, streams, events, threads and faults on real emulated devices."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.context import contexts, lost, this_thread
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import streams as stream_table
from tests.client.conftest import ok

PTX = Path(__file__).with_name("kernels.ptx").read_bytes()
R = cuda.CUresult
STORE = (ctypes.c_void_p, ctypes.c_uint)


class Kernels:
    """The tests' kernels in the current context, and two words of memory: a flag and a result."""

    def __init__(self) -> None:
        self.module = ok(cuda.cuModuleLoadData(PTX))
        self.flag = ok(cuda.cuMemAlloc(4))
        self.result = ok(cuda.cuMemAlloc(4))
        ok(cuda.cuMemsetD32(self.flag, 0, 1))
        ok(cuda.cuMemsetD32(self.result, 0, 1))
        ok(cuda.cuCtxSynchronize())

    def launch(self, name: bytes, values: tuple[Any, ...], types: tuple[Any, ...], stream: Any) -> None:
        """Launch one thread of a kernel."""
        function = ok(cuda.cuModuleGetFunction(self.module, name))
        ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, (values, types), 0))

    def hold_up(self, stream: Any) -> None:
        """Put work in a stream that does not end before `let_go`."""
        self.launch(b"wait_for", (int(self.flag),), (ctypes.c_void_p,), stream)

    def let_go(self, stream: Any) -> None:
        """Set the flag, in another stream."""
        ok(cuda.cuMemsetD32Async(self.flag, 1, 1, stream))

    def store(self, value: int, stream: Any) -> None:
        """Store a value as the result."""
        self.launch(b"store", (int(self.result), value), STORE, stream)

    def read(self, stream: Any) -> int:
        """Return the result as a stream sees it."""
        back = np.zeros(1, dtype=np.uint32)
        ok(cuda.cuMemcpyDtoHAsync(back, self.result, 4, stream))
        return int(back[0])


@pytest.fixture
def kernels(context: Any) -> Kernels:
    """The kernels in a context that is current."""
    return Kernels()


@pytest.fixture
def streams(context: Any) -> list[Any]:
    """Two streams that do not wait for the default stream."""
    return [ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2)]


def test_a_stream_is_not_ready_while_its_kernel_runs(kernels: Kernels, streams: list[Any]) -> None:
    busy, other = streams
    kernels.hold_up(busy)
    assert cuda.cuStreamQuery(busy) == (R.CUDA_ERROR_NOT_READY,)
    ok(cuda.cuStreamQuery(other))
    kernels.let_go(other)
    ok(cuda.cuStreamSynchronize(busy))
    ok(cuda.cuStreamQuery(busy))


def test_a_stream_waits_for_an_event_of_another(kernels: Kernels, streams: list[Any]) -> None:
    first, second = streams
    event = ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    kernels.hold_up(first)
    kernels.store(1, first)
    ok(cuda.cuEventRecord(event, first))
    ok(cuda.cuStreamWaitEvent(second, event, 0))
    kernels.store(2, second)
    assert cuda.cuEventQuery(event) == (R.CUDA_ERROR_NOT_READY,)
    third = ok(cuda.cuStreamCreate(1))
    kernels.let_go(third)
    assert kernels.read(second) == 2
    ok(cuda.cuEventSynchronize(event))
    ok(cuda.cuEventQuery(event))


def test_a_stream_of_one_device_waits_for_an_event_of_another_device(kernels: Kernels, streams: list[Any]) -> None:
    event = ok(cuda.cuEventCreate(0))
    kernels.store(7, streams[0])
    ok(cuda.cuEventRecord(event, streams[0]))
    other = ok(cuda.cuCtxCreate(None, 0, 1))
    elsewhere = ok(cuda.cuStreamCreate(0))
    ok(cuda.cuStreamWaitEvent(elsewhere, event, 0))
    ok(cuda.cuEventQuery(event))  # waiting for it has confirmed it
    assert cuda.cuEventRecord(event, elsewhere) == (R.CUDA_ERROR_INVALID_HANDLE,)
    ok(cuda.cuCtxDestroy(other))
    assert kernels.read(streams[0]) == 7


def test_elapsed_time_is_between_recorded_events(kernels: Kernels, streams: list[Any]) -> None:
    start, end = (ok(cuda.cuEventCreate(0)) for _ in range(2))
    assert cuda.cuEventElapsedTime(start, end) == (R.CUDA_ERROR_INVALID_HANDLE, None)
    assert "never recorded" in last_error()
    ok(cuda.cuEventRecord(start, streams[0]))
    kernels.hold_up(streams[0])
    ok(cuda.cuEventRecord(end, streams[0]))
    assert cuda.cuEventElapsedTime(start, end) == (R.CUDA_ERROR_NOT_READY, None)
    kernels.let_go(streams[1])
    ok(cuda.cuEventSynchronize(end))
    assert ok(cuda.cuEventElapsedTime(start, end)) > 0
    untimed = ok(cuda.cuEventCreate(2))
    ok(cuda.cuEventRecord(untimed, streams[0]))
    assert cuda.cuEventElapsedTime(start, untimed) == (R.CUDA_ERROR_INVALID_HANDLE, None)
    assert "DISABLE_TIMING" in last_error()


def test_an_event_never_recorded_holds_nothing_up(context: Any) -> None:
    event = ok(cuda.cuEventCreate(0))
    ok(cuda.cuEventQuery(event))
    ok(cuda.cuEventSynchronize(event))
    ok(cuda.cuStreamWaitEvent(0, event, 0))
    ok(cuda.cuEventDestroy(event))
    assert cuda.cuEventQuery(event) == (R.CUDA_ERROR_INVALID_HANDLE,)
    assert cuda.cuEventDestroy(event) == (R.CUDA_ERROR_INVALID_HANDLE,)


@pytest.mark.parametrize(
    ("flags", "result"),
    [(8, R.CUDA_ERROR_INVALID_VALUE), (4, R.CUDA_ERROR_INVALID_VALUE), (5, R.CUDA_ERROR_INVALID_VALUE)],
)
def test_events_accept_only_known_flags(context: Any, flags: int, result: Any) -> None:
    assert cuda.cuEventCreate(flags) == (result, None)


def test_what_a_stream_is_made_of(context: Any) -> None:
    least, greatest = ok(cuda.cuCtxGetStreamPriorityRange())
    assert greatest <= least
    stream = ok(cuda.cuStreamCreateWithPriority(1, -100))
    assert ok(cuda.cuStreamGetPriority(stream)) == greatest
    assert ok(cuda.cuStreamGetFlags(stream)) == 1
    assert int(ok(cuda.cuStreamGetCtx(stream))) == int(context)
    assert ok(cuda.cuStreamGetPriority(ok(cuda.cuStreamCreateWithPriority(0, 100)))) == least
    assert ok(cuda.cuStreamGetFlags(0)) == 0
    assert cuda.cuStreamCreate(2) == (R.CUDA_ERROR_INVALID_VALUE, None)
    ok(cuda.cuStreamDestroy(stream))
    for call in (cuda.cuStreamDestroy, cuda.cuStreamSynchronize, cuda.cuStreamQuery):
        assert call(stream) == (R.CUDA_ERROR_INVALID_HANDLE,)
        assert "not a stream of this process" in last_error()


@pytest.mark.parametrize("stream", [None, 0, 1, 2, cuda.CU_STREAM_LEGACY, cuda.CU_STREAM_PER_THREAD])
def test_the_special_streams(kernels: Kernels, stream: Any) -> None:
    kernels.store(3, stream)
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuStreamQuery(stream))
    assert kernels.read(stream) == 3


def test_each_thread_has_its_own_per_thread_stream(kernels: Kernels, context: Any) -> None:
    owned = contexts[int(context)]

    def in_a_thread() -> int:
        ok(cuda.cuCtxSetCurrent(context))
        kernels.store(4, 2)
        ok(cuda.cuStreamSynchronize(2))
        return next(iter(this_thread.streams.handles.values()))

    with ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(in_a_thread).result(30)
    kernels.store(5, 2)
    assert next(iter(this_thread.streams.handles.values())) != theirs
    # The thread has ended, and the next stream has taken its stream away.
    assert theirs not in owned.ended_threads_streams
    assert stream_table.get(theirs) is None


def test_a_stream_of_another_context_is_not_a_stream_for_a_kernel(kernels: Kernels, streams: list[Any]) -> None:
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"nothing"))
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    launch = (function, 1, 1, 1, 1, 1, 1, 0)
    assert cuda.cuLaunchKernel(*launch, streams[0], 0, 0) == (R.CUDA_ERROR_INVALID_HANDLE,)
    assert "a context other than the current one" in last_error()
    ok(cuda.cuCtxDestroy(other))
    ok(cuda.cuLaunchKernel(*launch, streams[0], 0, 0))


# --- contexts


def test_flags_of_the_current_context_are_set(context: Any) -> None:
    ok(cuda.cuCtxSetFlags(2))
    assert ok(cuda.cuCtxGetFlags()) == 2
    assert cuda.cuCtxSetFlags(3) == (R.CUDA_ERROR_INVALID_VALUE,)
    assert ok(cuda.cuCtxGetFlags()) == 2


def test_a_context_is_destroyed_when_all_its_users_have_detached(context: Any) -> None:
    created = ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuCtxAttach(1) == (R.CUDA_ERROR_INVALID_VALUE, None)
    assert int(ok(cuda.cuCtxAttach(0))) == int(created)
    assert cuda.cuCtxDetach(context) == (R.CUDA_ERROR_INVALID_CONTEXT,)
    ok(cuda.cuCtxDetach(created))
    ok(cuda.cuMemAlloc(64))
    ok(cuda.cuCtxDetach(created))
    assert int(ok(cuda.cuCtxGetCurrent())) == int(context)
    assert cuda.cuCtxSetCurrent(created) == (R.CUDA_ERROR_INVALID_CONTEXT,)


def test_contexts_make_a_stack(devices: None) -> None:
    assert int(ok(cuda.cuCtxGetCurrent())) == 0
    assert cuda.cuMemAlloc(1) == (R.CUDA_ERROR_INVALID_CONTEXT, None)
    assert cuda.cuCtxPopCurrent() == (R.CUDA_ERROR_INVALID_CONTEXT, None)
    first, second = ok(cuda.cuCtxCreate(None, 0, 0)), ok(cuda.cuCtxCreate(4, 1))  # the second as in CUDA 12
    assert int(ok(cuda.cuCtxGetDevice())) == 1
    assert [int(ok(cuda.cuCtxGetDevice_v2(item))) for item in (None, second, first)] == [1, 1, 0]
    assert cuda.cuCtxGetDevice_v2(12345) == (R.CUDA_ERROR_INVALID_CONTEXT, None)
    for item in (None, second, first):
        assert cuda.cuCtxSynchronize_v2(item) == (R.CUDA_SUCCESS,)
    assert ok(cuda.cuCtxGetFlags()) == 4
    assert int(ok(cuda.cuCtxPopCurrent())) == int(second)
    assert int(ok(cuda.cuCtxGetCurrent())) == int(first)
    ok(cuda.cuCtxPushCurrent(second))
    ok(cuda.cuCtxSetCurrent(first))
    assert [stacked.handle for stacked in this_thread.stack] == [int(first), int(first)]
    ok(cuda.cuCtxSetCurrent(None))
    ok(cuda.cuCtxSetCurrent(0))
    assert int(ok(cuda.cuCtxGetCurrent())) == 0
    assert ok(cuda.cuCtxGetApiVersion(first)) == 3020
    for context in (first, second):
        ok(cuda.cuCtxDestroy(context))
        assert cuda.cuCtxDestroy(context) == (R.CUDA_ERROR_INVALID_CONTEXT,)
        assert cuda.cuCtxPushCurrent(context) == (R.CUDA_ERROR_INVALID_CONTEXT,)


@pytest.mark.parametrize(
    "arguments", [{"flags": 0, "dev": 0}, {"ctxCreateParams": None, "flags": 0, "dev": 0}], ids=["CUDA 12", "CUDA 13"]
)
def test_contexts_are_made_with_keywords_too(devices: None, arguments: dict[str, Any]) -> None:
    ok(cuda.cuCtxDestroy(ok(cuda.cuCtxCreate(**arguments))))


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ((None, 3, 0), R.CUDA_ERROR_INVALID_VALUE),
        ((None, 0x1000, 0), R.CUDA_ERROR_INVALID_VALUE),
        ((None, 0, 2), R.CUDA_ERROR_INVALID_DEVICE),
        ((None, 0, -1), R.CUDA_ERROR_INVALID_DEVICE),
    ],
)
def test_contexts_that_cannot_be(devices: None, arguments: tuple[Any, ...], result: Any) -> None:
    before = len(contexts)
    assert cuda.cuCtxCreate(*arguments) == (result, None)
    assert len(contexts) == before
    assert int(ok(cuda.cuCtxGetCurrent())) == 0


def test_a_destroyed_context_stays_current_elsewhere_and_its_calls_fail(context: Any) -> None:
    created, destroyed = threading.Event(), threading.Event()

    def other() -> tuple[Any, ...]:
        ok(cuda.cuCtxSetCurrent(context))
        created.set()
        assert destroyed.wait(30)
        answer: tuple[Any, ...] = cuda.cuMemAlloc(16)
        return answer

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(other)
        assert created.wait(30)
        ok(cuda.cuCtxDestroy(context))
        destroyed.set()
        assert future.result(30) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED, None)
    assert int(ok(cuda.cuCtxGetCurrent())) == 0


def test_the_handles_of_a_destroyed_context_are_invalid(kernels: Kernels, streams: list[Any], context: Any) -> None:
    function, event = ok(cuda.cuModuleGetFunction(kernels.module, b"nothing")), ok(cuda.cuEventCreate(0))
    ok(cuda.cuCtxDestroy(context))
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == (R.CUDA_ERROR_INVALID_HANDLE,)
    for call in (cuda.cuStreamSynchronize, cuda.cuStreamQuery, cuda.cuStreamDestroy):
        assert call(streams[0]) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
    for call in (cuda.cuEventSynchronize, cuda.cuEventQuery, cuda.cuEventDestroy):
        assert call(event) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
    assert cuda.cuStreamWaitEvent(0, event, 0) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
    assert cuda.cuEventRecord(event, 0) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
    assert cuda.cuMemFree(kernels.flag) == (R.CUDA_ERROR_INVALID_VALUE,)
    ok(cuda.cuCtxDestroy(other))


def test_the_primary_context_lives_as_long_as_it_is_retained(devices: None) -> None:
    assert ok(cuda.cuDevicePrimaryCtxGetState(0)) == (0, 0)
    assert cuda.cuDevicePrimaryCtxRelease(0) == (R.CUDA_ERROR_INVALID_CONTEXT,)
    ok(cuda.cuDevicePrimaryCtxSetFlags(0, 1))
    primary = ok(cuda.cuDevicePrimaryCtxRetain(0))
    assert int(ok(cuda.cuDevicePrimaryCtxRetain(0))) == int(primary)
    assert ok(cuda.cuDevicePrimaryCtxGetState(0)) == (1, 1)
    assert int(ok(cuda.cuCtxGetCurrent())) == 0
    ok(cuda.cuCtxSetCurrent(primary))
    address = ok(cuda.cuMemAlloc(64))
    assert cuda.cuCtxDestroy(primary) == (R.CUDA_ERROR_INVALID_CONTEXT,)
    ok(cuda.cuDevicePrimaryCtxRelease(0))
    ok(cuda.cuMemFree(address))
    ok(cuda.cuDevicePrimaryCtxRelease(0))
    assert ok(cuda.cuDevicePrimaryCtxGetState(0)) == (1, 0)
    assert cuda.cuMemAlloc(64) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED, None)
    assert int(ok(cuda.cuDevicePrimaryCtxRetain(0))) == int(primary)
    ok(cuda.cuMemAlloc(64))
    ok(cuda.cuDevicePrimaryCtxReset(0))
    assert cuda.cuMemAlloc(64) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED, None)
    ok(cuda.cuDevicePrimaryCtxRelease(0))


def test_a_faulted_primary_context_is_opened_again_where_faults_are_contained(devices: None) -> None:
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    kernels = Kernels()
    address = ok(cuda.cuMemAlloc(1 << 20))
    streams = [ok(cuda.cuStreamCreate(1)) for _ in range(2)]
    kernels.hold_up(streams[0])
    ok(cuda.cuMemcpyHtoDAsync(address, bytes(1 << 20), 1 << 20, streams[0]))  # answered when the context is gone
    kernels.launch(b"store", (0x1234, 1), STORE, streams[1])
    assert cuda.cuStreamSynchronize(streams[1]) == (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
    ok(cuda.cuDevicePrimaryCtxRelease(0))
    lost.clear()  # as if the device contained faults
    ok(cuda.cuDevicePrimaryCtxRetain(0))
    assert Kernels().read(2) == 0
    ok(cuda.cuCtxSynchronize())
    assert contexts[int(ok(cuda.cuCtxGetCurrent()))].usable().transport.staging.in_use == 0
    ok(cuda.cuDevicePrimaryCtxRelease(0))


def test_eight_threads_retain_one_primary_context(devices: None) -> None:
    with ThreadPoolExecutor(8) as threads:
        retained = {int(ok(answer)) for answer in threads.map(cuda.cuDevicePrimaryCtxRetain, [0] * 32)}
    assert len(retained) == 1
    for _ in range(32):
        ok(cuda.cuDevicePrimaryCtxRelease(0))
    assert cuda.cuDevicePrimaryCtxRelease(0) == (R.CUDA_ERROR_INVALID_CONTEXT,)


# --- devices


def test_what_is_known_of_a_device(devices: None) -> None:
    assert ok(cuda.cuDeviceGetCount()) == 2
    device = ok(cuda.cuDeviceGet(1))
    assert ok(cuda.cuDeviceGetName(20, device)) == b"NVIDIA H200" + bytes(9)
    assert len(ok(cuda.cuDeviceGetName(0x7FFFFFFF, device))) == 256
    assert ok(cuda.cuDeviceGetName(7, device)) == b"NVIDIA\0"
    assert cuda.cuDeviceGetName(0, device) == (R.CUDA_ERROR_INVALID_VALUE, None)
    assert ok(cuda.cuDeviceGetPCIBusId(13, device)) == b"0000:00:07.0\0"
    assert cuda.cuDeviceGetPCIBusId(12, device) == (R.CUDA_ERROR_INVALID_VALUE, None)
    assert int(ok(cuda.cuDeviceGetByPCIBusId(b"0000:00:07.0"))) == int(device)
    assert cuda.cuDeviceGetByPCIBusId(b"0000:00:1F.0") == (R.CUDA_ERROR_INVALID_DEVICE, None)
    properties = process.device(1).properties
    assert "GPU-" + bytes(ok(cuda.cuDeviceGetUuid(device)).bytes).hex() == properties.uuid.replace(
        "-", "", 5
    ).replace("GPU", "GPU-")
    assert ok(cuda.cuDeviceTotalMem(device)) == properties.memory_bytes
    assert cuda.cuDeviceGet(2) == (R.CUDA_ERROR_INVALID_DEVICE, None)
    assert "2 are visible" in last_error()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("COMPUTE_CAPABILITY_MAJOR", 9),
        ("MULTIPROCESSOR_COUNT", 132),
        ("MAX_THREADS_PER_BLOCK", 1024),
        ("REGISTERS_PER_BLOCK", 65536),
        ("MAX_REGISTERS_PER_BLOCK", 65536),
        ("MAXIMUM_TEXTURE1D_WIDTH", 131072),
        ("GPU_DIRECT_RDMA_SUPPORTED", 0),
    ],
)
def test_a_device_has_the_attributes_of_an_h200(devices: None, attribute: str, value: int) -> None:
    member = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
    assert ok(cuda.cuDeviceGetAttribute(member, 0)) == value
    assert ok(cuda.cuDeviceGetAttribute(int(member), 0)) == value


def test_the_properties_of_a_device_are_its_attributes(devices: None) -> None:
    limits = ok(cuda.cuDeviceGetProperties(0))
    assert (limits.maxThreadsPerBlock, limits.SIMDWidth, limits.clockRate) == (1024, 32, 1980000)
    assert (limits.maxThreadsDim, limits.maxGridSize) == ([1024, 1024, 64], [2147483647, 65535, 65535])
    assert (limits.sharedMemPerBlock, limits.totalConstantMemory, limits.regsPerBlock) == (49152, 65536, 65536)
    assert (limits.memPitch, limits.textureAlign) == (2147483647, 512)
    assert cuda.cuDeviceGetProperties(99) == (R.CUDA_ERROR_INVALID_DEVICE, None)


def test_the_width_of_textures_of_linear_memory(devices: None) -> None:
    Format = cuda.CUarray_format
    assert ok(cuda.cuDeviceGetTexture1DLinearMaxWidth(Format.CU_AD_FORMAT_FLOAT, 4, 0)) == 268435456
    for format, channels, device, error in (
        (Format.CU_AD_FORMAT_FLOAT, 3, 0, "INVALID_VALUE"),
        (Format.CU_AD_FORMAT_NV12, 1, 0, "NOT_SUPPORTED"),
        (Format.CU_AD_FORMAT_FLOAT, 4, 99, "INVALID_DEVICE"),
    ):
        answer = cuda.cuDeviceGetTexture1DLinearMaxWidth(format, channels, device)
        assert answer == (getattr(R, f"CUDA_ERROR_{error}"), None)


def test_an_attribute_that_does_not_exist(devices: None) -> None:
    assert cuda.cuDeviceGetAttribute(99999, 0) == (R.CUDA_ERROR_INVALID_VALUE, None)


# --- faults


def test_an_illegal_address_ends_all_contexts_of_the_process(kernels: Kernels, context: Any) -> None:
    """As recorded on two H200: also those on the same device, on other devices, and those that are new."""
    others = [ok(cuda.cuCtxCreate(None, 0, device)) for device in (0, 1)]
    ok(cuda.cuCtxSetCurrent(context))
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
    launch = (function, 1, 1, 1, 1, 1, 1, 0, 0, ((0x1234, 1), STORE), 0)
    ok(cuda.cuLaunchKernel(*launch))
    illegal = R.CUDA_ERROR_ILLEGAL_ADDRESS
    assert cuda.cuCtxSynchronize() == (illegal,)
    message = last_error()
    assert message
    for answer in (
        cuda.cuLaunchKernel(*launch),
        cuda.cuMemFree(kernels.flag),
        cuda.cuMemcpyDtoH(bytearray(4), kernels.result, 4),
        cuda.cuStreamSynchronize(0),
        cuda.cuCtxSynchronize(),
    ):
        assert answer == (illegal,)
        assert last_error() == message
    assert cuda.cuMemAlloc(4) == (illegal, None)
    assert cuda.cuEventCreate(0) == (illegal, None)
    for other in others:
        ok(cuda.cuCtxSetCurrent(other))
        assert cuda.cuCtxSynchronize() == (illegal,)
        assert cuda.cuMemAlloc(4) == (illegal, None)
    for ended in (context, *others):
        ok(cuda.cuCtxDestroy(ended))
    for device in (0, 1):
        assert cuda.cuCtxCreate(None, 0, device) == (illegal, None)
        assert last_error() == message


def test_a_fault_is_final_for_a_process(devices: None) -> None:
    # Recorded: H200, driver 580.159, CUDA 13.0, with and without MPS.
    context = ok(cuda.cuDevicePrimaryCtxRetain(0))
    ok(cuda.cuCtxSetCurrent(context))
    kernels = Kernels()
    kernels.launch(b"store", (0x1234, 1), STORE, 0)
    illegal, destroyed = R.CUDA_ERROR_ILLEGAL_ADDRESS, R.CUDA_ERROR_CONTEXT_IS_DESTROYED
    assert cuda.cuCtxSynchronize() == (illegal,)
    assert cuda.cuMemAlloc(4) == (illegal, None)
    assert cuda.cuDevicePrimaryCtxRelease(0) == (R.CUDA_SUCCESS,)
    assert cuda.cuDevicePrimaryCtxReset(0) == (R.CUDA_SUCCESS,)
    assert cuda.cuDevicePrimaryCtxRetain(0) == (illegal, None)
    assert cuda.cuDevicePrimaryCtxGetState(0)[::2] == (R.CUDA_SUCCESS, 0)
    assert cuda.cuCtxSetCurrent(context) == (R.CUDA_SUCCESS,)
    assert cuda.cuMemAlloc(4) == (destroyed, None)
    assert cuda.cuCtxSynchronize() == (destroyed,)


# --- threads


def test_two_threads_work_in_contexts_of_their_own(devices: None) -> None:
    def work(number: int) -> bool:
        context = ok(cuda.cuCtxCreate(None, 0, number % 2))
        kernels = Kernels()
        stream = ok(cuda.cuStreamCreate(1))
        right = True
        for value in range(20):
            kernels.store(1000 * number + value, stream)
            right = right and kernels.read(stream) == 1000 * number + value
        ok(cuda.cuCtxDestroy(context))
        return right

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_threads_share_one_context(kernels: Kernels, context: Any) -> None:
    def work(seed: int) -> bool:
        ok(cuda.cuCtxSetCurrent(context))
        sent = np.random.default_rng(seed).integers(0, 256, 3_000_000, dtype=np.uint8)
        back = np.zeros_like(sent)
        address = ok(cuda.cuMemAlloc(sent.nbytes))
        for _ in range(3):
            ok(cuda.cuMemcpyHtoD(address, sent, sent.nbytes))
            ok(cuda.cuMemcpyDtoH(back, address, sent.nbytes))
        ok(cuda.cuMemFree(address))
        return bool((sent == back).all())

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))


def test_one_thread_waits_for_a_kernel_while_another_lets_it_go(
    kernels: Kernels, streams: list[Any], context: Any
) -> None:
    kernels.hold_up(streams[0])
    waiting = threading.Event()

    def wait() -> tuple[Any, ...]:
        ok(cuda.cuCtxSetCurrent(context))
        waiting.set()
        answer: tuple[Any, ...] = cuda.cuStreamSynchronize(streams[0])
        return answer

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(wait)
        assert waiting.wait(30)
        kernels.let_go(streams[1])
        ok(future.result(30))
