"""Public functions made from their rows: convert arguments, turn errors into results, give outputs their types.

Theory of operation. `pympsd_client.driver` has some 370 functions that all do the same things around a different
core, and a launch has to be quick. So each function is Python source, written from its row and compiled when the
program first names it. The function has its own parameters, and a call runs only what its row needs. For cuMemAlloc
that is::

    def cuMemAlloc(bytesize):
        if _process.native is not None:
            return _process.native.cuMemAlloc(bytesize)
        if _process.calls_back and _this_thread.in_host_function:
            return _fail(_not_permitted(), 1)
        try:
            if type(bytesize) is not int or not 0 <= bytesize < 18446744073709551616:
                bytesize = _unsigned(bytesize, 64)
            if _process.connection is None:
                _process.require()
            return _SUCCESS, _wrap['CUdeviceptr'](_core(bytesize))
        except _CudaError as error:
            return _fail(error, 1)
        except OSError as error:
            return _fail(_as_cuda_error(error), 1)

The order of the steps is fixed:

1. A program that runs natively gets the driver's answer to everything.
2. Calls in host functions are refused, except those that are allowed before cuInit.
3. Arguments of wrong types raise, as in cuda.bindings, even before cuInit.
4. A call before cuInit fails.
5. Handles that must not be NULL are checked (``nonnull`` in the row), before the context.
6. Buffers are opened last, around the call of the core, so that no error leaves one open.

`_UNSIGNED` and the tables of `conversions` state how the values of a type are converted.
"""

import inspect
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, Final

from pympsd_client._api import conversions
from pympsd_client._api.call_trace import trace
from pympsd_client._arguments.bindings import DONE, SUCCESS, name_of
from pympsd_client._arguments.errors import CudaError, failure_of
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import null_argument, number, read_unsigned, text
from pympsd_client._command_stream.launch_cache import add_cache
from pympsd_client._objects.context import this_thread
from pympsd_client._objects.process import process
from pympsd_client.signatures import Calling, Parameter, Signature

EntryPoint = Callable[..., tuple[Any, ...]]
_UNSIGNED: Final = {
    "unsigned char": 8,
    "unsigned short": 16,
    "unsigned int": 32,
    "size_t": 64,
    "unsigned long long": 64,
    "cuuint32_t": 32,
    "cuuint64_t": 64,
}


def make(signature: Signature, core: Callable[..., Any] | None = None) -> EntryPoint:
    """Return the public function of a row: ``(CUresult, output, ...)``, on failure with None for each output."""
    if core is None:
        core = signature.find_core()
    names: dict[str, Any] = {
        "_DONE": DONE,
        "_SUCCESS": SUCCESS,
        "_CudaError": CudaError,
        "_HostMemory": HostMemory,
        "_core": core,
        "_as_cuda_error": conversions.as_cuda_error,
        "_fail": failure_of(signature.name),
        "_not_permitted": conversions.not_permitted,
        "_null": null_argument,
        "_number": number,
        "_process": process,
        "_struct": {parameter.type: conversions.structure_reader(parameter.type) for parameter in signature.inputs},
        "_text": text,
        "_this_thread": this_thread,
        "_unsigned": read_unsigned,
        "_wrap": {parameter.type: conversions.output_wrapper(parameter.type) for parameter in signature.outputs},
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
        function = add_cache(function, DONE, this_thread)
    entry_point: EntryPoint = trace(signature.name, function)
    return entry_point


def _source(signature: Signature) -> str:
    """Return the source of a row's public function, which has the form of the example in the module's docstring."""
    name, outputs, calling = signature.name, len(signature.outputs), signature.calling
    is_variants = calling is Calling.VARIANTS
    arguments = "*arguments, **keywords" if is_variants else ", ".join(signature.input_names)
    declared = (
        arguments
        if is_variants
        else ", ".join(
            # The size of a returned array is optional and 0 by default.
            f"{parameter.name}=0" if parameter.is_output and parameter.type == "size_t" else parameter.name
            for parameter in signature.inputs
        )
    )
    lines = [f"def {name}({declared}):"]
    is_early = calling in (Calling.ANYWHERE, Calling.BEFORE_INIT)
    if calling is not Calling.ANYWHERE:
        lines += [
            "    if _process.native is not None:",
            f"        return _process.native.{name_of(name)}({arguments})",
        ]
    if not is_early:
        lines += [
            "    if _process.calls_back and _this_thread.in_host_function:",
            f"        return _fail(_not_permitted(), {outputs})",
        ]
    lines.append("    try:")
    if calling is not Calling.UNCONVERTED and not is_variants:
        lines += [f"        {line}" for parameter in signature.inputs for line in _conversion(parameter)]
    if not is_early:
        lines += ["        if _process.connection is None:", "            _process.require()"]
    required = [parameter.name for parameter in signature.inputs if parameter.is_nonnull]
    lines += [f"        if not {name}: raise _null({name!r})" for name in required]
    lines += [f"        {line}" for line in _call(signature)]
    lines += ["    except _CudaError as error:", f"        return _fail(error, {outputs})"]
    lines += ["    except OSError as error:", f"        return _fail(_as_cuda_error(error), {outputs})"]
    return "\n".join(lines)


def _conversion(parameter: Parameter) -> list[str]:
    """Return the lines that convert an argument to a plain value; if it is one, they only check its type."""
    name, bits = parameter.name, _UNSIGNED.get(parameter.type)
    if conversions.is_as_given(parameter.type) or _is_host_pointer(parameter):
        return []
    if bits is not None:
        wrong = f"type({name}) is not int or not 0 <= {name} < {1 << bits}"
        return [f"if {wrong}: {name} = _unsigned({name}, {bits})"]
    if parameter.type == "char *":
        return [f"{name} = _text({name})"]
    if conversions.needs_reader(parameter.type):
        return [f"{name} = _struct[{parameter.type!r}]({name})"]
    return [f"if type({name}) is not int: {name} = _number({name})"]


def _call(signature: Signature) -> list[str]:
    """Return the lines that call the core, give its outputs their types, and return the result tuple."""
    outputs = signature.outputs
    call = f"_core({signature.arguments})"
    wrapped = [conversions.output_wrapper(parameter.type) is not None for parameter in outputs]
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
