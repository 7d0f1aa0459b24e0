"""Functions that add nodes and get or set their work (CUDA driver API, Graph Management).

Parameters come as the API's structures (an object of cuda.bindings, or an address); `parameters` reads them into
work and writes them back. Everything is checked before a node is added or changed, so a refused call changes
nothing.
"""

import ctypes
from typing import Any, TypeVar

from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.bindings import cuuint64_t
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.launch_attributes import COOPERATIVE, VALUE_BYTES, check_of_node
from pympsd_client._arguments.values import AttributeValue, read_value
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import parameters
from pympsd_client._graphs import work as works
from pympsd_client._graphs.graph import Node, allocate_handle
from pympsd_client._graphs.parameters import CHILD_CLONED
from pympsd_client._graphs.structure import dependency_map
from pympsd_client._objects.context import context_of
from pympsd_client._objects.pools.graph_memory import usage_of
from pympsd_client._objects.process import process

_Work = TypeVar("_Work")
_ASSIGN_DEFAULT = 1
_USED_HIGH, _RESERVED_HIGH = 1, 3


def _add(graph: int, after: Any, count: int, work: Any, data: Any = None) -> int:
    node = graphs.find(graph).add(work, dependency_map(after, data, count))
    for inner in works.inner_graphs(work):
        inner.owner = node
    return node.handle


def _ready(graph: int, after: Any, count: int, data: Any = None) -> None:
    """Raise INVALID_VALUE for a wrong graph or wrong dependencies, before anything is made."""
    target = graphs.find(graph)
    for node in dependency_map(after, data, count):
        if node.graph is not target:
            raise invalid_value(f"node {node.handle:#x} is of another graph")


def add(kind: str, graph: int, after: Any, count: int, params: Any = None, context: int = 0) -> int:
    """Add a node to a graph, after the nodes that it depends on, and return its handle.

    The parameters are the structure of the node's type, or an event. The checks and errors are those of the function
    that does the same work immediately. Raise INVALID_VALUE for dependencies of another graph.

    A kernel's parameters are the address of an array of pointers, as for cuLaunchKernel. Pageable host memory of a
    copy is read or written when the graph runs. A fill has elements of 1, 2 or 4 bytes. Memory operations wait for
    words or write them. A host function must not make CUDA calls. Allocated memory has the same address at every
    launch, which is stored in the structure. An empty node only joins branches.
    """
    if kind == "MEM_ALLOC":
        _ready(graph, after, count)
    return _add(graph, after, count, parameters.NODE_KINDS[kind].read(params, context))


def add_free(graph: int, after: Any, count: int, address: int) -> int:
    """Add a node that frees memory of a graph; raise INVALID_VALUE for any other memory."""
    return _add(graph, after, count, parameters.free_work(graphs.find(graph), address))


def add_child(graph: int, after: Any, count: int, child: int) -> int:
    """Add a copy of a graph as one node."""
    _ready(graph, after, count)
    return _add(graph, after, count, works.ChildWork(parameters.child_of(graphs.find(graph), child, CHILD_CLONED)))


def add_any(graph: int, after: Any, data: Any, count: int, params: Any) -> int:
    """Add a node of the type in its parameters; raise NOT_SUPPORTED for types that pympsd does not have."""
    address = structs.address_of(params, "CUgraphNodeParams")
    _ready(graph, after, count, data)
    return _add(graph, after, count, parameters.any_at(graphs.find(graph), address), data)


def create_condition(graph: int, context: int, default: int, flags: int) -> int:
    """Return a new handle whose value decides which bodies conditional nodes of a graph execute.

    With CU_GRAPH_COND_ASSIGN_DEFAULT each launch begins with the default value.
    """
    if flags & ~_ASSIGN_DEFAULT:
        raise invalid_value(f"flags must be 0 or CU_GRAPH_COND_ASSIGN_DEFAULT (1), not {flags}")
    its_context = context_of(context)
    handle = allocate_handle()
    condition = works.ConditionalHandle(handle, graphs.find(graph), default, bool(flags), its_context)
    parameters.conditions[handle] = condition
    return handle


# --- the memory of graphs


def memory_attribute(device: int, attribute: int) -> AttributeValue:
    """Return an attribute of a device's graph memory, in bytes; raise INVALID_VALUE for an unknown one."""
    usage = usage_of(process.device(device).number)
    if attribute not in range(4):
        raise invalid_value(f"there is no attribute {attribute} of graph memory")
    return AttributeValue(
        (usage.current, usage.used_high, usage.current, usage.reserved_high)[attribute], "Q", cuuint64_t
    )


def set_memory_attribute(device: int, attribute: int, value: Any) -> None:
    """Reset a watermark of a device's graph memory to the bytes in use; raise INVALID_VALUE for a value except 0."""
    usage = usage_of(process.device(device).number)
    if attribute not in (_USED_HIGH, _RESERVED_HIGH) or read_value(value, "Q"):
        raise invalid_value("only the watermarks of graph memory can be set, and only to 0")
    if attribute == _USED_HIGH:
        usage.used_high = usage.current
    else:
        usage.reserved_high = usage.current


def trim_memory(device: int) -> None:
    """Do nothing: no graph memory is ever unused, because every node keeps its own."""
    process.device(device)


# --- what nodes do


def work_of(handle: int, kind: type[_Work]) -> _Work:
    """Return a node's work; raise INVALID_VALUE if it is not of this type."""
    work = graphs.find_node(handle).work
    if not isinstance(work, kind):
        raise invalid_value(f"node {handle:#x} is a {work.type.name} node")
    return work


def _set(handle: int, work: Any) -> None:
    work_of(handle, type(work))
    graphs.find_node(handle).work = work


def get_parameters(kind: str, handle: int) -> Any:
    """Return a node's parameters, its type's structure or an event; raise INVALID_VALUE for a node of another type.

    The structure's pointers are valid until the parameters are set or the node is destroyed.
    """
    node_kind = parameters.NODE_KINDS[kind]
    return node_kind.write(work_of(handle, node_kind.work))


def set_parameters(kind: str, handle: int, params: Any) -> None:
    """Set a node's parameters; raise INVALID_VALUE for a node of another type.

    A copy or a fill keeps its context, a kernel its launch attributes.
    """
    node_kind = parameters.NODE_KINDS[kind]
    before = work_of(handle, node_kind.work)
    context = before.context.handle if isinstance(before, works.CopyWork | works.FillWork) else 0
    graphs.find_node(handle).work = parameters.keep_attributes(node_kind.read(params, context), before)


def kernel_attribute(handle: int, attribute: int) -> bytes:
    """Return a launch attribute of a kernel node, all zero if it was not set."""
    work = work_of(handle, works.KernelWork)
    check_of_node(attribute)
    default = int(work.cooperative).to_bytes(4, "little") if attribute == COOPERATIVE else b""
    return work.attributes.get(attribute, default).ljust(VALUE_BYTES, b"\0")


def set_kernel_attribute(handle: int, attribute: int, value: Any) -> None:
    """Set a launch attribute of a kernel node: COOPERATIVE, or a hint; raise NOT_SUPPORTED for others."""
    work = work_of(handle, works.KernelWork)
    check_of_node(attribute)
    address = structs.address_of(value, "CUkernelNodeAttrValue")
    data = ctypes.string_at(address, VALUE_BYTES)
    _set(handle, parameters.set_attribute(work, attribute, data))


def copy_kernel_attributes(destination: int, source: int) -> None:
    """Set the launch attributes of a kernel node to those of another."""
    _set(
        destination,
        parameters.keep_attributes(work_of(destination, works.KernelWork), work_of(source, works.KernelWork)),
    )


def address_to_free(handle: int) -> int:
    """Return the address that a free node frees."""
    return work_of(handle, works.FreeWork).address


def read_any_parameters(handle: int) -> bytes:
    """Return a node's parameters as a CUgraphNodeParams."""
    return parameters.any_bytes(graphs.find_node(handle).work)


def change_work(node: Node, params: Any) -> Any:
    """Return the work for a node with new parameters.

    Raise INVALID_VALUE for parameters of another type, and for nodes that own graphs or memory.
    """
    address = structs.address_of(params, "CUgraphNodeParams")
    kind = ctypes.c_int32.from_address(address).value
    owns = isinstance(node.work, works.ChildWork | works.ConditionalWork | works.AllocateWork | works.FreeWork)
    if kind != node.work.type or owns:
        raise invalid_value(f"parameters of a node of type {kind} cannot be set for a {node.work.type.name} node")
    return parameters.keep_attributes(parameters.any_at(node.graph, address), node.work)


def set_any(handle: int, params: Any) -> None:
    """Set a node's parameters to those of a CUgraphNodeParams, which must be of the node's type."""
    node = graphs.find_node(handle)
    node.work = change_work(node, params)
