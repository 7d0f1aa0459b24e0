"""Conditional nodes of graphs on real emulated devices: kernels choose what a graph does."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pytest
from attrs import define

from pympsd_client import driver as cuda
from pympsd_client import last_error
from tests.client.conftest import ok

R = cuda.CUresult
IF, WHILE, SWITCH = (
    getattr(cuda.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{name}") for name in ("IF", "WHILE", "SWITCH")
)
# As nvcc compiles cudaGraphSetConditional.
PTX = b"""
.version 8.3
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry choose(.param .u64 handle, .param .u32 value)
{
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [handle]; ld.param.u32 %r1, [value];
    { .param .b64 param0; st.param.b64 [param0+0], %rd1; .param .b32 param1; st.param.b32 [param1+0], %r1;
      call.uni cudaGraphSetConditional, (param0, param1); }
    ret;
}
// Takes 1 from the word, which becomes the value; ends with the word at 0.
.visible .entry count_down(.param .u64 handle, .param .u64 where)
{
    .reg .b32 %r<2>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [handle]; ld.param.u64 %rd2, [where];
    ld.global.u32 %r1, [%rd2]; sub.u32 %r1, %r1, 1; st.global.u32 [%rd2], %r1;
    { .param .b64 param0; st.param.b64 [param0+0], %rd1; .param .b32 param1; st.param.b32 [param1+0], %r1;
      call.uni cudaGraphSetConditional, (param0, param1); }
    ret;
}
.visible .entry add(.param .u64 where, .param .u32 value)
{
    .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r1, [value];
    ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, %r1; st.global.u32 [%rd1], %r2;
    ret;
}
"""
HANDLE_AND_VALUE, ADDRESS_AND_VALUE = (ctypes.c_uint64, ctypes.c_uint32), (ctypes.c_uint64, ctypes.c_uint32)


@define(eq=False)
class Bench:
    """A graph, 16 words of memory, kernels, and a stream."""

    context: Any
    module: Any
    graph: Any
    words: int
    stream: Any

    def condition(self, default: int = 0, flags: int = 1, graph: Any = None) -> int:
        """Return a new conditional handle."""
        result = cuda.cuGraphConditionalHandleCreate(graph or self.graph, self.context, default, flags)
        return int(ok(result))

    def conditional(
        self, handle: int, kind: Any, size: int = 1, after: tuple[Any, ...] = (), graph: Any = None
    ) -> list[Any]:
        """Add a conditional node; return its bodies."""
        description = cuda.CUgraphNodeParams()
        description.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        description.conditional.handle, description.conditional.size = cuda.CUgraphConditionalHandle(handle), size
        description.conditional.type = kind
        ok(cuda.cuGraphAddNode(graph or self.graph, list(after), None, len(after), description))
        return list(description.conditional.phGraph_out)

    def kernel(self, graph: Any, name: bytes, values: Any, types: Any, after: tuple[Any, ...] = ()) -> Any:
        """Add a kernel of one thread."""
        description = cuda.CUDA_KERNEL_NODE_PARAMS()
        description.func = ok(cuda.cuModuleGetFunction(self.module, name))
        for axis in "XYZ":
            setattr(description, f"gridDim{axis}", 1)
            setattr(description, f"blockDim{axis}", 1)
        description.kernelParams = (values, types)
        return ok(cuda.cuGraphAddKernelNode(graph, list(after), len(after), description))

    def choose(self, graph: Any, handle: int, value: int, *after: Any) -> Any:
        """Add a kernel that sets a condition."""
        return self.kernel(graph, b"choose", (handle, value), HANDLE_AND_VALUE, after)

    def add(self, graph: Any, place: int, value: int, *after: Any) -> Any:
        """Add a kernel that adds to a word."""
        return self.kernel(graph, b"add", (self.words + 4 * place, value), ADDRESS_AND_VALUE, after)

    def count_down(self, graph: Any, handle: int, place: int, *after: Any) -> Any:
        """Add a kernel that takes 1 from a word, which is the condition's value then."""
        types = (ctypes.c_uint64, ctypes.c_uint64)
        return self.kernel(graph, b"count_down", (handle, self.words + 4 * place), types, after)

    def put(self, *values: int) -> None:
        """Set the words, 0 where none is given."""
        words = np.array((*values, *[0] * (16 - len(values))), dtype=np.uint32)
        ok(cuda.cuMemcpyHtoD(self.words, words, 64))

    def read(self, count: int) -> list[int]:
        """Return the first words."""
        back = np.zeros(16, dtype=np.uint32)
        ok(cuda.cuMemcpyDtoH(back, self.words, 64))
        return [int(word) for word in back[:count]]

    def instantiated(self) -> Any:
        """Return an executable graph."""
        return ok(cuda.cuGraphInstantiate(self.graph, 0))

    def run(self, executable: Any = None) -> None:
        """Launch the graph, and wait."""
        ok(cuda.cuGraphLaunch(executable or self.instantiated(), self.stream))
        ok(cuda.cuStreamSynchronize(self.stream))


@pytest.fixture
def bench(context: Any) -> Bench:
    """A bench in the current context."""
    prepared = Bench(
        context,
        ok(cuda.cuModuleLoadData(PTX)),
        ok(cuda.cuGraphCreate(0)),
        int(ok(cuda.cuMemAlloc(64))),
        ok(cuda.cuStreamCreate(1)),
    )
    prepared.put()
    return prepared


@pytest.mark.parametrize(
    ("value", "size", "expected"), [(7, 1, [1, 0]), (0, 1, [0, 0]), (1, 2, [1, 0]), (0, 2, [0, 1])]
)
def test_an_if_node_runs_the_body_of_its_condition(bench: Bench, value: int, size: int, expected: list[int]) -> None:
    handle = bench.condition()
    bodies = bench.conditional(handle, IF, size, (bench.choose(bench.graph, handle, value),))
    for place, body in enumerate(bodies):
        bench.add(body, place, 1)
    bench.run()
    assert bench.read(2) == expected


@pytest.mark.parametrize("value", range(4))
def test_a_switch_node_runs_the_body_of_its_value(bench: Bench, value: int) -> None:
    handle = bench.condition()
    bodies = bench.conditional(handle, SWITCH, 3, (bench.choose(bench.graph, handle, value),))
    for place, body in enumerate(bodies):
        bench.add(body, place, 1)
    bench.run()
    assert bench.read(3) == [int(place == value) for place in range(3)]


def test_a_while_node_repeats_its_body_and_later_nodes_follow(bench: Bench) -> None:
    handle = bench.condition(default=1)
    (body,) = bench.conditional(handle, WHILE)
    (loop,) = ok(cuda.cuGraphGetNodes(bench.graph, 1))[:1]
    bench.add(body, 1, 2, bench.count_down(body, handle, 0))
    bench.add(body, 2, 1)
    bench.kernel(bench.graph, b"add", (bench.words + 12, 5), ADDRESS_AND_VALUE, (loop[0],))
    executable = bench.instantiated()
    for rounds in (1, 10):
        bench.put(rounds)
        bench.run(executable)
        assert bench.read(4) == [0, 2 * rounds, rounds, 5], "the default begins every launch"


def test_many_queued_launches_all_run(bench: Bench) -> None:
    handle = bench.condition()
    (body,) = bench.conditional(handle, IF, 1, (bench.choose(bench.graph, handle, 1),))
    bench.add(body, 0, 1)
    executable, other = bench.instantiated(), ok(cuda.cuStreamCreate(1))
    for turn in range(40):
        ok(cuda.cuGraphLaunch(executable, (bench.stream, other)[turn % 2]))
    ok(cuda.cuGraphExecDestroy(executable))
    ok(cuda.cuCtxSynchronize())
    assert bench.read(1) == [40], "what was launched runs to its end"


def test_a_loop_in_a_branch_in_a_loop(bench: Bench) -> None:
    outer, inner, chosen = bench.condition(1), bench.condition(), bench.condition()
    (body,) = bench.conditional(outer, WHILE)
    once = bench.choose(body, chosen, 1, bench.count_down(body, outer, 0))
    once = bench.choose(body, inner, 1, once)
    (branch,) = bench.conditional(chosen, IF, 1, (once,), body)
    fill = cuda.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = bench.words + 4, 3, 4, 1, 1
    filled = ok(cuda.cuGraphAddMemsetNode(branch, None, 0, fill, bench.context))
    (deepest,) = bench.conditional(inner, WHILE, 1, (filled,), branch)
    bench.add(deepest, 2, 1, bench.count_down(deepest, inner, 1))
    bench.put(4)
    bench.run()
    assert bench.read(3) == [0, 0, 12]


def test_branches_have_conditions_of_their_own(bench: Bench) -> None:
    for place in range(5):
        handle = bench.condition()
        (body,) = bench.conditional(handle, WHILE, 1, (bench.choose(bench.graph, handle, 1),))
        bench.add(body, 8 + place, 1, bench.count_down(body, handle, place))
    bench.put(1, 2, 3, 4, 5)
    bench.run()
    assert bench.read(13) == [0] * 8 + [1, 2, 3, 4, 5]


def test_clones_and_child_graphs(bench: Bench) -> None:
    handle = bench.condition()
    (body,) = bench.conditional(handle, IF, 1, (bench.choose(bench.graph, handle, 1),))
    bench.add(body, 0, 1)
    copy, outer = ok(cuda.cuGraphClone(bench.graph)), ok(cuda.cuGraphCreate(0))
    ok(cuda.cuGraphAddChildGraphNode(outer, None, 0, bench.graph))
    for graph in (copy, outer):
        bench.run(ok(cuda.cuGraphInstantiate(graph, 0)))
    assert bench.read(1) == [2]


def test_an_update_takes_the_other_graphs_conditions(bench: Bench) -> None:
    def make(value: int) -> Any:
        bench.graph = ok(cuda.cuGraphCreate(0))
        handle = bench.condition()
        (body,) = bench.conditional(handle, WHILE, 1, (bench.choose(bench.graph, handle, 1),))
        bench.add(body, 1, value, bench.count_down(body, handle, 0))
        return bench.graph

    make(1)
    executable = bench.instantiated()
    ok(cuda.cuGraphExecUpdate(executable, make(10)))
    bench.put(3)
    bench.run(executable)
    assert bench.read(2) == [0, 30]


def test_copies_in_a_body_and_a_stream_captured_into_one(bench: Bench) -> None:
    handle = bench.condition(default=1)
    (body,) = bench.conditional(handle, IF)
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    pinned = ok(cuda.cuMemHostAlloc(8, 0))
    ok(cuda.cuStreamBeginCaptureToGraph(bench.stream, body, None, None, 0, mode))
    ok(cuda.cuMemsetD32Async(bench.words, 9, 1, bench.stream))
    ok(cuda.cuMemcpyDtoDAsync(bench.words + 4, bench.words, 4, bench.stream))
    ok(cuda.cuMemcpyDtoHAsync(int(pinned), bench.words, 8, bench.stream))
    ok(cuda.cuStreamEndCapture(bench.stream))
    bench.run()
    assert bench.read(2) == [9, 9]
    assert list((ctypes.c_uint32 * 2).from_address(int(pinned))) == [9, 9]
    ok(cuda.cuMemFreeHost(pinned))


def test_an_endless_loop_leaves_others_their_turn(bench: Bench) -> None:
    handle = bench.condition(default=1)
    bench.conditional(handle, WHILE)  # its body is empty
    spare = ok(cuda.cuCtxCreate(None, 0, 0))
    word = ok(cuda.cuMemAlloc(4))
    ok(cuda.cuCtxPopCurrent())
    ok(cuda.cuGraphLaunch(bench.instantiated(), bench.stream))
    ok(cuda.cuCtxPushCurrent(spare))
    ok(cuda.cuMemsetD32(word, 5, 1))
    back = np.zeros(1, dtype=np.uint32)
    ok(cuda.cuMemcpyDtoH(back, word, 4))
    assert back[0] == 5
    ok(cuda.cuCtxDestroy(spare))
    assert cuda.cuStreamQuery(bench.stream) == (R.CUDA_ERROR_NOT_READY,)
    ok(cuda.cuCtxDestroy(bench.context))


def test_a_fault_in_a_body_is_the_contexts(bench: Bench) -> None:
    handle = bench.condition(default=1)
    (body,) = bench.conditional(handle, WHILE)
    bench.kernel(body, b"add", (8, 1), ADDRESS_AND_VALUE)
    ok(cuda.cuGraphLaunch(bench.instantiated(), bench.stream))
    assert cuda.cuStreamSynchronize(bench.stream) == (R.CUDA_ERROR_ILLEGAL_ADDRESS,)


def test_a_handle_of_no_executable_graph_ends_the_kernel(bench: Bench) -> None:
    bench.choose(bench.graph, bench.condition(), 1)
    ok(cuda.cuGraphLaunch(bench.instantiated(), bench.stream))
    assert cuda.cuStreamSynchronize(bench.stream) == (R.CUDA_ERROR_LAUNCH_FAILED,)
    assert "cudaGraphSetConditional" in last_error()


def test_what_a_body_can_do_no_more_is_a_fault(bench: Bench) -> None:
    handle = bench.condition(default=1)
    (body,) = bench.conditional(handle, WHILE)
    memory = ok(cuda.cuMemAlloc(4))
    fill = cuda.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = memory, 3, 4, 1, 1
    first = bench.add(body, 0, 1)
    ok(cuda.cuGraphAddMemsetNode(body, [first], 1, fill, bench.context))
    executable = bench.instantiated()
    ok(cuda.cuMemFree(memory))
    ok(cuda.cuGraphLaunch(executable, bench.stream))
    assert cuda.cuStreamSynchronize(bench.stream) == (R.CUDA_ERROR_LAUNCH_FAILED,)
    assert "the body of a conditional node" in last_error()


def test_bodies_have_only_what_the_device_does(bench: Bench) -> None:
    handle, words = bench.condition(default=1), np.zeros(1, dtype=np.uint32)
    (body,) = bench.conditional(handle, IF)
    event = ok(cuda.cuEventCreate(0))
    copy = cuda.CUDA_MEMCPY3D()
    copy.dstMemoryType, copy.srcMemoryType = (
        cuda.CUmemorytype.CU_MEMORYTYPE_HOST,
        cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE,
    )
    copy.dstHost, copy.srcDevice = words.ctypes.data, bench.words
    copy.WidthInBytes, copy.Height, copy.Depth = 4, 1, 1
    for node in (
        cuda.cuGraphAddEventRecordNode(body, None, 0, event),
        cuda.cuGraphAddEventWaitNode(body, None, 0, event),
        cuda.cuGraphAddMemcpyNode(body, None, 0, copy, bench.context),
    ):
        refused = cuda.CUDA_GRAPH_INSTANTIATE_PARAMS()
        assert cuda.cuGraphInstantiateWithParams(bench.graph, refused)[0] == R.CUDA_ERROR_NOT_SUPPORTED
        assert "body of a conditional node" in last_error()
        assert int(refused.hErrNode_out) == int(ok(node))
        ok(cuda.cuGraphDestroyNode(node[1]))
    bench.instantiated()


def test_handles_and_bodies_that_are_refused(bench: Bench) -> None:
    assert cuda.cuGraphConditionalHandleCreate(bench.graph, bench.context, 0, 2)[0] == R.CUDA_ERROR_INVALID_VALUE
    other = ok(cuda.cuGraphCreate(0))
    description = cuda.CUgraphNodeParams()
    description.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    for handle, kind, size in (
        (bench.condition(graph=other), IF, 1),
        (12, IF, 1),
        (bench.condition(), IF, 3),
        (bench.condition(), IF, 0),
        (bench.condition(), WHILE, 2),
        (bench.condition(), SWITCH, 0),
    ):
        description.conditional.handle, description.conditional.size = cuda.CUgraphConditionalHandle(handle), size
        description.conditional.type = kind
        assert cuda.cuGraphAddNode(bench.graph, None, None, 0, description) == (R.CUDA_ERROR_INVALID_VALUE, None)


def test_programs_of_nested_branches_do_what_they_say(bench: Bench) -> None:
    drawn = random.Random(7)

    def program(depth: int) -> list[Any]:
        """Return steps: (place, what is added), or (value, kind, bodies), each after the one before."""
        steps: list[Any] = []
        for _ in range(drawn.randint(1, 4)):
            if depth < 3 and drawn.random() < 0.5:
                kind, most = drawn.choice(((IF, 2), (SWITCH, 3)))
                bodies = [program(depth + 1) for _ in range(drawn.randint(1, most))]
                steps.append((drawn.randint(0, 3), kind, bodies))
            else:
                steps.append((drawn.randint(0, 15), drawn.randint(1, 9)))
        return steps

    def build(graph: Any, steps: list[Any]) -> None:
        last: tuple[Any, ...] = ()
        for step in steps:
            if len(step) == 2:
                last = (bench.kernel(graph, b"add", (bench.words + 4 * step[0], step[1]), ADDRESS_AND_VALUE, last),)
                continue
            value, kind, bodies = step
            chosen = bench.kernel(graph, b"choose", (handle := bench.condition(), value), HANDLE_AND_VALUE, last)
            for body, inner in zip(
                bench.conditional(handle, kind, len(bodies), (chosen,), graph), bodies, strict=True
            ):
                build(body, inner)
            nodes, count = ok(cuda.cuGraphGetNodes(graph, 64))
            last = (nodes[count - 1],)

    def expect(words: list[int], steps: list[Any]) -> None:
        for step in steps:
            if len(step) == 2:
                words[step[0]] += step[1]
                continue
            value, kind, bodies = step
            index = value if kind is SWITCH else int(not value)
            if index < len(bodies):
                expect(words, bodies[index])

    for _ in range(5):
        bench.graph, steps, words = ok(cuda.cuGraphCreate(0)), program(0), [0] * 16
        build(bench.graph, steps)
        expect(words, steps)
        bench.put()
        bench.run()
        assert bench.read(16) == words, steps


def test_linked_inputs_that_both_set_conditions(bench: Bench) -> None:
    state = ok(cuda.cuLinkCreate(0, [], []))
    other = (
        PTX.replace(b".entry choose", b".entry chosen").replace(b"count_down", b"counted").replace(b"add(", b"more(")
    )
    for arguments in (PTX, other):
        kind = cuda.CUjitInputType.CU_JIT_INPUT_PTX
        ok(cuda.cuLinkAddData(state, kind, arguments, len(arguments), b"input", 0, [], []))
    address, _ = ok(cuda.cuLinkComplete(state))
    bench.module = ok(cuda.cuModuleLoadData(address))
    handle = bench.condition()
    (body,) = bench.conditional(handle, IF, 1, (bench.kernel(bench.graph, b"chosen", (handle, 1), HANDLE_AND_VALUE),))
    bench.add(body, 0, 1)
    bench.run()
    assert bench.read(1) == [1]
    ok(cuda.cuLinkDestroy(state))
