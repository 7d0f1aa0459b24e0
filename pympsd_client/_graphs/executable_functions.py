"""Functions on executable graphs: instantiation, launch, update (CUDA driver API, Graph Management).

Each takes the handles of the API and raises CudaError. A change of one node builds the new work as for a graph's
node, then checks that an executable graph takes that change (`update.check_work`), and only then replaces the
copy's work.
"""

from __future__ import annotations

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.copy_structs import Copy3D
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import node_functions, parameters
from pympsd_client._graphs.executable import AUTO_FREE, Executable, executables, find
from pympsd_client._graphs.graph import Graph, Node
from pympsd_client._graphs.items import Failed, NotOneContext, context_of_graph
from pympsd_client._graphs.update import Refusal, Verdict, check_work, pairs
from pympsd_client._graphs.work import (
    BatchWork,
    ChildWork,
    CopyWork,
    FillWork,
    HostWork,
    KernelWork,
    NodeType,
    RecordWork,
    WaitWork,
)
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import current

_UPLOAD, _DEVICE_LAUNCH, _USE_PRIORITY = 2, 4, 8
_FLAGS: Final = AUTO_FREE | _UPLOAD | _DEVICE_LAUNCH | _USE_PRIORITY
_MADE, _FAILED, _INVALID_STRUCTURE, _NOT_SUPPORTED, _SEVERAL_CONTEXTS = range(5)
"""CUgraphInstantiateResult."""
_DISABLED: Final = (NodeType.KERNEL, NodeType.MEMSET, NodeType.MEMCPY)
"""Types of nodes that can be disabled."""


class _NotInstantiated(Exception):
    def __init__(self, result: int, error: CudaError, node: Node | None = None) -> None:
        super().__init__(error.reason)
        self.result = result
        self.error = error
        self.node = node


def _instantiate(graph: Graph, flags: int) -> Executable:
    if flags & ~_FLAGS:
        raise _NotInstantiated(_FAILED, invalid_value(f"flags are CUgraphInstantiate_flags, not {flags:#x}"))
    if flags & _DEVICE_LAUNCH:
        reason = (
            "kernels cannot launch graphs here: instantiate without CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, and "
            "launch the graph from the host"
        )
        raise _NotInstantiated(_NOT_SUPPORTED, CudaError(Result.ERROR_NOT_SUPPORTED, reason))
    if graph.is_captured_into:
        reason = "a stream capture into the graph has not ended"
        raise _NotInstantiated(_FAILED, CudaError(Result.ERROR_ILLEGAL_STATE, reason))
    try:
        context = context_of_graph(graph, current)
        graph.in_order()
    except NotOneContext:
        reason = "the graph has nodes of several contexts; make a graph for each"
        raise _NotInstantiated(_SEVERAL_CONTEXTS, CudaError(Result.ERROR_NOT_SUPPORTED, reason)) from None
    except CudaError as error:
        raise _NotInstantiated(_INVALID_STRUCTURE, error) from None
    try:
        context.usable()
        return executables.add(Executable(graph, context, flags))
    except Failed as failed:
        result = _NOT_SUPPORTED if failed.error.code == Result.ERROR_NOT_SUPPORTED else _FAILED
        raise _NotInstantiated(result, failed.error, failed.node) from None
    except CudaError as error:
        raise _NotInstantiated(_FAILED, error) from None


def instantiate(graph: int, flags: int) -> int:
    """Return an executable graph made of a graph as it is now; INVALID_VALUE for a cycle, NOT_SUPPORTED."""
    try:
        return _instantiate(graphs.find(graph), flags).handle
    except _NotInstantiated as failed:
        raise failed.error from None


def instantiate_with_parameters(graph: int, parameters: Any) -> int:
    """Return an executable graph; the structure gets the result in detail, and the node that was refused."""
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
    """Launch an executable graph in stream order, after its earlier launches, and return at once."""
    find(executable).launch(stream)


def upload(executable: int, stream: int) -> None:
    """Prepare the first launch of an executable graph."""
    context, _ = streams.resolve(stream)
    context.usable()
    find(executable).prepare()


def destroy(executable: int) -> None:
    """Destroy an executable graph; what was launched runs to its end."""
    find(executable).destroy()


def flags(executable: int) -> int:
    """Return the flags that an executable graph was instantiated with, but for UPLOAD."""
    return find(executable).flags & ~_UPLOAD


def executable_id(executable: int) -> int:
    """Return an executable graph's id, unique in the process."""
    return find(executable).id


def update(executable: int, graph: int) -> bytes:
    """Take over the parameters of a graph of the same structure; GRAPH_EXEC_UPDATE_FAILURE, and nothing changes.

    The CUgraphExecUpdateResultInfo says what differs.
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


def set_kernel(executable: int, node: int, params: Any) -> None:
    """Change a kernel node of an executable graph; its context stays, else INVALID_VALUE."""
    _change(executable, node, KernelWork, lambda before: node_functions.kernel_work(params, before))


def set_copy(executable: int, node: int, copy: Copy3D | None, context: int) -> None:
    """Change a copy node of an executable graph; memory types and context stay, else INVALID_VALUE."""
    if copy is None:
        raise invalid_value("the description of the copy is NULL")
    _change(executable, node, CopyWork, lambda before: parameters.check_copy(copy, context))


def set_fill(executable: int, node: int, params: Any, context: int) -> None:
    """Change a fill node of an executable graph; of rows only address and value change, else INVALID_VALUE."""
    address = structs.address_of(params, "CUDA_MEMSET_NODE_PARAMS")
    _change(executable, node, FillWork, lambda before: parameters.fill_at(address, context))


def set_batch(executable: int, node: int, params: Any) -> None:
    """Change memory operations of an executable graph; their types and context stay, else INVALID_VALUE."""
    address = structs.address_of(params, "CUDA_BATCH_MEM_OP_NODE_PARAMS")
    _change(executable, node, BatchWork, lambda before: parameters.batch_at(address))


def set_host(executable: int, node: int, params: Any) -> None:
    """Change a host node of an executable graph."""
    address = structs.address_of(params, "CUDA_HOST_NODE_PARAMS")
    _change(executable, node, HostWork, lambda before: parameters.host_at(address))


def set_record_event(executable: int, node: int, event: int) -> None:
    """Change the event that a node of an executable graph records."""
    _change(executable, node, RecordWork, lambda before: RecordWork(parameters.require_event(event)))


def set_wait_event(executable: int, node: int, event: int) -> None:
    """Change the event that a node of an executable graph waits for."""
    _change(executable, node, WaitWork, lambda before: WaitWork(parameters.require_event(event)))


def set_child(executable: int, node: int, child: int) -> None:
    """Take over the parameters of a graph of the same structure in a child graph node; INVALID_VALUE otherwise."""
    target, copy = find(executable), find(executable).node(graphs.find_node(node))
    if not isinstance(copy.work, ChildWork):
        raise invalid_value(f"node {node:#x} is no child graph node")
    try:
        target.change_all(list(pairs(copy.work.graph, graphs.find(child))))
    except Refusal as refusal:
        raise invalid_value(f"the child graph is not of the same structure: {refusal.verdict.name}") from None


def set_any(executable: int, node: int, params: Any) -> None:
    """Change a node of an executable graph, with parameters of its type."""
    copy = find(executable).node(graphs.find_node(node))
    _change(executable, node, type(copy.work), lambda before: node_functions.change_work(copy, params))


def is_enabled(executable: int, node: int) -> int:
    """Return whether a kernel, fill or copy node of an executable graph does its work."""
    target = find(executable)
    return int(target.is_enabled(_can_be_disabled(target, node)))


def set_enabled(executable: int, node: int, enabled: int) -> None:
    """Have a kernel, fill or copy node of an executable graph do its work, or nothing."""
    target = find(executable)
    target.enable(_can_be_disabled(target, node), bool(enabled))


def _can_be_disabled(target: Executable, node: int) -> Node:
    copy = target.node(graphs.find_node(node))
    if copy.work.type not in _DISABLED:
        raise invalid_value(f"a {copy.work.type.name} node cannot be disabled; kernel, fill and copy nodes can")
    return copy
