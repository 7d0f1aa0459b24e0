"""Graphs made by hand, on real emulated devices: what each node does, launches, updates, and what is refused."""

from __future__ import annotations

import ctypes
import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import define, field
from processes import wait_until

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._arguments.values import InMemory
from tests.client.conftest import ok
from tests.client.test_client_streams import STORE, Kernels

R = cuda.CUresult
INVALID = (R.CUDA_ERROR_INVALID_VALUE,)
HOST_FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DEVICE, HOST = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, cuda.CUmemorytype.CU_MEMORYTYPE_HOST
SECONDS = 30.0


@define(eq=False)
class Bench:
    """A graph, memory of 16 words, kernels and streams."""

    context: Any
    kernels: Kernels
    graph: Any
    words: int
    stream: Any
    other: Any
    kept: list[Any] = field(factory=list)

    def read(self) -> list[int]:
        """Return the words."""
        back = np.zeros(16, dtype=np.uint32)
        ok(cuda.cuMemcpyDtoH(back, self.words, 64))
        return [int(word) for word in back]

    def after(self, *nodes: Any) -> tuple[Any, list[Any], int]:
        """Return graph, dependencies and their number, as functions that add nodes take them."""
        return self.graph, list(nodes), len(nodes)

    def store(self, place: int, value: int, name: bytes = b"store") -> Any:
        """Return the parameters of a kernel that stores a word."""
        description = cuda.CUDA_KERNEL_NODE_PARAMS()
        description.func = ok(cuda.cuModuleGetFunction(self.kernels.module, name))
        for axis in "XYZ":
            setattr(description, f"gridDim{axis}", 1)
            setattr(description, f"blockDim{axis}", 1)
        if name == b"store":
            description.kernelParams = ((self.words + 4 * place, value), STORE)
        elif name == b"wait_for":
            description.kernelParams = ((int(self.kernels.flag),), (ctypes.c_void_p,))
        self.kept.append(description)
        return description

    def fill(self, value: int, count: int = 16, place: int = 0) -> Any:
        """Return the parameters of a fill of words."""
        description = cuda.CUDA_MEMSET_NODE_PARAMS()
        description.dst, description.value, description.elementSize = self.words + 4 * place, value, 4
        description.width, description.height = count, 1
        return description

    def copy(self, to: int, start: int, count: int, to_kind: Any = DEVICE, from_kind: Any = DEVICE) -> Any:
        """Return the parameters of a copy of bytes."""
        description = cuda.CUDA_MEMCPY3D()
        description.dstMemoryType, description.srcMemoryType = to_kind, from_kind
        setattr(description, "dstDevice" if to_kind == DEVICE else "dstHost", to)
        setattr(description, "srcDevice" if from_kind == DEVICE else "srcHost", start)
        description.WidthInBytes, description.Height, description.Depth = count, 1, 1
        return description

    def host(self, function: Any, data: int = 0) -> Any:
        """Return the parameters of a host function."""
        wrapped = HOST_FN(function)
        self.kept.append(wrapped)
        description = cuda.CUDA_HOST_NODE_PARAMS()
        description.fn, description.userData = cuda.CUhostFn(ctypes.cast(wrapped, ctypes.c_void_p).value), data
        return description

    def run(self, executable: Any = None) -> None:
        """Instantiate the graph if need be, launch it, and wait."""
        executable = executable or ok(cuda.cuGraphInstantiateWithFlags(self.graph, 0))
        ok(cuda.cuGraphLaunch(executable, self.stream))
        ok(cuda.cuStreamSynchronize(self.stream))


@pytest.fixture
def bench(context: Any) -> Bench:
    """A bench in the current context."""
    words = int(ok(cuda.cuMemAlloc(64)))
    ok(cuda.cuMemsetD32(words, 0, 16))
    streams = [ok(cuda.cuStreamCreate(1)) for _ in range(2)]
    return Bench(context, Kernels(), ok(cuda.cuGraphCreate(0)), words, *streams)


def test_every_node_does_its_work_in_order_at_every_launch(bench: Bench) -> None:
    source, target, calls = np.arange(4, dtype=np.uint32), np.zeros(16, dtype=np.uint32), []
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), bench.fill(7), bench.context))
    arguments = bench.copy(bench.words, source.ctypes.data, 16, from_kind=HOST)
    upload = ok(cuda.cuGraphAddMemcpyNode(*bench.after(fill), arguments, bench.context))
    store = ok(cuda.cuGraphAddKernelNode(*bench.after(fill), bench.store(8, 99)))
    joined = ok(cuda.cuGraphAddEmptyNode(*bench.after(upload, store)))
    arguments = bench.copy(bench.words + 48, bench.words, 16)
    inside = ok(cuda.cuGraphAddMemcpyNode(*bench.after(joined), arguments, bench.context))
    arguments = bench.copy(target.ctypes.data, bench.words, 64, to_kind=HOST)
    download = ok(cuda.cuGraphAddMemcpyNode(*bench.after(inside), arguments, bench.context))
    call = bench.host(lambda data: calls.append((data, int(target[3]))), 5)
    ok(cuda.cuGraphAddHostNode(*bench.after(download), call))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    for turn in range(3):
        source[3] = 100 + turn
        target[:] = 0
        bench.run(executable)
        assert list(target) == [0, 1, 2, 100 + turn, 7, 7, 7, 7, 99, 7, 7, 7, 0, 1, 2, 100 + turn]
        assert calls[-1] == (5, 100 + turn)
    assert len(calls) == 3
    ok(cuda.cuGraphExecDestroy(executable))
    assert cuda.cuGraphExecDestroy(executable) == INVALID
    assert cuda.cuGraphLaunch(executable, bench.stream) == INVALID


def test_page_locked_memory_is_copied_by_the_device(bench: Bench) -> None:
    pinned = ok(cuda.cuMemHostAlloc(64, 0))
    host = (ctypes.c_uint32 * 16).from_address(int(pinned))
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), bench.fill(3), bench.context))
    arguments = bench.copy(int(pinned), bench.words, 64, to_kind=HOST)
    ok(cuda.cuGraphAddMemcpyNode(*bench.after(fill), arguments, bench.context))
    bench.run()
    assert list(host) == [3] * 16
    ok(cuda.cuMemFreeHost(pinned))


def test_branches_run_side_by_side(bench: Bench) -> None:
    begun, free = threading.Barrier(3), threading.Event()

    def wait(data: Any) -> None:
        begun.wait(SECONDS)
        free.wait(SECONDS)

    first, second = (ok(cuda.cuGraphAddHostNode(*bench.after(), bench.host(wait))) for _ in range(2))
    ok(cuda.cuGraphAddKernelNode(*bench.after(first, second), bench.store(0, 1)))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuGraphLaunch(executable, bench.stream))
    begun.wait(SECONDS)
    assert bench.read()[0] == 0
    assert cuda.cuStreamQuery(bench.stream) == (R.CUDA_ERROR_NOT_READY,)
    free.set()
    ok(cuda.cuStreamSynchronize(bench.stream))
    assert bench.read()[0] == 1


def test_a_launch_is_in_stream_order_and_what_runs_outlives_the_executable_graph(bench: Bench) -> None:
    bench.kernels.hold_up(bench.stream)
    ok(cuda.cuGraphAddKernelNode(*bench.after(), bench.store(0, 1)))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuGraphLaunch(executable, bench.stream))
    ok(cuda.cuGraphExecDestroy(executable))
    ok(cuda.cuGraphDestroy(bench.graph))
    back = np.zeros(1, dtype=np.uint32)
    ok(cuda.cuMemcpyDtoHAsync(back, bench.words, 4, bench.other))
    assert back[0] == 0
    bench.kernels.let_go(bench.other)
    ok(cuda.cuStreamSynchronize(bench.stream))
    assert bench.read()[0] == 1


def _memory_operations(bench: Bench, *operations: tuple[str, int, int], flags: int = 0) -> Any:
    """Return the parameters of memory operations: WRITE or WAIT and bits, the number of a word, a value."""
    items = []
    for kind, place, value in operations:
        item, name = cuda.CUstreamBatchMemOpParams(), "writeValue" if kind.startswith("WRITE") else "waitValue"
        part = getattr(item, name)
        part.operation = getattr(cuda.CUstreamBatchMemOpType, f"CU_STREAM_MEM_OP_{kind.replace('_', '_VALUE_')}")
        part.address = cuda.CUdeviceptr(bench.words + 4 * place)
        if kind.endswith("64"):
            part.value64 = value
        else:
            part.value = value
        if name == "waitValue":
            part.flags = cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        items.append(item)
    description = cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    description.ctx, description.count, description.paramArray, description.flags = (
        bench.context,
        len(items),
        items,
        flags,
    )
    bench.kept.append(description)
    return description


def test_memory_operations_are_done_in_order(bench: Bench) -> None:
    first = _memory_operations(bench, ("WRITE_64", 2, 5 << 32 | 4), ("WAIT_32", 0, 7), ("WRITE_32", 1, 8))
    node = ok(cuda.cuGraphAddBatchMemOpNode(*bench.after(), first))
    assert ok(cuda.cuGraphNodeGetType(node)).name == "CU_GRAPH_NODE_TYPE_BATCH_MEM_OP"
    ok(cuda.cuGraphAddMemcpyNode(*bench.after(node), bench.copy(bench.words + 16, bench.words + 4, 4), bench.context))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuGraphLaunch(executable, bench.stream))
    ok(cuda.cuStreamWaitValue32(bench.other, bench.words + 12, 5, 1))
    ok(cuda.cuStreamSynchronize(bench.other))
    assert bench.read()[:5] == [0, 0, 4, 5, 0]
    ok(cuda.cuStreamWriteValue32(bench.other, bench.words, 7, 0))
    ok(cuda.cuStreamSynchronize(bench.stream))
    assert bench.read()[:5] == [7, 8, 4, 5, 8]


def test_memory_operations_are_read_and_changed(bench: Bench) -> None:
    node = ok(cuda.cuGraphAddBatchMemOpNode(*bench.after(), _memory_operations(bench, ("WRITE_32", 0, 1))))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    two = _memory_operations(bench, ("WRITE_32", 2, 3), ("WAIT_64", 2, 3))
    ok(cuda.cuGraphBatchMemOpNodeSetParams(node, two))
    parameters = ok(cuda.cuGraphBatchMemOpNodeGetParams(node))
    assert (int(parameters.ctx), parameters.count, parameters.flags) == (int(bench.context), 2, 0)
    size = 48
    arguments, kept = (ctypes.c_uint64.from_address(int(item.getPtr()) + 16).value for item in (two, parameters))
    assert arguments != kept
    assert ctypes.string_at(kept, 2 * size) == ctypes.string_at(arguments, 2 * size)
    for wrong in (two, _memory_operations(bench, ("WAIT_32", 0, 1)), _memory_operations(bench, ("WRITE_64", 0, 1))):
        assert cuda.cuGraphExecBatchMemOpNodeSetParams(executable, node, wrong) == INVALID
    ok(cuda.cuGraphExecBatchMemOpNodeSetParams(executable, node, _memory_operations(bench, ("WRITE_32", 1, 9))))
    bench.run(executable)
    assert bench.read()[:4] == [0, 9, 0, 0]
    bench.run()
    assert bench.read()[:4] == [0, 9, 3, 0]


def test_memory_operations_that_are_refused(bench: Bench) -> None:
    other = _memory_operations(bench, ("WRITE_32", 0, 1))
    ctypes.c_uint32.from_address(ctypes.c_uint64.from_address(int(other.getPtr()) + 16).value).value = 6
    assert cuda.cuGraphAddBatchMemOpNode(*bench.after(), other)[0] == R.CUDA_ERROR_NOT_SUPPORTED
    none = cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    none.count = 1
    for wrong in (
        _memory_operations(bench, ("WRITE_32", 0, 1), flags=1),
        _memory_operations(bench, ("WRITE_64", 1, 1)),
        none,
        None,
    ):
        assert cuda.cuGraphAddBatchMemOpNode(*bench.after(), wrong)[0] == R.CUDA_ERROR_INVALID_VALUE
    assert ok(cuda.cuGraphGetNodes(bench.graph))[1] == 0


def test_child_graphs_are_copies(bench: Bench) -> None:
    child = ok(cuda.cuGraphCreate(0))
    ok(cuda.cuGraphAddKernelNode(child, None, 0, bench.store(1, 5)))
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), bench.fill(2), bench.context))
    outer = ok(cuda.cuGraphAddChildGraphNode(*bench.after(fill), child))
    ok(cuda.cuGraphAddMemcpyNode(*bench.after(outer), bench.copy(bench.words + 8, bench.words + 4, 4), bench.context))
    ok(cuda.cuGraphDestroy(child))
    inner = ok(cuda.cuGraphChildGraphNodeGetGraph(outer))
    assert int(inner) != int(child)
    assert cuda.cuGraphDestroy(inner) == INVALID, "it is the node's"
    bench.run()
    assert bench.read()[:4] == [2, 5, 5, 2]


def test_events_are_recorded_and_waited_for(bench: Bench) -> None:
    begin, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    first = ok(cuda.cuGraphAddEventRecordNode(*bench.after(), begin))
    store = ok(cuda.cuGraphAddKernelNode(*bench.after(first), bench.store(0, 4)))
    last = ok(cuda.cuGraphAddEventRecordNode(*bench.after(store), end))
    ok(cuda.cuGraphAddEventWaitNode(*bench.after(last), begin))
    assert int(ok(cuda.cuGraphEventRecordNodeGetEvent(last))) == int(end)
    bench.run()
    assert ok(cuda.cuEventElapsedTime(begin, end)) >= 0
    ok(cuda.cuEventSynchronize(end))


def test_parameters_of_nodes_are_got_and_set(bench: Bench) -> None:
    node = ok(cuda.cuGraphAddKernelNode(*bench.after(), bench.store(0, 6)))
    actual = ok(cuda.cuGraphKernelNodeGetParams(node))
    assert (actual.gridDimX, actual.blockDimZ, int(actual.ctx)) == (1, 1, int(bench.context))
    ok(cuda.cuGraphKernelNodeSetParams(node, actual))
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), bench.fill(1, 2, place=4), bench.context))
    assert ok(cuda.cuGraphMemsetNodeGetParams(fill)).width == 2
    ok(cuda.cuGraphMemsetNodeSetParams(fill, bench.fill(9, 3, place=4)))
    copy = ok(
        cuda.cuGraphAddMemcpyNode(
            *bench.after(node, fill), bench.copy(bench.words + 32, bench.words, 8), bench.context
        )
    )
    assert int(ok(cuda.cuGraphMemcpyNodeGetParams(copy)).dstDevice) == bench.words + 32
    ok(cuda.cuGraphMemcpyNodeSetParams(copy, bench.copy(bench.words + 40, bench.words, 8)))
    any_kind = ok(cuda.cuGraphNodeGetParams(fill))
    assert (any_kind.type, any_kind.memset.value) == (cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET, 9)
    any_kind.memset.value = 8
    ok(cuda.cuGraphNodeSetParams(fill, any_kind))
    bench.run()
    assert bench.read() == [6, 0, 0, 0, 8, 8, 8, 0, 0, 0, 6, 0, 0, 0, 0, 0]
    assert cuda.cuGraphMemsetNodeGetParams(node) == (*INVALID, None)
    assert cuda.cuGraphNodeSetParams(node, any_kind) == INVALID


def test_an_executable_graph_is_changed_node_by_node(bench: Bench) -> None:
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), bench.fill(1), bench.context))
    store = ok(cuda.cuGraphAddKernelNode(*bench.after(fill), bench.store(0, 2)))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuGraphExecMemsetNodeSetParams(executable, fill, bench.fill(5), bench.context))
    ok(cuda.cuGraphExecKernelNodeSetParams(executable, store, bench.store(1, 6)))
    bench.run(executable)
    assert bench.read()[:3] == [5, 6, 5]
    ok(cuda.cuGraphNodeSetEnabled(executable, store, 0))
    assert ok(cuda.cuGraphNodeGetEnabled(executable, store)) == 0
    bench.run(executable)
    assert bench.read()[:3] == [5, 5, 5]
    assert ok(cuda.cuGraphMemsetNodeGetParams(fill)).value == 1, "the graph itself stays"
    other = ok(cuda.cuGraphClone(bench.graph))
    copy = ok(cuda.cuGraphNodeFindInClone(fill, other))
    assert cuda.cuGraphExecMemsetNodeSetParams(executable, copy, bench.fill(5), bench.context) == INVALID
    assert cuda.cuGraphExecMemsetNodeSetParams(executable, store, bench.fill(5), bench.context) == INVALID


def test_an_executable_graph_is_updated_by_a_whole_graph(bench: Bench) -> None:
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), bench.fill(1), bench.context))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuGraphMemsetNodeSetParams(fill, bench.fill(4)))
    assert int(ok(cuda.cuGraphExecUpdate(executable, bench.graph)).result) == 0
    bench.run(executable)
    assert bench.read() == [4] * 16
    ok(cuda.cuGraphAddKernelNode(*bench.after(fill), bench.store(0, 2)))
    assert cuda.cuGraphExecUpdate(executable, bench.graph) == (R.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, None)
    assert "TOPOLOGY_CHANGED" in last_error()
    bench.run(executable)
    assert bench.read() == [4] * 16


def test_wrong_nodes_and_edges_of_a_graph_are_refused(bench: Bench) -> None:
    graph = bench.graph
    node = ok(cuda.cuGraphAddEmptyNode(graph, None, 0))
    foreign_node = ok(cuda.cuGraphAddEmptyNode(ok(cuda.cuGraphCreate(0)), None, 0))
    nothing = (*INVALID, None)
    assert cuda.cuGraphCreate(1) == nothing
    assert cuda.cuGraphAddEmptyNode(0, None, 0) == nothing
    assert cuda.cuGraphAddEmptyNode(node, None, 0) == nothing
    assert cuda.cuGraphAddEmptyNode(graph, None, 1) == nothing
    assert cuda.cuGraphAddEmptyNode(graph, [foreign_node], 1) == nothing
    assert cuda.cuGraphAddEmptyNode(graph, [node, node], 2) == nothing
    assert cuda.cuGraphAddEmptyNode(graph, InMemory(0), 1 << 63) == nothing
    assert cuda.cuGraphAddEmptyNode(graph, InMemory(4096), 1 << 63) == nothing
    assert cuda.cuGraphAddKernelNode(graph, None, 0, None) == nothing
    assert cuda.cuGraphAddMemcpyNode(graph, None, 0, None, bench.context) == nothing
    assert cuda.cuGraphAddHostNode(graph, None, 0, cuda.CUDA_HOST_NODE_PARAMS()) == nothing
    assert cuda.cuGraphAddChildGraphNode(graph, None, 0, graph) == nothing
    assert cuda.cuGraphAddChildGraphNode(graph, None, 0, 99) == nothing
    assert cuda.cuGraphAddEventRecordNode(graph, None, 0, 99)[0] == R.CUDA_ERROR_INVALID_HANDLE
    assert cuda.cuGraphAddDependencies(graph, [node], [node], None, 1) == INVALID
    assert cuda.cuGraphAddDependencies(graph, [node], [foreign_node], None, 1) == INVALID
    assert cuda.cuGraphRemoveDependencies(graph, [node], [node], None, 1) == INVALID
    kernel = cuda.CUDA_KERNEL_NODE_PARAMS()
    assert cuda.cuGraphAddKernelNode(graph, None, 0, kernel)[0] == R.CUDA_ERROR_INVALID_HANDLE
    without = bench.store(0, 0, b"nothing")
    without.func = ok(cuda.cuModuleGetFunction(bench.kernels.module, b"store"))
    assert cuda.cuGraphAddKernelNode(graph, None, 0, without) == nothing, "no parameters"
    without.gridDimX = 0
    assert cuda.cuGraphAddKernelNode(graph, None, 0, without) == nothing
    for change in ({"elementSize": 3}, {"width": 0}, {"height": 0}, {"dst": 64}, {"dst": bench.words + 1}):
        fill = bench.fill(1)
        for name, value in change.items():
            setattr(fill, name, value)
        assert cuda.cuGraphAddMemsetNode(graph, None, 0, fill, bench.context)[0] == R.CUDA_ERROR_INVALID_VALUE
    assert cuda.cuGraphAddMemsetNode(graph, None, 0, bench.fill(1), 99)[0] == R.CUDA_ERROR_INVALID_CONTEXT
    description = cuda.CUgraphNodeParams()
    description.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL
    assert cuda.cuGraphAddNode(graph, None, None, 0, description) == (R.CUDA_ERROR_NOT_SUPPORTED, None)
    with pytest.raises(TypeError):
        cuda.cuGraphAddKernelNode(graph, None, 0, bench.fill(1))
    with pytest.raises(RuntimeError):
        cuda.cuGraphAddEmptyNode(graph, [node], 2)
    assert ok(cuda.cuGraphGetNodes(graph))[1] == 1
    for call in (cuda.cuGraphDestroyNode, cuda.cuGraphDestroy):
        assert call(node if call is cuda.cuGraphDestroyNode else graph) == (R.CUDA_SUCCESS,)
        assert call(node if call is cuda.cuGraphDestroyNode else graph) == INVALID


def test_a_cycle_is_refused_at_instantiation(bench: Bench) -> None:
    first = ok(cuda.cuGraphAddEmptyNode(bench.graph, None, 0))
    second = ok(cuda.cuGraphAddEmptyNode(bench.graph, [first], 1))
    ok(cuda.cuGraphAddDependencies(bench.graph, [second], [first], None, 1))
    assert cuda.cuGraphInstantiate(bench.graph, 0) == (*INVALID, None)
    description = cuda.CUDA_GRAPH_INSTANTIATE_PARAMS()
    assert cuda.cuGraphInstantiateWithParams(bench.graph, description) == (*INVALID, None)
    assert description.result_out == cuda.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
    ok(cuda.cuGraphRemoveDependencies(bench.graph, [second], [first], None, 1))
    executable = ok(cuda.cuGraphInstantiateWithParams(bench.graph, description))
    assert description.result_out == cuda.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_SUCCESS
    ok(cuda.cuGraphLaunch(executable, bench.stream))
    assert cuda.cuGraphLaunch(executable, 12345)[0] == R.CUDA_ERROR_INVALID_HANDLE
    assert cuda.cuGraphLaunch(bench.graph, bench.stream) == INVALID
    assert cuda.cuGraphInstantiate(bench.graph, 1 << 40) == (*INVALID, None)
    assert cuda.cuGraphInstantiate(bench.graph, 4) == (R.CUDA_ERROR_NOT_SUPPORTED, None)


def test_a_node_that_cannot_be_launched_is_named(bench: Bench) -> None:
    event = ok(cuda.cuEventCreate(0))
    node = ok(cuda.cuGraphAddEventRecordNode(*bench.after(), event))
    ok(cuda.cuEventDestroy(event))
    description = cuda.CUDA_GRAPH_INSTANTIATE_PARAMS()
    assert cuda.cuGraphInstantiateWithParams(bench.graph, description)[0] == R.CUDA_ERROR_INVALID_HANDLE
    assert int(description.hErrNode_out) == int(node)


def test_an_error_of_a_launch_comes_later_and_ends_nothing_else(bench: Bench) -> None:
    gone = int(ok(cuda.cuMemAlloc(64)))
    calls: list[Any] = []
    arguments = bench.fill(1)
    arguments.dst = gone
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), arguments, bench.context))
    ok(cuda.cuGraphAddHostNode(*bench.after(fill), bench.host(calls.append)))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuMemFree(gone))
    ok(cuda.cuGraphLaunch(executable, bench.stream))
    assert cuda.cuStreamSynchronize(bench.stream) == INVALID
    assert calls == []
    ok(cuda.cuMemsetD32(bench.words, 1, 16))
    assert bench.read() == [1] * 16


def test_executable_graphs_end_with_their_context(bench: Bench) -> None:
    ok(cuda.cuGraphAddKernelNode(*bench.after(), bench.store(0, 1)))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuCtxDestroy(bench.context))
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuGraphLaunch(executable, 0) == INVALID
    assert cuda.cuGraphInstantiate(bench.graph, 0)[0] == R.CUDA_ERROR_CONTEXT_IS_DESTROYED


def test_user_objects_live_as_long_as_a_graph_that_holds_them(bench: Bench) -> None:
    ended: list[int] = []
    destroy = HOST_FN(ended.append)
    address = ctypes.cast(destroy, ctypes.c_void_p).value
    item = ok(cuda.cuUserObjectCreate(7, address, 2, 1))
    ok(cuda.cuGraphRetainUserObject(bench.graph, item, 1, 1))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    ok(cuda.cuGraphLaunch(executable, bench.stream))
    ok(cuda.cuUserObjectRelease(item, 1))
    ok(cuda.cuGraphDestroy(bench.graph))
    gc.collect()
    assert ended == []
    ok(cuda.cuGraphExecDestroy(executable))
    wait_until(lambda: ended == [7], "the destructor is called")
    assert cuda.cuUserObjectRelease(item, 1) == INVALID
    assert cuda.cuUserObjectCreate(7, address, 1, 0) == (*INVALID, None)
    assert cuda.cuUserObjectCreate(7, 0, 1, 1) == (*INVALID, None)


def test_kernels_launch_no_graphs(bench: Bench) -> None:
    ok(cuda.cuGraphAddKernelNode(*bench.after(), bench.store(0, 2)))
    flags = cuda.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    assert cuda.cuGraphInstantiate(bench.graph, flags)[0] == R.CUDA_ERROR_NOT_SUPPORTED
    assert "kernels cannot launch graphs here" in last_error()
    assert "without CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH" in last_error()
    parameters = cuda.CUDA_GRAPH_INSTANTIATE_PARAMS()
    parameters.flags = flags
    assert cuda.cuGraphInstantiateWithParams(bench.graph, parameters)[0] == R.CUDA_ERROR_NOT_SUPPORTED
    assert parameters.result_out.name == "CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED"


def test_a_graph_as_a_file(bench: Bench, tmp_path: Path) -> None:
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(), bench.fill(1), bench.context))
    ok(cuda.cuGraphAddKernelNode(*bench.after(fill), bench.store(0, 2)))
    path = tmp_path / "graph.dot"
    ok(cuda.cuGraphDebugDotPrint(bench.graph, str(path).encode(), 1))
    text = path.read_text()
    assert "store" in text
    assert text.count("->") == 1
    missing = str(tmp_path / "no" / "such").encode()
    assert cuda.cuGraphDebugDotPrint(bench.graph, missing, 0) == (R.CUDA_ERROR_OPERATING_SYSTEM,)


def test_kernel_nodes_keep_and_copy_attributes(bench: Bench) -> None:
    node = ok(cuda.cuGraphAddKernelNode(*bench.after(), bench.store(0, 2)))
    other = ok(cuda.cuGraphAddKernelNode(*bench.after(), bench.store(1, 2)))
    attributes = cuda.CUlaunchAttributeID
    value = cuda.CUkernelNodeAttrValue()
    value.cooperative = 1
    ok(cuda.cuGraphKernelNodeSetAttribute(node, attributes.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value))
    ok(cuda.cuGraphKernelNodeCopyAttributes(other, node))
    actual = ok(cuda.cuGraphKernelNodeGetAttribute(other, attributes.CU_LAUNCH_ATTRIBUTE_COOPERATIVE))
    assert actual.cooperative == 1
    value.clusterDim.x = 2
    refused = cuda.cuGraphKernelNodeSetAttribute(node, attributes.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value)
    assert refused == (R.CUDA_ERROR_INVALID_CLUSTER_SIZE,), "of 2, 0 and 0 blocks"
    value.clusterDim.x = value.clusterDim.y = value.clusterDim.z = 1
    ok(cuda.cuGraphKernelNodeSetAttribute(node, attributes.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value))
    bench.run()
    assert bench.read()[:2] == [2, 2]


def allocation(size: int = 64) -> Any:
    """Return the parameters of an allocation on device 0."""
    description = cuda.CUDA_MEM_ALLOC_NODE_PARAMS()
    description.poolProps.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    description.poolProps.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.poolProps.location.id = 0
    description.bytesize = size
    return description


def count_used() -> int:
    """Return the bytes of graph memory of device 0."""
    return int(ok(cuda.cuDeviceGetGraphMemAttribute(0, cuda.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)))


def test_memory_of_a_graph_has_one_address_for_all_launches(bench: Bench) -> None:
    before, arguments = count_used(), allocation()
    node = ok(cuda.cuGraphAddMemAllocNode(*bench.after(), arguments))
    address = int(arguments.dptr)
    assert count_used() > before
    filled = bench.fill(6)
    filled.dst = address
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(node), filled, bench.context))
    copy = ok(cuda.cuGraphAddMemcpyNode(*bench.after(fill), bench.copy(bench.words, address, 64), bench.context))
    freed = ok(cuda.cuGraphAddMemFreeNode(*bench.after(copy), address))
    assert int(ok(cuda.cuGraphMemFreeNodeGetParams(freed))) == address
    actual = ok(cuda.cuGraphMemAllocNodeGetParams(node))
    assert (int(actual.dptr), actual.bytesize, actual.poolProps.location.id) == (address, 64, 0)
    assert cuda.cuGraphAddMemFreeNode(*bench.after(copy), address) == (*INVALID, None), "freed twice"
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    for _ in range(2):
        ok(cuda.cuMemsetD32(bench.words, 0, 16))
        bench.run(executable)
        assert bench.read() == [6] * 16
    assert cuda.cuMemFree(address) == INVALID, "the graph frees it"
    ok(cuda.cuGraphDestroy(bench.graph))
    assert count_used() > before
    ok(cuda.cuGraphExecDestroy(executable))
    assert count_used() == before


def test_memory_that_a_graph_leaves_is_freed_by_the_program(bench: Bench) -> None:
    arguments = allocation()
    node = ok(cuda.cuGraphAddMemAllocNode(*bench.after(), arguments))
    address = int(arguments.dptr)
    filled = bench.fill(9)
    filled.dst = address
    ok(cuda.cuGraphAddMemsetNode(*bench.after(node), filled, bench.context))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    assert cuda.cuMemFree(address) == INVALID, "not launched yet"
    bench.run(executable)
    back = np.zeros(16, dtype=np.uint32)
    ok(cuda.cuMemcpyDtoH(back, address, 64))
    assert list(back) == [9] * 16
    assert cuda.cuGraphLaunch(executable, bench.stream) == INVALID, "it is not freed"
    ok(cuda.cuMemFreeAsync(address, bench.stream))
    bench.run(executable)
    ok(cuda.cuMemFree(address))
    assert cuda.cuMemFree(address) == INVALID
    again = ok(cuda.cuGraphInstantiate(bench.graph, 1))
    for _ in range(3):
        bench.run(again)


@pytest.mark.parametrize(("kind", "place"), [("MANAGED", "DEVICE"), ("PINNED", "HOST")])
def test_memory_of_a_graph_that_the_program_reaches(bench: Bench, kind: str, place: str) -> None:
    before, arguments = count_used(), allocation()
    arguments.poolProps.allocType = getattr(cuda.CUmemAllocationType, f"CU_MEM_ALLOCATION_TYPE_{kind}")
    arguments.poolProps.location.type = getattr(cuda.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{place}")
    node = ok(cuda.cuGraphAddMemAllocNode(*bench.after(), arguments))
    actual, address = ok(cuda.cuGraphMemAllocNodeGetParams(node)), int(arguments.dptr)
    assert (actual.poolProps.allocType, actual.poolProps.location.type) == (
        arguments.poolProps.allocType, arguments.poolProps.location.type,
    )  # fmt: skip
    filled, stored = bench.fill(6), bench.store(0, 7)
    filled.dst, stored.kernelParams = address, ((address + 4, 7), STORE)
    fill = ok(cuda.cuGraphAddMemsetNode(*bench.after(node), filled, bench.context))
    store = ok(cuda.cuGraphAddKernelNode(*bench.after(fill), stored))
    ok(cuda.cuGraphAddMemcpyNode(*bench.after(store), bench.copy(bench.words, address, 64), bench.context))
    executable = ok(cuda.cuGraphInstantiate(bench.graph, 0))
    assert cuda.cuMemFree(address) == INVALID, "not launched yet"
    bench.run(executable)
    assert bench.read() == [6, 7, *[6] * 14]
    assert list((ctypes.c_uint32 * 3).from_address(address)) == [6, 7, 6]
    is_managed = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    assert bool(ok(cuda.cuPointerGetAttribute(is_managed, address))) == (kind == "MANAGED")
    ok(cuda.cuMemFreeAsync(address, bench.stream))
    ok(cuda.cuGraphExecDestroy(executable))
    ok(cuda.cuGraphDestroy(bench.graph))
    assert count_used() == before
    with open("/proc/self/maps") as maps:
        assert f"{address:x}-" not in maps.read()


def test_a_capturing_stream_allocates_what_the_pool_has(bench: Bench) -> None:
    description = cuda.CUmemPoolProps()
    description.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
    description.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = ok(cuda.cuMemPoolCreate(description))
    ok(cuda.cuStreamBeginCapture(bench.stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    address = int(ok(cuda.cuMemAllocFromPoolAsync(64, pool, bench.stream)))
    ok(cuda.cuMemsetD32Async(address, 5, 16, bench.stream))
    bench.run(ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(bench.stream)), 0)))
    assert (ctypes.c_uint32 * 16).from_address(address)[15] == 5
    ok(cuda.cuMemFree(address))
    ok(cuda.cuMemPoolDestroy(pool))


def test_graphs_refuse_impossible_allocations(bench: Bench) -> None:
    assert cuda.cuGraphAddMemAllocNode(*bench.after(), allocation(0)) == (*INVALID, None)
    huge = cuda.cuGraphAddMemAllocNode(*bench.after(), allocation(1 << 63))
    assert huge == (R.CUDA_ERROR_OUT_OF_MEMORY, None)
    elsewhere = allocation()
    elsewhere.poolProps.location.id = 77
    assert cuda.cuGraphAddMemAllocNode(*bench.after(), elsewhere) == (R.CUDA_ERROR_INVALID_DEVICE, None)
    exported = allocation()
    exported.poolProps.handleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    assert cuda.cuGraphAddMemAllocNode(*bench.after(), exported) == (R.CUDA_ERROR_NOT_SUPPORTED, None)
    of_no_kind = allocation()
    of_no_kind.poolProps.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    assert cuda.cuGraphAddMemAllocNode(*bench.after(), of_no_kind) == (*INVALID, None)
    at_a_node = allocation()
    at_a_node.poolProps.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
    assert cuda.cuGraphAddMemAllocNode(*bench.after(), at_a_node) == (*INVALID, None)
    for address in (0, bench.words, 1 << 63):
        assert cuda.cuGraphAddMemFreeNode(*bench.after(), address) == (*INVALID, None)
    assert ok(cuda.cuGraphGetNodes(bench.graph))[1] == 0
    high = cuda.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH
    assert cuda.cuDeviceSetGraphMemAttribute(0, high, 5) == INVALID
    ok(cuda.cuDeviceSetGraphMemAttribute(0, high, 0))
    assert cuda.cuDeviceGraphMemTrim(9) == (R.CUDA_ERROR_INVALID_DEVICE,)
