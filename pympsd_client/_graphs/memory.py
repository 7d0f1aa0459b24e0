"""Nodes that allocate and free memory: their parameters, read from the driver API's structures and written back."""

from __future__ import annotations

import ctypes
import struct
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.memory.pools import kind_of
from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.memory_structs import Location
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import work as works
from pympsd_client._graphs.graph import Graph
from pympsd_client._graphs.work import AllocateWork, FreeWork
from pympsd_client._objects.context import Context, context_on, current
from pympsd_client._objects.pools import graph_memory
from pympsd_client._objects.pools.pool import PoolKind
from pympsd_client._objects.process import process

_DEVICE: Final = 1
"""A CUmemLocationType."""
_ACCESSES_LIMIT: Final = 1 << 10


def node_at(address: int) -> AllocateWork:
    """Return the work of a CUDA_MEM_ALLOC_NODE_PARAMS in memory, and write the address of the new memory there.

    As of a pool, it is memory of a device, managed, or of the host; INVALID_VALUE, INVALID_DEVICE, NOT_SUPPORTED.
    """
    raw = structs.AllocationParameters.from_address(address)
    location = Location(raw.locationType, raw.locationId)
    kind, _ = kind_of(location, raw.allocType)
    if raw.handleTypes:
        reason = "the memory of a graph cannot be exported: handleTypes is CU_MEM_HANDLE_TYPE_NONE"
        raise CudaError(Result.ERROR_NOT_SUPPORTED, reason)
    context = context_on(process.device(location.id).ordinal) if location.type == _DEVICE else current()
    if raw.accessDescCount > _ACCESSES_LIMIT:
        raise invalid_value(f"{raw.accessDescCount} access descriptions")
    size = structs.ACCESS_BYTES * raw.accessDescCount
    accesses = ctypes.string_at(raw.accessDescs, size) if raw.accessDescs else b""
    for at in range(0, len(accesses), structs.ACCESS_BYTES):
        access_kind, number, _ = struct.unpack_from("=iii", accesses, at)
        if (access_kind, number) != (_DEVICE, context.device.number):
            raise CudaError(Result.ERROR_NOT_SUPPORTED, "no other device can reach the memory of a graph")
    properties = ctypes.string_at(address, structs.AllocationParameters.accessDescs.offset)
    work = AllocateWork(graph_memory.allocate(raw.bytesize, context, kind), properties, accesses)
    raw.dptr = work.allocation.handle
    return work


def node_of(size: int, context: Context, kind: PoolKind) -> AllocateWork:
    """Return the work of an allocation as from a pool, as a capturing stream makes it."""
    head = struct.pack("=iiii", kind.allocation_type, 0, kind.location.type, kind.location.id)
    properties = head.ljust(structs.AllocationParameters.accessDescs.offset, b"\0")
    return AllocateWork(graph_memory.allocate(size, context, kind), properties, b"")


def node_bytes(work: AllocateWork) -> bytes:
    """Return a CUDA_MEM_ALLOC_NODE_PARAMS."""
    count = len(work.accesses) // structs.ACCESS_BYTES
    return work.properties + struct.pack("=QQQQ", work.array, count, work.allocation.size, work.allocation.handle)


def free_of(graph: Graph, address: int) -> FreeWork:
    """Return the work of freeing memory of a graph; INVALID_VALUE for any other, or if the graph frees it already."""
    nodes = works.all_nodes(graph).values()
    if any(isinstance(node.work, FreeWork) and node.work.address == address for node in nodes):
        raise invalid_value(f"the graph frees {address:#x} already")
    owned = any(isinstance(node.work, AllocateWork) and node.work.allocation.handle == address for node in nodes)
    if not owned and not any(
        isinstance(node.work, AllocateWork) and node.work.allocation.handle == address
        for node in tuple(graphs.nodes.values())
    ):
        raise invalid_value(f"{address:#x} is not memory of an allocation node")
    return FreeWork(address)
