"""Kernels and variables of a compiled program, found by addresses of the host program.

Theory of operation. A compiler of CUDA C++ puts a program's device code into fat binaries, and makes a host function
for each kernel and a host variable for each device variable. When the program starts, it registers all three with its
runtime: "the kernel ``_Z3addPf`` of this fat binary is the host function at 0x401234". Later calls name a kernel or
a variable by its address in the host program::

    add<<<1, 32>>>(p)              cudaLaunchKernel(0x401234, ...)
    cudaMemcpyToSymbol(table, ..)  cudaMemcpyToSymbol(0x404050, ...)

pympsd's shared libraries record registrations in C (native/src/cudart/registration.c), because a program may never
use them. This module looks an address up there at its first use, loads the fat binary as a library of the driver
(`_library`), and returns the library's kernel or variable. The C part keeps the kernel's handle for later launches,
so this module is called only for the first launch of each kernel.

In a Python process nothing is registered. There `kernel_at` gets a kernel's or function's handle, and returns it.

A program of several objects (``nvcc -rdc=true``) may have kernels that launch kernels. Under MPS a module with such
kernels cannot be loaded. The program is refused when it first needs a context (`check_linked`), and not at a launch,
because many programs do not check their launches and would report success.

The invariants:

- A fat binary is loaded once in a process. Its kernels' handles stay valid when contexts are closed and opened.
- After the program has unregistered a fat binary (dlclose), its library is unloaded and its addresses are unknown.
"""

import ctypes
import itertools
import os
import struct
import sys
from contextlib import suppress
from threading import RLock
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.variables import EXPLAIN
from pympsd.wire.fatbin import FatbinError, ptx_of
from pympsd_client._arguments import jit_options
from pympsd_client._arguments.errors import CudaError, invalid_handle, invalid_value, not_supported, result_name
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.code.library import kernels
from pympsd_client._objects.code.link import Link
from pympsd_client._objects.code.module import functions, image_at, modules
from pympsd_client._objects.context import current
from pympsd_client.routing.driver import api
from pympsd_client.routing.runtime.copies import FROM_DEVICE, TO_DEVICE, check_kind, copy

_INVALID_SYMBOL: Final = 13
"""cudaErrorInvalidSymbol, which only the runtime has."""
_INVALID_FUNCTION: Final = 98
"""cudaErrorInvalidDeviceFunction, which only the runtime has."""
_KERNEL, _VARIABLE, _MANAGED = 0, 1, 2
_LINKED: Final = 2
"""The version of a wrapper that also has an array of linked fat binaries."""
_DEVICE_LAUNCH: Final = "__cudaCDP"
"""The beginning of the names of functions with which a kernel launches another."""
_LAUNCHES: Final = (
    "kernels of the program launch kernels (CUDA dynamic parallelism), which MPS does not support; launch them from "
    "the host"
)
_PTX: Final = 1
"""CU_JIT_INPUT_PTX."""
_WRAPPER: Final = struct.Struct("=iiQQ")
"""__fatBinC_Wrapper_t (fatbinary_section.h): magic number, version, address of the fat binary, of linked ones."""
_NO_PTX: Final = (
    "the program contains no PTX that this device can run ({reason}); compile it with nvcc -gencode "
    "arch=compute_90,code=compute_90 (and -cudart shared)"
)
_OF_IMAGES: Final = (
    Result.ERROR_INVALID_IMAGE,
    Result.ERROR_INVALID_PTX,
    Result.ERROR_JIT_COMPILER_NOT_FOUND,
    Result.ERROR_NOT_FOUND,
    Result.ERROR_UNKNOWN,
)
"""The errors of a fat binary that `_explain` reports once. (NOT_SUPPORTED is always reported.)"""


class _Registration(ctypes.Structure):
    """The beginning of a Registration of native/src/cudart/runtime.h."""

    _fields_ = (
        ("host", ctypes.c_void_p),
        ("wrapper", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
    )


_FindFunction: Final = ctypes.CFUNCTYPE(ctypes.POINTER(_Registration), ctypes.c_void_p)
_WrapperFunction: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_find_functions: Final[list[Any]] = []
"""The functions of the shared libraries that find a registration."""
_wrapper_functions: Final[list[Any]] = []
"""The functions of the shared libraries that return the wrapper of the n-th fat binary, NULL after the last."""
_libraries: Final[dict[int, int]] = {}
"""The handles of the driver's libraries, by the addresses of their fat binaries' wrappers."""
_hosts: Final[dict[tuple[int, str], int]] = {}
"""The host functions of kernels, by the kernel's library and name."""
_managed: Final[dict[int, int]] = {}
"""The host addresses of managed variables, by the addresses of their memory."""
_refused: Final[dict[int, CudaError]] = {}
"""The errors of fat binaries with kernels that launch kernels, by the addresses of their wrappers."""
_reported: Final[set[int]] = set()
"""The addresses of the wrappers of fat binaries whose errors have been reported."""
_loading: Final = RLock()


def set_registry(find: int, wrapper_at: int) -> None:
    """Use another library's C functions, too, to look up host addresses and fat binaries.

    ``find`` returns the address of a host address's registration, ``wrapper_at`` the wrapper of the fat binary with a
    number; both return NULL if they find nothing.
    """
    _find_functions.append(_FindFunction(find))
    _wrapper_functions.append(_WrapperFunction(wrapper_at))


def check_linked() -> None:
    """Load fat binaries that were linked from several objects; raise NOT_SUPPORTED if their kernels launch kernels.

    Ignore other errors, which the first launch reports.
    """
    for wrapper_at in _wrapper_functions:
        for number in itertools.count():
            wrapper = wrapper_at(number)
            if not wrapper:
                break
            if _is_linked(wrapper) and wrapper not in _libraries:
                with suppress(CudaError):
                    _library(wrapper)
            if wrapper in _refused:
                raise _refused[wrapper].copy()


def _registration(host: int) -> Any:
    """Return the registration of an address in the host program, or None."""
    for find in _find_functions if host else ():
        entry = find(host)
        if entry:
            return entry.contents
    return None


def kernel_at(host: int) -> int:
    """Return the kernel of a host function; return the handle of a kernel or function unchanged.

    As recorded on a GPU, raise INVALID_DEVICE_FUNCTION for NULL, INVALID_HANDLE for anything else. Raise
    NO_BINARY_FOR_GPU and others if the fat binary cannot be loaded.
    """
    if not host:
        raise CudaError(_INVALID_FUNCTION, "the host function is NULL; pass the address of a kernel of this program")
    entry = _registration(host)
    if entry is None or entry.kind != _KERNEL:
        if kernels.get(host) is None and functions.get(host) is None:
            raise invalid_handle(f"{host:#x} is not a host function of a kernel of this program")
        return host
    try:
        library, name = _library(entry.wrapper), entry.name.decode()
        kernel = int(api.cuLibraryGetKernel(library, name))
        _hosts[library, name] = host
        return kernel
    except CudaError as error:
        raise _explain(error, entry.wrapper) from None


def host_of(handle: int) -> int:
    """Return the host function of a kernel or of its function in a context; return any other handle unchanged."""
    kernel, function = kernels.get(handle), functions.get(handle)
    if kernel is not None:
        return _hosts.get((kernel.library.handle, kernel.name), handle)
    if function is not None:
        return _hosts.get((modules.find(function.module).library, function.layout.name), handle)
    return handle


def find_registered_kernel(host: int) -> int:
    """Return the kernel of a host function, for its first launch.

    Raise INVALID_DEVICE_FUNCTION if ``host`` is a kernel's handle, not the address of a host function.
    """
    kernel = kernel_at(host)
    if kernel == host:
        raise CudaError(_INVALID_FUNCTION, f"{host:#x} is a handle, not a host function of a kernel")
    return kernel


def function_at(host: int) -> int:
    """Return the driver's function, in the current context, for the address of a kernel's host function.

    Raise INVALID_DEVICE_FUNCTION for any other address. (The other functions here raise INVALID_HANDLE for an unknown
    address, as recorded.)
    """
    try:
        kernel = find_registered_kernel(host)
    except CudaError as error:
        if error.code != Result.ERROR_INVALID_HANDLE:
            raise
        raise CudaError(_INVALID_FUNCTION, error.reason) from None
    return int(api.cuKernelGetFunction(kernel))


def set_kernel_attribute(kernel: int, attribute: int, value: int, device: int) -> None:
    """Set an attribute of a kernel on a device. The driver's function has the parameters in another order."""
    api.cuKernelSetAttribute(attribute, value, kernel_at(kernel), device)


def variable_at(host: int) -> tuple[int, int]:
    """Return a device variable's address in the current context and its size in bytes; raise INVALID_SYMBOL.

    For a managed variable, programs may pass the address of its memory.
    """
    entry = _registration(_managed.get(host, host))
    if entry is None or entry.kind == _KERNEL:
        raise CudaError(_INVALID_SYMBOL, f"{host:#x} is not a device variable of this program")
    try:
        get = api.cuLibraryGetManaged if entry.kind == _MANAGED else api.cuLibraryGetGlobal
        address, size = get(_library(entry.wrapper), entry.name.decode())
    except CudaError as error:
        raise _explain(error, entry.wrapper) from None
    if entry.kind == _MANAGED:
        _managed[int(address)] = entry.host
    return int(address), int(size)


def address(host: int) -> int:
    """Return the address of a device variable in the current context."""
    return variable_at(host)[0]


def size(host: int) -> int:
    """Return the size of a device variable in bytes."""
    return variable_at(host)[1]


def _library(wrapper: int) -> int:
    """Return the library of a fat binary, which is loaded at the first call; raise CudaError."""
    with _loading:
        library = _libraries.get(wrapper)
        if library is None:
            check_not_null("the fat binary", wrapper)
            if wrapper in _refused:
                raise _refused[wrapper].copy()
            _, version, image, parts = _WRAPPER.unpack(ctypes.string_at(wrapper, _WRAPPER.size))
            try:
                library = _libraries[wrapper] = _load(image, parts if version == _LINKED else 0)
            except CudaError as error:
                if error.reason == _LAUNCHES:
                    _refused[wrapper] = error
                raise
        return library


def _is_linked(wrapper: int) -> bool:
    return bool(_WRAPPER.unpack(ctypes.string_at(wrapper, _WRAPPER.size))[1] == _LINKED)


def _load(image: int, parts: int) -> int:
    """Load a fat binary as a library. If nvcc has linked it (``-rdc=true``) without PTX, link its parts again."""
    library = int(api.cuLibraryLoadData(image, 0, 0, 0, 0, 0, 0))
    try:
        api.cuLibraryGetKernelCount(library)  # loads the library, which raises the errors of its code
    except CudaError as error:
        api.cuLibraryUnload(library)
        if error.code != Result.ERROR_NO_BINARY_FOR_GPU or not parts:
            raise
        link = _link(parts)
        try:
            address, _ = link.complete()
        except CudaError as failure:
            if _DEVICE_LAUNCH in failure.reason:
                raise not_supported(_LAUNCHES) from None
            raise
        return int(api.cuLibraryLoadData(address, 0, 0, 0, 0, 0, 0))  # copies the image, so the link may be freed
    return library


def _link(parts: int) -> Link:
    """Return a link of the PTX in fat binaries; ``parts`` is an array of their addresses that ends with NULL."""
    link = Link(current(), jit_options.read(0, None, None))
    architecture = current().device.properties.compute_capability
    while address := ctypes.c_uint64.from_address(parts).value:
        parts += 8
        try:
            text = ptx_of(image_at(HostMemory(address)), architecture)
        except FatbinError as error:
            if error.code != Result.ERROR_NO_BINARY_FOR_GPU:
                raise CudaError(error.code, error.reason) from None
            continue  # a part of the toolkit's own libraries, needed only by kernels that launch kernels
        link.add(_PTX, text, "", 0)
    return link


def unload(wrapper: int) -> None:
    """Unload the library of a fat binary that the program has unregistered."""
    with _loading:
        library = _libraries.pop(wrapper, None)
        _refused.pop(wrapper, None)
    if library is not None:
        api.cuLibraryUnload(library)


def _explain(error: CudaError, wrapper: int) -> CudaError:
    """Return the error for a fat binary that cannot be used, with the remedy.

    Also report it once on standard error, even without PYMPSD_EXPLAIN, because programs print at best its name.
    """
    if error.code == Result.ERROR_NO_BINARY_FOR_GPU:
        error = CudaError(error.code, _NO_PTX.format(reason=error.reason))
    elif error.code in _OF_IMAGES:
        error = CudaError(error.code, f"the program's device code cannot be loaded: {error.reason}")
    else:
        return error
    if wrapper not in _reported and not os.environ.get(EXPLAIN):
        _reported.add(wrapper)
        sys.stderr.write(f"pympsd: {result_name(error.code)}: {error.reason}\n")
    return error


def copy_to(symbol: int, source: int, count: int, offset: int, kind: int, stream: int | None = None) -> None:
    """Copy bytes to a device variable in stream order; without a stream, return when the copy is complete."""
    check_kind(kind, TO_DEVICE)
    copy(part(symbol, offset, count), source, count, kind, stream)


def copy_from(destination: int, symbol: int, count: int, offset: int, kind: int, stream: int | None = None) -> None:
    """Copy bytes of a device variable in stream order; without a stream, return when the copy is complete."""
    check_kind(kind, FROM_DEVICE)
    copy(destination, part(symbol, offset, count), count, kind, stream)


def part(symbol: int, offset: int, count: int) -> int:
    """Return the address of ``count`` bytes of a device variable, from ``offset`` on.

    Raise INVALID_VALUE if they end beyond the variable; 0 bytes may be anywhere (recorded on an H200).
    """
    start, length = variable_at(symbol)
    if count and offset + count > length:
        raise invalid_value(f"bytes {offset} to {offset + count} are not in the variable, which has {length}")
    return start + offset
