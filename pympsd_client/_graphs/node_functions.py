"""Functions that add nodes and get or set what they do (CUDA driver API, Graph Management)."""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

from attrs import evolve

from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.bindings import cuuint64_t
from pympsd_client._arguments.copy_structs import Copy3D, copy_bytes
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.launch_attributes import COOPERATIVE, VALUE_BYTES
from pympsd_client._arguments.values import AttributeValue, read_value
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import parameters
from pympsd_client._graphs.graph import Node, mint
from pympsd_client._graphs.parameters import CHILD_CLONED
from pympsd_client._graphs.structure import dependency_map
from pympsd_client._graphs.work import (
    AllocateWork,
    BatchWork,
    ChildWork,
    ConditionalHandle,
    ConditionalWork,
    CopyWork,
    EmptyWork,
    FillWork,
    FreeWork,
    HostWork,
    KernelWork,
    RecordWork,
    WaitWork,
    inner_graphs,
)
from pympsd_client._objects.context import context_of, current
from pympsd_client._objects.pools.graph_memory import usage_of
from pympsd_client._objects.process import process

_Work = TypeVar("_Work")
_ASSIGN_DEFAULT = 1
_BATCH = "CUDA_BATCH_MEM_OP_NODE_PARAMS"
_USED_HIGH, _RESERVED_HIGH = 1, 3


def _add(graph: int, after: Any, count: int, work: Any, data: Any = None) -> int:
    node = graphs.find(graph).add(work, dependency_map(after, data, count))
    for inner in inner_graphs(work):
        inner.of = node
    return node.handle


def _ready(graph: int, after: Any, count: int, data: Any = None) -> None:
    """Raise for a graph or dependencies that are wrong, before anything is made."""
    found = graphs.find(graph)
    for node in dependency_map(after, data, count):
        if node.graph is not found:
            raise invalid_value(f"node {node.handle:#x} is of another graph")


def add_kernel(graph: int, after: Any, count: int, given: Any) -> int:
    """Add a launch; parameters as cuLaunchKernel takes them at an address. INVALID_VALUE, INVALID_HANDLE."""
    return _add(graph, after, count, parameters.kernel_at(structs.address_of(given, "CUDA_KERNEL_NODE_PARAMS")))


def add_copy(graph: int, after: Any, count: int, copy: Copy3D | None, context: int) -> int:
    """Add a copy of rows and slices; pageable host memory is read and written when the graph runs."""
    return _add(graph, after, count, parameters.checked_copy(_described(copy), context))


def _described(copy: Copy3D | None) -> Copy3D:
    if copy is None:
        raise invalid_value("the description of the copy is NULL")
    return copy


def add_fill(graph: int, after: Any, count: int, given: Any, context: int) -> int:
    """Add a fill of device memory by elements of 1, 2 or 4 bytes."""
    address = structs.address_of(given, "CUDA_MEMSET_NODE_PARAMS")
    return _add(graph, after, count, parameters.fill_at(address, context))


def add_batch(graph: int, after: Any, count: int, given: Any) -> int:
    """Add waits for words and writes of them, in order; NOT_SUPPORTED for other memory operations."""
    return _add(graph, after, count, parameters.batch_at(structs.address_of(given, _BATCH)))


def add_host(graph: int, after: Any, count: int, given: Any) -> int:
    """Add a function of the program, which makes no CUDA calls."""
    return _add(graph, after, count, parameters.host_at(structs.address_of(given, "CUDA_HOST_NODE_PARAMS")))


def add_child(graph: int, after: Any, count: int, child: int) -> int:
    """Add a copy of a graph as one node."""
    _ready(graph, after, count)
    return _add(graph, after, count, ChildWork(parameters.child_of(graphs.find(graph), child, CHILD_CLONED)))


def add_empty(graph: int, after: Any, count: int) -> int:
    """Add a node that does nothing: it joins others."""
    return _add(graph, after, count, EmptyWork())


def add_allocation(graph: int, after: Any, count: int, given: Any) -> int:
    """Add an allocation of device memory, whose address the parameters get; it is the same at every launch."""
    address = structs.address_of(given, "CUDA_MEM_ALLOC_NODE_PARAMS")
    _ready(graph, after, count)
    return _add(graph, after, count, parameters.allocation_at(address))


def add_free(graph: int, after: Any, count: int, address: int) -> int:
    """Add the end of the use of memory of a graph; INVALID_VALUE for any other."""
    return _add(graph, after, count, parameters.free_work(graphs.find(graph), address))


def add_record(graph: int, after: Any, count: int, event: int) -> int:
    """Add the recording of an event."""
    return _add(graph, after, count, RecordWork(parameters.known_event(event)))


def add_wait(graph: int, after: Any, count: int, event: int) -> int:
    """Add a wait for an event."""
    return _add(graph, after, count, WaitWork(parameters.known_event(event)))


def add_any(graph: int, after: Any, data: Any, count: int, given: Any) -> int:
    """Add a node of the type that its parameters name; NOT_SUPPORTED for types that are not there."""
    address = structs.address_of(given, "CUgraphNodeParams")
    _ready(graph, after, count, data)
    return _add(graph, after, count, parameters.any_at(graphs.find(graph), address), data)


def create_condition(graph: int, context: int, default: int, flags: int) -> int:
    """Return a handle whose value conditional nodes of a graph depend on: the default, where flags say so, else 0."""
    if flags & ~_ASSIGN_DEFAULT:
        raise invalid_value(f"flags are 0 or CU_GRAPH_COND_ASSIGN_DEFAULT (1), not {flags}")
    its_context = context_of(context) if context else current()
    handle = mint()
    made = ConditionalHandle(handle, graphs.find(graph), default, bool(flags), its_context)
    parameters.conditions[handle] = made
    return handle


# --- the memory of graphs


def memory_attribute(device: int, attribute: int) -> AttributeValue:
    """Return an attribute of a device's graph memory, in bytes; INVALID_VALUE for an unknown one."""
    usage = usage_of(process.device(device).number)
    if attribute not in range(4):
        raise invalid_value(f"there is no attribute {attribute} of graph memory")
    return AttributeValue(
        (usage.current, usage.used_high, usage.current, usage.reserved_high)[attribute], "Q", cuuint64_t
    )


def set_memory_attribute(device: int, attribute: int, value: Any) -> None:
    """Set a watermark of a device's graph memory to what is in use; the value is 0, else INVALID_VALUE."""
    usage = usage_of(process.device(device).number)
    if attribute not in (_USED_HIGH, _RESERVED_HIGH) or read_value(value, "Q"):
        raise invalid_value("only the watermarks of graph memory can be set, and only to 0")
    if attribute == _USED_HIGH:
        usage.used_high = usage.current
    else:
        usage.reserved_high = usage.current


def trim_memory(device: int) -> None:
    """Give unused graph memory back to the device: none is, for every node keeps its own."""
    process.device(device)


# --- what nodes do


def work_of(handle: int, kind: type[_Work]) -> _Work:
    """Return the work of a node of a type; raise INVALID_VALUE for another."""
    work = graphs.find_node(handle).work
    if not isinstance(work, kind):
        raise invalid_value(f"node {handle:#x} is a {work.type.name} node")
    return work


def _set(handle: int, work: Any) -> None:
    work_of(handle, type(work))
    graphs.find_node(handle).work = work


def kernel_parameters(handle: int) -> bytes:
    """Return a kernel node's parameters; what they point to is valid until they are set, or the node destroyed."""
    return parameters.kernel_bytes(work_of(handle, KernelWork))


def kernel_work(given: Any, before: KernelWork) -> KernelWork:
    """Return the work of given kernel parameters, with the launch attributes of the work before."""
    work = parameters.kernel_at(structs.address_of(given, "CUDA_KERNEL_NODE_PARAMS"))
    return evolve(work, cooperative=before.cooperative, attributes=dict(before.attributes))


def set_kernel(handle: int, given: Any) -> None:
    """Set a kernel node's parameters; its launch attributes stay."""
    _set(handle, kernel_work(given, work_of(handle, KernelWork)))


def kernel_attribute(handle: int, attribute: int) -> bytes:
    """Return a launch attribute of a kernel node, zero if it was not set."""
    work = work_of(handle, KernelWork)
    given = int(work.cooperative).to_bytes(4, "little") if attribute == COOPERATIVE else b""
    return work.attributes.get(attribute, given).ljust(VALUE_BYTES, b"\0")


def set_kernel_attribute(handle: int, attribute: int, value: Any) -> None:
    """Set a launch attribute of a kernel node: COOPERATIVE, or a hint; NOT_SUPPORTED for others."""
    work = work_of(handle, KernelWork)
    address = structs.address_of(value, "CUkernelNodeAttrValue")
    data = ctypes.string_at(address, VALUE_BYTES)
    _set(handle, parameters.with_attribute(work, attribute, data))


def copy_kernel_attributes(destination: int, source: int) -> None:
    """Set the launch attributes of a kernel node to those of another."""
    given, work = work_of(source, KernelWork), work_of(destination, KernelWork)
    _set(destination, evolve(work, cooperative=given.cooperative, attributes=dict(given.attributes)))


def copy_parameters(handle: int) -> bytes:
    """Return a copy node's parameters."""
    return copy_bytes(work_of(handle, CopyWork).copy)


def set_copy(handle: int, copy: Copy3D | None) -> None:
    """Set a copy node's parameters; its context stays."""
    context = work_of(handle, CopyWork).context
    _set(handle, parameters.checked_copy(_described(copy), context.handle))


def fill_parameters(handle: int) -> bytes:
    """Return a fill node's parameters."""
    return parameters.fill_bytes(work_of(handle, FillWork))


def set_fill(handle: int, given: Any) -> None:
    """Set a fill node's parameters; its context stays."""
    context = work_of(handle, FillWork).context
    _set(handle, parameters.fill_at(structs.address_of(given, "CUDA_MEMSET_NODE_PARAMS"), context.handle))


def batch_parameters(handle: int) -> bytes:
    """Return the parameters of memory operations; their array is valid until they are set, or the node destroyed."""
    return parameters.batch_bytes(work_of(handle, BatchWork))


def set_batch(handle: int, given: Any) -> None:
    """Set the parameters of memory operations."""
    _set(handle, parameters.batch_at(structs.address_of(given, _BATCH)))


def allocation_parameters(handle: int) -> bytes:
    """Return an allocation node's parameters, with the address of the memory."""
    return parameters.allocation_bytes(work_of(handle, AllocateWork))


def freed_address(handle: int) -> int:
    """Return the address that a free node frees."""
    return work_of(handle, FreeWork).address


def host_parameters(handle: int) -> bytes:
    """Return a host node's parameters."""
    return parameters.host_bytes(work_of(handle, HostWork))


def set_host(handle: int, given: Any) -> None:
    """Set a host node's parameters."""
    _set(handle, parameters.host_at(structs.address_of(given, "CUDA_HOST_NODE_PARAMS")))


def recorded_event(handle: int) -> int:
    """Return the event that a node records."""
    return work_of(handle, RecordWork).event


def set_recorded_event(handle: int, event: int) -> None:
    """Set the event that a node records."""
    _set(handle, RecordWork(parameters.known_event(event)))


def awaited_event(handle: int) -> int:
    """Return the event that a node waits for."""
    return work_of(handle, WaitWork).event


def set_awaited_event(handle: int, event: int) -> None:
    """Set the event that a node waits for."""
    _set(handle, WaitWork(parameters.known_event(event)))


def any_parameters(handle: int) -> bytes:
    """Return a node's parameters, whatever its type."""
    return parameters.any_bytes(graphs.find_node(handle).work)


def changed_work(node: Node, given: Any) -> Any:
    """Return the work of given parameters for a node; INVALID_VALUE for those of another type, or of its graphs."""
    address = structs.address_of(given, "CUgraphNodeParams")
    kind = ctypes.c_int32.from_address(address).value
    owns = isinstance(node.work, ChildWork | ConditionalWork | AllocateWork | FreeWork)
    if kind != node.work.type or owns:
        raise invalid_value(f"parameters of a node of type {kind} cannot be set for a {node.work.type.name} node")
    work = parameters.any_at(node.graph, address)
    if isinstance(work, KernelWork):
        return evolve(work, cooperative=node.work.cooperative, attributes=dict(node.work.attributes))
    return work


def set_any(handle: int, given: Any) -> None:
    """Set a node's parameters, which are of its type."""
    node = graphs.find_node(handle)
    node.work = changed_work(node, given)
