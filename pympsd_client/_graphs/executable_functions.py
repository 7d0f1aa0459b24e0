"""Functions on executable graphs: instantiation, launch, update (CUDA driver API, Graph Management).

Each takes the handles of the API and raises CudaError. A change of one node builds the new work as for a graph's
node, then checks that an executable graph allows the change, and only then replaces the copy's work.

Two functions decide which changes an executable graph allows: `check_work` for the work of one node, `pairs` for a
whole graph (cuGraphExecUpdate).
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

from attrs import define, frozen

from pympsd.errors import CallError
from pympsd.vocabulary.results import Result
from pympsd_client._api.stream_memory import read
from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import node_functions, parameters
from pympsd_client._graphs import work as works
from pympsd_client._graphs.executable import AUTO_FREE, Executable, executables, find
from pympsd_client._graphs.graph import Graph, Node
from pympsd_client._graphs.items import Failed
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import current, require_context


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
    """An executable graph cannot be changed in this way.

    ``node`` is the node of the new graph that differs, ``from_node`` the start of its edge that differs.
    """

    verdict: Verdict
    node: Node | None = None
    from_node: Node | None = None


def check_work(old: Node, new: Node) -> None:
    """Raise Refusal unless a node of an executable graph can take over another node's work."""
    before, after = old.work, new.work
    if before.type is not after.type:
        raise Refusal(Verdict.NODE_TYPE_CHANGED, new)
    if isinstance(before, works.KernelWork):
        if before.context is not after.context:
            raise Refusal(Verdict.UNSUPPORTED_FUNCTION_CHANGE, new)
        if before.cooperative != after.cooperative:
            raise Refusal(Verdict.ATTRIBUTES_CHANGED, new)
    elif isinstance(before, works.CopyWork):
        kinds = [(work.copy.destination.memory_type, work.copy.source.memory_type) for work in (before, after)]
        if kinds[0] != kinds[1] or before.context is not after.context:
            raise Refusal(Verdict.PARAMETERS_CHANGED, new)
    elif isinstance(before, works.FillWork):
        sizes = [(work.element_bytes, work.width, work.height, work.pitch) for work in (before, after)]
        if before.context is not after.context or ((before.height > 1 or after.height > 1) and sizes[0] != sizes[1]):
            raise Refusal(Verdict.PARAMETERS_CHANGED, new)
    elif isinstance(before, works.BatchWork):
        operations = [[(part.waits, part.size) for part in map(read, work.operations)] for work in (before, after)]
        if before.context is not after.context or operations[0] != operations[1]:
            raise Refusal(Verdict.PARAMETERS_CHANGED, new)
    elif isinstance(before, works.ConditionalWork) and (before.kind, len(before.bodies)) != (
        after.kind,
        len(after.bodies),
    ):
        raise Refusal(Verdict.PARAMETERS_CHANGED, new)


def pairs(old: Graph, new: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield each node of a graph with its counterpart in another graph, also the nodes of graphs within nodes.

    Pairing begins at the nodes without dependents and follows edges in the order in which they were added, as
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
        for before, after in zip(works.inner_graphs(first.work), works.inner_graphs(second.work), strict=True):
            yield from pairs(before, after)


_UPLOAD, _DEVICE_LAUNCH, _USE_PRIORITY = 2, 4, 8
_FLAGS: Final = AUTO_FREE | _UPLOAD | _DEVICE_LAUNCH | _USE_PRIORITY
_MADE, _FAILED, _INVALID_STRUCTURE, _NOT_SUPPORTED = range(4)
"""Values of CUgraphInstantiateResult."""
_DISABLED: Final = (works.NodeType.KERNEL, works.NodeType.MEMSET, works.NodeType.MEMCPY)
"""The types of nodes that can be disabled."""


@define
class _NotInstantiated(Exception):
    """A graph cannot be instantiated; ``node`` is the node that is refused."""

    result: int
    """A CUgraphInstantiateResult."""
    error: CudaError
    node: Node | None = None


def _instantiate(graph: Graph, flags: int) -> Executable:
    """Return a new executable graph; raise _NotInstantiated if the graph or the flags do not allow one."""
    if flags & ~_FLAGS:
        raise _NotInstantiated(_FAILED, invalid_value(f"flags must be CUgraphInstantiate_flags, not {flags:#x}"))
    if flags & _DEVICE_LAUNCH:
        reason = (
            "kernels cannot launch graphs here: instantiate without CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, and "
            "launch the graph from the host"
        )
        raise _NotInstantiated(_NOT_SUPPORTED, not_supported(reason))
    if graph.is_captured_into:
        reason = "a stream capture into the graph has not ended"
        raise _NotInstantiated(_FAILED, CudaError(Result.ERROR_ILLEGAL_STATE, reason))
    try:
        graph.sort()
    except CudaError as error:
        raise _NotInstantiated(_INVALID_STRUCTURE, error) from None
    try:
        return executables.add(Executable(graph, current, flags))
    except Failed as failed:
        result = _NOT_SUPPORTED if failed.error.code == Result.ERROR_NOT_SUPPORTED else _FAILED
        raise _NotInstantiated(result, failed.error, failed.node) from None
    except CudaError as error:
        raise _NotInstantiated(_FAILED, error) from None


def instantiate(graph: int, flags: int) -> int:
    """Return a new executable graph with a copy of a graph; raise INVALID_VALUE for a cycle, NOT_SUPPORTED."""
    require_context()
    if flags & _UPLOAD:
        raise invalid_value("CU_GRAPH_INSTANTIATE_FLAG_UPLOAD needs a stream: call cuGraphInstantiateWithParams")
    try:
        return _instantiate(graphs.find(graph), flags).handle
    except _NotInstantiated as failed:
        raise failed.error from None


def instantiate_with_parameters(graph: int, parameters: Any) -> int:
    """Return a new executable graph; a CUgraphInstantiateResult and the refused node are stored in the structure."""
    address = structs.address_of(parameters, "CUDA_GRAPH_INSTANTIATE_PARAMS")
    raw = structs.InstantiateParameters.from_address(address)
    source = graphs.find(graph)
    raw.hErrNode_out = 0
    try:
        executable = _instantiate(source, raw.flags)
    except _NotInstantiated as failed:
        raw.result_out = failed.result
        raw.hErrNode_out = failed.node.handle if failed.node is not None else 0
        raise failed.error from None
    raw.result_out = _MADE
    return executable.handle


def launch(executable: int, stream: int) -> None:
    """Launch an executable graph in stream order, after its earlier launches, and return immediately."""
    streams.resolve(stream)
    find(executable).launch(stream)


def upload(executable: int, stream: int) -> None:
    """Upload an executable graph, so that its first launch does not have to."""
    context, _ = streams.resolve(stream)
    context.usable()
    find(executable).prepare()


def destroy(executable: int) -> None:
    """Destroy an executable graph; queued launches are completed."""
    find(executable).destroy()


def flags(executable: int) -> int:
    """Return the flags with which an executable graph was instantiated, except UPLOAD."""
    return find(executable).flags & ~_UPLOAD


def executable_id(executable: int) -> int:
    """Return an executable graph's id, unique in the process."""
    return find(executable).id


def update(executable: int, graph: int) -> bytes:
    """Give the nodes of an executable graph the parameters of a graph's nodes.

    If the graphs differ in more than parameters, change nothing and raise GRAPH_EXEC_UPDATE_FAILURE; the
    CUgraphExecUpdateResultInfo names the difference.
    """
    target, source = find(executable), graphs.find(graph)
    try:
        target.change_all(list(pairs(target.graph, source)))
    except Refusal as refusal:
        info = _info(refusal.verdict, refusal.node, refusal.from_node)
        reason = f"the executable graph cannot be updated with this graph: {refusal.verdict.name}"
        raise CudaError(Result.ERROR_GRAPH_EXEC_UPDATE_FAILURE, reason, (info,)) from None
    return _info(Verdict.SUCCESS, None, None)


def _info(verdict: Verdict, node: Node | None, from_node: Node | None) -> bytes:
    handles = (0 if item is None else item.handle for item in (node, from_node))
    return bytes(structs.UpdateResult(verdict, *handles))


# --- single nodes


def _change(executable: int, handle: int, kind: type[Any], make: Any) -> None:
    target, node = find(executable), graphs.find_node(handle)
    copy = target.node(node)
    if not isinstance(copy.work, kind):
        raise invalid_value(f"node {handle:#x} is a {copy.work.type.name} node")
    work = make(copy.work)
    changed = Node(0, target.graph, work, 0)
    try:
        check_work(copy, changed)
    except Refusal as refusal:
        raise invalid_value(f"an executable graph cannot be changed in this way: {refusal.verdict.name}") from None
    target.change(copy, work)


def set_parameters(kind: str, executable: int, node: int, params: Any, context: int = 0) -> None:
    """Change a node's work in an executable graph from the next launch on. The original graph does not change.

    Raise INVALID_VALUE for a node of another type, and for an attempt to change what is fixed: the context of a
    kernel or of memory operations, a copy's types of memory, the extent of a 2D fill, the types of memory operations.
    """
    node_kind = parameters.NODE_KINDS[kind]
    _change(
        executable,
        node,
        node_kind.work,
        lambda before: parameters.keep_attributes(node_kind.read(params, context), before),
    )


def set_child(executable: int, node: int, child: int) -> None:
    """Give the nodes of a child graph node the parameters of another graph's nodes.

    Raise INVALID_VALUE if ``child`` does not have the same structure, or ``node`` is not a child graph node.
    """
    target, copy = find(executable), find(executable).node(graphs.find_node(node))
    if not isinstance(copy.work, works.ChildWork):
        raise invalid_value(f"node {node:#x} is not a child graph node")
    try:
        target.change_all(list(pairs(copy.work.graph, graphs.find(child))))
    except Refusal as refusal:
        raise invalid_value(f"the child graph does not have the same structure: {refusal.verdict.name}") from None


def set_any(executable: int, node: int, params: Any) -> None:
    """Change a node's work in an executable graph to that of a CUgraphNodeParams, which must be of its type."""
    copy = find(executable).node(graphs.find_node(node))
    _change(executable, node, type(copy.work), lambda before: node_functions.change_work(copy, params))


def is_enabled(executable: int, node: int) -> int:
    """Return 1 if a kernel, fill or copy node of an executable graph is enabled, else 0."""
    target = find(executable)
    return int(target.is_enabled(_find_switchable(target, node)))


def set_enabled(executable: int, node: int, enabled: int) -> None:
    """Enable a kernel, fill or copy node of an executable graph, or disable it so that it does nothing."""
    target = find(executable)
    target.enable(_find_switchable(target, node), bool(enabled))


def _find_switchable(target: Executable, node: int) -> Node:
    copy = target.node(graphs.find_node(node))
    if copy.work.type not in _DISABLED:
        raise invalid_value(f"a {copy.work.type.name} node cannot be disabled; kernel, fill and copy nodes can")
    return copy
