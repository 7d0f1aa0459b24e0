"""The structure of graphs: order, edges, clones, which changes an executable graph takes. No device is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import work as works
from pympsd_client._graphs.capture import Capture
from pympsd_client._graphs.division import divide
from pympsd_client._graphs.dot import text_of
from pympsd_client._graphs.executable_functions import Refusal, Verdict, pairs
from pympsd_client._graphs.graph import Edge, Graph, Node
from pympsd_client._graphs.items import Division
from pympsd_client._graphs.work import ChildWork, CopyWork, EmptyWork, RecordWork, WaitWork

Edges = list[tuple[int, int]]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, Edges]:
    """A number of nodes, and edges from lower to higher ones, in any order."""
    size = draw(st.integers(0, 8))
    possible = [(start, end) for end in range(size) for start in range(end)]
    edges = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    return size, edges


def build(size: int, edges: Edges, order: list[int] | None = None) -> tuple[Graph, list[Node]]:
    """Return a graph, and its nodes by number; ``order`` is the one in which they are added."""
    graph = graphs.new()
    by_number = {number: graph.add(EmptyWork(), {}) for number in order or range(size)}
    nodes = [by_number[number] for number in range(size)]
    graph.connect([(nodes[start], nodes[end], Edge()) for start, end in edges])
    return graph, nodes


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    return {(start.handle, end.handle) for start, end, _ in graph.edges()}


@given(shapes(), st.randoms(use_true_random=False))
def test_nodes_come_after_what_they_depend_on(shape: tuple[int, Edges], random: Any) -> None:
    size, edges = shape
    order = list(range(size))
    random.shuffle(order)
    graph, nodes = build(size, edges, order)
    place = {node: at for at, node in enumerate(graph.sort())}
    assert len(place) == size
    assert all(place[nodes[start]] < place[nodes[end]] for start, end in edges)
    assert {node.handle for node in graph.roots()} == {
        node.handle for number, node in enumerate(nodes) if not any(end == number for _, end in edges)
    }


@given(shapes(), st.data())
def test_a_cycle_has_no_order(shape: tuple[int, Edges], data: st.DataObject) -> None:
    size, edges = shape
    chain = [(at, at + 1) for at in range(size - 1)]
    graph, nodes = build(size, list(dict.fromkeys([*edges, *chain])))
    if size < 2:
        return
    last = data.draw(st.integers(1, size - 1))
    first = data.draw(st.integers(0, last - 1))
    graph.connect([(nodes[last], nodes[first], Edge())])
    with pytest.raises(CudaError, match="cycle") as caught:
        graph.sort()
    assert caught.value.code == Result.ERROR_INVALID_VALUE


@given(shapes())
def test_a_clone_is_the_same_with_nodes_of_its_own(shape: tuple[int, Edges]) -> None:
    graph, nodes = build(*shape)
    clone = works.clone(graph)
    assert not clone.nodes.keys() & graph.nodes.keys()
    copies = {node.handle: graphs.find_in_clone(node, clone).handle for node in nodes}
    assert edges_of(clone) == {(copies[start], copies[end]) for start, end in edges_of(graph)}
    before = edges_of(clone)
    for node in nodes:
        graph.remove(node)
    assert (len(clone.nodes), edges_of(clone)) == (shape[0], before)


@given(shapes())
def test_removing_edges_and_nodes_leaves_the_others(shape: tuple[int, Edges]) -> None:
    size, edges = shape
    graph, nodes = build(size, edges)
    if edges:
        start, end = edges[0]
        graph.disconnect([(nodes[start], nodes[end], Edge())])
        assert len(edges_of(graph)) == len(edges) - 1
        with pytest.raises(CudaError, match="no such dependency"):
            graph.disconnect([(nodes[start], nodes[end], Edge())])
        graph.connect([(nodes[start], nodes[end], Edge())])
    if nodes:
        graph.remove(nodes[0])
        assert len(edges_of(graph)) == sum(0 not in edge for edge in edges)
        with pytest.raises(CudaError):
            graphs.find_node(nodes[0].handle)


def test_edges_are_added_all_or_none() -> None:
    graph, (first, second, third) = build(3, [(0, 1)])
    _, (foreign_node,) = build(1, [])
    for wrong in ((first, second), (first, first), (first, foreign_node), (foreign_node, first)):
        with pytest.raises(CudaError) as caught:
            graph.connect([(second, third, Edge()), (*wrong, Edge())])
        assert caught.value.code == Result.ERROR_INVALID_VALUE
        assert edges_of(graph) == {(first.handle, second.handle)}
    with pytest.raises(CudaError, match="already"):
        graph.connect([(second, third, Edge()), (second, third, Edge())])


@given(shapes(), st.randoms(use_true_random=False))
def test_a_graph_of_the_same_edges_is_paired_whatever_the_order_of_its_nodes(
    shape: tuple[int, Edges], random: Any
) -> None:
    size, edges = shape
    chain = [(at, at + 1) for at in range(size - 1)]
    edges = list(dict.fromkeys([*chain, *edges]))
    order = list(range(size))
    random.shuffle(order)
    first, nodes = build(size, edges)
    second, others = build(size, edges, order)
    assert dict(pairs(first, second)) == dict(zip(nodes, others, strict=True))


def refusal(old: Graph, new: Graph) -> Refusal:
    with pytest.raises(Refusal) as caught:
        list(pairs(old, new))
    return caught.value


def test_what_an_update_refuses() -> None:
    chain, _ = build(3, [(0, 1), (1, 2)])
    assert refusal(chain, build(2, [(0, 1)])[0]).verdict is Verdict.TOPOLOGY_CHANGED
    fork, _ = build(3, [(0, 1), (0, 2)])
    assert refusal(chain, fork).verdict is Verdict.TOPOLOGY_CHANGED
    wider, nodes = build(3, [(0, 2), (1, 2)])
    refused = refusal(chain, wider)
    assert (refused.verdict, refused.node) == (Verdict.TOPOLOGY_CHANGED, nodes[2])
    other, nodes = build(3, [(0, 1), (1, 2)])
    nodes[1].work = RecordWork(1)
    refused = refusal(chain, other)
    assert (refused.verdict, refused.node) == (Verdict.NODE_TYPE_CHANGED, nodes[1])


def test_graphs_in_nodes_are_paired_too() -> None:
    old, (outer,) = build(1, [])
    outer.work = ChildWork(build(2, [(0, 1)])[0])
    new = works.clone(old)
    assert len(list(pairs(old, new))) == 3
    (copy,) = new.nodes.values()
    next(iter(copy.work.graph.nodes.values())).work = WaitWork(2)
    assert refusal(old, new).verdict is Verdict.NODE_TYPE_CHANGED


def test_destroying_a_graph_ends_the_handles_of_all_in_it() -> None:
    graph, (outer,) = build(1, [])
    inner, (node,) = build(1, [])
    outer.work = ChildWork(inner)
    works.destroy(graph)
    for handle in (graph.handle, inner.handle):
        with pytest.raises(CudaError, match="not a graph"):
            graphs.find(handle)
    for handle in (outer.handle, node.handle):
        with pytest.raises(CudaError, match="not a node"):
            graphs.find_node(handle)


def test_a_dot_file_has_every_node_and_edge() -> None:
    graph, _ = build(3, [(0, 1), (0, 2)])
    text = text_of(graph)
    assert text.startswith("digraph dot {")
    assert text.count("EMPTY") == 3
    assert text.count("->") == 2
    assert hex(next(iter(graph.nodes))) in text_of(graph, with_handles=True)


def sequence() -> tuple[Capture, Any, Any]:
    context: Any = object()
    origin, other = (context, 16), (context, 17)
    capture = Capture(graphs.new(), origin, 0, 1, False)
    capture.next[origin] = {}
    return capture, origin, other


def test_work_of_another_stream_must_be_joined() -> None:
    capture, origin, other = sequence()
    capture.add(origin, EmptyWork())
    capture.next[other] = dict(capture.next[origin])
    assert not capture.has_unjoined_work(), "a stream that did nothing"
    node = capture.add(other, EmptyWork())
    assert capture.has_unjoined_work()
    capture.next[origin][node] = Edge()
    assert not capture.has_unjoined_work()


def test_nodes_that_a_program_added_or_removed_itself_need_no_joining() -> None:
    capture, origin, _ = sequence()
    node = capture.add(origin, EmptyWork())
    capture.graph.add(EmptyWork(), {})
    capture.add(origin, EmptyWork())
    capture.graph.remove(node)
    assert not capture.has_unjoined_work()


def list_earlier(part: Division, node: Node) -> set[Node | None]:
    """Return the nodes of a part that a node comes after, directly or not."""
    waiting = [entry for entry in part.entries if entry.node is node]
    earlier: dict[int, None] = {}
    while waiting:
        earlier.update(dict.fromkeys(new := [index for index in waiting.pop().after if index not in earlier]))
        waiting += [part.entries[index] for index in new]
    return {part.entries[index].node for index in earlier}


@given(shapes(), st.data())
def test_parts_keep_every_edge(shape: tuple[int, Edges], data: st.DataObject) -> None:
    size, edges = shape
    graph, nodes = build(size, edges)
    for node in nodes:
        context = data.draw(st.sampled_from(["a", "b", "c", None]))
        node.work = CopyWork(Any, context) if context else EmptyWork()  # type: ignore[arg-type]
    parts = divide(graph, lambda: "other")  # type: ignore[arg-type, return-value]
    place = {entry.node: part for part in parts for entry in part.entries if entry.node is not None}
    with_context = [node for node in nodes if isinstance(node.work, CopyWork)]
    assert sorted(place, key=nodes.index) == with_context
    assert all(place[node].context == node.work.context for node in with_context)
    assert [part.stage for part in parts] == sorted(part.stage for part in parts)
    if not with_context:
        assert [(part.context, part.stage) for part in parts] == [("other", 0)]
    for end in with_context:
        waiting, seen = list(end.dependencies), set()
        while waiting:  # through nodes of no part
            start = waiting.pop()
            seen.add(start)
            if start not in place:
                waiting += [node for node in start.dependencies if node not in seen]
                continue
            before, after = place[start], place[end]
            if before is after:
                assert start in list_earlier(after, end)
            elif before.context == after.context:
                assert before.stage < after.stage
            else:
                assert before.stage < after.stage
                assert before.context in after.waits_for


def test_a_chain_between_two_contexts_has_a_part_for_each_step() -> None:
    graph, nodes = build(6, [(0, 1), (1, 2), (2, 3), (0, 4), (4, 5)])
    for node, context in zip(nodes, "aabaab", strict=True):
        node.work = CopyWork(Any, context)  # type: ignore[arg-type]
    parts = divide(graph, lambda: "other")  # type: ignore[arg-type, return-value]
    actual = [
        (part.stage, part.context, [(nodes.index(entry.node), entry.after) for entry in part.entries if entry.node])
        for part in parts
    ]
    assert [(stage, context, sorted(entries)) for stage, context, entries in actual] == [
        (0, "a", [(0, ()), (1, (0,)), (4, (0,))]),
        (1, "b", [(2, ()), (5, ())]),
        (2, "a", [(3, ())]),
    ]
    assert [part.waits_for for part in parts] == [set(), {"a"}, {"b"}]
