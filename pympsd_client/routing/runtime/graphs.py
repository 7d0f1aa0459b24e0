"""Nodes of graphs (CUDA runtime API, Graph Management): conversion of descriptions to the driver's and back.

The runtime's descriptions differ in three ways. A kernel is the address of a host function (`symbols.kernel_at`), and
queries return that address. A copy has a cudaMemcpyKind and counts elements of arrays. A description does not name a
context; a new node, and a changed node of an executable graph, is of the current context.
"""

import ctypes
from functools import partial
from typing import Any, Final

from pympsd_client._arguments import graph_structs as structs
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.context import current
from pympsd_client.routing.driver import api
from pympsd_client.routing.runtime import execution
from pympsd_client.routing.runtime.copies import rows, slices, write_slices
from pympsd_client.routing.runtime.symbols import host_of, kernel_at, part

_KERNEL_BYTES: Final = 56
"""The size of a cudaKernelNodeParams; a CUDA_KERNEL_NODE_PARAMS has two more fields at its end."""
_DRIVER_KERNEL_BYTES: Final = 72
_KERNEL, _COPY = 0, 1
"""The cudaGraphNodeTypes whose descriptions differ from the driver's."""
_COPY_HEAD_BYTES: Final = 16
"""The bytes before the description of the copy, in cudaMemcpyNodeParams and in the driver's structure."""


def _kernel(parameters: int, size: int = _DRIVER_KERNEL_BYTES) -> Any:
    """Return a buffer of ``size`` bytes with the driver's description of a kernel; its first field is the kernel."""
    check_not_null("the cudaKernelNodeParams", parameters)
    host = ctypes.c_uint64.from_address(parameters).value
    geometry = ctypes.string_at(parameters + 8, _KERNEL_BYTES - 8)
    return ctypes.create_string_buffer(kernel_at(host).to_bytes(8, "little") + geometry, size)


def add_kernel(graph: int, dependencies: int, count: int, parameters: int) -> int:
    """Return a new node that launches a kernel."""
    description = _kernel(parameters)
    return int(api.cuGraphAddKernelNode(graph, dependencies, count, ctypes.addressof(description)))


def get_kernel(node: int, address: int) -> None:
    """Write the cudaKernelNodeParams of a node to an address; func is the host function, if the program used it."""
    check_not_null("the cudaKernelNodeParams", address)
    description: Any = structs.KernelParameters.from_buffer_copy(bytes(api.cuGraphKernelNodeGetParams(node)))
    description.func = host_of(description.func or description.kern)
    ctypes.memmove(address, ctypes.addressof(description), _KERNEL_BYTES)


def set_kernel(node: int, parameters: int) -> None:
    """Change the kernel of a node, or its shape and parameters."""
    description = _kernel(parameters)
    api.cuGraphKernelNodeSetParams(node, ctypes.addressof(description))


def set_executable_kernel(executable: int, node: int, parameters: int) -> None:
    """Change the kernel of a node of an executable graph, or its shape and parameters."""
    description = _kernel(parameters)
    api.cuGraphExecKernelNodeSetParams(executable, node, ctypes.addressof(description))


def add_copy(graph: int, dependencies: int, count: int, parameters: int) -> int:
    """Return a new node that copies slices of rows."""
    return _add_copy(graph, dependencies, count, slices(parameters))


def add_copy_1d(
    graph: int, dependencies: int, count: int, destination: int, source: int, size: int, kind: int
) -> int:
    """Return a new node that copies bytes."""
    return _add_copy(graph, dependencies, count, rows(destination, 0, source, 0, size, 1, kind))


def add_copy_to_symbol(
    graph: int, dependencies: int, count: int, symbol: int, source: int, size: int, offset: int, kind: int
) -> int:
    """Return a new node that copies bytes to a device variable."""
    return add_copy_1d(graph, dependencies, count, part(symbol, offset, size), source, size, kind)


def add_copy_from_symbol(
    graph: int, dependencies: int, count: int, destination: int, symbol: int, size: int, offset: int, kind: int
) -> int:
    """Return a new node that copies bytes of a device variable."""
    return add_copy_1d(graph, dependencies, count, destination, part(symbol, offset, size), size, kind)


def get_copy(node: int, address: int) -> None:
    """Write the cudaMemcpy3DParms of a node to an address."""
    write_slices(address, bytes(api.cuGraphMemcpyNodeGetParams(node)))


def set_executable_copy(executable: int | None, node: int, parameters: int) -> None:
    """Change the copy of a node of an executable graph, or for None, of the graph itself."""
    _set_copy(executable, node, slices(parameters))


def set_executable_copy_1d(
    executable: int | None, node: int, destination: int, source: int, size: int, kind: int
) -> None:
    """Make a node of an executable graph copy bytes."""
    _set_copy(executable, node, rows(destination, 0, source, 0, size, 1, kind))


def set_executable_copy_to_symbol(
    executable: int | None, node: int, symbol: int, source: int, size: int, offset: int, kind: int
) -> None:
    """Make a node of an executable graph copy bytes to a device variable."""
    set_executable_copy_1d(executable, node, part(symbol, offset, size), source, size, kind)


def set_executable_copy_from_symbol(
    executable: int | None, node: int, destination: int, symbol: int, size: int, offset: int, kind: int
) -> None:
    """Make a node of an executable graph copy bytes of a device variable."""
    set_executable_copy_1d(executable, node, destination, part(symbol, offset, size), size, kind)


set_copy: Final = partial(set_executable_copy, None)
"""Change the copy of a node."""
set_copy_1d: Final = partial(set_executable_copy_1d, None)
"""Make a node copy bytes."""
set_copy_to_symbol: Final = partial(set_executable_copy_to_symbol, None)
"""Make a node copy bytes to a device variable."""
set_copy_from_symbol: Final = partial(set_executable_copy_from_symbol, None)
"""Make a node copy bytes of a device variable."""


def _set_copy(executable: int | None, node: int, description: Any) -> None:
    address = ctypes.addressof(description)
    if executable is None:
        api.cuGraphMemcpyNodeSetParams(node, address)
    else:
        api.cuGraphExecMemcpyNodeSetParams(executable, node, address, current().handle)


def _add_copy(graph: int, dependencies: int, count: int, description: Any) -> int:
    address = ctypes.addressof(description)
    return int(api.cuGraphAddMemcpyNode(graph, dependencies, count, address, current().handle))


def add_fill(graph: int, dependencies: int, count: int, parameters: int) -> int:
    """Return a new node that sets memory. Its description is the same as the driver's."""
    return int(api.cuGraphAddMemsetNode(graph, dependencies, count, parameters, current().handle))


def set_fill(executable: int, node: int, parameters: int) -> None:
    """Change a node that sets memory in an executable graph."""
    api.cuGraphExecMemsetNodeSetParams(executable, node, parameters, current().handle)


def add_any(graph: int, dependencies: int, data: int, count: int, description: int) -> int:
    """Return a new node of the type in its description."""
    converted = _convert_description(description)
    return int(api.cuGraphAddNode(graph, dependencies, data, count, ctypes.addressof(converted)))


def set_any(node: int, description: int) -> None:
    """Change the work of a node, but not its type."""
    converted = _convert_description(description)
    api.cuGraphNodeSetParams(node, ctypes.addressof(converted))


def set_executable_any(executable: int, node: int, description: int) -> None:
    """Change the work of a node of an executable graph, but not its type."""
    converted = _convert_description(description)
    api.cuGraphExecNodeSetParams(executable, node, ctypes.addressof(converted))


def _convert_description(description: int) -> Any:
    """Return the driver's description of the node in a cudaGraphNodeParams: the program's own if it is the same."""
    check_not_null("the cudaGraphNodeParams", description)
    kind, at = ctypes.c_int.from_address(description).value, description + structs.NODE_PARAMETERS_AT
    if kind == _KERNEL:
        parameters = bytes(_kernel(at, _KERNEL_BYTES))
    elif kind == _COPY:
        parameters = bytes(_COPY_HEAD_BYTES) + bytes(slices(at + _COPY_HEAD_BYTES))
    else:
        return (ctypes.c_char * structs.NODE_PARAMETERS_BYTES).from_address(description)
    head = ctypes.string_at(description, structs.NODE_PARAMETERS_AT)
    return ctypes.create_string_buffer(head + parameters, structs.NODE_PARAMETERS_BYTES)


def create_condition(graph: int, value: int, flags: int) -> int:
    """Return a new conditional handle in the current context."""
    return create_condition_of(graph, 0, value, flags)


def create_condition_of(graph: int, context: int, value: int, flags: int) -> int:
    """Return a new conditional handle in an execution context (NULL: in the current context)."""
    owner = execution.context_of(context) if context else current()
    return int(api.cuGraphConditionalHandleCreate(graph, owner.handle, value, flags))
