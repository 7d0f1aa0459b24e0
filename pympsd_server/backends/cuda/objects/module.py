"""Loaded code. The driver's linker, which does not delay clients, first turns PTX or a fatbin into a cubin."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from attrs import define

from pympsd.vocabulary.device_runtime import is_device_runtime, refusal
from pympsd.vocabulary.occupancy import REGISTERS_OF_A_WARP, warp_registers
from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import FunctionLayout, GlobalLayout
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.objects.module_image import Cubin, check_fatbin, kind_of, read_cubin, read_fatbin
from pympsd_server.backends.cuda.submission.issue_queue import IssueQueue
from pympsd_server.backends.interface import BackendError
from pympsd_server.native.states import KernelRow

_LOG_BYTES: Final = 8192
_UNDEFINED: Final = re.compile(
    r"(?:undefined reference to|unresolved extern function)\s+['`]?([\w$]+)", re.IGNORECASE
)
"""The pattern of the linker's report of an undefined function."""
_MAX_PARAMETERS: Final = 4096
"""A number of parameters that no kernel reaches."""


def loadable(driver: Driver, image: bytes) -> tuple[bytes, Cubin]:
    """Return an image that needs no compiling, and its contents; raise BackendError with the linker's message."""
    kind = kind_of(image)
    if kind == "cubin":
        return image, read_cubin(image)
    types = cu.CUjitInputType
    if kind == "ptx":
        cubin = _link(driver, types.CU_JIT_INPUT_PTX, image.rstrip(b"\0") + b"\0")
        return cubin, read_cubin(cubin)
    check_fatbin(image)
    try:
        cubin = _link(driver, types.CU_JIT_INPUT_FATBINARY, image)
    except BackendError as error:
        if error.code is not Result.ERROR_NO_BINARY_FOR_GPU:
            raise
        # Its code is linked already. The linker refuses such code; the loader accepts it.
        return image, read_fatbin(image)
    read = read_cubin(cubin)
    # From linked code the linker may also make an empty cubin.
    return (cubin, read) if read.device_bytes else (image, read_fatbin(image))


def _link(driver: Driver, kind: Any, image: bytes) -> bytes:
    """Return the cubin that the driver links from an image; raise BackendError with the linker's message."""
    names, log = cu.CUjit_option, bytearray(_LOG_BYTES)
    options = [names.CU_JIT_ERROR_LOG_BUFFER, names.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    state = driver.call(cu.cuLinkCreate, len(options), options, [log, len(log)])
    try:
        driver.call(cu.cuLinkAddData, state, kind, image, len(image), b"image", 0, [], [])
        address, size = driver.call(cu.cuLinkComplete, state)
        return ctypes.string_at(int(address), int(size))
    except BackendError as error:
        message = log.rstrip(b"\0").decode(errors="replace").strip()
        for name in _UNDEFINED.findall(message):
            if is_device_runtime(name):
                raise BackendError(Result.ERROR_NOT_SUPPORTED, refusal(name)) from None
        raise BackendError(error.code, f"{error.reason}: {message}" if message else error.reason) from None
    finally:
        driver.call(cu.cuLinkDestroy, state)


@define(eq=False)
class Kernel:
    """A function of a module; ``row`` describes it to a native worker."""

    handle: Any
    layout: FunctionLayout
    row: KernelRow


class CudaModule:
    """Code and variables of one client."""

    def __init__(
        self,
        queue: IssueQueue,
        unload: Callable[[CudaModule], None],
        driver: Driver,
        code: bytes,
        read: Cubin,
    ) -> None:
        """Load the result of ``loadable``, which waits for every running kernel; raise BackendError if it is refused.

        ``unload`` releases a module after the work queued before the call.
        """
        self.queue = queue
        self._unload = unload
        self.device_bytes = read.device_bytes
        self._driver = driver
        self.handle = driver.call(cu.cuModuleLoadData, code)
        try:
            count = int(driver.call(cu.cuModuleGetFunctionCount, self.handle))
            handles = driver.call(cu.cuModuleEnumerateFunctions, count, self.handle) if count else []
            self.kernel_rows = (KernelRow * count)()
            self.kernels = tuple(map(_kernel, repeat(driver), handles, self.kernel_rows))
            self.globals = tuple(
                variable for name in read.variables if (variable := self._variable(name)) is not None
            )
            """The variables with their addresses, which lie outside of the device's window."""
        except BaseException:
            driver.call(cu.cuModuleUnload, self.handle)
            raise

    def _variable(self, name: str) -> GlobalLayout | None:
        """Return the address of a variable; None for a name that only the compiler uses."""
        try:
            address, size = self._driver.call(cu.cuModuleGetGlobal, self.handle, name.encode())
        except BackendError as error:
            if error.code == Result.ERROR_NOT_FOUND:
                return None
            raise
        return GlobalLayout(name, int(address), int(size))

    @property
    def functions(self) -> Sequence[FunctionLayout]:
        """The kernels, in the order in which LAUNCH counts them."""
        return tuple(kernel.layout for kernel in self.kernels)

    def function(self, index: int) -> FunctionLayout:
        """Return a kernel's layout; all kernels are loaded with the module."""
        return self.kernel(index).layout

    @property
    def variable_ranges(self) -> Mapping[int, int]:
        """The sizes of the module's variables in bytes, by address; several variables may have one address."""
        sizes: dict[int, int] = {}
        for variable in self.globals:
            sizes[variable.address] = max(variable.size, sizes.get(variable.address, 0))
        return sizes

    def kernel(self, index: int) -> Kernel:
        """Return a kernel by its index; raise BackendError INVALID_HANDLE if it does not exist."""
        if not 0 <= index < len(self.kernels):
            reason = f"function {index} does not exist; the module has {len(self.kernels)} functions"
            raise BackendError(Result.ERROR_INVALID_HANDLE, reason)
        return self.kernels[index]

    @property
    def managed_bytes(self) -> int:
        """0, because the driver places managed variables itself, where the client cannot access them."""
        return 0

    def place_managed(self, address: int, *, is_in_use: bool) -> None:
        """Raise BackendError NOT_SUPPORTED, because the driver places managed variables itself."""
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "the driver places managed variables itself")

    def unload(self) -> None:
        """Free the module once work queued in the context before the call is done."""
        self._unload(self)

    def discard(self) -> None:
        """Unload the module now, which waits for every running kernel."""
        self._driver.call(cu.cuModuleUnload, self.handle)


def _kernel(driver: Driver, handle: Any, row: KernelRow) -> Kernel:
    """Return a kernel by its driver handle, with its layout and attributes; fill its row for the native worker."""
    driver.enter()
    attributes = {}
    for name, attribute in cu.CUfunction_attribute.__members__.items():
        code, value = cu.cuFuncGetAttribute(attribute, handle)
        if not int(code):  # an older driver lacks some
            attributes[name.removeprefix("CU_FUNC_ATTRIBUTE_")] = int(value)
    attributes[REGISTERS_OF_A_WARP] = warp_registers(attributes["NUM_REGS"])
    parameters = _parameters(handle)
    layout = FunctionLayout(
        name=driver.call(cu.cuFuncGetName, handle).decode(),
        parameters=parameters,
        parameter_bytes=max((offset + size for offset, size in parameters), default=0),
        attributes=attributes,
    )
    row.function, row.parameter_bytes = int(handle), layout.parameter_bytes
    row.max_threads, row.shared_bytes = attributes["MAX_THREADS_PER_BLOCK"], attributes["SHARED_SIZE_BYTES"]
    row.dynamic_bytes = attributes.get("MAX_DYNAMIC_SHARED_SIZE_BYTES", 0)
    return Kernel(handle, layout, row)


def _parameters(handle: Any) -> tuple[tuple[int, int], ...]:
    parameters: list[tuple[int, int]] = []
    while len(parameters) < _MAX_PARAMETERS:
        code, *values = cu.cuFuncGetParamInfo(handle, len(parameters))
        if int(code):  # INVALID_VALUE: there is no such parameter
            break
        offset, size = values
        parameters.append((int(offset), int(size)))
    return tuple(parameters)
