"""Parameters of nodes: read from the driver API's structures into work, and written back.

Each type of node has a reader (``..._at``: from a structure in memory) and a writer (``..._bytes``). The readers make
the same checks as the functions that do the work immediately. The work keeps the arrays to which a written structure
points (parameters, operations, graphs); they are valid until the node is changed or destroyed.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final

from attrs import evolve, frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.graph_items import ConditionalKind
from pympsd.wire.records import MAX_CLUSTER
from pympsd_client._api import stream_memory
from pympsd_client._api.memory.pools import kind_of
from pympsd_client._api.memory.region_copy import regions
from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.copy_structs import Copy3D, copy_at, copy_bytes
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.launch_attributes import CLUSTER_DIMENSION, COOPERATIVE, HINTS, name_of, not_there
from pympsd_client._arguments.memory_structs import Location
from pympsd_client._arguments.values import InMemory
from pympsd_client._command_stream.kernel_parameters import flat
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import work as works
from pympsd_client._graphs.graph import Graph
from pympsd_client._objects import host_function
from pympsd_client._objects.code.launch import check_shape
from pympsd_client._objects.code.library import function_of
from pympsd_client._objects.code.occupancy import check_cluster, check_cooperative
from pympsd_client._objects.context import Context, context_on, current, require_context
from pympsd_client._objects.event import events
from pympsd_client._objects.memory import region_copy
from pympsd_client._objects.memory.allocations import check_fill, check_range
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.pools import graph_memory
from pympsd_client._objects.pools.pool import PoolKind
from pympsd_client._objects.process import process

_DEVICE: Final = 1
"""CU_MEM_LOCATION_TYPE_DEVICE."""
_MAX_ACCESSES: Final = 1 << 10


def allocation_at(address: int) -> works.AllocateWork:
    """Return the work of a CUDA_MEM_ALLOC_NODE_PARAMS in memory, and write the address of the new memory there.

    The memory is a device's, managed or the host's, as in a pool. Raise INVALID_VALUE, INVALID_DEVICE, NOT_SUPPORTED.
    """
    raw = structs.AllocationParameters.from_address(address)
    location = Location(raw.locationType, raw.locationId)
    kind, _ = kind_of(location, raw.allocType)
    if raw.handleTypes:
        reason = "the memory of a graph cannot be exported: handleTypes is CU_MEM_HANDLE_TYPE_NONE"
        raise not_supported(reason)
    context = context_on(process.device(location.id).ordinal) if location.type == _DEVICE else current()
    if raw.accessDescCount > _MAX_ACCESSES:
        raise invalid_value(f"{raw.accessDescCount} access descriptions")
    size = structs.ACCESS_BYTES * raw.accessDescCount
    accesses = ctypes.string_at(raw.accessDescs, size) if raw.accessDescs else b""
    for at in range(0, len(accesses), structs.ACCESS_BYTES):
        access_kind, number, _ = struct.unpack_from("=iii", accesses, at)
        if (access_kind, number) != (_DEVICE, context.device.number):
            raise not_supported("no other device can reach the memory of a graph")
    properties = ctypes.string_at(address, structs.AllocationParameters.accessDescs.offset)
    work = works.AllocateWork(graph_memory.allocate(raw.bytesize, context, kind), properties, accesses)
    raw.dptr = work.allocation.handle
    return work


def allocation_work(size: int, context: Context, kind: PoolKind) -> works.AllocateWork:
    """Return the work of an allocation from a pool in a capturing stream."""
    head = struct.pack("=iiii", kind.allocation_type, 0, kind.location.type, kind.location.id)
    properties = head.ljust(structs.AllocationParameters.accessDescs.offset, b"\0")
    return works.AllocateWork(graph_memory.allocate(size, context, kind), properties, b"")


def allocation_bytes(work: works.AllocateWork) -> bytes:
    """Return a CUDA_MEM_ALLOC_NODE_PARAMS."""
    count = len(work.accesses) // structs.ACCESS_BYTES
    return work.properties + struct.pack("=QQQQ", work.array, count, work.allocation.size, work.allocation.handle)


def free_work(graph: Graph, address: int) -> works.FreeWork:
    """Return the work of freeing memory of a graph.

    Raise INVALID_VALUE for any other memory, or if the graph has a node that frees it.
    """
    nodes = works.collect_nodes(graph).values()
    if any(isinstance(node.work, works.FreeWork) and node.work.address == address for node in nodes):
        raise invalid_value(f"the graph frees {address:#x} already")
    if not any(
        isinstance(node.work, works.AllocateWork) and node.work.allocation.handle == address
        for node in tuple(graphs.nodes.values())
    ):
        raise invalid_value(f"{address:#x} is not memory of an allocation node")
    return works.FreeWork(address)


CHILD_CLONED, CHILD_MOVED = 0, 1
"""The values of CUgraphChildGraphNodeOwnership."""
_ELEMENTS: Final = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF}
_BODIES: Final[dict[int, int]] = {ConditionalKind.IF: 2, ConditionalKind.WHILE: 1, ConditionalKind.SWITCH: 1 << 12}
"""The maximum number of bodies of each kind of conditional node."""


# --- kernels


def kernel_at(address: int) -> works.KernelWork:
    """Return the work of a CUDA_KERNEL_NODE_PARAMS in memory; raise CudaError."""
    raw = structs.KernelParameters.from_address(address)
    if raw.func and raw.kern and raw.func != raw.kern:
        raise invalid_value("func and kern exclude each other; set one")
    context = require_context(raw.ctx)
    function = function_of(raw.func or raw.kern, context)
    shape = (
        raw.gridDimX, raw.gridDimY, raw.gridDimZ,
        raw.blockDimX, raw.blockDimY, raw.blockDimZ, raw.sharedMemBytes,
    )  # fmt: skip
    function.context.usable()
    values = flat(function.layout, InMemory(raw.kernelParams), raw.extra)
    kernel = 0 if function.handle == (raw.func or raw.kern) else raw.func or raw.kern
    return works.KernelWork(function, check_shape(function, shape), values, kernel=kernel)


def kernel_bytes(work: works.KernelWork) -> bytes:
    """Return a CUDA_KERNEL_NODE_PARAMS, whose pointers are valid as long as the work."""
    handle = 0 if work.kernel else work.function.handle
    return bytes(structs.KernelParameters(handle, *work.shape, work.pointers, 0, work.kernel, work.context.handle))


def set_attribute(work: works.KernelWork, number: int, value: bytes) -> works.KernelWork:
    """Return the work with a launch attribute set; raise NOT_SUPPORTED for an attribute that pympsd does not have."""
    if number == COOPERATIVE:
        cooperative = bool(int.from_bytes(value[:4], "little"))
        if cooperative:
            check_cooperative(work.function, work.shape)
        return evolve(work, cooperative=cooperative, attributes={**work.attributes, number: value})
    if number == CLUSTER_DIMENSION and any(value):
        clustered = evolve(work, attributes={**work.attributes, number: value})
        if not all(1 <= size <= MAX_CLUSTER for size in clustered.cluster):
            raise CudaError(
                Result.ERROR_INVALID_CLUSTER_SIZE, f"a cluster has 1 block or more, not {clustered.cluster}"
            )
        check_cluster(clustered.function, clustered.shape, clustered.cluster)
        return clustered
    if name_of(number) not in HINTS and any(value):
        raise not_there(name_of(number), "COOPERATIVE, CLUSTER_DIMENSION")
    return evolve(work, attributes={**work.attributes, number: value})


# --- copies and fills


def check_copy(copy: Copy3D | None, context: int) -> works.CopyWork:
    """Return the work of a copy; raise CudaError if its shape is wrong, or if it is not within memory of a device."""
    if copy is None:
        raise invalid_value("the description of the copy is NULL")
    its_context = require_context(context)
    checked = regions(copy, its_context)
    if checked is None:
        raise invalid_value("the copy has no bytes; width, height and depth must be at least 1")
    region_copy.check(*checked)
    return works.CopyWork(copy, its_context)


def fill_at(address: int, context: int) -> works.FillWork:
    """Return the work of a CUDA_MEMSET_NODE_PARAMS in memory; raise CudaError."""
    raw = structs.FillParameters.from_address(address)
    its_context = require_context(context)
    if raw.elementSize not in _ELEMENTS:
        raise invalid_value(f"the element size must be 1, 2 or 4 bytes, not {raw.elementSize}")
    if not raw.height or not raw.width:
        raise invalid_value("a fill must have a width and a height of at least 1")
    check_fill(raw.dst, raw.elementSize, raw.width, raw.pitch, raw.height)
    if pinned.region_at(raw.dst) is None:
        check_range(raw.dst, (raw.height - 1) * raw.pitch + raw.width * raw.elementSize)
    value = raw.value & _ELEMENTS[raw.elementSize]
    return works.FillWork(raw.dst, raw.pitch, value, raw.elementSize, raw.width, raw.height, its_context)


def fill_bytes(work: works.FillWork) -> bytes:
    """Return a CUDA_MEMSET_NODE_PARAMS."""
    fields = (work.destination, work.pitch, work.value, work.element_bytes, work.width, work.height)
    return bytes(structs.FillParameters(*fields))


# --- waits for words and writes of them


def batch_at(address: int) -> works.BatchWork:
    """Return the work of a CUDA_BATCH_MEM_OP_NODE_PARAMS in memory; raise CudaError."""
    raw = structs.BatchParameters.from_address(address)
    if raw.flags:
        raise invalid_value(f"a batch of memory operations takes no flags: they must be 0, not {raw.flags:#x}")
    if raw.count and not raw.paramArray:
        raise invalid_value(f"paramArray is NULL, but count is {raw.count}")
    context = require_context(raw.ctx)
    operations = stream_memory.operations_at(raw.count, InMemory(raw.paramArray))
    parts = [part for operation in operations for part in _parts(stream_memory.read(operation), context)]
    return works.BatchWork(tuple(operations), tuple(parts), context)


def _parts(operation: stream_memory.MemoryOperation, context: Context) -> list[works.KernelWork | works.FillWork]:
    fields = (operation.address, operation.value, operation.size, operation.flags)
    if not operation.waits:
        return [works.FillWork(place, 0, word, 4, 1, 1, context) for place, word in stream_memory.words(*fields)]
    kernel, values = stream_memory.prepare_wait(*fields)
    function = kernel.function_in(context)
    return [works.KernelWork(function, stream_memory.ONE_THREAD, flat(function.layout, values, 0))]


def batch_bytes(work: works.BatchWork) -> bytes:
    """Return a CUDA_BATCH_MEM_OP_NODE_PARAMS, whose pointers are valid as long as the work."""
    return bytes(structs.BatchParameters(work.context.handle, len(work.operations), work.array, 0))


# --- host functions, events


def host_at(address: int) -> works.HostWork:
    """Return the work of a CUDA_HOST_NODE_PARAMS in memory; raise CudaError."""
    raw = structs.HostParameters.from_address(address)
    context = require_context()
    function, data, run = host_function.callee(raw.fn, raw.userData)
    return works.HostWork(function, data, run, context)


def host_bytes(work: works.HostWork) -> bytes:
    """Return a CUDA_HOST_NODE_PARAMS."""
    return bytes(structs.HostParameters(work.address, work.data))


def require_event(handle: int) -> int:
    """Return the handle of an event; raise INVALID_HANDLE for any other."""
    return events.find(handle).handle


# --- graphs in nodes


def child_of(graph: Graph, handle: int, ownership: int) -> Graph:
    """Return the graph for a child graph node: a copy of the given graph, or the graph itself if it is moved."""
    child = graphs.find(handle)
    if child is graph:
        raise invalid_value("a graph cannot be a child graph of itself")
    if ownership == CHILD_CLONED:
        return works.clone(child)
    if ownership != CHILD_MOVED:
        raise invalid_value(f"the ownership must be CLONE (0) or MOVE (1), not {ownership}")
    if child.owner is not None:
        raise invalid_value("the child graph belongs to a node already")
    return child


conditions: Final[dict[int, works.ConditionalHandle]] = {}
"""The conditional handles of this process, by their numbers."""


def conditional_at(graph: Graph, address: int) -> works.ConditionalWork:
    """Return the work of a CUDA_CONDITIONAL_NODE_PARAMS in memory, and store the address of the new bodies there."""
    raw = structs.ConditionalParameters.from_address(address)
    condition = conditions.get(raw.handle)
    while condition is not None and condition.graph is not graph and graph.owner is not None:
        graph = graph.owner.graph
    if condition is None or condition.graph is not graph:
        raise invalid_value(f"{raw.handle:#x} is not a conditional handle of this graph or of one that contains it")
    max_bodies = _BODIES.get(raw.type, 0)
    if not 1 <= raw.size <= max_bodies:
        raise invalid_value(
            f"a conditional node of type {raw.type} must have 1 to {max_bodies} bodies, not {raw.size}"
        )
    work = works.ConditionalWork(condition, raw.type, tuple(graphs.new() for _ in range(raw.size)))
    raw.phGraph_out = work.array
    return work


def conditional_bytes(work: works.ConditionalWork) -> bytes:
    """Return a CUDA_CONDITIONAL_NODE_PARAMS."""
    condition = work.condition
    fields = (condition.handle, work.kind, len(work.bodies), work.array, condition.context.handle)
    return bytes(structs.ConditionalParameters(*fields))


# --- nodes of any type


def _copy_any(address: int) -> works.CopyWork:
    raw = structs.CopyParameters.from_address(address)
    return check_copy(copy_at(address + structs.CopyParameters.copyParams.offset), raw.copyCtx)


def _event_at(address: int) -> int:
    return require_event(structs.EventParameters.from_address(address).event)


@frozen
class NodeKind:
    """A type of nodes: its class of work, and the functions that read and write its parameters."""

    work: type[Any]
    read: Callable[[Any, int], Any]
    """A function that returns the work for the program's parameters and a context's handle (0: the current one)."""
    write: Callable[[Any], Any]
    """A function that returns the parameters of the work."""


def _kind_of_structure(
    work: type[Any], name: str, read: Callable[[int], Any], write: Callable[[Any], bytes]
) -> NodeKind:
    return NodeKind(work, lambda parameters, context: read(structs.address_of(parameters, name)), write)


def _kind_of_event(work: type[works.RecordWork | works.WaitWork]) -> NodeKind:
    return NodeKind(work, lambda event, context: work(require_event(event)), lambda node_work: node_work.event)


NODE_KINDS: Final[dict[str, NodeKind]] = {
    "KERNEL": _kind_of_structure(works.KernelWork, "CUDA_KERNEL_NODE_PARAMS", kernel_at, kernel_bytes),
    "MEMCPY": NodeKind(works.CopyWork, check_copy, lambda work: copy_bytes(work.copy)),
    "MEMSET": NodeKind(
        works.FillWork,
        lambda parameters, context: fill_at(structs.address_of(parameters, "CUDA_MEMSET_NODE_PARAMS"), context),
        fill_bytes,
    ),
    "BATCH_MEM_OP": _kind_of_structure(works.BatchWork, "CUDA_BATCH_MEM_OP_NODE_PARAMS", batch_at, batch_bytes),
    "HOST": _kind_of_structure(works.HostWork, "CUDA_HOST_NODE_PARAMS", host_at, host_bytes),
    "EVENT_RECORD": _kind_of_event(works.RecordWork),
    "WAIT_EVENT": _kind_of_event(works.WaitWork),
    "EMPTY": NodeKind(works.EmptyWork, lambda parameters, context: works.EmptyWork(), lambda work: b""),
    "MEM_ALLOC": _kind_of_structure(
        works.AllocateWork, "CUDA_MEM_ALLOC_NODE_PARAMS", allocation_at, allocation_bytes
    ),
}
"""The types of nodes that have their own functions in the API, by their names in CUgraphNodeType."""


def keep_attributes(work: Any, before: Any) -> Any:
    """Return a launch's work with the launch attributes of the work ``before``; return other work unchanged."""
    if not isinstance(work, works.KernelWork):
        return work
    return evolve(work, cooperative=before.cooperative, attributes=dict(before.attributes))


_READERS: Final[dict[int, Callable[[int], Any]]] = {
    works.NodeType.KERNEL: kernel_at,
    works.NodeType.MEMCPY: _copy_any,
    works.NodeType.MEM_ALLOC: allocation_at,
    works.NodeType.MEMSET: lambda address: fill_at(
        address, structs.FillParametersWithContext.from_address(address).ctx
    ),
    works.NodeType.BATCH_MEM_OP: batch_at,
    works.NodeType.HOST: host_at,
    works.NodeType.EMPTY: lambda address: works.EmptyWork(),
    works.NodeType.EVENT_RECORD: lambda address: works.RecordWork(_event_at(address)),
    works.NodeType.WAIT_EVENT: lambda address: works.WaitWork(_event_at(address)),
}


def any_at(graph: Graph, address: int) -> Any:
    """Return the work of a CUgraphNodeParams in memory; raise CudaError."""
    kind = ctypes.c_int32.from_address(address).value
    at = address + structs.NODE_PARAMETERS_AT
    if kind == works.NodeType.GRAPH:
        raw = structs.ChildParameters.from_address(at)
        return works.ChildWork(child_of(graph, raw.graph, ctypes.c_int32(raw.ownership).value))
    if kind == works.NodeType.CONDITIONAL:
        return conditional_at(graph, at)
    if kind == works.NodeType.MEM_FREE:
        return free_work(graph, ctypes.c_uint64.from_address(at).value)
    read = _READERS.get(kind)
    if read is None:
        types = ", ".join(node_type.name for node_type in works.NodeType)
        reason = f"pympsd does not have graph nodes of type {kind} yet; it has {types}"
        raise not_supported(reason)
    return read(at)


def any_bytes(work: Any) -> bytes:
    """Return a CUgraphNodeParams."""
    head = int(work.type).to_bytes(4, "little").ljust(structs.NODE_PARAMETERS_AT, b"\0")
    return (head + _any_bytes(work)).ljust(structs.NODE_PARAMETERS_BYTES, b"\0")


def _any_bytes(work: Any) -> bytes:
    """Return the part of a CUgraphNodeParams that contains the parameters of the node's type."""
    match work:
        case works.CopyWork():
            head = (0).to_bytes(8, "little") + work.context.handle.to_bytes(8, "little")
            return head + copy_bytes(work.copy)
        case works.FillWork():
            return fill_bytes(work) + work.context.handle.to_bytes(8, "little")
        case works.ChildWork():
            return bytes(structs.ChildParameters(work.graph.handle, CHILD_CLONED))
        case works.RecordWork() | works.WaitWork():
            return work.event.to_bytes(8, "little")
        case works.ConditionalWork():
            return conditional_bytes(work)
        case works.FreeWork():
            return work.address.to_bytes(8, "little")
    return bytes(NODE_KINDS[work.type.name].write(work))
