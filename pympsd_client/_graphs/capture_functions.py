"""Functions of stream capture (CUDA driver API, Stream Management)."""

from typing import Any

from pympsd.vocabulary.results import Result
from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.graph_structs import Elements
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs.capture import ACTIVE, NONE, captures
from pympsd_client._graphs.graph import Edge, Graph, Node
from pympsd_client._graphs.structure import dependency_map
from pympsd_client._objects.stream import resolve

_ADD, _SET = 0, 1
_NOTHING = Elements([])


def begin(stream: int, mode: int) -> None:
    """Begin to capture a stream into a new graph.

    Raise ILLEGAL_STATE if the stream captures already, UNSUPPORTED for the legacy stream.
    """
    _begin(stream, mode, None, {})


def begin_to_graph(stream: int, graph: int, after: Any, data: Any, count: int, mode: int) -> None:
    """Begin to capture a stream into a graph; the first captured node depends on the given nodes."""
    target, nodes = graphs.find(graph), dependency_map(after, data, count)
    if any(node.graph is not target for node in nodes):
        raise invalid_value("a node is of another graph")
    _begin(stream, mode, target, nodes)


def _begin(stream: int, mode: int, graph: Graph | None, after: dict[Node, Edge]) -> None:
    place = resolve(stream)
    place[0].usable()
    captures.begin(place, mode, graph, after)


def end(stream: int) -> int:
    """End a capture in the stream in which it began, and return its graph. An invalid capture ends without a graph.

    Raise ILLEGAL_STATE if the stream does not capture; the other errors are in `Captures.end`.
    """
    return captures.end(resolve(stream)).handle


def is_capturing(stream: int) -> int:
    """Return a stream's CUstreamCaptureStatus.

    Raise IMPLICIT for the legacy stream while a stream that it waits for captures.
    """
    capture = captures.find(resolve(stream))
    return NONE if capture is None else capture.status


def info(stream: int) -> tuple[Any, ...]:
    """Return a stream's capture: status, id, graph, the nodes that the next one depends on, edges, node count."""
    place = resolve(stream)
    capture = captures.find(place)
    if capture is None or capture.status != ACTIVE:
        return NONE if capture is None else capture.status, 0, 0, _NOTHING, _NOTHING, 0
    after = capture.next[place]
    nodes = Elements([node.handle for node in after])
    edges = Elements([structs.edge_number(edge.from_port, edge.to_port, edge.kind) for edge in after.values()])
    capture.arrays[place] = nodes, edges  # kept, because C programs get pointers to them
    return capture.status, capture.id, capture.graph.handle, nodes, edges, len(nodes)


def info_without_edges(stream: int) -> tuple[Any, ...]:
    """Return a stream's capture as `info` does, without the edges; raise LOSSY_QUERY if an edge has data."""
    status, number, graph, nodes, edges, count = info(stream)
    if any(edges):
        raise CudaError(Result.ERROR_LOSSY_QUERY, "the edges have data; ask with the version that returns it")
    return status, number, graph, nodes, count


def change_dependencies(stream: int, after: Any, data: Any, count: int, flags: int) -> None:
    """Add to the nodes that the next captured node depends on, or replace them.

    Raise ILLEGAL_STATE if the stream does not capture, INVALID_VALUE for nodes of another graph.
    """

    def read() -> dict[Node, Edge]:
        if flags not in (_ADD, _SET):
            raise invalid_value(
                f"flags must be ADD (0) or SET (1) of CUstreamUpdateCaptureDependencies_flags, not {flags}"
            )
        return dependency_map(after, data, count)

    captures.change_dependencies(resolve(stream), read, flags == _SET)


def exchange_mode(mode: int) -> int:
    """Set the calling thread's capture mode and return the previous mode."""
    return captures.exchange_mode(mode)
