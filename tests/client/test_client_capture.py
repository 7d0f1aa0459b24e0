"""Stream capture on real emulated devices: what becomes a node, how streams join, what is refused and ends it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._graphs.capture import captures
from tests.client.conftest import ok
from tests.client.test_client_streams import Kernels

R = cuda.CUresult
GLOBAL, THREAD_LOCAL, RELAXED = (
    getattr(cuda.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name}")
    for name in ("GLOBAL", "THREAD_LOCAL", "RELAXED")
)
NONE, ACTIVE, INVALIDATED = (
    getattr(cuda.CUstreamCaptureStatus, f"CU_STREAM_CAPTURE_STATUS_{name}")
    for name in ("NONE", "ACTIVE", "INVALIDATED")
)
TYPES = cuda.CUgraphNodeType
UNSUPPORTED, ENDED = R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
ILLEGAL = R.CUDA_ERROR_ILLEGAL_STATE


@pytest.fixture
def kernels(context: Any) -> Kernels:
    """The kernels in a context that is current."""
    return Kernels()


@pytest.fixture
def streams(context: Any) -> list[Any]:
    """Two streams that do not wait for the default stream."""
    return [ok(cuda.cuStreamCreate(1)) for _ in range(2)]


@pytest.fixture(autouse=True)
def _no_capture_is_left(context: Any) -> Iterator[None]:
    """The thread's mode is the default again."""
    yield
    cuda.cuThreadExchangeStreamCaptureMode(GLOBAL)


def types_of(graph: Any) -> list[Any]:
    """Return the types of a graph's nodes."""
    nodes, _ = ok(cuda.cuGraphGetNodes(graph, ok(cuda.cuGraphGetNodes(graph))[1]))
    return [ok(cuda.cuGraphNodeGetType(node)) for node in nodes]


def launch(graph: Any, stream: Any, times: int = 1) -> None:
    """Launch a graph and wait."""
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    for _ in range(times):
        ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))


def test_work_becomes_nodes_and_is_not_done_before_the_launch(kernels: Kernels, streams: list[Any]) -> None:
    stream, other = streams
    source, target, calls = np.full(1, 5, dtype=np.uint32), np.zeros(1, dtype=np.uint32), []
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    assert ok(cuda.cuStreamIsCapturing(stream)) == ACTIVE
    kernels.store(9, stream)
    ok(cuda.cuMemcpyHtoDAsync(kernels.flag, source, 4, stream))
    ok(cuda.cuMemcpyDtoDAsync(kernels.result, kernels.flag, 4, stream))
    ok(cuda.cuMemcpyDtoHAsync(target, kernels.result, 4, stream))
    ok(cuda.cuLaunchHostFunc(stream, calls.append, 3))
    ok(cuda.cuMemsetD32Async(kernels.flag, 1, 1, stream))
    graph = ok(cuda.cuStreamEndCapture(stream))
    assert ok(cuda.cuStreamIsCapturing(stream)) == NONE
    copy, host = TYPES.CU_GRAPH_NODE_TYPE_MEMCPY, TYPES.CU_GRAPH_NODE_TYPE_HOST
    kernel, fill = TYPES.CU_GRAPH_NODE_TYPE_KERNEL, TYPES.CU_GRAPH_NODE_TYPE_MEMSET
    assert types_of(graph) == [kernel, copy, copy, copy, host, fill]
    assert ok(cuda.cuGraphGetEdges(graph))[-1] == 5, "one after the other"
    assert (kernels.read(other), int(target[0]), calls) == (0, 0, [])
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    for value in (5, 6):
        source[0] = value
        ok(cuda.cuGraphLaunch(executable, stream))
        ok(cuda.cuStreamSynchronize(stream))
        assert int(target[0]) == value, "memory of the program is read when the graph runs"
    assert calls == [3, 3]
    kernels.store(4, stream)
    assert kernels.read(stream) == 4, "the stream works again"


def test_rows_and_page_locked_memory(kernels: Kernels, streams: list[Any]) -> None:
    stream, _ = streams
    pinned = int(ok(cuda.cuMemHostAlloc(64, 0)))
    host = (ctypes.c_uint32 * 16).from_address(pinned)
    description = cuda.CUDA_MEMCPY2D()
    description.srcMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    description.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
    description.srcDevice, description.dstHost, description.dstPitch, description.WidthInBytes, description.Height = (
        kernels.result,
        pinned,
        8,
        4,
        1,
    )
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    kernels.store(7, stream)
    ok(cuda.cuMemcpy2DAsync(description, stream))
    ok(cuda.cuMemcpyDtoHAsync(pinned + 16, kernels.result, 4, stream))
    pageable = np.zeros(2, dtype=np.uint32)
    description.dstHost = pageable.ctypes.data
    ok(cuda.cuMemcpy2DAsync(description, stream))
    launch(ok(cuda.cuStreamEndCapture(stream)), stream)
    assert (host[0], host[4], list(pageable)) == (7, 7, [7, 0])
    ok(cuda.cuMemFreeHost(pinned))


def test_a_stream_joins_by_an_event_and_is_joined_by_one(kernels: Kernels, streams: list[Any]) -> None:
    stream, other = streams
    forked, joined = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    ok(cuda.cuMemsetD32Async(kernels.flag, 3, 1, stream))
    ok(cuda.cuEventRecord(forked, stream))
    ok(cuda.cuStreamWaitEvent(other, forked, 0))
    assert ok(cuda.cuStreamIsCapturing(other)) == ACTIVE
    numbers = [int(ok(cuda.cuStreamGetCaptureInfo(item))[1]) for item in streams]
    assert numbers[0] == numbers[1] > 0
    kernels.store(1, other)
    ok(cuda.cuMemsetD32Async(kernels.flag, 2, 1, stream))
    ok(cuda.cuEventRecord(joined, other))
    ok(cuda.cuStreamWaitEvent(stream, joined, 0))
    ok(cuda.cuMemcpyDtoDAsync(kernels.result, kernels.flag, 4, stream))
    graph = ok(cuda.cuStreamEndCapture(stream))
    assert ok(cuda.cuStreamIsCapturing(other)) == NONE
    assert ok(cuda.cuGraphGetEdges(graph))[-1] == 4
    launch(graph, stream)
    assert kernels.read(stream) == 2


def test_a_fork_that_is_not_joined(kernels: Kernels, streams: list[Any]) -> None:
    stream, other = streams
    forked = ok(cuda.cuEventCreate(0))
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    ok(cuda.cuEventRecord(forked, stream))
    ok(cuda.cuStreamWaitEvent(other, forked, 0))
    kernels.store(1, other)
    assert cuda.cuStreamEndCapture(other)[0] == R.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
    assert cuda.cuStreamEndCapture(stream) == (ENDED, None)
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    ok(cuda.cuEventRecord(forked, stream))
    ok(cuda.cuStreamWaitEvent(other, forked, 0))
    kernels.store(1, other)
    assert cuda.cuStreamEndCapture(stream) == (R.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, None)
    for item in streams:
        assert ok(cuda.cuStreamIsCapturing(item)) == NONE
        ok(cuda.cuStreamSynchronize(item))


def test_begin_and_end_in_the_wrong_state(kernels: Kernels, streams: list[Any]) -> None:
    stream, _ = streams
    assert cuda.cuStreamEndCapture(stream) == (ILLEGAL, None)
    for special in (0, 1):
        assert cuda.cuStreamBeginCapture(special, GLOBAL) == (UNSUPPORTED,)
        assert cuda.cuStreamEndCapture(special) == (ILLEGAL, None)
    assert cuda.cuStreamBeginCapture(stream, 7) == (R.CUDA_ERROR_INVALID_VALUE,)
    assert cuda.cuStreamBeginCapture(12345, GLOBAL) == (R.CUDA_ERROR_INVALID_HANDLE,)
    assert cuda.cuThreadExchangeStreamCaptureMode(3) == (R.CUDA_ERROR_INVALID_VALUE, None)
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    assert cuda.cuStreamBeginCapture(stream, GLOBAL) == (ILLEGAL,)
    graph = ok(cuda.cuStreamEndCapture(stream))
    assert cuda.cuStreamEndCapture(stream) == (ILLEGAL, None), "capture ended twice"
    launch(graph, stream)
    assert cuda.cuStreamUpdateCaptureDependencies(stream, None, None, 0, 0) == (ILLEGAL,)


def _callback(stream: Any) -> Any:
    return cuda.cuStreamAddCallback(stream, lambda *_: None, None, 0)


@pytest.mark.parametrize(
    "call",
    [cuda.cuStreamSynchronize, cuda.cuStreamQuery, _callback, lambda stream: cuda.cuCtxSynchronize()],
    ids=["synchronize", "query", "callback", "context"],
)
def test_what_cannot_be_captured_ends_the_capture(
    kernels: Kernels, streams: list[Any], call: Callable[[Any], Any]
) -> None:
    stream, _ = streams
    ok(cuda.cuStreamBeginCapture(stream, RELAXED))
    kernels.store(1, stream)
    assert call(stream) == (UNSUPPORTED,)
    assert ok(cuda.cuStreamIsCapturing(stream)) == INVALIDATED
    assert cuda.cuMemsetD32Async(kernels.flag, 2, 1, stream) == (ENDED,)
    for refused in (cuda.cuStreamSynchronize, _callback):
        assert refused(stream) == (UNSUPPORTED,), "it is refused, whether the capture is valid or not"
    assert cuda.cuStreamEndCapture(stream) == (ENDED, None)
    kernels.store(8, stream)
    assert kernels.read(stream) == 8


def test_events_of_a_capture(kernels: Kernels, streams: list[Any]) -> None:
    stream, other = streams
    event, before, never = (ok(cuda.cuEventCreate(0)) for _ in range(3))
    ok(cuda.cuEventRecord(before, other))
    ok(cuda.cuStreamBeginCapture(stream, RELAXED))
    ok(cuda.cuStreamWaitEvent(stream, never, 0))
    ok(cuda.cuEventRecord(event, stream))
    assert cuda.cuEventQuery(event) == (R.CUDA_ERROR_CAPTURED_EVENT,)
    assert cuda.cuStreamEndCapture(stream) == (ENDED, None)
    ok(cuda.cuStreamBeginCapture(stream, RELAXED))
    assert cuda.cuStreamWaitEvent(stream, before, 0) == (R.CUDA_ERROR_STREAM_CAPTURE_ISOLATION,)
    assert cuda.cuStreamEndCapture(stream) == (ENDED, None)
    ok(cuda.cuStreamBeginCapture(stream, RELAXED))
    ok(cuda.cuStreamBeginCapture(other, RELAXED))
    ok(cuda.cuEventRecord(event, other))
    assert cuda.cuStreamWaitEvent(stream, event, 0) == (R.CUDA_ERROR_STREAM_CAPTURE_MERGE,)
    for item in streams:
        assert cuda.cuStreamEndCapture(item) == (ENDED, None)
    ok(cuda.cuEventRecord(event, stream))
    ok(cuda.cuEventSynchronize(event))


def test_unsafe_calls_by_mode(kernels: Kernels, streams: list[Any]) -> None:
    stream, _ = streams
    ok(cuda.cuStreamBeginCapture(stream, THREAD_LOCAL))
    assert cuda.cuMemAlloc(4) == (UNSUPPORTED, None)
    assert "RELAXED" in last_error()
    assert cuda.cuStreamEndCapture(stream) == (ENDED, None)
    assert ok(cuda.cuThreadExchangeStreamCaptureMode(RELAXED)) == GLOBAL
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    ok(cuda.cuMemFree(ok(cuda.cuMemAlloc(4))))
    ok(cuda.cuStreamEndCapture(stream))
    assert ok(cuda.cuThreadExchangeStreamCaptureMode(GLOBAL)) == RELAXED


@pytest.mark.parametrize(("mode", "allowed"), [(GLOBAL, False), (THREAD_LOCAL, True), (RELAXED, True)])
def test_another_threads_calls(context: Any, streams: list[Any], mode: Any, allowed: bool) -> None:
    stream, _ = streams
    codes: list[Any] = []

    def other_thread() -> None:
        ok(cuda.cuCtxSetCurrent(context))
        codes.append(cuda.cuMemAlloc(4)[0])
        codes.append(cuda.cuStreamEndCapture(stream)[0])

    ok(cuda.cuStreamBeginCapture(stream, mode))
    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join(30)
    wrong = R.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
    assert codes == [R.CUDA_SUCCESS if allowed else UNSUPPORTED, R.CUDA_SUCCESS if mode == RELAXED else wrong]
    assert (
        cuda.cuStreamEndCapture(stream)[0] == ({GLOBAL: ENDED, THREAD_LOCAL: R.CUDA_SUCCESS, RELAXED: ILLEGAL}[mode])
    )


def test_the_legacy_stream_and_a_capturing_stream_that_it_waits_for(kernels: Kernels, context: Any) -> None:
    stream = ok(cuda.cuStreamCreate(0))
    ok(cuda.cuStreamBeginCapture(stream, RELAXED))
    assert cuda.cuStreamIsCapturing(0) == (R.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, None)
    assert cuda.cuMemsetD32Async(kernels.flag, 2, 1, 0) == (R.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,)
    assert cuda.cuStreamEndCapture(stream) == (ENDED, None)
    ok(cuda.cuMemsetD32Async(kernels.flag, 2, 1, 0))
    assert ok(cuda.cuStreamIsCapturing(0)) == NONE


def test_a_capture_into_a_graph_and_its_dependencies(kernels: Kernels, streams: list[Any]) -> None:
    stream, _ = streams
    graph = ok(cuda.cuGraphCreate(0))
    first = ok(cuda.cuGraphAddEmptyNode(graph, None, 0))
    ok(cuda.cuStreamBeginCaptureToGraph(stream, graph, [first], None, 1, GLOBAL))
    status, number, into, after, edges, count = ok(cuda.cuStreamGetCaptureInfo(stream))
    assert (status, int(into), [int(item) for item in after], count) == (ACTIVE, int(graph), [int(first)], 1)
    assert int(number) > 0
    assert len(edges) == 1
    assert cuda.cuGraphInstantiate(graph, 0) == (ILLEGAL, None), "not before the end"
    kernels.store(1, stream)
    own = ok(cuda.cuGraphAddEmptyNode(graph, None, 0))
    ok(cuda.cuStreamUpdateCaptureDependencies(stream, [own], None, 1, 0))
    assert len(ok(cuda.cuStreamGetCaptureInfo(stream))[3]) == 2
    ok(cuda.cuStreamUpdateCaptureDependencies(stream, [own], None, 1, 1))
    assert [int(item) for item in ok(cuda.cuStreamGetCaptureInfo_v2(stream))[3]] == [int(own)]
    foreign_node = ok(cuda.cuGraphAddEmptyNode(ok(cuda.cuGraphCreate(0)), None, 0))
    invalid = (R.CUDA_ERROR_INVALID_VALUE,)
    assert cuda.cuStreamUpdateCaptureDependencies(stream, [foreign_node], None, 1, 1) == invalid
    assert cuda.cuStreamUpdateCaptureDependencies(stream, [own], None, 1, 2) == invalid
    kernels.store(2, stream)
    assert int(ok(cuda.cuStreamEndCapture(stream))) == int(graph)
    assert ok(cuda.cuGraphGetNodes(graph))[1] == 4
    launch(graph, stream)
    assert kernels.read(stream) in (1, 2)


def test_a_graph_launched_in_a_capture_is_a_child_graph(kernels: Kernels, streams: list[Any]) -> None:
    stream, other = streams
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    kernels.store(6, stream)
    executable = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(stream)), 0))
    ok(cuda.cuStreamBeginCapture(other, GLOBAL))
    ok(cuda.cuGraphLaunch(executable, other))
    graph = ok(cuda.cuStreamEndCapture(other))
    ok(cuda.cuGraphExecDestroy(executable))
    assert types_of(graph) == [TYPES.CU_GRAPH_NODE_TYPE_GRAPH]
    launch(graph, other)
    assert kernels.read(other) == 6


def test_a_repeated_launch_is_captured_too(kernels: Kernels, streams: list[Any]) -> None:
    stream, _ = streams
    for value in range(5):
        kernels.store(value, stream)
    ok(cuda.cuStreamBeginCapture(stream, RELAXED))
    for value in range(5, 9):
        kernels.store(value, stream)
    graph = ok(cuda.cuStreamEndCapture(stream))
    assert types_of(graph) == [TYPES.CU_GRAPH_NODE_TYPE_KERNEL] * 4
    for value in range(5):
        kernels.store(value, stream)
    assert kernels.read(stream) == 4
    launch(graph, stream)
    assert kernels.read(stream) == 8


def test_a_destroyed_stream_ends_its_capture_and_a_destroyed_context_all_of_them(kernels: Kernels) -> None:
    stream, other = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    graph = ok(cuda.cuStreamGetCaptureInfo(stream))[2]
    ok(cuda.cuStreamDestroy(stream))
    assert cuda.cuStreamEndCapture(stream) == (R.CUDA_ERROR_INVALID_HANDLE, None)
    assert cuda.cuGraphGetNodes(graph)[0] == R.CUDA_ERROR_INVALID_VALUE
    ok(cuda.cuMemFree(ok(cuda.cuMemAlloc(4))))
    ok(cuda.cuStreamBeginCapture(other, GLOBAL))
    ok(cuda.cuCtxDestroy(ok(cuda.cuCtxGetCurrent())))
    ok(cuda.cuCtxCreate(None, 0, 0))
    ok(cuda.cuMemFree(ok(cuda.cuMemAlloc(4))))


def test_stream_ordered_memory_in_a_capture_is_the_graphs(kernels: Kernels, streams: list[Any]) -> None:
    stream, _ = streams
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    address = ok(cuda.cuMemAllocAsync(64, stream))
    ok(cuda.cuMemsetD32Async(address, 3, 16, stream))
    ok(cuda.cuMemcpyDtoDAsync(kernels.result, address, 4, stream))
    assert cuda.cuMemFreeAsync(kernels.flag, stream)[0] == R.CUDA_ERROR_INVALID_VALUE
    ok(cuda.cuMemFreeAsync(address, stream))
    graph = ok(cuda.cuStreamEndCapture(stream))
    node_types = types_of(graph)
    assert (node_types[0], node_types[-1]) == (TYPES.CU_GRAPH_NODE_TYPE_MEM_ALLOC, TYPES.CU_GRAPH_NODE_TYPE_MEM_FREE)
    launch(graph, stream, times=2)
    assert kernels.read(stream) == 3


def test_a_joined_stream_may_be_destroyed_before_the_end(kernels: Kernels, streams: list[Any]) -> None:
    stream, other = streams
    forked, joined = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    ok(cuda.cuStreamBeginCapture(stream, GLOBAL))
    ok(cuda.cuEventRecord(forked, stream))
    ok(cuda.cuStreamWaitEvent(other, forked, 0))
    kernels.store(5, other)
    ok(cuda.cuEventRecord(joined, other))
    ok(cuda.cuStreamWaitEvent(stream, joined, 0))
    ok(cuda.cuStreamDestroy(other))
    launch(ok(cuda.cuStreamEndCapture(stream)), stream)
    assert kernels.read(stream) == 5


def test_captures_that_end_in_another_thread_disturb_no_call(
    context: Any, streams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending(type(intercepted)):  # type: ignore[misc]
        """Every other time it is read, there is no interceptor any more."""

        _reads = 0

        @property
        def by(self) -> Any:
            Ending._reads += 1
            return captures if Ending._reads % 2 else None

    memory, host, called = ok(cuda.cuMemAlloc(64)), np.zeros(64, np.uint8), threading.Event()
    stream = streams[0]
    monkeypatch.setattr(intercepted, "__class__", Ending)
    calls: list[Callable[[], Any]] = [
        lambda: cuda.cuMemsetD8Async(memory, 1, 64, stream),
        lambda: cuda.cuMemcpyDtoH(host, memory, 64),
        lambda: cuda.cuMemcpyHtoD(memory, host, 64),
        lambda: cuda.cuMemFreeAsync(ok(cuda.cuMemAllocAsync(64, stream)), stream),
        lambda: cuda.cuLaunchHostFunc(stream, lambda data: called.set(), None),
        lambda: cuda.cuStreamSynchronize(stream),
    ]
    for call in calls:
        for _ in range(2):
            Ending._reads = 0
            ok(call())
    assert called.is_set()


def test_events_of_outside(streams: list[Any]) -> None:
    first, second = streams
    joined, recorded = (ok(cuda.cuEventCreate(2)) for _ in range(2))
    memory, back = ok(cuda.cuMemAlloc(4)), np.zeros(1, "u4")
    ok(cuda.cuStreamBeginCapture(first, GLOBAL))
    ok(cuda.cuStreamWaitEvent(first, joined, 1))
    ok(cuda.cuMemsetD32Async(memory, 7, 1, first))
    ok(cuda.cuEventRecordWithFlags(recorded, first, 1))
    graph = ok(cuda.cuStreamEndCapture(first))
    kinds = (
        TYPES.CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        TYPES.CU_GRAPH_NODE_TYPE_MEMSET,
        TYPES.CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    )
    assert types_of(graph) == list(kinds)
    assert ok(cuda.cuGraphGetEdges(graph))[-1] == 2
    begun, go = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        begun.set()
        go.wait(20)

    ok(cuda.cuLaunchHostFunc(second, hold, None))
    assert begun.wait(10)
    ok(cuda.cuEventRecord(joined, second))
    ok(cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), first))
    assert cuda.cuStreamQuery(first) == (R.CUDA_ERROR_NOT_READY,)
    go.set()
    ok(cuda.cuEventSynchronize(recorded))
    ok(cuda.cuMemcpyDtoH(back, memory, 4))
    assert back[0] == 7
    for flags, result in ((1, R.CUDA_ERROR_ILLEGAL_STATE), (2, R.CUDA_ERROR_INVALID_VALUE)):
        assert cuda.cuStreamWaitEvent(first, joined, flags) == (result,), "it does not capture"
        assert cuda.cuEventRecordWithFlags(joined, first, flags) == (result,)
    ok(cuda.cuStreamBeginCapture(first, GLOBAL))
    assert cuda.cuStreamWaitEvent(first, joined, 2) == (R.CUDA_ERROR_INVALID_VALUE,)
    assert cuda.cuEventRecordWithFlags(12345, first, 1) == (R.CUDA_ERROR_INVALID_HANDLE,)
    ok(cuda.cuStreamEndCapture(first))
