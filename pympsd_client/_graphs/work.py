"""The work of nodes: a class for each type of node, with the values of its parameters.

A node's work does not change; setting parameters replaces it. So a graph and its clones share work objects. But the
graphs that child and conditional nodes own are copied, and the memory of allocation nodes counts its holders.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, Final

from attrs import define, evolve, field

from pympsd.wire.records import NO_CLUSTER
from pympsd_client._arguments.copy_structs import Copy3D
from pympsd_client._arguments.launch_attributes import CLUSTER_DIMENSION
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs.graph import Graph, Node
from pympsd_client._graphs.user_objects import retain
from pympsd_client._objects.code.module import Function
from pympsd_client._objects.context import Context
from pympsd_client._objects.pools.graph_memory import GraphAllocation, release_quietly

_DIMENSIONS: Final = struct.Struct("=3I")


class NodeType(IntEnum):
    """CUgraphNodeType."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3
    GRAPH = 4
    EMPTY = 5
    WAIT_EVENT = 6
    EVENT_RECORD = 7
    MEM_ALLOC = 10
    MEM_FREE = 11
    BATCH_MEM_OP = 12
    CONDITIONAL = 13


@define(eq=False)
class KernelWork:
    """A launch; ``shape`` is grid, block and dynamic shared bytes, ``parameters`` the flat buffer."""

    type: ClassVar = NodeType.KERNEL
    function: Function
    shape: tuple[int, ...]
    parameters: bytes
    cooperative: bool = False
    kernel: int = 0
    """The handle of a library's kernel, if the program gave it instead of a function; else 0."""
    attributes: dict[int, bytes] = field(factory=dict)
    """The launch attributes that have been set: the bytes of a CUlaunchAttributeValue by the attribute's number."""
    _pointers: Any = field(default=None, init=False)

    @property
    def cluster(self) -> tuple[int, int, int]:
        """The dimensions of a cluster (attribute CLUSTER_DIMENSION), or NO_CLUSTER."""
        value = self.attributes.get(CLUSTER_DIMENSION)
        if value is None or not any(value):
            return NO_CLUSTER
        x, y, z = _DIMENSIONS.unpack_from(value)
        return x, y, z

    def set_clusters(self, cluster: tuple[int, int, int]) -> KernelWork:
        """Return the work with clusters of these dimensions."""
        if cluster == NO_CLUSTER:
            return self
        return evolve(self, attributes={**self.attributes, CLUSTER_DIMENSION: _DIMENSIONS.pack(*cluster)})

    @property
    def context(self) -> Context:
        """The context of the kernel."""
        return self.function.context

    @property
    def pointers(self) -> int:
        """The address of an array of pointers to the parameters' values, valid while this object exists."""
        if self._pointers is None:
            values = ctypes.create_string_buffer(self.parameters, max(1, len(self.parameters)))
            at = ctypes.addressof(values)
            offsets = [offset for offset, _ in self.function.layout.parameters]
            array = (ctypes.c_void_p * max(1, len(offsets)))(*(at + offset for offset in offsets))
            self._pointers = (array, values)
        return ctypes.addressof(self._pointers[0]) if self.function.layout.parameters else 0


@define(eq=False)
class CopyWork:
    """A copy of rows and slices between host and device memory."""

    type: ClassVar = NodeType.MEMCPY
    copy: Copy3D
    context: Context


@define(eq=False)
class FillWork:
    """A fill of device memory with a value; ``width`` is a number of elements."""

    type: ClassVar = NodeType.MEMSET
    destination: int
    pitch: int
    value: int
    element_bytes: int
    width: int
    height: int
    context: Context


@define(eq=False)
class HostWork:
    """A function of the program, which ``run`` calls; ``address`` is 0 for a callable that is not a C function."""

    type: ClassVar = NodeType.HOST
    address: int
    data: int
    run: Callable[[int], None]
    context: Context


@define(eq=False)
class ChildWork:
    """A graph within a graph, owned by the node."""

    type: ClassVar = NodeType.GRAPH
    graph: Graph


@define(eq=False)
class EmptyWork:
    """No work; the node only joins branches."""

    type: ClassVar = NodeType.EMPTY


@define(eq=False)
class RecordWork:
    """The recording of an event."""

    type: ClassVar = NodeType.EVENT_RECORD
    event: int


@define(eq=False)
class WaitWork:
    """A wait for an event."""

    type: ClassVar = NodeType.WAIT_EVENT
    event: int


@define(eq=False)
class ConditionalHandle:
    """The value that conditional nodes of a graph depend on; ``assigns``: whether launches begin with the default."""

    handle: int
    graph: Graph
    default: int
    assigns: bool
    context: Context


@define(eq=False)
class ConditionalWork:
    """Bodies that are executed depending on a handle's value; ``kind`` is a CUgraphConditionalNodeType."""

    type: ClassVar = NodeType.CONDITIONAL
    condition: ConditionalHandle
    kind: int
    bodies: tuple[Graph, ...]
    _array: Any = field(default=None, init=False)

    @property
    def array(self) -> int:
        """The address of an array of the bodies' handles, valid while this object exists."""
        if self._array is None:
            self._array = (ctypes.c_uint64 * len(self.bodies))(*(body.handle for body in self.bodies))
        return ctypes.addressof(self._array)


@define(eq=False)
class AllocateWork:
    """An allocation for later nodes; ``properties`` and ``accesses`` are bytes of a CUDA_MEM_ALLOC_NODE_PARAMS."""

    type: ClassVar = NodeType.MEM_ALLOC
    allocation: GraphAllocation
    properties: bytes
    accesses: bytes
    _array: Any = field(default=None, init=False)

    @property
    def array(self) -> int:
        """The address of the accesses, valid while this object exists."""
        if self._array is None:
            self._array = ctypes.create_string_buffer(self.accesses, max(1, len(self.accesses)))
        return ctypes.addressof(self._array) if self.accesses else 0


@define(eq=False)
class FreeWork:
    """The freeing of a graph's memory, which later nodes do not use."""

    type: ClassVar = NodeType.MEM_FREE
    address: int


@define(eq=False)
class BatchWork:
    """Waits for words and writes of words, one after another.

    ``operations`` is an array of CUstreamBatchMemOpParams, ``parts`` the work for each operation.
    """

    type: ClassVar = NodeType.BATCH_MEM_OP
    operations: tuple[bytes, ...]
    parts: tuple[KernelWork | FillWork, ...]
    context: Context
    _array: Any = field(default=None, init=False)

    @property
    def array(self) -> int:
        """The address of an array of the operations, valid while this object exists."""
        if self._array is None:
            self._array = ctypes.create_string_buffer(b"".join(self.operations) or b"\0")
        return ctypes.addressof(self._array) if self.operations else 0


def inner_graphs(work: Any) -> tuple[Graph, ...]:
    """Return the graphs that a node with this work owns."""
    if isinstance(work, ChildWork):
        return (work.graph,)
    return work.bodies if isinstance(work, ConditionalWork) else ()


def clone_work(node: Node, copy: Node) -> Any:
    """Return the work for a node's copy: the same object, unless the node owns graphs, which are copied."""
    work = node.work
    if isinstance(work, ChildWork):
        return ChildWork(clone(work.graph, copy))
    if isinstance(work, ConditionalWork):
        condition = evolve(work.condition, graph=copy.graph)
        bodies = tuple(clone(body, copy) for body in work.bodies)
        return ConditionalWork(condition, work.kind, bodies)
    if isinstance(work, AllocateWork):
        work.allocation.hold()
    return work


def clone(graph: Graph, owner: Node | None = None) -> Graph:
    """Return a copy of a graph and of all graphs in it, with its own references to user objects."""
    copy = graphs.clone(graph, clone_work, owner)
    for item, count in graph.retained.items():
        retain(copy, item, count)
    return copy


def destroy(graph: Graph) -> None:
    """Make the handles of a graph, its nodes and inner graphs invalid, and release the objects that it retains."""
    for node in graph.nodes.values():
        destroy_work(node.work)
    graphs.invalidate(graph)
    while graph.retained:
        item, count = graph.retained.popitem()
        item.release(count)


def destroy_work(work: Any) -> None:
    """Destroy the graphs that a node with this work owns, and release its memory."""
    for inner in inner_graphs(work):
        destroy(inner)
    if isinstance(work, AllocateWork):
        release_quietly(work.allocation)


def collect_nodes(graph: Graph) -> dict[int, Node]:
    """Return the nodes of a graph and of all graphs in it, by handle."""
    nodes = dict(graph.nodes)
    for node in graph.nodes.values():
        for inner in inner_graphs(node.work):
            nodes.update(collect_nodes(inner))
    return nodes


def collect_copies(clone: Graph) -> dict[int, Node]:
    """Return the nodes of a clone and of all graphs in it, by the handles of the original nodes."""
    copies = dict(clone.copies)
    for node in clone.nodes.values():
        for inner in inner_graphs(node.work):
            copies.update(collect_copies(inner))
    return copies
