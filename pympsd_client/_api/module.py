"""Modules and their functions (CUDA driver API, Module Management)."""

from __future__ import annotations

from typing import Any

from pympsd_client._arguments import jit_options
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._objects import module as core
from pympsd_client._objects.context import current
from pympsd_client._objects.module import functions, modules


def load(image: HostMemory) -> int:
    """Load PTX from an address (up to its NUL) or a buffer; INVALID_PTX names line and instruction in last_error."""
    current().usable()
    return core.load(core.image_at(image)).handle


def load_with_options(image: HostMemory, count: int, options: Any, values: Any) -> int:
    """Load PTX with options: the error and info log buffers are filled, hints to the compiler have no effect.

    INVALID_PTX with the reason in the error log; INVALID_VALUE, NOT_SUPPORTED for an invalid option.
    """
    current().usable()
    logs = jit_options.read(count, options, values)
    try:
        module = core.load(core.image_at(image))
    except CudaError as error:
        logs.write(error.reason)
        raise
    logs.write("")
    return module.handle


def load_file(name: str) -> int:
    """Load a file (its name as bytes); FILE_NOT_FOUND."""
    return core.load_file(name.encode("utf-8", "surrogateescape")).handle


def unload(module: int) -> None:
    """Unload a module; its functions' and variables' handles are invalid from now on."""
    modules.find(module).unload()


def function(module: int, name: str) -> int:
    """Return a kernel by its name (bytes); NOT_FOUND."""
    return modules.find(module).function(name).handle


def variable(module: int, name: str) -> tuple[int, int]:
    """Return the address and the size in bytes of a variable by its name (bytes); NOT_FOUND."""
    found = modules.find(module).variable(name)
    return found.address, found.size


def attribute(attribute: int, function: int) -> int:
    """Return an attribute of a kernel; INVALID_VALUE for an unknown one."""
    return functions.find(function).attribute(attribute)


def set_attribute(function: int, attribute: int, value: int) -> None:
    """Set MAX_DYNAMIC_SHARED_SIZE_BYTES (bytes) of a kernel; INVALID_VALUE beyond the device's limit."""
    functions.find(function).set_attribute(attribute, value)
