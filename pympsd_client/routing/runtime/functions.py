"""The functions behind the entry points of the CUDA runtime, and each thread's last error.

Theory of operation. `resolve` gets a function's name and its C signature, from cuda.bindings.cyruntime or from the
table of one of pympsd's shared libraries. It returns the Python function to call:

- If the function is a function of the driver with another name (`rows.EQUAL`), the driver's row is resolved for the
  parameters of the runtime's function. Their types have other names in the driver (`_driver_types`). So a function
  of CUDA 12 that has fewer parameters than the row is adapted as a function of the driver is (`versions`).
- Otherwise a row of the runtime (`rows.ROWS`) names a core in the module of its chapter.

A name such as `cudaMemcpyAsync_v2_ptsz` consists of the function, a version, and a variant for programs with a
default stream for each thread. A version may have its own row; if not, its parameters show which version it is. In a
variant a NULL stream stands for the thread's stream. Copies and fills without a stream (``_ptds``) wait for the work
of all streams, which is more than necessary.

A parameter that is a CUfunction or a CUkernel in the driver is the address of a function of the host program in the
runtime (`symbols.kernel_at`).

Last errors: CUDA runtime API, Error Handling.
"""

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import bindings
from pympsd_client._objects.process import process
from pympsd_client.routing import c_types, driver
from pympsd_client.routing.explain import make_refusal, result_of
from pympsd_client.routing.runtime.devices import ready
from pympsd_client.routing.runtime.properties import LAYOUTS
from pympsd_client.routing.runtime.rows import EQUAL, NEED_NO_CONTEXT, ROWS
from pympsd_client.routing.runtime.symbols import kernel_at
from pympsd_client.routing.versions import adapt, arrange
from pympsd_client.signatures import SIGNATURES, Calling, Parameter, Signature

_VARIANT: Final = re.compile(r"_pt[sd][sz]$")
_VERSION: Final = re.compile(r"_v\d$")
_PUBLIC_NAMES: Final = {
    "pympsd_kernel": "cudaLaunchKernel",
    "pympsd_ready": "cudaLaunchKernel",
    "pympsd_variable": "cudaGetSymbolAddress",
}
"""The functions that programs call, by the names of the functions that libcudart calls for them."""
_ADDRESSES: Final = {"void *": "CUdeviceptr", "void **": "CUdeviceptr *"}
"""The driver's types for device addresses, by the runtime's types."""
_OPTIONAL_OUTPUTS: Final = frozenset({"cudaArrayGetInfo"})
"""The functions whose output pointers may all be NULL (CUDA runtime API)."""


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters.

    A function that pympsd lacks raises NOT_SUPPORTED when called. Raise TypeError for a signature of an unknown
    version.
    """
    types = c_types.parameters(signature)
    base = _VARIANT.sub("", name)
    row = ROWS.get(base) or ROWS.get(_VERSION.sub("", base))
    equal = EQUAL.get(base) or EQUAL.get(_VERSION.sub("", base), "")
    if row is not None:
        function, format = _resolve_row(row, types)
    elif equal:
        function, format = _resolve_driver_function(equal, types)
    else:
        return make_refusal(name), ""
    return function, c_types.select_threads_stream(format, types) if base != name else format


def _resolve_row(row: Signature, types: tuple[str, ...]) -> tuple[Callable[..., Any], str]:
    parameters = arrange(row, types)
    core = row.find_core()
    layout = next((LAYOUTS[type] for type in types if type in LAYOUTS), None)
    if layout is not None:
        core = partial(core, layout=layout)
    core = adapt(core, row.inputs, tuple(parameter for parameter in parameters if parameter.is_input))
    is_early = row.calling in (Calling.ANYWHERE, Calling.BEFORE_INIT)
    sign = "?" if row.name in _OPTIONAL_OUTPUTS else ">"
    format = "".join(_code(parameter, type, sign) for parameter, type in zip(parameters, types, strict=True))
    return core if is_early else _ready(core), format


def _resolve_driver_function(name: str, types: tuple[str, ...]) -> tuple[Callable[..., Any], str]:
    row = SIGNATURES.get(name)
    function, format, *_ = driver.resolve(name, f"CUresult ({', '.join(_driver_types(row, types))})")
    if name in NEED_NO_CONTEXT:
        return _initialize_before(function), format
    if row is not None and row.calling in (Calling.ANYWHERE, Calling.BEFORE_INIT):
        return function, format
    if row is not None and len(row.parameters) == len(types):
        inputs = [parameter for parameter in row.parameters if parameter.is_input]
        for index, parameter in enumerate(inputs):
            if parameter.type in ("CUfunction", "CUkernel"):
                return _ready(_wrap_kernel(function, index)), format
    return _ready(function), format


def _driver_types(row: Signature | None, types: tuple[str, ...]) -> tuple[str, ...]:
    """Return the driver's names for the types of a runtime function's parameters.

    >>> _driver_types(None, ("cudaStream_t", "cudaMemLocation", "cudaGraphEdgeData *"))
    ('CUstream', 'CUmemLocation', 'CUgraphEdgeData *')
    """
    if row is None:
        return tuple(map(_driver_type, types))
    if len(row.parameters) != len(types):
        has = {parameter.type for parameter in row.parameters}
        same = {type: to for type, to in _ADDRESSES.items() if to in has and type not in has}
        return tuple(same.get(type) or _driver_type(type) for type in types)
    pointers = (f"{parameter.type} *" if parameter.is_output else parameter.type for parameter in row.parameters)
    return tuple(
        pointer if type.startswith("cuda") and type.endswith("*") and pointer.endswith("*") else _driver_type(type)
        for type, pointer in zip(types, pointers, strict=True)
    )


def _driver_type(type: str) -> str:
    name, _, stars = type.partition(" *")
    if type == "unsigned long long *":
        return "cuuint64_t *"
    plain = name.removeprefix("cuda").removesuffix("_t")
    translated = f"CU{plain[:1].lower()}{plain[1:]}"
    is_known = name.startswith("cuda") and hasattr(bindings, translated)
    return type if not is_known else f"{translated} *{stars}" if "*" in type else translated


def _wrap_kernel(function: Callable[..., Any], index: int) -> Callable[..., Any]:
    """Return a function that calls ``function`` with the kernel of the host function at argument ``index``."""

    def call(*arguments: Any) -> Any:
        return function(*arguments[:index], kernel_at(arguments[index]), *arguments[index + 1 :])

    return call


def result_of_error(name: str, error: BaseException | None) -> int:
    """Return the result for an exception in a call, and keep it for cudaGetLastError."""
    return keep(result_of(_PUBLIC_NAMES.get(name, name), error))


def _ready(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        ready()
        return function(*arguments)

    return call


def _initialize_before(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        process.initialize(0)
        return function(*arguments)

    return call


def _code(parameter: Parameter, type: str, sign: str) -> str:
    """Return a parameter's place in a format; ``sign`` marks outputs."""
    pointee = type.removesuffix("*").strip()
    if not parameter.is_output:
        size = c_types.BY_VALUE.get(type)
        return c_types.code(type) if size is None else f"v{size}"
    if pointee in c_types.BY_VALUE or pointee in c_types.STRUCTURES:
        return f"{sign}b"
    return f"{sign}{c_types.code(pointee)}"


class _Last(threading.local):
    code = 0


_last: Final = _Last()


def keep(code: int) -> int:
    """Keep a result for cudaGetLastError, except NOT_READY, which is not an error; return the result."""
    if code != Result.ERROR_NOT_READY:
        _last.code = code
    return code


def last() -> int:
    """Return the last error of this thread's calls."""
    return _last.code


def take_last() -> int:
    """Return the last error of this thread's calls, and reset it."""
    code, _last.code = _last.code, 0
    return code
