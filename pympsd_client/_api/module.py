"""Modules and their functions (CUDA driver API, Module Management and Execution Control)."""

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments import jit_options
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._objects.code import module as core
from pympsd_client._objects.code.library import find_function, function_of
from pympsd_client._objects.code.module import modules
from pympsd_client._objects.code.ptx_text import limit_registers
from pympsd_client._objects.context import current

_CACHE_PREFERENCES: Final = range(4)
_BANK_SIZES: Final = range(3)
_UNLOADED: Final = 0
_LOADED: Final = 1
_LAZY: Final = 2


def load(image: HostMemory) -> int:
    """Load PTX, or a fatbin that contains PTX, from an address or a buffer.

    Raise INVALID_PTX; last_error names the line and the instruction.
    """
    current().usable()
    return core.load(core.image_at(image)).handle


def load_with_options(image: HostMemory, count: int, options: Any, values: Any) -> int:
    """Load PTX with options: the logs are written, MAX_REGISTERS limits registers, other hints have no effect.

    Raise INVALID_PTX, with the reason in the error log; INVALID_VALUE or NOT_SUPPORTED for an option.
    """
    current().usable()
    read = jit_options.read(count, options, values)
    with read.write_logs():
        return core.load(limit_registers(core.image_at(image), read.max_registers)).handle


def load_file(name: str) -> int:
    """Load a file, named by bytes, as cuModuleLoadData loads an image; raise FILE_NOT_FOUND."""
    current().usable()
    return core.load(core.image_of(name.encode("utf-8", "surrogateescape"))).handle


def unload(module: int) -> None:
    """Unload a module, whose functions and variables become invalid; raise NOT_PERMITTED for a library's module."""
    entry = modules.find(module)
    if entry.library:
        raise CudaError(Result.ERROR_NOT_PERMITTED, "the module is a library's: it is unloaded by cuLibraryUnload")
    entry.unload()


def loading_mode() -> int:
    """Return CU_MODULE_LAZY_LOADING, because a context loads a library when it first uses it."""
    return _LAZY


def function(module: int, name: str) -> int:
    """Return a kernel by its name (bytes); raise NOT_FOUND."""
    return modules.find(module).function(name).handle


def function_count(module: int) -> int:
    """Return the number of kernels of a module."""
    return len(modules.find(module).list_functions())


def enumerate_functions(count: int, module: int) -> list[int]:
    """Return up to ``numFunctions`` kernels of a module."""
    return [function.handle for function in modules.find(module).list_functions()[:count]]


def variable(module: int, name: str) -> tuple[int, int]:
    """Return the address and the size in bytes of a variable by its name (bytes); raise NOT_FOUND."""
    entry = modules.find(module).variable(name)
    return entry.address, entry.size


def attribute(attribute: int, function: int) -> int:
    """Return an attribute of a kernel; raise INVALID_VALUE for an unknown attribute."""
    return function_of(function).attribute(attribute)


def set_attribute(function: int, attribute: int, value: int) -> None:
    """Set an attribute of a kernel; only MAX_DYNAMIC_SHARED_SIZE_BYTES has an effect.

    Raise INVALID_VALUE beyond the device's limit, and for an attribute that cannot be set.
    """
    function_of(function).set_attribute(attribute, value)


def name_of_function(function: int) -> bytes:
    """Return a kernel's name as bytes; raise INVALID_HANDLE."""
    return find_function(function).layout.name.encode("utf-8", "surrogateescape")


def module_of_function(function: int) -> int:
    """Return the module of a kernel."""
    return find_function(function).module


def parameter(function: int, index: int) -> tuple[int, int]:
    """Return the offset and size in bytes of a parameter, counted from 0; raise INVALID_VALUE beyond the last."""
    layout = function_of(function).layout
    return parameter_of(layout.name, layout.parameters, index)


def parameter_of(name: str, parameters: tuple[tuple[int, int], ...], index: int) -> tuple[int, int]:
    """Return the offset and size of one of a kernel's parameters; raise INVALID_VALUE."""
    if index >= len(parameters):
        raise invalid_value(f"{name} has {len(parameters)} parameters, counted from 0; there is no parameter {index}")
    return parameters[index]


def parameter_count(function: int) -> int:
    """Return the number of parameters of a kernel."""
    return len(function_of(function).layout.parameters)


def loading_state(function: int) -> int:
    """Return CU_FUNCTION_LOADING_STATE_LOADED, or UNLOADED for a large module's kernel before it is looked up."""
    return _LOADED if find_function(function).layout.is_loaded else _UNLOADED


def load_function(function: int) -> None:
    """Load a kernel of a large module before it is looked up; raise INVALID_PTX, with the reason in last_error."""
    function_of(function)


def set_cache_preference(function: int, preference: int) -> None:
    """Accept a CUfunc_cache, which has no effect because shared memory is not part of the cache here.

    Raise INVALID_VALUE.
    """
    function_of(function)
    check_cache_preference(preference)


def check_cache_preference(preference: int) -> None:
    """Raise INVALID_VALUE for a number that is not a CUfunc_cache."""
    if preference not in _CACHE_PREFERENCES:
        raise invalid_value(f"a cache preference must be a CUfunc_cache, 0 to 3, not {preference}")


def set_bank_size(function: int, size: int) -> None:
    """Accept a CUsharedconfig, which has had no effect since Maxwell; raise INVALID_VALUE."""
    function_of(function)
    check_bank_size(size)


def check_bank_size(size: int) -> None:
    """Raise INVALID_VALUE for a number that is not a CUsharedconfig."""
    if size not in _BANK_SIZES:
        raise invalid_value(f"a size of shared memory banks must be a CUsharedconfig, 0 to 2, not {size}")
