"""Functions on the structure of graphs, and user objects (CUDA driver API, Graph Management).

The query functions follow the API's convention for arrays. With a capacity of 0 they return only the number of
elements, otherwise as many elements as fit, padded with NULL, and their number.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pympsd_client._arguments import graph_structs
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import number
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import user_objects, work
from pympsd_client._graphs.graph import Edge, Node
from pympsd_client._graphs.work import NodeType


def create(flags: int) -> int:
    """Return a new empty graph; raise INVALID_VALUE if ``flags`` is not 0."""
    if flags:
        raise invalid_value(f"cuGraphCreate takes no flags: they must be 0, not {flags}")
    return graphs.new().handle


def destroy(handle: int) -> None:
    """Destroy a graph and its nodes, but not the executable graphs made from it.

    Raise INVALID_VALUE for a graph that a node owns.
    """
    graph = graphs.find(handle)
    if graph.owner is not None:
        raise invalid_value("the graph belongs to a node of another graph, and is destroyed with it")
    work.destroy(graph)


def clone(handle: int) -> int:
    """Return a copy of a graph and of all graphs in it."""
    return work.clone(graphs.find(handle)).handle


def find_in_clone(node: int, clone: int) -> int:
    """Return the copy of a node in a clone; raise INVALID_VALUE if it has none, or its copy was removed."""
    return graphs.find_in_clone(graphs.find_node(node), graphs.find(clone)).handle


def _pad_list(values: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """Return up to ``capacity`` elements, padded with 0, and their number; for 0 only the number of all elements."""
    if capacity == 0:
        return [], len(values)
    padded = list(values[:capacity])
    return padded + [0] * (capacity - len(padded)), len(padded)


def nodes(graph: int, capacity: int) -> tuple[list[int], int]:
    """Return up to ``numNodes`` nodes, padded with NULL, and their number; for 0 only the number."""
    return _pad_list([node.handle for node in graphs.find(graph).nodes.values()], capacity)


def root_nodes(graph: int, capacity: int) -> tuple[list[int], int]:
    """Return up to ``numRootNodes`` nodes without dependencies, and their number; for 0 only the number."""
    return _pad_list([node.handle for node in graphs.find(graph).roots()], capacity)


def _edge_lists(edges: Iterable[tuple[Sequence[int], Edge]], columns: int, capacity: int) -> tuple[Any, ...]:
    rows = [(*handles, graph_structs.edge_number(edge.from_port, edge.to_port, edge.kind)) for handles, edge in edges]
    lists = [_pad_list([row[column] for row in rows], capacity)[0] for column in range(columns + 1)]
    return (*lists, min(len(rows), capacity) if capacity else len(rows))


def edges(graph: int, capacity: int) -> tuple[Any, ...]:
    """Return up to ``numEdges`` edges as three lists (from, to, data), and their number; for 0 only the number."""
    handles = (((start.handle, end.handle), edge) for start, end, edge in graphs.find(graph).edges())
    return _edge_lists(handles, 2, capacity)


def dependencies(node: int, capacity: int) -> tuple[Any, ...]:
    """Return up to ``numDependencies`` nodes that a node depends on, the edges' data, and their number."""
    return _edge_lists(
        (((dependency.handle,), edge) for dependency, edge in graphs.find_node(node).dependencies.items()),
        1,
        capacity,
    )


def dependent_nodes(node: int, capacity: int) -> tuple[Any, ...]:
    """Return up to ``numDependentNodes`` nodes that depend on a node, the edges' data, and their number."""
    return _edge_lists(
        (((dependent.handle,), edge) for dependent, edge in graphs.find_node(node).dependents.items()), 1, capacity
    )


def edge_list(data: Any, starts: Sequence[Node]) -> list[Edge]:
    """Return the data of edges from some nodes; raise INVALID_VALUE for a port or type that a node does not have.

    An edge has type and ports 0, or is programmatic and comes from a kernel node.
    """
    edges = [Edge(*fields) for fields in graph_structs.edge_data(data, len(starts))]
    for start, edge in zip(starts, edges, strict=True):
        if edge != Edge() and not (edge.is_programmatic and isinstance(start.work, work.KernelWork)):
            raise invalid_value(
                f"an edge must have ports and type 0, not {edge.from_port, edge.to_port, edge.kind}, or be "
                "programmatic: from port PROGRAMMATIC (1) or LAUNCH_ORDER (2) of a kernel node, with type 1"
            )
    return edges


def dependency_map(handles: Any, data: Any, count: int) -> dict[Node, Edge]:
    """Return the nodes that a new node depends on, with the edges' data.

    Raise INVALID_VALUE if a node is given twice.
    """
    dependencies = graphs.find_nodes(graph_structs.handles(handles, count, "dependencies"))
    if len(set(dependencies)) != len(dependencies):
        raise invalid_value("a node occurs twice among the dependencies")
    return dict(zip(dependencies, edge_list(data, dependencies), strict=True))


def _triples(start: Any, end: Any, data: Any, count: int) -> list[tuple[Node, Node, Edge]]:
    starts = graphs.find_nodes(graph_structs.handles(start, count, "from"))
    ends = graphs.find_nodes(graph_structs.handles(end, count, "to"))
    return list(zip(starts, ends, edge_list(data, starts), strict=True))


def add_dependencies(graph: int, start: Any, end: Any, data: Any, count: int) -> None:
    """Add all edges, or none if one exists already or leads from a node to itself, which raises INVALID_VALUE."""
    graphs.find(graph).connect(_triples(start, end, data, count))


def remove_dependencies(graph: int, start: Any, end: Any, data: Any, count: int) -> None:
    """Remove all edges, or none if one does not exist, which raises INVALID_VALUE."""
    graphs.find(graph).disconnect(_triples(start, end, data, count))


def destroy_node(handle: int) -> None:
    """Remove a node and its edges from its graph."""
    node = graphs.find_node(handle)
    node.graph.remove(node)
    work.destroy_work(node.work)


def node_type(handle: int) -> int:
    """Return a node's CUgraphNodeType."""
    return int(graphs.find_node(handle).work.type)


def graph_id(handle: int) -> int:
    """Return a graph's id, unique in the process."""
    return graphs.find(handle).id


def local_id(handle: int) -> int:
    """Return a node's id, unique in its graph."""
    return graphs.find_node(handle).local_id


def tools_id(handle: int) -> int:
    """Return a node's id for tools: the graph's id in the upper, the node's in the lower 32 bits."""
    node = graphs.find_node(handle)
    return node.graph.id << 32 | node.local_id


def find_containing_graph(handle: int) -> int:
    """Return the graph that contains a node."""
    return graphs.find_node(handle).graph.handle


def child_graph(handle: int) -> int:
    """Return the graph of a child graph node, which the node continues to own."""
    node = graphs.find_node(handle)
    if node.work.type is not NodeType.GRAPH:
        raise invalid_value(f"node {handle:#x} is not a child graph node")
    return int(node.work.graph.handle)


# --- user objects


def create_user_object(data: HostMemory, destroy: Any, references: int, flags: int) -> int:
    """Return a new user object, whose last release calls ``destroy(ptr)``; ``flags`` must be NO_DESTRUCTOR_SYNC."""
    if flags != user_objects.NO_DESTRUCTOR_SYNC:
        raise invalid_value(f"the flags of a user object must be CU_USER_OBJECT_NO_DESTRUCTOR_SYNC (1), not {flags}")
    address = number(destroy)
    if not address or not references or references >= 1 << 31:
        raise invalid_value("a user object must have a destructor and at least 1 reference, an int")
    return user_objects.UserObject(data.address, address, references).handle


def retain_user_object(handle: int, count: int) -> None:
    """Add references to a user object."""
    user_objects.find(handle).retain(count)


def release_user_object(handle: int, count: int) -> None:
    """Release references to a user object; the last release calls its destructor."""
    user_objects.find(handle).release(count)


def retain(graph: int, handle: int, count: int, flags: int) -> None:
    """Add a graph's references to a user object; with CU_GRAPH_USER_OBJECT_MOVE they are taken from the caller."""
    if flags & ~user_objects.MOVE:
        raise invalid_value(f"flags must be 0 or CU_GRAPH_USER_OBJECT_MOVE (1), not {flags}")
    user_objects.retain(graphs.find(graph), user_objects.find(handle), count, bool(flags))


def release(graph: int, handle: int, count: int) -> None:
    """Release a graph's references to a user object."""
    user_objects.release(graphs.find(graph), user_objects.find(handle), count)
