"""Links: PTX inputs that become one image (CUDA driver API, Module Management, cuLink*)."""

import ctypes
from typing import Any, Final

from attrs import evolve

from pympsd.vocabulary.results import Result
from pympsd.wire import fatbin
from pympsd.wire.module_layout import ModuleLayout
from pympsd_client._arguments.errors import CudaError, invalid_handle, invalid_value, not_supported
from pympsd_client._arguments.jit_options import JitOptions, ptxas_message
from pympsd_client._arguments.values import find_by_handle
from pympsd_client._objects.code import ptx_text
from pympsd_client._objects.code.module import load_image
from pympsd_client._objects.context import Context, new_handle

_PTX: Final = 1
_NVVM: Final = 5
_KINDS: Final = ("CUBIN", "PTX", "FATBINARY", "OBJECT", "LIBRARY", "NVVM")
_NOT_RECOGNIZED: Final = "error   : Binary format for key='0', ident='' is not recognized"


class Link:
    """The inputs of a link, and the image once it is complete.

    The first error stays: every later call raises it again. Messages go to the error log of the options.
    """

    def __init__(self, context: Context, options: JitOptions) -> None:
        self.handle: Final = new_handle()
        self._context: Final = context
        self._options: Final = options
        self._inputs: Final[list[tuple[str, bytes]]] = []
        self._layout: ModuleLayout | None = None
        self._error: CudaError | None = None
        self._image: Any = None

    def add(self, kind: int, data: bytes, name: str, registers: int) -> None:
        """Add an input.

        ``kind``: a CUjitInputType; PTX and fatbins with PTX can be linked. ``registers``: the maximum number of
        registers per thread, or 0 for the options' limit. Raise INVALID_PTX and others, with the message in the error
        log; NOT_SUPPORTED for machine code; JIT_COMPILER_NOT_FOUND for NVVM IR.
        """
        if not 0 <= kind < len(_KINDS):
            raise invalid_value(f"the type of an input must be a CUjitInputType, 0 to {len(_KINDS) - 1}, not {kind}")
        if self._error is not None:
            raise self._error.copy()
        self._context.usable()
        if kind == _NVVM:
            reason = "CU_JIT_INPUT_NVVM: NVVM IR cannot be compiled here; compile to PTX"
            self._error = CudaError(Result.ERROR_JIT_COMPILER_NOT_FOUND, reason)
            raise self._error.copy()
        data = self._ptx_of(kind, data)
        data = ptx_text.limit_registers(data, registers or self._options.max_registers)
        inputs = [*self._inputs, (name, data)]
        try:
            ptx_text.join(inputs)
        except ptx_text.LinkError as error:
            self._error = self._log(CudaError(Result.ERROR_UNKNOWN, str(error)))
            raise self._error.copy() from None
        if not ptx_text.declares_others(data):
            self._layout = self._load_layout(data)
        self._inputs.append(inputs[-1])

    def complete(self) -> tuple[int, int]:
        """Return the address and the size in bytes of the image, which stays until the link is destroyed."""
        if self._error is not None:
            raise self._error.copy()
        try:
            ptx_text.check_defined(self._inputs)
            image = ptx_text.join(self._inputs)
        except ptx_text.LinkError as error:
            raise self._log(CudaError(Result.ERROR_UNKNOWN, str(error))) from None
        if len(self._inputs) != 1 or self._layout is None:
            self._layout = self._load_layout(image)
        self._options.write("", _info(self._layout))
        self._image = ctypes.create_string_buffer(image)
        return ctypes.addressof(self._image), len(self._image)

    def _ptx_of(self, kind: int, data: bytes) -> bytes:
        """Return the PTX of an input, which may be a fatbin. A cubin of pympsd's NVRTC consists of PTX, too."""
        if kind != _PTX and data.startswith(fatbin.MAGIC):
            try:
                data = fatbin.ptx_of(data, self._context.device.properties.compute_capability)
            except fatbin.FatbinError as error:
                raise self._log(CudaError(error.code, error.reason)) from None
        data = data.rstrip(b"\0")
        if b"\0" not in data and ptx_text.is_ptx(data):
            return data
        if kind == _PTX:
            raise self._log(CudaError(Result.ERROR_INVALID_IMAGE, _NOT_RECOGNIZED))
        what = f"CU_JIT_INPUT_{_KINDS[kind]} is neither PTX nor a fatbin with PTX"
        reason = f"{what}, which is what pympsd links; compile to PTX"
        raise self._log(not_supported(reason))

    def _load_layout(self, image: bytes) -> ModuleLayout:
        """Load an image, return its layout, and unload it."""
        try:
            module = load_image(image, self._context)
        except CudaError as error:
            raise self._log(error) from None
        try:
            for function in module.list_functions():
                function.load()
        except CudaError as error:
            raise self._log(error) from None
        finally:
            module.unload()
        return evolve(module.layout, functions=tuple(function.layout for function in module.list_functions()))

    def _log(self, error: CudaError) -> CudaError:
        self._options.write(ptxas_message(error))
        return error


def _info(layout: ModuleLayout) -> str:
    lines = [f"info    : {sum(variable.size for variable in layout.globals)} bytes gmem"]
    for function in layout.functions:
        registers, shared = (function.attributes.get(name, 0) for name in ("NUM_REGS", "SHARED_SIZE_BYTES"))
        lines += [
            f"info    : Function properties for '{function.name}':",
            f"info    : used {registers} registers, {shared} bytes smem",
        ]
    return "\n".join(lines)


links: Final[dict[int, Link]] = {}
"""The links of this process by handle."""


def link_of(handle: int) -> Link:
    """Return a link by its handle; raise INVALID_HANDLE."""
    return find_by_handle(links, handle, "a link of this process (destroyed, or never created)", invalid_handle)
