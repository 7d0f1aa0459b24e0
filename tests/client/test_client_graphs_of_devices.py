"""Graphs whose nodes belong to two devices, or that are launched in another device's stream, as on two H200."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from attrs import define
from processes import wait_until

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._objects.stream import streams
from tests.client.conftest import ok
from tests.client.test_client_capture import GLOBAL, TYPES, types_of
from tests.client.test_client_streams import STORE, Kernels

R = cuda.CUresult
INVALID = (R.CUDA_ERROR_INVALID_VALUE,)
KERNEL, COPY, FILL, HOST = (
    getattr(TYPES, f"CU_GRAPH_NODE_TYPE_{name}") for name in ("KERNEL", "MEMCPY", "MEMSET", "HOST")
)
SECONDS = 30.0


@define(eq=False)
class Side:
    """One device: a context, kernels, 4 words of memory, and a stream that waits for the default stream.

    The words are read in another stream, which does not.
    """

    context: Any
    kernels: Kernels
    words: int
    stream: Any
    reading: Any

    def word(self, place: int) -> int:
        """Return the address of a word."""
        return self.words + 4 * place

    def store(self, graph: Any, after: list[Any], place: int, value: int) -> Any:
        """Add a kernel node that stores a word."""
        description = cuda.CUDA_KERNEL_NODE_PARAMS()
        description.func = ok(cuda.cuModuleGetFunction(self.kernels.module, b"store"))
        for axis in "XYZ":
            setattr(description, f"gridDim{axis}", 1)
            setattr(description, f"blockDim{axis}", 1)
        description.ctx = self.context
        description.kernelParams = ((self.word(place), value), STORE)
        return ok(cuda.cuGraphAddKernelNode(graph, after, len(after), description))

    def copy(self, graph: Any, after: list[Any], to: int, start: int) -> Any:
        """Add a node of this side's context that copies a word from anywhere to anywhere."""
        return ok(cuda.cuGraphAddMemcpyNode(graph, after, len(after), describe(to, start), self.context))

    def fill(self, graph: Any, after: list[Any], address: int, value: int) -> Any:
        """Add a node of this side's context that sets a word anywhere."""
        return ok(cuda.cuGraphAddMemsetNode(graph, after, len(after), word_of(address, value), self.context))

    def read(self) -> list[int]:
        """Return the words."""
        words = np.zeros(4, dtype=np.uint32)
        ok(cuda.cuMemcpyDtoHAsync(words, self.words, 16, self.reading))
        return words.tolist()

    def synchronize(self) -> None:
        """Wait for the stream."""
        ok(cuda.cuStreamSynchronize(self.stream))


def describe(to: int, start: int) -> Any:
    """Return the parameters of a copy of a word of device memory."""
    description = cuda.CUDA_MEMCPY3D()
    description.dstMemoryType = description.srcMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    description.dstDevice, description.srcDevice = to, start
    description.WidthInBytes, description.Height, description.Depth = 4, 1, 1
    return description


def word_of(address: int, value: int) -> Any:
    """Return the parameters of a fill of a word."""
    description = cuda.CUDA_MEMSET_NODE_PARAMS()
    description.dst, description.value, description.elementSize = address, value, 4
    description.width = description.height = 1
    return description


@pytest.fixture
def sides(devices: None) -> list[Side]:
    """Both devices, the first one's context current."""
    sides = []
    for device in (0, 1):
        context = ok(cuda.cuCtxCreate(None, 0, device))
        words = int(ok(cuda.cuMemAlloc(16)))
        ok(cuda.cuMemsetD32(words, 0, 4))
        streams = [ok(cuda.cuStreamCreate(flags)) for flags in (0, 1)]
        sides.append(Side(context, Kernels(), words, *streams))
    ok(cuda.cuCtxSetCurrent(sides[0].context))
    return sides


@pytest.fixture
def graph(sides: list[Side]) -> Any:
    """An empty graph."""
    return ok(cuda.cuGraphCreate(0))


def test_a_graph_runs_in_order_in_another_devices_stream(sides: list[Side], graph: Any) -> None:
    here, there = sides
    stored = here.store(graph, [], 0, 5)
    here.copy(graph, [stored], there.word(1), here.word(0))
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    released = threading.Event()
    ok(cuda.cuCtxSetCurrent(there.context))
    ok(cuda.cuLaunchHostFunc(there.stream, lambda _: released.wait(SECONDS), 0))
    ok(cuda.cuGraphLaunch(executable, there.stream))
    ok(cuda.cuMemcpyDtoDAsync(there.word(2), there.word(1), 4, there.stream))
    ok(cuda.cuMemsetD32Async(there.word(1), 7, 1, there.stream))
    assert cuda.cuStreamQuery(there.stream) == (R.CUDA_ERROR_NOT_READY,)
    assert here.read() == [0] * 4, "the graph does not begin before the stream has reached it"
    released.set()
    there.synchronize()
    assert (here.read(), there.read()) == ([5, 0, 0, 0], [0, 7, 5, 0])


@pytest.mark.parametrize("launched_in", [0, 1])
def test_edges_between_devices_are_kept_at_every_launch(sides: list[Side], graph: Any, launched_in: int) -> None:
    here, there = sides
    first = there.copy(graph, [], there.word(1), there.word(0))
    second = here.copy(graph, [first], here.word(0), there.word(1))
    third = here.copy(graph, [second], here.word(1), here.word(0))
    child = ok(cuda.cuGraphCreate(0))
    inner = there.copy(child, [], there.word(2), here.word(1))
    here.copy(child, [inner], here.word(2), there.word(2))
    joined = ok(cuda.cuGraphAddEmptyNode(graph, [first, third], 2))
    ok(cuda.cuGraphAddChildGraphNode(graph, [joined], 1, child))
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    stream = sides[launched_in].stream
    for value in (3, 4):
        ok(cuda.cuCtxSetCurrent(there.context))
        ok(cuda.cuMemsetD32(there.word(0), value, 1))
        ok(cuda.cuGraphLaunch(executable, stream))
        ok(cuda.cuStreamSynchronize(stream))
        assert here.read() == [value, value, value, 0]
        assert there.read() == [value, value, value, 0]
    ok(cuda.cuMemsetD32(there.word(0), 9, 1))
    ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuGraphExecDestroy(executable))
    ok(cuda.cuStreamSynchronize(stream))
    assert here.read()[2] == 9, "a launch continues when the executable graph is destroyed"


def test_branches_of_two_devices_run_side_by_side(sides: list[Side], graph: Any) -> None:
    here, there = sides
    description = cuda.CUDA_KERNEL_NODE_PARAMS()
    description.func = ok(cuda.cuModuleGetFunction(here.kernels.module, b"wait_for"))
    for axis in "XYZ":
        setattr(description, f"gridDim{axis}", 1)
        setattr(description, f"blockDim{axis}", 1)
    description.kernelParams = ((int(here.kernels.flag),), (ctypes.c_void_p,))
    waits = ok(cuda.cuGraphAddKernelNode(graph, [], 0, description))
    stored = there.store(graph, [], 0, 6)
    ends = there.copy(graph, [waits, stored], there.word(1), there.word(0))
    here.store(graph, [ends], 0, 1)
    copied = threading.Event()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: copied.set())
    parameters = cuda.CUDA_HOST_NODE_PARAMS()
    parameters.fn = cuda.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
    ok(cuda.cuGraphAddHostNode(graph, [stored], 1, parameters))
    ok(cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), here.stream))
    assert copied.wait(SECONDS), "the other device's branch does not wait for the kernel"
    assert (here.read()[0], there.read()[1]) == (0, 0)
    here.kernels.let_go(ok(cuda.cuStreamCreate(1)))
    here.synchronize()
    assert (here.read()[0], there.read()[:2]) == (1, [6, 6])


def test_host_functions_of_one_stage_may_wait_for_each_other(sides: list[Side], graph: Any) -> None:
    """Kernels of two devices may, too, for example those of an all-reduce."""
    stored = [side.store(graph, [], 0, 6) for side in sides]
    called = [threading.Event(), threading.Event()]
    met: list[bool] = []

    def meet(own: int) -> None:
        called[own].set()
        met.append(called[1 - own].wait(SECONDS))

    functions = []
    for number, side in enumerate(sides):
        after = side.copy(graph, stored, side.word(1), side.word(0))
        functions.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _, own=number: meet(own)))
        parameters = cuda.CUDA_HOST_NODE_PARAMS()
        parameters.fn = cuda.CUhostFn(ctypes.cast(functions[-1], ctypes.c_void_p).value)
        ok(cuda.cuGraphAddHostNode(graph, [after], 1, parameters))
    ok(cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), sides[0].stream))
    sides[0].synchronize()
    assert met == [True, True]


def test_a_fill_needs_no_access_to_the_other_devices_memory(sides: list[Side], graph: Any) -> None:
    here, there = sides
    node = here.fill(graph, [], here.word(0), 6)
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    ok(cuda.cuGraphExecMemsetNodeSetParams(executable, node, word_of(there.word(3), 8), here.context))
    for side in sides:
        ok(cuda.cuCtxSetCurrent(there.context))
        ok(cuda.cuMemsetD32(there.word(3), 0, 1))
        ok(cuda.cuGraphLaunch(executable, side.stream))
        side.synchronize()
        assert (here.read()[0], there.read()[3]) == (0, 8)


def test_an_event_joins_another_devices_stream_to_a_capture(sides: list[Side]) -> None:
    here, there = sides
    events = []
    for side in sides:
        ok(cuda.cuCtxSetCurrent(side.context))
        events.append(ok(cuda.cuEventCreate(2)))
    source = np.full(1, 3, np.uint32)
    ok(cuda.cuCtxSetCurrent(here.context))
    ok(cuda.cuStreamBeginCapture(here.stream, GLOBAL))
    here.kernels.store(4, here.stream)
    ok(cuda.cuEventRecord(events[0], here.stream))
    ok(cuda.cuStreamWaitEvent(there.stream, events[0], 0))
    ok(cuda.cuCtxSetCurrent(there.context))
    there.kernels.store(5, there.stream)
    ok(cuda.cuMemcpyDtoDAsync(there.word(0), here.kernels.result, 4, there.stream))
    ok(cuda.cuMemcpyHtoDAsync(here.word(0), source, 4, there.stream))
    ok(cuda.cuMemsetD32Async(there.word(1), 2, 1, there.stream))
    ok(cuda.cuMemcpyAsync(here.word(1), there.word(1), 4, there.stream))
    ok(cuda.cuEventRecord(events[1], there.stream))
    ok(cuda.cuStreamWaitEvent(here.stream, events[1], 0))
    graph = ok(cuda.cuStreamEndCapture(here.stream))
    assert types_of(graph) == [KERNEL, KERNEL, COPY, COPY, FILL, COPY]
    assert (here.read(), there.read()) == ([0] * 4, [0] * 4)
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    ok(cuda.cuGraphExecUpdate(executable, graph))
    for _ in range(2):
        ok(cuda.cuGraphLaunch(executable, here.stream))
    here.synchronize()
    assert (here.read(), there.read()) == ([3, 2, 0, 0], [4, 2, 0, 0])


def test_what_a_capture_of_two_devices_does_not_take(sides: list[Side]) -> None:
    here, there = sides
    event = ok(cuda.cuEventCreate(2))
    ok(cuda.cuStreamBeginCapture(here.stream, GLOBAL))
    ok(cuda.cuEventRecord(event, here.stream))
    ok(cuda.cuStreamWaitEvent(there.stream, event, 0))
    ok(cuda.cuMemsetD32Async(there.word(0), 1, 1, there.stream))
    assert cuda.cuStreamEndCapture(here.stream)[0] == R.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    ok(cuda.cuStreamBeginCapture(here.stream, GLOBAL))
    answer = cuda.cuMemcpyPeerAsync(there.words, there.context, here.words, here.context, 4, here.stream)
    assert answer == (R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
    assert "cuMemcpyPeer between two devices" in last_error()
    ok(cuda.cuCtxSetCurrent(there.context))
    outside = ok(cuda.cuEventCreate(2))
    ok(cuda.cuEventRecord(outside, there.stream))
    assert cuda.cuStreamWaitEvent(here.stream, outside, 0) == (R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,)
    assert cuda.cuStreamEndCapture(here.stream)[0] == R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    ok(cuda.cuCtxSetCurrent(here.context))
    ok(cuda.cuStreamBeginCapture(here.stream, GLOBAL))
    assert cuda.cuStreamWaitEvent(here.stream, outside, 0) == (R.CUDA_ERROR_STREAM_CAPTURE_ISOLATION,)
    assert cuda.cuStreamEndCapture(here.stream)[0] == R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED


def test_streams_that_do_not_capture_wait_for_other_devices_during_a_capture(sides: list[Side]) -> None:
    here, there = sides
    event = ok(cuda.cuEventCreate(2))
    here.kernels.store(4, here.stream)
    ok(cuda.cuEventRecord(event, here.stream))
    capturing = ok(cuda.cuStreamCreate(1))
    ok(cuda.cuStreamBeginCapture(capturing, GLOBAL))
    ok(cuda.cuStreamWaitEvent(there.stream, event, 0))
    ok(cuda.cuMemcpyDtoDAsync(there.word(0), here.kernels.result, 4, there.stream))
    ok(cuda.cuStreamEndCapture(capturing))
    assert there.read()[0] == 4


def test_a_node_that_would_run_on_two_devices_is_named(sides: list[Side], graph: Any) -> None:
    here, there = sides
    condition = ok(cuda.cuGraphConditionalHandleCreate(graph, here.context, 1, 1))
    description = cuda.CUgraphNodeParams()
    description.type = TYPES.CU_GRAPH_NODE_TYPE_CONDITIONAL
    description.conditional.handle, description.conditional.size = condition, 1
    description.conditional.type = cuda.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
    node = ok(cuda.cuGraphAddNode(graph, [], None, 0, description))
    body = description.conditional.phGraph_out[0]
    stored = here.store(body, [], 0, 1)
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    ok(cuda.cuGraphLaunch(executable, there.stream))
    there.synchronize()
    assert here.read()[0] == 1
    here.fill(body, [stored], there.word(0), 1)
    parameters = cuda.CUDA_GRAPH_INSTANTIATE_PARAMS()
    assert cuda.cuGraphInstantiateWithParams(graph, parameters)[0] == R.CUDA_ERROR_NOT_SUPPORTED
    assert "a conditional node whose bodies" in last_error()
    assert int(parameters.hErrNode_out) == int(node)


def test_an_executable_graph_ends_with_each_of_its_contexts(sides: list[Side], graph: Any) -> None:
    here, there = sides
    stored = here.store(graph, [], 0, 1)
    there.store(graph, [stored], 0, 1)
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    ok(cuda.cuGraphLaunch(executable, here.stream))
    here.synchronize()
    ok(cuda.cuCtxDestroy(there.context))
    ok(cuda.cuCtxSetCurrent(here.context))
    assert cuda.cuGraphLaunch(executable, here.stream) == INVALID
    ok(cuda.cuMemsetD32(here.word(0), 2, 1))
    assert here.read()[0] == 2


def test_user_objects_live_until_the_other_contexts_parts_are_done(sides: list[Side], graph: Any) -> None:
    here, there = sides
    description = cuda.CUDA_KERNEL_NODE_PARAMS()
    description.func = ok(cuda.cuModuleGetFunction(there.kernels.module, b"wait_for"))
    for axis in "XYZ":
        setattr(description, f"gridDim{axis}", 1)
        setattr(description, f"blockDim{axis}", 1)
    description.kernelParams = ((int(there.kernels.flag),), (ctypes.c_void_p,))
    waits = ok(cuda.cuGraphAddKernelNode(graph, [], 0, description))
    there.store(graph, [waits], 0, 6)
    here.store(graph, [], 0, 6)
    released = threading.Event()
    is_running = True
    released_while_running = []

    def release(_: Any) -> None:
        released_while_running.append(is_running)
        released.set()

    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)
    item = ok(cuda.cuUserObjectCreate(0, ctypes.cast(destroy, ctypes.c_void_p).value, 1, 1))
    ok(cuda.cuGraphRetainUserObject(graph, item, 1, 1))
    ok(cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), here.stream))
    ok(cuda.cuGraphDestroy(graph))
    ok(cuda.cuCtxDestroy(here.context))
    ok(cuda.cuCtxSetCurrent(there.context))
    assert there.read()[0] == 0
    is_running = False
    there.kernels.let_go(there.reading)
    assert released.wait(SECONDS)
    assert (released_while_running, there.read()[0]) == ([False], 6)


def test_an_executable_graphs_streams_end_after_its_last_launch(sides: list[Side], graph: Any) -> None:
    here, there = sides
    before = {stream.handle for stream in streams.list_all()}
    stored = here.store(graph, [], 0, 5)
    here.copy(graph, [stored], there.word(1), here.word(0))
    there.store(graph, [stored], 0, 6)
    for launched_in in sides:
        executable = ok(cuda.cuGraphInstantiate(graph, 0))
        ok(cuda.cuGraphLaunch(executable, launched_in.stream))
        ok(cuda.cuGraphExecDestroy(executable))
    wait_until(
        lambda: {stream.handle for stream in streams.list_all()} == before, "the graphs' streams are destroyed"
    )
    for side in sides:
        side.synchronize()
    assert (here.read()[0], there.read()[:2]) == (5, [6, 5])
