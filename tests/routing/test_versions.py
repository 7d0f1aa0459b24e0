"""Programs of cuda-bindings 12.9, whose functions have other parameters than those of 13."""

from __future__ import annotations

import pytest

from tests.routing.conftest import BEGINNING, Run

BEGIN = f"""{BEGINNING}
from cuda.bindings import runtime
assert cuda.CUDA_VERSION == 12090
context()
stream, other = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))
memory, host = ok(cuda.cuMemAlloc(64)), (ctypes.c_ubyte * 64)(*range(64))
back = (ctypes.c_ubyte * 64)()
def fetch(of=memory):
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(back), of, 64))
    return list(back[:4])
"""


@pytest.mark.long
def test_memory_pools_and_a_launch(run: Run, cuda_12: str) -> None:
    program = """
ok(cuda.cuMemcpyHtoD(memory, ctypes.addressof(host), 64))
print(fetch())
pool = ok(cuda.cuDeviceGetDefaultMemPool(0))
print(int(ok(cuda.cuMemPoolGetAttribute(pool, cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD))))
block = ok(cuda.cuMemAllocAsync(64, stream))
ok(cuda.cuMemsetD32Async(block, 0x3f800000, 16, stream))
function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(VECTOR_ADD)), b"vector_add"))
types = (None, None, None, ctypes.c_int)
ok(cuda.cuLaunchKernel(function, 1, 1, 1, 16, 1, 1, 0, stream, ((block, block, memory, 16), types), 0))
print(fetch())
ok(cuda.cuMemFreeAsync(block, stream))
"""
    assert _get_texts(run, cuda_12, program) == ["[0, 1, 2, 3]", "0", "[0, 0, 0, 64]"]


def test_managed_memory_and_batches(run: Run, cuda_12: str) -> None:
    program = """
managed = ok(cuda.cuMemAllocManaged(4096, 1))
ok(cuda.cuMemPrefetchAsync(managed, 4096, 0, stream))
place, kind = cuda.CUmemLocation(), cuda.CUmemLocationType
place.type = kind.CU_MEM_LOCATION_TYPE_DEVICE
ok(cuda.cuMemPrefetchAsync_v2(managed, 4096, place, 0, stream))
advice = cuda.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
ok(cuda.cuMemAdvise(managed, 4096, advice, 0))
ok(cuda.cuMemAdvise_v2(managed, 4096, advice, place))
ok(runtime.cudaMemPrefetchAsync(int(managed), 4096, 0, stream))
runtimes = runtime.cudaMemLocation()
runtimes.type = runtime.cudaMemLocationType.cudaMemLocationTypeDevice
ok(runtime.cudaMemPrefetchAsync_v2(int(managed), 4096, runtimes, 0, stream))
last = cuda.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
print(ok(cuda.cuMemRangeGetAttribute(4, last, managed, 4096)))
attributes = [cuda.CUmemcpyAttributes()]
sources, sizes = [cuda.CUdeviceptr(ctypes.addressof(host)), cuda.CUdeviceptr(ctypes.addressof(host) + 8)], [8, 2]
print(ok(cuda.cuMemcpyBatchAsync([managed, memory], sources, sizes, 2, attributes, [0], 1, stream)))
print(fetch(managed)[:4], fetch()[:2])
print(int(ok(cuda.cuCtxCreate(0, 0))) != 0)
"""
    assert _get_texts(run, cuda_12, program) == ["0", "0", "[0, 1, 2, 3] [8, 9]", "True"]


def test_a_graph_by_hand_and_its_edges_both_ways(run: Run, cuda_12: str) -> None:
    program = """
graph = ok(cuda.cuGraphCreate(0))
first, second, third = (ok(cuda.cuGraphAddEmptyNode(graph, [], 0)) for _ in range(3))
names = {int(first): 1, int(second): 2, int(third): 3}
def shown(nodes):
    return [names[int(node)] for node in nodes]
ok(cuda.cuGraphAddDependencies(graph, [first], [second], 1))
ok(cuda.cuGraphAddDependencies_v2(graph, [second], [third], [cuda.CUgraphEdgeData()], 1))
start, end, count = ok(cuda.cuGraphGetEdges(graph, 2))
print(shown(start), shown(end), count, ok(cuda.cuGraphGetEdges(graph, 0))[-1])
start, end, data, count = ok(cuda.cuGraphGetEdges_v2(graph, 2))
print(shown(start), shown(end), [one.type for one in data], count)
nodes, count = ok(cuda.cuGraphNodeGetDependencies(third, 1))
print(shown(nodes), count, shown(ok(cuda.cuGraphNodeGetDependencies_v2(third, 1))[0]))
nodes, count = ok(cuda.cuGraphNodeGetDependentNodes(first, 1))
print(shown(nodes), count, shown(ok(cuda.cuGraphNodeGetDependentNodes_v2(first, 1))[0]))
ok(cuda.cuGraphRemoveDependencies(graph, [first], [second], 1))
ok(cuda.cuGraphRemoveDependencies_v2(graph, [second], [third], [cuda.CUgraphEdgeData()], 1))
fill = cuda.CUgraphNodeParams()
fill.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
fill.memset.dst, fill.memset.value, fill.memset.elementSize = memory, 7, 1
fill.memset.width, fill.memset.height = 4, 1
ok(cuda.cuGraphAddNode(graph, [first], 1, fill))
fill.memset.value, fill.memset.width = 8, 2
ok(cuda.cuGraphAddNode_v2(graph, [third], [cuda.CUgraphEdgeData()], 1, fill))
print(ok(cuda.cuGraphGetEdges(graph, 0))[-1])
ready = ok(cuda.cuGraphInstantiate(graph, 0))
ok(cuda.cuGraphLaunch(ready, stream))
print(fetch()[2:])
"""
    assert _get_texts(run, cuda_12, program) == [
        "[1, 2] [2, 3] 2 2", "[1, 2] [2, 3] [0, 0] 2", "[2] 1 [2]", "[2] 1 [2]", "2", "[7, 7]",
    ]  # fmt: skip


def test_a_capture_has_the_outputs_of_the_older_bindings(run: Run, cuda_12: str) -> None:
    program = """
ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(cuda.cuMemsetD8Async(memory, 5, 64, stream))
status, _, graph, nodes, count = ok(cuda.cuStreamGetCaptureInfo(stream))
print(int(status), len(nodes), count)
status, _, graph, nodes, edges, count = ok(cuda.cuStreamGetCaptureInfo_v3(stream))
print(int(status), len(nodes), len(edges), count)
ok(cuda.cuStreamUpdateCaptureDependencies(stream, nodes, 1, 1))
ok(cuda.cuStreamUpdateCaptureDependencies_v2(stream, nodes, [cuda.CUgraphEdgeData()], 1, 1))
ready = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(stream)), 0))
ok(cuda.cuGraphLaunch(ready, stream))
print(fetch())
"""
    assert _get_texts(run, cuda_12, program) == ["1 1 1", "1 1 1 1", "[5, 5, 5, 5]"]


def test_the_runtime_copies_with_the_older_bindings(run: Run, cuda_12: str) -> None:
    program = """
block = ok(runtime.cudaMalloc(64))
ok(runtime.cudaMemcpy(block, ctypes.addressof(host), 64, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice))
print(fetch(block), ok(runtime.cudaGetDeviceProperties(0)).name.decode()[:6])
stream = ok(runtime.cudaStreamCreate())
ok(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal))
ok(runtime.cudaMemsetAsync(block, 3, 64, stream))
print(ok(runtime.cudaStreamGetCaptureInfo(stream))[-1], ok(runtime.cudaStreamGetCaptureInfo_v3(stream))[-1])
graph = ok(runtime.cudaStreamEndCapture(stream))
fill = runtime.cudaGraphNodeParams()
fill.type = runtime.cudaGraphNodeType.cudaGraphNodeTypeMemset
fill.memset.dst, fill.memset.value, fill.memset.elementSize, fill.memset.width, fill.memset.height = block, 4, 1, 2, 1
first = ok(runtime.cudaGraphGetNodes(graph, 1))[0][0]
second = ok(runtime.cudaGraphAddNode(graph, [first], 1, fill))
ok(runtime.cudaGraphAddNode_v2(graph, [second], [runtime.cudaGraphEdgeData()], 1, fill))
start, end, count = ok(runtime.cudaGraphGetEdges(graph, 2))
print(count, int(start[0]) == int(first), int(end[0]) == int(second), len(ok(runtime.cudaGraphGetEdges_v2(graph, 2))))
ok(runtime.cudaGraphLaunch(ok(runtime.cudaGraphInstantiate(graph, 0)), stream))
ok(runtime.cudaStreamSynchronize(stream))
print(fetch(block))
attributes = [runtime.cudaMemcpyAttributes()]
print(ok(runtime.cudaMemcpyBatchAsync([block], [ctypes.addressof(host) + 5], [2], 1, attributes, [0], 1, stream)))
ok(runtime.cudaStreamSynchronize(stream))
print(fetch(block))
"""
    assert _get_texts(run, cuda_12, program) == [
        "[0, 1, 2, 3] NVIDIA", "1 1", "2 True True 4", "[4, 4, 3, 3]", "0", "[5, 6, 3, 3]",
    ]  # fmt: skip


def _get_texts(run: Run, cuda_12: str, program: str) -> list[str]:
    done = run(program, begin=BEGIN, PYTHONPATH=cuda_12)
    assert done.stderr == ""
    return done.stdout.splitlines()
