"""The functions behind the entry points of the CUDA runtime, and each thread's last error.

Theory of operation. `resolve` gets a function's name and its C signature, from cuda.bindings.cyruntime or from the
table of a shared library of ours, and returns what is called, in two ways:

- A function of the driver by another name (`rows.EQUAL`): the driver's row, read with the parameters of the runtime's
  function. Their types are the driver's by other names (`_driver_types`), and so a function of CUDA 12 that has fewer
  parameters than the row is understood as one of the driver is (`versions`).
- A row of the runtime (`rows.ROWS`), whose core is in the module of its chapter.

Names are `cudaMemcpyAsync_v2_ptsz`: the function, a version, and a variant for programs whose default stream is each
thread's own. A version may have a row of its own; if not, the parameters distinguish it from others. In a variant a
stream of NULL is the thread's stream. Copies and fills without a stream (``_ptds``) wait for the work of all
streams, which is more than they need.

Where the driver's function takes a CUfunction or a CUkernel, the runtime's takes the address of a function of the
host program (`symbols.kernel_at`).

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
"""The function that programs call, by the name of the function that libcudart calls for it."""
_ADDRESSES: Final = {"void *": "CUdeviceptr", "void **": "CUdeviceptr *"}
"""The types that the driver may have for a device address, by the runtime's type."""


def resolve(name: str, signature: str) -> tuple[Callable[..., Any], str]:
    """Return the function behind an entry point, and the format of its parameters.

    One that pympsd lacks raises NOT_SUPPORTED. TypeError if the signature is not that of any known version.
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
    return core if is_early else _ready(core), "".join(map(_code, parameters, types))


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
    """Return the types of a runtime function's parameters by the driver's names.

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
    """Return a function that takes the address of a host function where ``function`` takes a kernel."""

    def call(*arguments: Any) -> Any:
        return function(*arguments[:index], kernel_at(arguments[index]), *arguments[index + 1 :])

    return call


def result_of_error(name: str, error: BaseException | None) -> int:
    """Return the result of a call that raised, which cudaGetLastError returns too."""
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


def _code(parameter: Parameter, type: str) -> str:
    pointee = type.removesuffix("*").strip()
    if not parameter.is_output:
        size = c_types.BY_VALUE.get(type)
        return c_types.code(type) if size is None else f"v{size}"
    if pointee in c_types.BY_VALUE or pointee in c_types.STRUCTURES:
        return ">b"
    return f">{c_types.code(pointee)}"


class _Last(threading.local):
    code = 0


_last: Final = _Last()


def keep(code: int) -> int:
    """Keep a result for cudaGetLastError and return it; NOT_READY is an answer, not an error."""
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
