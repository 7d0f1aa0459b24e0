"""The structure of graphs: nodes, edges, order, clones. Nothing in this module depends on the work of a node.

A node keeps its edges in both directions, in the order in which they were added. That order decides how
cuGraphExecUpdate pairs nodes, and in which order array queries return them. `graphs` and `nodes` have all graphs and
nodes by handle. Among the graphs are child graphs and the bodies of conditional nodes; ``owner`` is the node that
such a graph belongs to.

    graph -> nodes by handle -> node.dependents[other] is other.dependencies[node]: one Edge

All edges are checked before any is added or removed, so a refused call changes nothing. A cycle is found only when
the nodes are sorted (`Graph.sort`), as the API documents for instantiation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from attrs import define, field, frozen

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import find_by_handle

_FIRST_HANDLE: Final = 1 << 48
"""The first handle of a graph or node, above all handles in a command stream. It looks like a pointer in C."""
allocate_handle: Final = count(_FIRST_HANDLE, 16).__next__
"""Return a new handle, never used by another graph, node or executable graph of this process."""
_next_id: Final = count(1).__next__


PROGRAMMATIC: Final = 1
"""CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, for edges from a kernel's ports PROGRAMMATIC (1) and LAUNCH_ORDER (2)."""


@frozen
class Edge:
    """The data of an edge (CUgraphEdgeData): the ports at both nodes, and the kind of dependency."""

    from_port: int = 0
    to_port: int = 0
    kind: int = 0

    @property
    def is_programmatic(self) -> bool:
        """Whether the second kernel is allowed to begin before the first has ended. Here it never does."""
        return self.kind == PROGRAMMATIC and self.from_port in (1, 2) and not self.to_port


@define(eq=False)
class Node:
    """A node of a graph; ``work`` describes its work. Edges are kept in the order in which they were added."""

    handle: int
    graph: Graph
    work: Any
    local_id: int
    dependencies: dict[Node, Edge] = field(factory=dict, init=False)
    dependents: dict[Node, Edge] = field(factory=dict, init=False)


@define(eq=False)
class Graph:
    """A graph; ``owner`` is the node that has it as a child graph or a body, or None."""

    handle: int
    id: int
    owner: Node | None = None
    nodes: dict[int, Node] = field(factory=dict, init=False)
    """The nodes by handle, in the order in which they were added."""
    copies: dict[int, Node] = field(factory=dict, init=False)
    """In a clone, the nodes by the handles of the nodes from which they were cloned."""
    retained: dict[Any, int] = field(factory=dict, init=False)
    """The number of references to each user object."""
    is_captured_into: bool = field(default=False, init=False)
    """Whether a stream capture is adding nodes to the graph."""
    _local_ids: Iterator[int] = field(factory=lambda: count(1), init=False)

    def add(self, work: Any, dependencies: Mapping[Node, Edge]) -> Node:
        """Add a node that depends on others; raise INVALID_VALUE if one is of another graph."""
        for dependency in dependencies:
            self._check_own(dependency)
        node = Node(allocate_handle(), self, work, next(self._local_ids))
        self.nodes[node.handle] = node
        nodes[node.handle] = node
        for dependency, edge in dependencies.items():
            _connect(dependency, node, edge)
        return node

    def connect(self, edges: Sequence[tuple[Node, Node, Edge]]) -> None:
        """Add all edges or, on an error, none.

        Raise INVALID_VALUE for an edge that exists or is given twice, from a node to itself, or to a node of another
        graph. Only `sort` notices a cycle.
        """
        added = set()
        for start, end, _ in edges:
            self._check_own(start)
            self._check_own(end)
            if start is end:
                raise invalid_value("a node cannot depend on itself")
            if end in start.dependents or (start, end) in added:
                raise invalid_value(f"node {end.local_id} depends on node {start.local_id} already")
            added.add((start, end))
        for start, end, edge in edges:
            _connect(start, end, edge)

    def disconnect(self, edges: Sequence[tuple[Node, Node, Edge]]) -> None:
        """Remove all edges or, on an error, none; raise INVALID_VALUE if an edge does not exist or has other data."""
        removed = set()
        for start, end, edge in edges:
            self._check_own(start)
            self._check_own(end)
            if start.dependents.get(end) != edge or (start, end) in removed:
                raise invalid_value(f"node {end.local_id} has no such dependency on node {start.local_id}")
            removed.add((start, end))
        for start, end, _ in edges:
            del start.dependents[end], end.dependencies[start]

    def remove(self, node: Node) -> None:
        """Remove a node and its edges."""
        for neighbour in node.dependencies:
            del neighbour.dependents[node]
        for neighbour in node.dependents:
            del neighbour.dependencies[node]
        node.dependencies.clear()
        node.dependents.clear()
        self.nodes.pop(node.handle, None)
        nodes.pop(node.handle, None)

    def edges(self) -> Iterator[tuple[Node, Node, Edge]]:
        """Yield the edges, ordered by the nodes from which they come."""
        for node in self.nodes.values():
            for end, edge in node.dependents.items():
                yield node, end, edge

    def roots(self) -> Iterator[Node]:
        """Yield the nodes that do not depend on others."""
        return (node for node in self.nodes.values() if not node.dependencies)

    def sort(self) -> list[Node]:
        """Return the nodes, each after its dependencies, otherwise in the order in which they were added.

        Raise INVALID_VALUE if the graph has a cycle.
        """
        missing = {node: len(node.dependencies) for node in self.nodes.values()}
        ready = [node for node, missing_count in missing.items() if not missing_count]
        for node in ready:  # the list grows during the loop
            for end in node.dependents:
                missing[end] -= 1
                if not missing[end]:
                    ready.append(end)
        if len(ready) != len(self.nodes):
            raise invalid_value(f"the graph has a cycle among {len(self.nodes) - len(ready)} of its nodes")
        return ready

    def _check_own(self, node: Node) -> None:
        if node.graph is not self:
            raise invalid_value(f"node {node.handle:#x} is of another graph")


def _connect(start: Node, end: Node, edge: Edge) -> None:
    start.dependents[end] = edge
    end.dependencies[start] = edge


graphs: Final[dict[int, Graph]] = {}
"""The graphs of this process by handle, child graphs and bodies included."""
nodes: Final[dict[int, Node]] = {}
"""The nodes of all graphs by handle."""


def new(owner: Node | None = None) -> Graph:
    """Return a new empty graph."""
    graph = Graph(allocate_handle(), _next_id(), owner)
    graphs[graph.handle] = graph
    return graph


def find(handle: int) -> Graph:
    """Return the graph of a handle; raise INVALID_VALUE."""
    return find_by_handle(graphs, handle, "a graph of this process (destroyed, or never created)")


def find_node(handle: int) -> Node:
    """Return the node of a handle; raise INVALID_VALUE."""
    return find_by_handle(nodes, handle, "a node of a graph of this process (destroyed, perhaps)")


def find_nodes(handles: Iterable[int]) -> list[Node]:
    """Return the nodes of handles; raise INVALID_VALUE."""
    return [find_node(handle) for handle in handles]


def invalidate(graph: Graph) -> None:
    """Make a graph's handle, and those of its nodes, invalid."""
    graphs.pop(graph.handle, None)
    for handle in graph.nodes:
        nodes.pop(handle, None)


def clone(original: Graph, clone_work: Callable[[Node, Node], Any], owner: Node | None = None) -> Graph:
    """Return a copy of a graph; ``clone_work`` gets a node and its copy, and returns the copy's work."""
    graph = new(owner)
    for node in original.nodes.values():
        copy = graph.add(None, {})
        graph.copies[node.handle] = copy
        copy.work = clone_work(node, copy)
    for start, end, edge in original.edges():
        _connect(graph.copies[start.handle], graph.copies[end.handle], edge)
    return graph


def find_in_clone(node: Node, graph: Graph) -> Node:
    """Return the copy of a node in a clone; raise INVALID_VALUE if it has none, or its copy was removed."""
    copy = graph.copies.get(node.handle)
    if copy is None or copy.handle not in graph.nodes:
        raise invalid_value(f"node {node.handle:#x} has no copy in graph {graph.handle:#x}")
    return copy
