"""A graph as a DOT file (cuGraphDebugDotPrint)."""

from collections.abc import Iterator
from typing import Any

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs.graph import Graph, Node
from pympsd_client._graphs.work import FillWork, KernelWork, RecordWork, WaitWork, inner_graphs

_VERBOSE, _HANDLES = 1, 1 << 10


def print_to(handle: int, path: str, flags: int) -> None:
    """Write a graph as DOT to a file, named by bytes; raise OPERATING_SYSTEM. Other flags are ignored."""
    graph = graphs.find(handle)
    try:
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text_of(graph, bool(flags & (_VERBOSE | _HANDLES))))
    except OSError as error:
        raise CudaError(Result.ERROR_OPERATING_SYSTEM, f"{path}: {error.strerror}") from None


def text_of(graph: Graph, with_handles: bool = False) -> str:
    """Return a graph as DOT."""
    return "\n".join(["digraph dot {", *_lines(graph, with_handles, "  "), "}", ""])


def _lines(graph: Graph, with_handles: bool, indent: str) -> Iterator[str]:
    """Yield the lines of a graph as a subgraph in DOT, which contains the graphs within its nodes."""
    yield f"{indent}subgraph cluster_{graph.id} {{"
    deeper = indent + "  "
    yield f'{deeper}label="graph_{graph.id}" graph[style="dashed"];'
    for node in graph.nodes.values():
        lines = [str(node.local_id), _describe(node.work)]
        if with_handles:
            lines.append(f"handle: {node.handle:#x}")
        label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
        yield f'{deeper}"{_name(node)}" [shape="octagon" label="{label}"];'
        for inner in inner_graphs(node.work):
            yield from _lines(inner, with_handles, deeper)
    for start, end, _ in graph.edges():
        yield f'{deeper}"{_name(start)}" -> "{_name(end)}" [headlabel=0];'
    yield f"{indent}}}"


def _name(node: Node) -> str:
    return f"graph_{node.graph.id}_node_{node.local_id}"


def _describe(work: Any) -> str:
    name = str(work.type.name)
    if isinstance(work, KernelWork):
        grid, block = work.shape[:3], work.shape[3:6]
        return f"{name} {work.function.layout.name} <<<{grid}, {block}, {work.shape[6]}>>>"
    if isinstance(work, FillWork):
        return f"{name} {work.destination:#x} {work.value} {work.width}x{work.height}x{work.element_bytes}"
    return f"{name} {work.event:#x}" if isinstance(work, RecordWork | WaitWork) else name
