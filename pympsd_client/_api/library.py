"""Libraries, and linking (CUDA driver API, Library Management and Module Management).

A library is an image that is not bound to a context: PTX, a fat binary, or, on a GPU, machine code. When a context
first uses one of its kernels, the library is loaded there as a module. Errors of the image are reported then, or
immediately if the caller passes an error log. Every function that takes a function's handle also takes a kernel's.

A link joins several PTX texts into one image (cuLink*). Names of symbols are bytes, sizes are in bytes. Functions
raise INVALID_HANDLE for handles that are not a library's, kernel's or link's, and NOT_FOUND for names that the image
does not have.
"""

import ctypes
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.module import check_cache_preference, parameter_of
from pympsd_client._arguments import jit_options
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._objects.code.library import kernel_of, library_of, new_library
from pympsd_client._objects.code.link import Link, link_of, links
from pympsd_client._objects.code.module import image_at, image_of
from pympsd_client._objects.code.ptx_text import limit_registers
from pympsd_client._objects.context import current, require_context, this_thread
from pympsd_client._objects.process import process

_OPTIONS: Final = {value: name for name, value in members("CUlibraryOption", "CU_LIBRARY_").items()}


def load(
    code: HostMemory,
    options: Any,
    values: Any,
    count: int,
    library_options: Any,
    library_values: Any,
    library_count: int,
) -> int:
    """Make a library from an image. Each context loads it at its first use, and reports errors of the image then.

    With an error log the current context loads it immediately. Raise INVALID_VALUE or NOT_SUPPORTED for an option.
    """
    process.require().check()
    return _load(image_at(code), (count, options, values), (library_count, library_options))


def load_from_file(
    name: str, options: Any, values: Any, count: int, library_options: Any, library_values: Any, library_count: int
) -> int:
    """Make a library from a file, named by bytes; raise FILE_NOT_FOUND and the errors of cuLibraryLoadData."""
    process.require().check()
    image = image_of(name.encode("utf-8", "surrogateescape"))
    return _load(image, (count, options, values), (library_count, library_options))


def _load(image: bytes, options: tuple[int, Any, Any], library_options: tuple[int, Any]) -> int:
    _check_library_options(*library_options)
    read = jit_options.read(*options)
    library = new_library(limit_registers(image, read.max_registers))
    if read.logs and this_thread.stack:  # later the log's buffer could be gone
        with read.write_logs():
            library.module_in(current())
    return library.handle


def _check_library_options(count: int, options: Any) -> None:
    for option in jit_options.enums(options, count):
        name = _OPTIONS.get(option)
        if name == "HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE":
            raise not_supported("CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE is not supported; leave it out")
        if name != "BINARY_IS_PRESERVED":  # has no effect, because the image is always copied
            raise invalid_value(f"there is no library option {option}")


def unload(library: int) -> None:
    """Unload a library from all contexts; its handle and those of its kernels become invalid."""
    library_of(library).unload()


def kernel(library: int, name: str) -> int:
    """Return a kernel by its name (bytes), with or without a context; raise NOT_FOUND."""
    return library_of(library).kernel(name).handle


def kernel_count(library: int) -> int:
    """Return the number of kernels of a library."""
    return len(library_of(library).kernels())


def enumerate_kernels(count: int, library: int) -> list[int]:
    """Return up to ``numKernels`` kernels of a library."""
    return [kernel.handle for kernel in library_of(library).kernels().values()][:count]


def module(library: int) -> int:
    """Return the library's module in the current context, which cuModuleUnload cannot unload."""
    return library_of(library).module_in(current()).handle


def variable(library: int, name: str) -> tuple[int, int]:
    """Return a variable's address in the current context and its size in bytes; raise NOT_FOUND."""
    entry = library_of(library).module_in(current()).variable(name)
    return entry.address, entry.size


def managed_variable(library: int, name: str) -> tuple[int, int]:
    """Return a managed variable's address in the current context and its size in bytes; raise NOT_FOUND."""
    entry = library_of(library).module_in(current()).variable(name)
    if not entry.managed:
        raise CudaError(Result.ERROR_NOT_FOUND, f"{name!r} is not a managed variable; try cuLibraryGetGlobal")
    return entry.address, entry.size


def unified_function(library: int, symbol: str) -> int:
    """Raise INVALID_VALUE: no device has unified function pointers (attribute UNIFIED_FUNCTION_POINTERS is 0)."""
    library_of(library)
    raise invalid_value(f"no unified function {symbol!r}: UNIFIED_FUNCTION_POINTERS of the devices is 0")


def function(kernel: int) -> int:
    """Return the kernel's function in the current context."""
    return kernel_of(kernel).function_in(current()).handle


def library_of_kernel(kernel: int) -> int:
    """Return the library of a kernel."""
    return kernel_of(kernel).library.handle


def name(kernel: int) -> bytes:
    """Return a kernel's name as bytes."""
    return kernel_of(kernel).name.encode("utf-8", "surrogateescape")


def attribute(attribute: int, kernel: int, device: int) -> int:
    """Return an attribute of a kernel on a device; raise INVALID_VALUE, INVALID_DEVICE."""
    return kernel_of(kernel).attribute(attribute, process.device(device))


def set_attribute(attribute: int, value: int, kernel: int, device: int) -> None:
    """Set an attribute of a kernel in all contexts of a device, as cuFuncSetAttribute does in one."""
    kernel_of(kernel).set_attribute(attribute, value, process.device(device))


def set_cache_preference(kernel: int, preference: int, device: int) -> None:
    """Accept a CUfunc_cache, which has no effect because shared memory is not part of the cache here.

    Raise INVALID_VALUE.
    """
    kernel_of(kernel)
    process.device(device)
    check_cache_preference(preference)


def parameter(kernel: int, index: int) -> tuple[int, int]:
    """Return the offset and size in bytes of a parameter, counted from 0; raise INVALID_VALUE beyond the last.

    As in the driver, a context must be current.
    """
    current().usable()
    entry = kernel_of(kernel)
    return parameter_of(entry.name, entry.parameters, index)


def parameter_count(kernel: int) -> int:
    """Return the number of parameters of a kernel; a context must be current."""
    current().usable()
    return len(kernel_of(kernel).parameters)


def create(count: int, options: Any, values: Any) -> int:
    """Begin a link in the current context; options are its logs, and MAX_REGISTERS for inputs without their own."""
    context = require_context()
    link = Link(context, jit_options.read(count, options, values))
    links[link.handle] = link
    return link.handle


def add(link: int, kind: int, data: HostMemory, size: int, name: str, count: int, options: Any, values: Any) -> None:
    """Add an input of ``size`` bytes: PTX, or with a type other than CU_JIT_INPUT_PTX a fatbin that contains PTX.

    Raise INVALID_PTX or INVALID_IMAGE, with the reason in the error log; UNKNOWN for a symbol that is defined twice;
    NOT_SUPPORTED for other inputs; NO_BINARY_FOR_GPU for fatbins without PTX for the device; JIT_COMPILER_NOT_FOUND
    for NVVM IR.
    """
    entry, registers = link_of(link), jit_options.read(count, options, values).max_registers
    data.check(size, to_be_written=False)
    entry.add(kind, ctypes.string_at(data.address, size), name, registers)


def add_file(link: int, kind: int, path: str, count: int, options: Any, values: Any) -> None:
    """Add a file, named by bytes, as an input; raise FILE_NOT_FOUND and the errors of cuLinkAddData."""
    entry, registers = link_of(link), jit_options.read(count, options, values).max_registers
    entry.add(kind, image_of(path.encode("utf-8", "surrogateescape")), path, registers)


def complete(link: int) -> tuple[int, int]:
    """Return the address and the size in bytes of the linked PTX, which cuModuleLoadData accepts until cuLinkDestroy.

    Raise UNKNOWN for a symbol that no input defines; the error log names the symbol.
    """
    return link_of(link).complete()


def destroy(link: int) -> None:
    """End a link and free its image."""
    links.pop(link_of(link).handle, None)
