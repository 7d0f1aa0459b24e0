"""Which changes an executable graph takes: of one node's work, and of a whole graph (cuGraphExecUpdate)."""

from collections.abc import Iterator
from enum import IntEnum

from attrs import frozen

from pympsd.errors import CallError
from pympsd_client._api.stream_memory import read
from pympsd_client._graphs.graph import Graph, Node
from pympsd_client._graphs.work import BatchWork, ConditionalWork, CopyWork, FillWork, KernelWork, inner_graphs


class Verdict(IntEnum):
    """CUgraphExecUpdateResult."""

    SUCCESS = 0
    ERROR = 1
    TOPOLOGY_CHANGED = 2
    NODE_TYPE_CHANGED = 3
    FUNCTION_CHANGED = 4
    PARAMETERS_CHANGED = 5
    NOT_SUPPORTED = 6
    UNSUPPORTED_FUNCTION_CHANGE = 7
    ATTRIBUTES_CHANGED = 8


@frozen
class Refusal(CallError):
    """A change that cannot be made; ``node`` is of the new graph, ``from_node`` the start of a changed edge."""

    verdict: Verdict
    node: Node | None = None
    from_node: Node | None = None


def check_work(old: Node, new: Node) -> None:
    """Raise Refusal unless an executable graph's node can do the work of another instead."""
    before, after = old.work, new.work
    if before.type is not after.type:
        raise Refusal(Verdict.NODE_TYPE_CHANGED, new)
    if isinstance(before, KernelWork):
        if before.context is not after.context:
            raise Refusal(Verdict.UNSUPPORTED_FUNCTION_CHANGE, new)
        if before.cooperative != after.cooperative:
            raise Refusal(Verdict.ATTRIBUTES_CHANGED, new)
    elif isinstance(before, CopyWork):
        kinds = [(work.copy.destination.memory_type, work.copy.source.memory_type) for work in (before, after)]
        if kinds[0] != kinds[1] or before.context is not after.context:
            raise Refusal(Verdict.PARAMETERS_CHANGED, new)
    elif isinstance(before, FillWork):
        sizes = [(work.element_bytes, work.width, work.height, work.pitch) for work in (before, after)]
        if before.context is not after.context or ((before.height > 1 or after.height > 1) and sizes[0] != sizes[1]):
            raise Refusal(Verdict.PARAMETERS_CHANGED, new)
    elif isinstance(before, BatchWork):
        operations = [[(part.waits, part.size) for part in map(read, work.operations)] for work in (before, after)]
        if before.context is not after.context or operations[0] != operations[1]:
            raise Refusal(Verdict.PARAMETERS_CHANGED, new)
    elif isinstance(before, ConditionalWork) and (before.kind, len(before.bodies)) != (after.kind, len(after.bodies)):
        raise Refusal(Verdict.PARAMETERS_CHANGED, new)


def pairs(old: Graph, new: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield each node of a graph with its counterpart in another, those of graphs in nodes too.

    Nodes are paired from those that no other depends on, along edges in the order in which they were added, as
    cuGraphExecUpdate documents. Raise Refusal if the structures differ, or if a node cannot take over its
    counterpart's work.
    """
    if len(old.nodes) != len(new.nodes):
        raise Refusal(Verdict.TOPOLOGY_CHANGED)
    ends = [[node for node in graph.nodes.values() if not node.dependents] for graph in (old, new)]
    if len(ends[0]) != len(ends[1]):
        raise Refusal(Verdict.TOPOLOGY_CHANGED, ends[1][-1] if len(ends[1]) > len(ends[0]) else None)
    paired = dict(zip(*ends, strict=True))
    matched = set(ends[1])
    waiting = list(paired.items())
    while waiting:
        first, second = waiting.pop()
        if len(first.dependencies) != len(second.dependencies):
            raise Refusal(Verdict.TOPOLOGY_CHANGED, second)
        for before, after in zip(first.dependencies, second.dependencies, strict=True):
            if before not in paired and after not in matched:
                paired[before] = after
                matched.add(after)
                waiting.append((before, after))
            elif paired.get(before) is not after:
                raise Refusal(Verdict.TOPOLOGY_CHANGED, second, after)
    for first, second in paired.items():
        check_work(first, second)
        yield first, second
        for before, after in zip(inner_graphs(first.work), inner_graphs(second.work), strict=True):
            yield from pairs(before, after)
