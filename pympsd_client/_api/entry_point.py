"""Public functions made from their rows: convert arguments, turn errors into results, give outputs their types.

Theory of operation. `pympsd_client.driver` has some 370 functions that all do the same things around a different
core, and a launch has to be quick. So each function is Python source, written from its row and compiled when the
program first names it: it has its own parameters, and a call runs only what its row needs. For cuMemAlloc that is::

    def cuMemAlloc(bytesize): if _process.native is not None: return _process.native.cuMemAlloc(bytesize) if
    _process.calls_back and _this_thread.in_host_function: return _fail(_not_permitted(), 1) try: if type(bytesize)
    is not int or not 0 <= bytesize < 18446744073709551616: bytesize = _unsigned(bytesize, 64) if _process.connection
    is None: _process.require() return _SUCCESS, _wrap['CUdeviceptr'](_core(bytesize)) except _CudaError as error:
    return _fail(error, 1) except OSError as error: return _fail(_as_cuda_error(error), 1)

The order is fixed: a program that runs natively gets the driver's answer to everything; a host function makes no
calls; wrong types raise before the state is looked at, as in cuda.bindings; and only then cuInit must have been
called. Buffers are opened last, around the call of the core, so that no error leaves one open.

The tables state what a type means: `_UNSIGNED` and `_STRUCTS` convert inputs, `_AS_GIVEN` leaves them to the core,
and `_WRAPPERS` converts outputs. `pympsd_client.routing` uses the same tables for callers in C.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc
from typing import Any, Final

from pympsd.channel.descriptors import EXHAUSTED, explain
from pympsd.vocabulary.results import Result
from pympsd_client._api.call_trace import trace
from pympsd_client._arguments import (
    array_structs,
    bindings,
    copy_structs,
    graph_structs,
    memory_structs,
    resources,
    shared_handles,
)
from pympsd_client._arguments.errors import DONE, SUCCESS, CudaError, failure_of
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import number, text, to_python, unsigned
from pympsd_client._command_stream.launch_cache import with_cache
from pympsd_client._objects.context import this_thread
from pympsd_client._objects.process import process
from pympsd_client.signatures import SIGNATURES, Calling, Parameter, Signature

EntryPoint = Callable[..., tuple[Any, ...]]
_NOT_PERMITTED: Final = "a host function or stream callback must not make CUDA calls; make the call in another thread"
_UNSIGNED: Final = {
    "unsigned char": 8,
    "unsigned short": 16,
    "unsigned int": 32,
    "size_t": 64,
    "unsigned long long": 64,
    "cuuint32_t": 32,
    "cuuint64_t": 64,
}
_AS_GIVEN: Final = frozenset(
    {
        "CUDA_MEMCPY3D_BATCH_OP *",
        "CUctxCreateParams *",
        "CUdevResource *",
        "CU_DEV_SM_RESOURCE_GROUP_PARAMS *",
        "CUdeviceptr *",
        "CUexecAffinityParam *",
        "CUhostFn",
        "CUipcEventHandle",
        "CUipcMemHandle",
        "CUjit_option *",
        "CUlaunchConfig *",
        "CUlibraryOption *",
        "CUmemAccessDesc *",
        "CUmemPoolPtrExportData *",
        "CUmem_range_attribute *",
        "CUmemcpyAttributes *",
        "CUpointer_attribute *",
        "CUstreamAttrValue *",
        "CUstreamBatchMemOpParams *",
        "CUstreamCallback",
        "CUtensorMap *",
        "PyObject *",
        "const CUmemLocation *",
        "const void *",
        "cuuint32_t *",
        "cuuint64_t *",
        "float",
        "int *",
        "size_t *",
        "void **",
    }
)
"""Types whose values the core reads by field."""
_GRAPH_STRUCTS: Final = tuple(f"{name} *" for name in graph_structs.NAMES)
"""Structures and arrays that the core reads in place."""
_STRUCTS: Final[dict[str, Callable[[Any], Any]]] = {
    "CUDA_ARRAY_DESCRIPTOR *": array_structs.array_2d,
    "CUDA_ARRAY3D_DESCRIPTOR *": array_structs.array_3d,
    "CUDA_MEMCPY2D *": copy_structs.copy_2d,
    "CUDA_MEMCPY3D *": copy_structs.copy_3d,
    "CUDA_MEMCPY3D_PEER *": copy_structs.copy_3d_peer,
    **array_structs.READERS,
    "CUmemAllocationProp *": memory_structs.allocation_properties,
    "CUmemLocation *": memory_structs.location,
    "CUmemPoolProps *": memory_structs.pool_properties,
}
_WRAPPERS: Final[dict[str, Callable[[Any], Any]]] = {
    **{
        parameter.type: getattr(bindings.bindings, parameter.type)
        for signature in SIGNATURES.values()
        for parameter in signature.outputs
        if hasattr(bindings.bindings, parameter.type)
    },
    "CUfunction *": lambda handles: [bindings.CUfunction(handle) for handle in handles],
    "CUkernel *": lambda handles: [bindings.bindings.CUkernel(handle) for handle in handles],
    "CUmemAllocationProp": memory_structs.make_allocation_properties,
    **bindings.makers("CUdevprop", "CUdevResource", "CUstreamAttrValue", "CUtensorMap", "CUuuid"),
    "CUexecAffinityParam": resources.sm_affinity,
    **array_structs.WRAPPERS,
    **array_structs.WRAPPERS,
    **graph_structs.WRAPPERS,
    **shared_handles.WRAPPERS,
    "CUdevResource *": lambda parts: [bindings.from_bytes("CUdevResource", part) for part in parts],
    "void": to_python,
    "void *": to_python,
}
"""Converts an output's value to the type that cuda.bindings returns; an int or bytes is returned as it is."""


def make(signature: Signature, core: Callable[..., Any] | None = None) -> EntryPoint:
    """Return the public function of a row: ``(CUresult, output, ...)``, on failure with None for each output."""
    if core is None:
        core = getattr(import_module(f"pympsd_client.{signature.module}"), signature.core)
    names: dict[str, Any] = {
        "_DONE": DONE,
        "_SUCCESS": SUCCESS,
        "_CudaError": CudaError,
        "_HostMemory": HostMemory,
        "_core": core,
        "_as_cuda_error": as_cuda_error,
        "_fail": failure_of(signature.name),
        "_not_permitted": not_permitted,
        "_number": number,
        "_process": process,
        "_struct": _STRUCTS,
        "_text": text,
        "_this_thread": this_thread,
        "_unsigned": unsigned,
        "_wrap": _WRAPPERS,
    }
    exec(compile(_source(signature), f"<{signature.name}>", "exec"), names)
    function: Any = names[signature.name]
    inputs, outputs = (
        [f"{parameter.type} {parameter.name}" for parameter in parameters]
        for parameters in (signature.inputs, signature.outputs)
    )
    prototype = f"{signature.name}({', '.join(inputs)}) -> ({', '.join(['CUresult', *outputs])})"
    function.__doc__ = f"{cleandoc(core.__doc__ or '')}\n\n{prototype}"
    function.__module__ = "pympsd_client.driver"
    if signature.calling is Calling.VARIANTS:
        function.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in signature.input_names]
        )
    if signature.name == "cuLaunchKernel":
        function = with_cache(function, DONE, this_thread)
    entry_point: EntryPoint = trace(signature.name, function)
    return entry_point


def _source(signature: Signature) -> str:
    name, outputs, calling = signature.name, len(signature.outputs), signature.calling
    is_variants = calling is Calling.VARIANTS
    arguments = "*arguments, **keywords" if is_variants else ", ".join(signature.input_names)
    declared = (
        arguments
        if is_variants
        else ", ".join(
            # The size of an array that is returned is 0 unless it is given.
            f"{parameter.name}=0" if parameter.is_output and parameter.type == "size_t" else parameter.name
            for parameter in signature.inputs
        )
    )
    lines = [f"def {name}({declared}):"]
    if calling is not Calling.ANYWHERE:
        lines += [
            "    if _process.native is not None:",
            f"        return _process.native.{bindings.name_of(name)}({arguments})",
            "    if _process.calls_back and _this_thread.in_host_function:",
            f"        return _fail(_not_permitted(), {outputs})",
        ]
    lines.append("    try:")
    if calling is not Calling.UNCONVERTED and not is_variants:
        lines += [f"        {line}" for parameter in signature.inputs for line in _conversion(parameter)]
    if calling not in (Calling.ANYWHERE, Calling.BEFORE_INIT):
        lines += ["        if _process.connection is None:", "            _process.require()"]
    lines += [f"        {line}" for line in _call(signature)]
    lines += ["    except _CudaError as error:", f"        return _fail(error, {outputs})"]
    lines += ["    except OSError as error:", f"        return _fail(_as_cuda_error(error), {outputs})"]
    return "\n".join(lines)


def _conversion(parameter: Parameter) -> list[str]:
    """Return the lines that convert an argument to a plain value; a plain one costs only a check of its type."""
    name, bits = parameter.name, _UNSIGNED.get(parameter.type)
    if is_as_given(parameter.type) or _is_host_pointer(parameter):
        return []
    if bits is not None:
        wrong = f"type({name}) is not int or not 0 <= {name} < {1 << bits}"
        return [f"if {wrong}: {name} = _unsigned({name}, {bits})"]
    if parameter.type == "char *":
        return [f"{name} = _text({name})"]
    if parameter.type in _STRUCTS:
        return [f"{name} = _struct[{parameter.type!r}]({name})"]
    return [f"if type({name}) is not int: {name} = _number({name})"]


def _call(signature: Signature) -> list[str]:
    outputs = signature.outputs
    call = f"_core({signature.arguments})"
    wrapped = [parameter.type in _WRAPPERS for parameter in outputs]
    if not outputs:
        lines = [call, "return _DONE"]
    elif not any(wrapped):
        lines = [f"return _SUCCESS, {'' if len(outputs) == 1 else '*'}{call}"]
    elif len(outputs) == 1:
        lines = [f"return _SUCCESS, _wrap[{outputs[0].type!r}]({call})"]
    else:
        values = (
            f"_wrap[{parameter.type!r}]({parameter.name}_)" if is_wrapped else f"{parameter.name}_"
            for parameter, is_wrapped in zip(outputs, wrapped, strict=True)
        )
        targets = ", ".join(f"{parameter.name}_" for parameter in outputs)
        lines = [f"{targets} = {call}", f"return _SUCCESS, {', '.join(values)}"]
    # Buffers are opened last, when all other arguments are valid.
    converted = () if signature.calling is Calling.VARIANTS else signature.inputs
    names = [parameter.name for parameter in converted if _is_host_pointer(parameter)]
    buffers = [f"_HostMemory({name}) as {name}" for name in names]
    return [f"with {', '.join(buffers)}:", *(f"    {line}" for line in lines)] if buffers else lines


def _is_host_pointer(parameter: Parameter) -> bool:
    return parameter.type == "void *"


# --- for `pympsd_client.routing`, whose functions get C's arguments


def structure_reader(type: str) -> Callable[[Any], Any] | None:
    """Return the function that converts a structure for a core, by its pointer type; None: no conversion."""
    return _STRUCTS.get(type)


def output_wrapper(type: str) -> Callable[[Any], Any] | None:
    """Return the function that converts a core's output to the type of cuda.bindings; None: no conversion."""
    return _WRAPPERS.get(type)


def is_as_given(type: str) -> bool:
    """Return whether the core itself reads values of a type."""
    return type in _AS_GIVEN or type.startswith(_GRAPH_STRUCTS)


def not_permitted() -> CudaError:
    """Return the error for a call in a host function."""
    return CudaError(Result.ERROR_NOT_PERMITTED, _NOT_PERMITTED)


def as_cuda_error(error: OSError) -> CudaError:
    """Return the error for exhausted descriptors; raise any other error again, which is the program's own."""
    if error.errno not in EXHAUSTED:
        raise error
    reason = f"this process is out of file descriptors: {explain(error)}"
    return CudaError(Result.ERROR_OPERATING_SYSTEM, reason)
