"""Libraries, and linking (CUDA driver API, Library Management and Module Management).

A library is an image that is not bound to a context: PTX, a fat binary, or, on a GPU, machine code. It is loaded
into a context as a module when one of its kernels is used there first, and errors of the image are reported then,
unless the caller asks for an error log. So every function that takes a function handle also takes a kernel handle.

A link joins several PTX texts into one image (cuLink*). Names of symbols are bytes, sizes in bytes. INVALID_HANDLE
for handles that are not those of a library, kernel or link, NOT_FOUND for names that the image does not have.
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
    """Make a library of PTX. Each context loads it at its first use and reports errors of the PTX then.

    With an error log it is loaded in the current context immediately. INVALID_VALUE, NOT_SUPPORTED for an invalid
    option.
    """
    process.require().check()
    return _load(image_at(code), (count, options, values), (library_count, library_options))


def load_from_file(
    name: str, options: Any, values: Any, count: int, library_options: Any, library_values: Any, library_count: int
) -> int:
    """Load a file (its name as bytes) as a library; raise FILE_NOT_FOUND, else as cuLibraryLoadData."""
    process.require().check()
    image = image_of(name.encode("utf-8", "surrogateescape"))
    return _load(image, (count, options, values), (library_count, library_options))


def _load(image: bytes, options: tuple[int, Any, Any], library_options: tuple[int, Any]) -> int:
    _check_library_options(*library_options)
    read = jit_options.read(*options)
    library = new_library(limit_registers(image, read.max_registers))
    if read.logs and this_thread.stack:  # if it were loaded as late as in CUDA, the log could be gone
        with read.write_logs():
            library.module_in(current())
    return library.handle


def _check_library_options(count: int, options: Any) -> None:
    for option in jit_options.enums(options, count):
        name = _OPTIONS.get(option)
        if name == "HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE":
            raise not_supported("CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE is not supported; leave it out")
        if name != "BINARY_IS_PRESERVED":  # the image is copied in any case
            raise invalid_value(f"there is no library option {option}")


def unload(library: int) -> None:
    """Unload a library from all contexts; its handle and those of its kernels become invalid."""
    library_of(library).unload()


def kernel(library: int, name: str) -> int:
    """Return a kernel by its name (bytes); raise NOT_FOUND. Needs no context."""
    return library_of(library).kernel(name).handle


def kernel_count(library: int) -> int:
    """Return the number of kernels of a library."""
    return len(library_of(library).kernels())


def enumerate_kernels(count: int, library: int) -> list[int]:
    """Return at most ``numKernels`` kernels of a library; raise INVALID_VALUE for 0."""
    if not count:
        raise invalid_value("numKernels is 0; pass space for at least one kernel")
    return [kernel.handle for kernel in library_of(library).kernels().values()][:count]


def module(library: int) -> int:
    """Return the library's module in the current context; it is not unloaded by cuModuleUnload."""
    return library_of(library).module_in(current()).handle


def variable(library: int, name: str) -> tuple[int, int]:
    """Return the address in the current context and the size in bytes of a variable (bytes); raise NOT_FOUND."""
    entry = library_of(library).module_in(current()).variable(name)
    return entry.address, entry.size


def managed_variable(library: int, name: str) -> tuple[int, int]:
    """Return the address in the current context and the size in bytes of a managed variable (bytes).

    Raise NOT_FOUND.
    """
    entry = library_of(library).module_in(current()).variable(name)
    if not entry.managed:
        raise CudaError(Result.ERROR_NOT_FOUND, f"{name!r} is not a managed variable; try cuLibraryGetGlobal")
    return entry.address, entry.size


def unified_function(library: int, symbol: str) -> int:
    """Fail with NOT_FOUND: no device has unified function pointers (attribute UNIFIED_FUNCTION_POINTERS is 0)."""
    library_of(library)
    reason = f"no unified function {symbol!r}: UNIFIED_FUNCTION_POINTERS of the devices is 0"
    raise CudaError(Result.ERROR_NOT_FOUND, reason)


def function(kernel: int) -> int:
    """Return the kernel's function in the current context."""
    return kernel_of(kernel).function_in(current()).handle


def library_of_kernel(kernel: int) -> int:
    """Return the library of a kernel."""
    return kernel_of(kernel).library.handle


def name(kernel: int) -> bytes:
    """Return a kernel's name as bytes; raise INVALID_VALUE for NULL, INVALID_HANDLE."""
    if not kernel:
        raise invalid_value("the kernel is NULL")
    return kernel_of(kernel).name.encode("utf-8", "surrogateescape")


def attribute(attribute: int, kernel: int, device: int) -> int:
    """Return an attribute of a kernel on a device; raise INVALID_VALUE, INVALID_DEVICE."""
    return kernel_of(kernel).attribute(attribute, process.device(device))


def set_attribute(attribute: int, value: int, kernel: int, device: int) -> None:
    """Set an attribute of a kernel in all contexts of a device; as cuFuncSetAttribute."""
    kernel_of(kernel).set_attribute(attribute, value, process.device(device))


def set_cache_preference(kernel: int, preference: int, device: int) -> None:
    """Accept a CUfunc_cache, which changes nothing: shared memory is not taken from the cache.

    Raise INVALID_VALUE.
    """
    kernel_of(kernel)
    process.device(device)
    check_cache_preference(preference)


def parameter(kernel: int, index: int) -> tuple[int, int]:
    """Return the offset and size in bytes of a parameter, counted from 0; raise INVALID_VALUE beyond the last.

    As with the driver a context must be current.
    """
    current().usable()
    entry = kernel_of(kernel)
    return parameter_of(entry.name, entry.parameters, index)


def parameter_count(kernel: int) -> int:
    """Return the number of parameters of a kernel; a context must be current."""
    current().usable()
    return len(kernel_of(kernel).parameters)


def create(count: int, options: Any, values: Any) -> int:
    """Begin a link in the current context; options are its logs, and MAX_REGISTERS of inputs without their own."""
    context = require_context()
    link = Link(context, jit_options.read(count, options, values))
    links[link.handle] = link
    return link.handle


def add(link: int, kind: int, data: HostMemory, size: int, name: str, count: int, options: Any, values: Any) -> None:
    """Add PTX of ``size`` bytes, or, as a type other than CU_JIT_INPUT_PTX, a fatbin with PTX.

    INVALID_PTX, INVALID_IMAGE, with the reason in the error log; UNKNOWN for a symbol that is defined twice;
    NOT_SUPPORTED for other inputs, NO_BINARY_FOR_GPU for fatbins without PTX for the device, JIT_COMPILER_NOT_FOUND
    for NVVM IR.
    """
    entry = link_of(link)
    data.check(size, to_be_written=False)
    entry.add(
        kind, ctypes.string_at(data.address, size), name, jit_options.read(count, options, values).max_registers
    )


def add_file(link: int, kind: int, path: str, count: int, options: Any, values: Any) -> None:
    """Add a file (its name as bytes); raise FILE_NOT_FOUND, else as cuLinkAddData."""
    entry, registers = link_of(link), jit_options.read(count, options, values).max_registers
    entry.add(kind, image_of(path.encode("utf-8", "surrogateescape")), path, registers)


def complete(link: int) -> tuple[int, int]:
    """Return the address and the size in bytes of the linked image, for cuModuleLoadData: PTX, until cuLinkDestroy.

    UNKNOWN for a symbol that no input defines, with its name in the error log.
    """
    return link_of(link).complete()


def destroy(link: int) -> None:
    """End a link and free its image."""
    links.pop(link_of(link).handle, None)
