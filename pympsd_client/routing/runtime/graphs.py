"""Nodes of graphs (CUDA runtime API, Graph Management): the runtime's descriptions as the driver's."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._objects.context import current
from pympsd_client.routing.runtime.calls import api
from pympsd_client.routing.runtime.copies import rows, slices

_KERNEL_BYTES: Final = 56
"""Of a cudaKernelNodeParams; a CUDA_KERNEL_NODE_PARAMS begins like it, and has two more fields."""
_EXTRA_BYTES: Final = 16
_ALIKE: Final = frozenset({3, 4, 5, 6, 7, 13})
"""cudaGraphNodeType: host, child graph, empty, event wait, event record, conditional, described as for the driver."""


def add_kernel(graph: int, dependencies: int, count: int, given: int) -> int:
    """Return a new node that launches a kernel."""
    if not given:
        raise invalid_value("the cudaKernelNodeParams is NULL")
    made = ctypes.create_string_buffer(ctypes.string_at(given, _KERNEL_BYTES) + bytes(_EXTRA_BYTES))
    return int(api.cuGraphAddKernelNode(graph, dependencies, count, ctypes.addressof(made)))


def add_copy(graph: int, dependencies: int, count: int, given: int) -> int:
    """Return a new node that copies slices of rows."""
    return _add_copy(graph, dependencies, count, slices(given))


def add_copy_1d(
    graph: int, dependencies: int, count: int, destination: int, source: int, size: int, kind: int
) -> int:
    """Return a new node that copies bytes."""
    return _add_copy(graph, dependencies, count, rows(destination, 0, source, 0, size, 1, kind))


def _add_copy(graph: int, dependencies: int, count: int, made: Any) -> int:
    address = ctypes.addressof(made)
    return int(api.cuGraphAddMemcpyNode(graph, dependencies, count, address, current().handle))


def add_fill(graph: int, dependencies: int, count: int, given: int) -> int:
    """Return a new node that sets memory; the runtime describes it as the driver does."""
    return int(api.cuGraphAddMemsetNode(graph, dependencies, count, given, current().handle))


def set_fill(executable: int, node: int, given: int) -> None:
    """Change a node of an executable graph."""
    api.cuGraphExecMemsetNodeSetParams(executable, node, given, current().handle)


def add_any(graph: int, dependencies: int, data: int, count: int, given: int) -> int:
    """Return a new node of the kind that is described; NOT_SUPPORTED for kernels, copies and fills."""
    kind = ctypes.c_int.from_address(given).value if given else -1
    if kind not in _ALIKE:
        reason = f"cudaGraphAddNode of type {kind} is not supported; use the function for this kind of node"
        raise CudaError(Result.ERROR_NOT_SUPPORTED, reason)
    return int(api.cuGraphAddNode(graph, dependencies, data, count, given))


def create_condition(graph: int, value: int, flags: int) -> int:
    """Return a new handle of a condition."""
    return int(api.cuGraphConditionalHandleCreate(graph, current().handle, value, flags))
