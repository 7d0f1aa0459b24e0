"""The driver functions for callers in C, over the cores that the rows of `pympsd_client.signatures` name.

Theory of operation. `pympsd_client.driver` makes a Python function from a row; this module makes another from the
same row for callers in C. That function gets C's arguments as ints, texts and structures at addresses, and returns
the values of the outputs. The C part (native/src/entry_points.c) reads the arguments and writes the outputs by a
format: a code for each parameter, with ``>`` before an output. An example::

    row        cuMemAlloc(out CUdeviceptr dptr, size_t bytesize) = allocate
    C          CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize)
    format     ">QQ"
    function   def cuMemAlloc(bytesize):
                   if _process.calls_back and _this_thread.in_host_function: raise _not_permitted()
                   if _process.connection is None: _process.require()
                   return _core(bytesize)

The function is source text that is compiled at the first call, so that a call does only what its row needs. A
function that consists of these two checks and the call of its core is *direct*: once the checks have passed, the C
part calls the core without them, until something may change their result (`_check_again`).

Functions whose C arguments a row does not describe are in `special` and `by_address`. Function pointers of the
installed version of cuda.bindings may have fewer or more parameters than the row; `versions` adapts them.

`api` has the same functions by name for the cores of the runtime.

`read`, `write` and `pack` convert structures, arrays and texts at C's addresses.
"""

import atexit
import ctypes
from types import SimpleNamespace
from typing import Any, Final

from pympsd_client._api.conversions import is_as_given, not_permitted, output_wrapper, structure_reader
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.host_pointer import host_memory_at
from pympsd_client._arguments.values import AttributeValue, InMemory, null_argument
from pympsd_client._command_stream.launch_cache import when_invalidated
from pympsd_client._objects.context import this_thread
from pympsd_client._objects.process import process
from pympsd_client.native import _entry_points
from pympsd_client.routing import c_types, special
from pympsd_client.routing.explain import make_refusal, result_of
from pympsd_client.routing.pointers import read_signatures, signatures
from pympsd_client.routing.versions import adapt, arrange, newest, row_of
from pympsd_client.signatures import SIGNATURES, Calling, Parameter, Signature

_texts: Final[dict[bytes, Any]] = {}


def intern(text: bytes | None) -> int:
    """Return the address of a C string with a text, which is never freed; 0 for None."""
    if text is None:
        return 0
    return ctypes.addressof(_texts.setdefault(text, ctypes.create_string_buffer(text)))


def read(type: str, argument: Any) -> Any:
    """Return a structure in the form that cores take, from its address, or from its bytes if C passes it by value."""
    if isinstance(argument, bytes):
        structure = getattr(bindings, type)()
        ctypes.memmove(structure.getPtr(), argument, len(argument))
        return structure
    if not argument:
        return None
    special = _SPECIAL.get(type)
    if special is not None:
        return special(argument)
    structure = c_types.structure(type)(_ptr=argument)
    reader = structure_reader(type)
    return structure if reader is None else reader(structure)


def read_later(type: str, address: int) -> Any:
    """Return an argument that its core reads itself: an address, or an object of this module."""
    special = _SPECIAL.get(type)
    if special is not None:
        return special(address) if address else None
    return InMemory(address) if address else None


def pack(value: Any) -> Any:
    """Return the bytes of an attribute's value; return any other value unchanged."""
    return value.packed if isinstance(value, AttributeValue) else value


def write(type: str, value: Any) -> Any:
    """Return the bytes of a structure, which a core has returned as bytes, as an object, or as a plain value."""
    if value is None or isinstance(value, bytes):
        return value
    wrap = output_wrapper(type)
    structure = value if wrap is None or hasattr(value, "getPtr") else wrap(value)
    return ctypes.string_at(structure.getPtr(), c_types.STRUCTURES[type])


class _ContextParameters(ctypes.Structure):
    _fields_ = (("affinities", ctypes.c_void_p), ("count", ctypes.c_int), ("cig", ctypes.c_void_p))


def _context_parameters(address: int) -> Any:
    """Return a CUctxCreateParams. (cuda.bindings' own class does not have the length of the array at an address.)"""
    raw = _ContextParameters.from_address(address)
    affinities = [
        bindings.CUexecAffinityParam(_ptr=raw.affinities + 8 * index)
        for index in range(raw.count if raw.affinities else 0)
    ]
    return SimpleNamespace(execAffinityParams=affinities, numExecAffinityParams=raw.count, cigParams=raw.cig)


_SPECIAL: Final = {"CUctxCreateParams *": _context_parameters}


Resolved = tuple[Any, ...]
"""A function, the format of its parameters, and its core if the function is direct."""
_OPTIONAL_OUTPUTS: Final = {
    "cuCtxGetStreamPriorityRange": ("leastPriority", "greatestPriority"),
    "cuCtxPopCurrent": ("pctx",),
    "cuFuncGetParamInfo": ("paramSize",),
    "cuKernelGetParamInfo": ("paramSize",),
    "cuLinkComplete": ("sizeOut",),
    "cuMemGetAddressRange": ("pbase", "psize"),
    "cuMemGetInfo": ("free", "total"),
    "cuStreamEndCapture": ("phGraph",),
}
"""The output pointers of each function that may be NULL, as recorded on an H100."""
_ONE_OUTPUT: Final = frozenset({"cuLibraryGetGlobal", "cuLibraryGetManaged", "cuModuleGetGlobal"})
"""The functions of which at least one output pointer must not be NULL."""
_OPTIONAL_TEXTS: Final = frozenset({"cuLinkAddData"})
"""The functions whose texts may be NULL."""

# `hook` closes the connection instead, after the program's exit functions have run.
atexit.unregister(process.at_exit)
process.when_native.append(_entry_points.pass_on)


def resolve(name: str, signature: str) -> Resolved:
    """Return the function behind an entry point, and the format of its parameters."""
    types = c_types.parameters(signature)
    row = row_of(name, types, SIGNATURES)
    if row is None:
        return special.resolve(name) or (make_refusal(name), "")
    return resolve_row(row, types)


def resolve_row(row: Signature, types: tuple[str, ...]) -> Resolved:
    """Return the function of a row for parameters of these C types, their format, and its core if it is direct."""
    by_hand = special.resolve(row.name)
    parameters = _variants(row, types) if row.calling is Calling.VARIANTS else arrange(row, types)
    if by_hand is not None:
        function, format = by_hand
        if len(types) < len(row.parameters):
            codes = dict(zip(row.parameters, format, strict=True))
            return adapt(function, row.parameters, parameters), "".join(map(codes.__getitem__, parameters))
        return function, format
    format = "".join(_format(row, parameter, type) for parameter, type in zip(parameters, types, strict=True))
    names = _names(row)
    source, is_direct = _source(row, parameters, types)
    exec(compile(source, f"<routed {row.name}>", "exec"), names)
    function = names[row.name]
    return (function, format, names["_core"]) if is_direct else (function, format)


def result_of_error(name: str, error: BaseException | None) -> int:
    """Return the result for an exception in a call."""
    return result_of(name, error)


def _variants(row: Signature, types: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Return the parameters of a function whose core accepts the parameters of several versions."""
    if len(row.parameters) == len(types):
        return row.parameters
    return tuple(
        Parameter(
            type.removesuffix("*").strip() if index < len(row.outputs) else type,
            f"_{index}",
            index < len(row.outputs),
            index >= len(row.outputs),
        )
        for index, type in enumerate(types)
    )


def _format(row: Signature, parameter: Parameter, type: str) -> str:
    if not parameter.is_output:
        if parameter.type == "char *":
            return "s"
        by_value = c_types.BY_VALUE.get(type)
        return c_types.code(type) if by_value is None else f"v{by_value}"
    sign = "?" if parameter.name in _OPTIONAL_OUTPUTS.get(row.name, ()) else "|" if row.name in _ONE_OUTPUT else ">"
    pointee = type.removesuffix("*").strip()
    is_text = pointee == "char" and parameter.type == "char *"
    if pointee in c_types.STRUCTURES or is_text or parameter.type == "void":
        return f"{sign}b"
    return sign + (c_types.code(pointee) if pointee != "void" else "Q")


def _names(row: Signature) -> dict[str, Any]:
    """Return the values of the names that a function's source uses."""
    return {
        "_at": host_memory_at,
        "_skip_checks": _skip_checks,
        "_core": row.find_core(),
        "_intern": intern,
        "_not_permitted": not_permitted,
        "_process": process,
        "_null": null_argument,
        "_pack": pack,
        "_read": read,
        "_read_later": read_later,
        "_this_thread": this_thread,
        "_write": write,
        "_wrap": output_wrapper,
    }


def _source(row: Signature, parameters: tuple[Parameter, ...], types: tuple[str, ...]) -> tuple[str, bool]:
    """Return the Python text of a function, and whether the function is direct."""
    inputs = [(parameter, type) for parameter, type in zip(parameters, types, strict=True) if not parameter.is_output]
    names = ", ".join(parameter.name for parameter, _ in inputs)
    lines = [f"def {row.name}({names}):"]
    is_early = row.calling in (Calling.ANYWHERE, Calling.BEFORE_INIT)
    if not is_early:
        lines += ["    if _process.calls_back and _this_thread.in_host_function: raise _not_permitted()"]
    conversions = [f"    {line}" for parameter, type in inputs for line in _conversion(row, parameter, type)]
    lines += conversions
    if row.calling is not Calling.VARIANTS:
        lines += [f"    {parameter.name} = None" for parameter in row.parameters if parameter not in parameters]
    if not is_early:
        lines += ["    if _process.connection is None: _process.require()"]
    required = [parameter.name for parameter, _ in inputs if parameter.is_nonnull]
    lines += [f"    if not {name}: raise _null({name!r})" for name in required]
    arguments = names if row.calling is Calling.VARIANTS and "*" in row.arguments else row.arguments
    call = f"_core({arguments})"
    is_direct = row.calling is Calling.INITIALIZED and not conversions and not required and arguments == names
    outputs = [(parameter, type) for parameter, type in zip(parameters, types, strict=True) if parameter.is_output]
    values = [f"o{index}" for index in range(len(outputs))]
    results = [_result(value, parameter, type) for value, (parameter, type) in zip(values, outputs, strict=True)]
    if not outputs:
        lines += [f"    {call}"]
    elif results == values:
        lines += ["    _skip_checks()"] if is_direct else []
        lines += [f"    return {call}"]
    else:
        lines += [f"    {', '.join(values)} = {call}", f"    return {', '.join(results)}"]
    return "\n".join(lines), is_direct and bool(outputs) and results == values


def _skip_checks() -> None:
    """Let the C part call cores without the checks from now on, until something may change the checks' results."""
    _entry_points.set_checked(True)
    # Another thread may have changed the results after the checks, and called `_check_again` too early.
    if process.calls_back or process.connection is None:
        _entry_points.set_checked(False)


def _check_again() -> None:
    _entry_points.set_checked(False)


when_invalidated.append(_check_again)


def _conversion(row: Signature, parameter: Parameter, type: str) -> list[str]:
    name = parameter.name
    if parameter.type == "char *":
        if row.name in _OPTIONAL_TEXTS:
            return [f"if {name} is None: {name} = ''"]
        return [f"if {name} is None: raise _null({name!r}, 'the address of a text')"]
    if parameter.type == "void *":
        return [f"{name} = _at({name})"]
    if parameter.type == "const void *" or (parameter.type.endswith(" *") and is_as_given(parameter.type)):
        return [f"{name} = _read_later({parameter.type!r}, {name})"]
    if c_types.structure(type) is not None or type in c_types.BY_VALUE:
        return [f"{name} = _read({type!r}, {name})"]
    return []


def _result(value: str, parameter: Parameter, type: str) -> str:
    if type == "char **" and parameter.type == "char *":
        return f"_intern({value})"
    if parameter.type == "void":
        return f"_pack({value})"
    pointee = type.removesuffix("*").strip()
    if pointee in c_types.STRUCTURES:
        return f"_write({pointee!r}, {value})"
    return value


class _Calls:
    """The driver's functions by name, for the runtime: they take C's inputs, return the outputs, raise CudaError."""

    def __getattr__(self, name: str) -> Any:
        read_signatures("cuda.bindings.cydriver")
        installed = newest(name, SIGNATURES[name], signatures)
        function, *_ = resolve(installed, signatures[installed])
        setattr(self, name, function)
        return function


api: Final = _Calls()
