"""The functions that libcuda.so.1 exports, found by name in the rows that also serve cuda.bindings.

An exported name may end with a version ("_v2"), which has its own parameters. In programs that are compiled for
per-thread default streams it may end with "_ptds" or "_ptsz". `resolve` finds the row with the right parameters:

- Functions of CUDA 2, with sizes and device pointers of 32 bits, have no row and fail with NOT_SUPPORTED.
- A few functions of CUDA 10 to 12 differ in more than a missing parameter; they are in `_OLD`.
- In functions with "_ptsz", NULL means the calling thread's default stream, so the format has another code for that
  parameter. Functions with "_ptds" have no stream parameter, and use that stream.
"""

import ctypes
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from attrs import evolve

from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.values import check_not_null
from pympsd_client._connect.driver_library import NAME, load_driver
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import PER_THREAD
from pympsd_client.native import _entry_points
from pympsd_client.routing import c_types, driver, libraries, special
from pympsd_client.routing.driver import api
from pympsd_client.routing.explain import make_refusal
from pympsd_client.routing.versions import arrange
from pympsd_client.signatures import SIGNATURES, Calling, Signature
from pympsd_client.signatures.rows import find_core

Resolved = tuple[Any, ...]
result_of_error = driver.result_of_error
_VERSION: Final = re.compile(r"_v\d+$")
_THREAD: Final = re.compile(r"_pt[ds][sz]$")
_BYTES: Final = {"i": 4, "I": 4, "f": 4, "H": 2, "B": 1}
"""The size in bytes of a value, by its code in a format; values of other codes have 8 bytes."""


def resolve(name: str, signature: str) -> Resolved:
    """Return the function behind an exported name.

    Args:
        name: The name, such as ``cuMemAlloc_v2``.
        signature: The C types of its parameters, in parentheses.

    Returns:
        The function, the format of its parameters (see entry_points.c), and its core if the function is direct. For a
        name that pympsd does not have, a function that fails with NOT_SUPPORTED.
    """
    types = c_types.parameters(signature)
    versioned = _THREAD.sub("", name)
    thread = name[len(versioned) :]
    resolved: Resolved | None = _OLD.get(versioned)
    for candidate in (versioned, _VERSION.sub("", versioned), versioned.removesuffix("WithFlags")):
        row = SIGNATURES.get(candidate)
        if resolved is None and row is not None and _fits(row, types):
            resolved = _resolve_row(row, types, thread)
    if resolved is None and versioned not in SIGNATURES:
        resolved = special.resolve(versioned)
    if resolved is None:
        return make_refusal(name), ""
    function, format, *core = resolved
    return (function, c_types.select_threads_stream(format, types) if thread == "_ptsz" else format, *core)


def _resolve_row(row: Signature, types: tuple[str, ...], thread: str) -> Resolved:
    if thread == "_ptds":  # in the core's arguments, the first 0 is the stream
        row = evolve(row, arguments=re.sub(r"\b0\b", str(PER_THREAD), row.arguments, count=1))
    if thread and row.name == "cuLaunchKernelEx":
        return special.launch_by_config(PER_THREAD)
    return driver.resolve_row(row, types)


def _fits(row: Signature, types: tuple[str, ...]) -> bool:
    """Return whether a row describes a function with these types of parameters."""
    if any(type.rstrip(" *").endswith("_v1") for type in types):
        return False
    if row.calling is Calling.VARIANTS:
        return True
    if len(types) != len(row.parameters):
        try:
            arrange(row, types)
        except TypeError:
            return False
        return True
    for parameter, type in zip(row.parameters, types, strict=True):
        pointee = type.removesuffix("*").strip() if parameter.is_output else type
        if parameter.type != "void" and _bytes(parameter.type) != _bytes(pointee):
            return False
    return True


def _bytes(type: str) -> int:
    by_value = c_types.BY_VALUE.get(type)
    return _BYTES.get(c_types.code(type), 8) if by_value is None else by_value


def _find_originals() -> None:
    """Find the functions of the machine's own driver, because the program runs natively."""
    original, own = load_driver(), ctypes.CDLL(NAME)
    for (_, prototype), address in libraries.attached.items():
        function = getattr(original, prototype.partition("(")[0], None)
        _entry_points.set_original(address, ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0)
    own.pympsd_pass_on(original.cuGetExportTable)


process.when_native.insert(-1, _find_originals)  # before the last one, after which calls are passed on


# --- functions of CUDA 10 to 12 with structures and outputs of their own

_KERNEL_BYTES: Final = 56
"""The size of a CUDA_KERNEL_NODE_PARAMS_v1; CUDA 12's structure has two more fields at its end."""
_NEW_KERNEL_BYTES: Final = 72


def _new_kernel(parameters: int) -> Any:
    """Return a buffer with CUDA 12's structure for the kernel in a CUDA_KERNEL_NODE_PARAMS_v1."""
    check_not_null("the CUDA_KERNEL_NODE_PARAMS", parameters)
    return ctypes.create_string_buffer(ctypes.string_at(parameters, _KERNEL_BYTES), _NEW_KERNEL_BYTES)


def _add_kernel(graph: int, dependencies: int, count: int, parameters: int) -> int:
    description = _new_kernel(parameters)
    return int(api.cuGraphAddKernelNode(graph, dependencies, count, ctypes.addressof(description)))


def _get_kernel(node: int, place: int) -> None:
    check_not_null("the CUDA_KERNEL_NODE_PARAMS", place)
    ctypes.memmove(place, bytes(api.cuGraphKernelNodeGetParams(node)), _KERNEL_BYTES)


def _set_kernel(node: int, parameters: int) -> None:
    description = _new_kernel(parameters)
    api.cuGraphKernelNodeSetParams(node, ctypes.addressof(description))


def _set_executable_kernel(executable: int, node: int, parameters: int) -> None:
    description = _new_kernel(parameters)
    api.cuGraphExecKernelNodeSetParams(executable, node, ctypes.addressof(description))


def _instantiate(graph: int, node: int, log: int, size: int) -> int:
    """Return a new executable graph; leave the log empty and set the refused node to NULL."""
    process.require()
    if node:
        ctypes.c_uint64.from_address(node).value = 0
    if log and size:
        ctypes.c_char.from_address(log).value = b"\0"
    executable: int = find_core("_graphs.executable_functions.instantiate")(graph, 0)
    return executable


def _update_executable(executable: int, graph: int, node: int, verdict: int) -> None:
    """Update an executable graph; store the node that differs, and the kind of difference."""
    process.require()
    check_not_null("a result", node, verdict)
    failure = None
    try:
        info: bytes = find_core("_graphs.executable_functions.update")(executable, graph)
    except CudaError as error:
        if not error.outputs:
            raise
        info, failure = error.outputs[0], error
    result, error_node, _ = struct.unpack("=i4xQQ", info)  # a CUgraphExecUpdateResultInfo
    ctypes.c_int.from_address(verdict).value = result
    ctypes.c_uint64.from_address(node).value = error_node
    if failure is not None:
        raise failure


_OLD: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "cuGraphAddKernelNode": (_add_kernel, ">QQQQQ"),
    "cuGraphExecKernelNodeSetParams": (_set_executable_kernel, "QQQ"),
    "cuGraphExecUpdate": (_update_executable, "QQQQ"),
    "cuGraphInstantiate": (_instantiate, ">QQQQQ"),
    "cuGraphInstantiate_v2": (_instantiate, ">QQQQQ"),
    "cuGraphKernelNodeGetParams": (_get_kernel, "QQ"),
    "cuGraphKernelNodeSetParams": (_set_kernel, "QQ"),
}
"""The functions by their names with versions, and the formats of their parameters."""
