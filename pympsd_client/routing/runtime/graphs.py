"""Nodes of graphs (CUDA runtime API, Graph Management): the runtime's descriptions as the driver's."""

import ctypes
from typing import Any, Final

from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.context import current
from pympsd_client.routing.driver import api
from pympsd_client.routing.runtime import execution
from pympsd_client.routing.runtime.copies import rows, slices

_KERNEL_BYTES: Final = 56
"""The size of a cudaKernelNodeParams; a CUDA_KERNEL_NODE_PARAMS begins like it, and has two more fields."""
_EXTRA_BYTES: Final = 16
_KERNEL, _COPY = 0, 1
"""cudaGraphNodeType: the driver describes all others alike."""
_COPY_HEAD_BYTES: Final = 16
"""What comes before the cudaMemcpy3DParms in a cudaMemcpyNodeParams, and the CUDA_MEMCPY3D in the driver's."""


def add_kernel(graph: int, dependencies: int, count: int, parameters: int) -> int:
    """Return a new node that launches a kernel."""
    check_not_null("the cudaKernelNodeParams", parameters)
    description = ctypes.create_string_buffer(ctypes.string_at(parameters, _KERNEL_BYTES) + bytes(_EXTRA_BYTES))
    return int(api.cuGraphAddKernelNode(graph, dependencies, count, ctypes.addressof(description)))


def add_copy(graph: int, dependencies: int, count: int, parameters: int) -> int:
    """Return a new node that copies slices of rows."""
    return _add_copy(graph, dependencies, count, slices(parameters))


def add_copy_1d(
    graph: int, dependencies: int, count: int, destination: int, source: int, size: int, kind: int
) -> int:
    """Return a new node that copies bytes."""
    return _add_copy(graph, dependencies, count, rows(destination, 0, source, 0, size, 1, kind))


def _add_copy(graph: int, dependencies: int, count: int, description: Any) -> int:
    address = ctypes.addressof(description)
    return int(api.cuGraphAddMemcpyNode(graph, dependencies, count, address, current().handle))


def add_fill(graph: int, dependencies: int, count: int, parameters: int) -> int:
    """Return a new node that sets memory; the runtime describes it as the driver does."""
    return int(api.cuGraphAddMemsetNode(graph, dependencies, count, parameters, current().handle))


def set_fill(executable: int, node: int, parameters: int) -> None:
    """Change a node of an executable graph."""
    api.cuGraphExecMemsetNodeSetParams(executable, node, parameters, current().handle)


def add_any(graph: int, dependencies: int, data: int, count: int, description: int) -> int:
    """Return a new node of the kind that is described."""
    check_not_null("the cudaGraphNodeParams", description)
    kind, at = ctypes.c_int.from_address(description).value, description + structs.NODE_PARAMETERS_AT
    if kind == _KERNEL:
        parameters = ctypes.string_at(at, _KERNEL_BYTES)
    elif kind == _COPY:
        parameters = bytes(_COPY_HEAD_BYTES) + bytes(slices(at + _COPY_HEAD_BYTES))
    else:
        return int(api.cuGraphAddNode(graph, dependencies, data, count, description))
    head = ctypes.string_at(description, structs.NODE_PARAMETERS_AT)
    buffer = ctypes.create_string_buffer(head + parameters, structs.NODE_PARAMETERS_BYTES)
    return int(api.cuGraphAddNode(graph, dependencies, data, count, ctypes.addressof(buffer)))


def create_condition(graph: int, value: int, flags: int) -> int:
    """Return a new handle of a condition."""
    return create_condition_of(graph, 0, value, flags)


def create_condition_of(graph: int, context: int, value: int, flags: int) -> int:
    """Return a new handle of a condition in an execution context; NULL: in the current one."""
    of = execution.context_of(context) if context else current()
    return int(api.cuGraphConditionalHandleCreate(graph, of.handle, value, flags))
