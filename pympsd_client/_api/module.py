"""Modules, their functions, launches (CUDA driver API, Module Management and Execution Control)."""

from __future__ import annotations

from typing import Any

from pympsd_client._api.entry_point import door
from pympsd_client._arguments import jit_options
from pympsd_client._arguments.bindings import CUdeviceptr, CUfunction, CUmodule
from pympsd_client._arguments.errors import DONE, SUCCESS, CudaError
from pympsd_client._arguments.numbers import number, text, unsigned
from pympsd_client._command_stream.launch_cache import with_cache
from pympsd_client._objects import module as modules
from pympsd_client._objects.context import handles
from pympsd_client._objects.launch import launch
from pympsd_client._objects.module import function_of, image_at, module_of
from pympsd_client._objects.process import current
from pympsd_client._objects.thread_local import mine

_functions = handles.functions


@door(1)
def cuModuleLoadData(image: Any) -> tuple[Any, ...]:
    """Load PTX from an address (up to its NUL) or a buffer; INVALID_PTX names line and instruction in last_error."""
    current().usable()
    return SUCCESS, CUmodule(modules.load(image_at(image)).handle)


@door(1)
def cuModuleLoadDataEx(image: Any, numOptions: Any, options: Any, optionValues: Any) -> tuple[Any, ...]:
    """Load PTX with options: the error and info log buffers are filled, hints to the compiler have no effect.

    INVALID_PTX with the reason in the error log; INVALID_VALUE, NOT_SUPPORTED for an option that cannot be.
    """
    current().usable()
    logs = jit_options.read(unsigned(numOptions, 32), options, optionValues)
    try:
        module = modules.load(image_at(image))
    except CudaError as error:
        logs.write(error.reason)
        raise
    logs.write("")
    return SUCCESS, CUmodule(module.handle)


@door(1)
def cuModuleLoad(fname: Any) -> tuple[Any, ...]:
    """Load a file (its name as bytes); FILE_NOT_FOUND."""
    return SUCCESS, CUmodule(modules.load_file(text(fname).encode("utf-8", "surrogateescape")).handle)


@door()
def cuModuleUnload(hmod: Any) -> tuple[Any, ...]:
    """Unload a module; its functions' and variables' handles are invalid from now on."""
    module_of(hmod).unload()
    return DONE


@door(1)
def cuModuleGetFunction(hmod: Any, name: Any) -> tuple[Any, ...]:
    """Return a kernel by its name (bytes); NOT_FOUND."""
    return SUCCESS, CUfunction(module_of(hmod).function(text(name)).handle)


@door(2)
def cuModuleGetGlobal(hmod: Any, name: Any) -> tuple[Any, ...]:
    """Return the address and the size in bytes of a variable by its name (bytes); NOT_FOUND."""
    variable = module_of(hmod).variable(text(name))
    return SUCCESS, CUdeviceptr(variable.address), variable.size


@door(1)
def cuFuncGetAttribute(attrib: Any, hfunc: Any) -> tuple[Any, ...]:
    """Return an attribute of a kernel; INVALID_VALUE for one that is not known."""
    return SUCCESS, function_of(hfunc).attribute(number(attrib))


@door()
def cuFuncSetAttribute(hfunc: Any, attrib: Any, value: Any) -> tuple[Any, ...]:
    """Set MAX_DYNAMIC_SHARED_SIZE_BYTES (bytes) of a kernel; INVALID_VALUE beyond the device's limit."""
    function_of(hfunc).set_attribute(number(attrib), number(value))
    return DONE


@door()
def cuLaunchKernel(
    f: Any,
    gridDimX: Any,
    gridDimY: Any,
    gridDimZ: Any,
    blockDimX: Any,
    blockDimY: Any,
    blockDimZ: Any,
    sharedMemBytes: Any,
    hStream: Any,
    kernelParams: Any,
    extra: Any,
) -> tuple[Any, ...]:
    """Start a kernel and return at once; its errors are reported by later calls.

    Parameters as ``(values, ctypes types)``, as an address or buffer of pointers, or through ``extra`` (an address).
    INVALID_VALUE for a shape or parameters that cannot be, LAUNCH_OUT_OF_RESOURCES for more threads than the kernel
    was built for, INVALID_HANDLE, or the error that poisoned the context earlier.
    """
    shape = (gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes)
    launch(_functions.get(int(f)) or function_of(f), shape, hStream, kernelParams, extra)
    return DONE


cuLaunchKernel = with_cache(cuLaunchKernel, DONE, mine)
