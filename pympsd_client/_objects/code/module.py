"""Modules: loading code, finding its functions and variables (CUDA driver API, Module Management).

The executor compiles an image and returns its layout: the kernels with their parameters and attributes, and the
variables with their addresses. All queries are answered from the layout; only loading and unloading cost a message.
For a large image the executor returns only the kernels' names, and compiles each kernel when the program first looks
it up, as CUDA's lazy loading does. Then cuModuleGetFunction costs a message, and raises the errors of that kernel.
Other Python modules hook in through `when_loaded` and `when_unloaded`. For example, managed variables are moved to
shared pages before the program can ask for their addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from pympsd.errors import RemoteError
from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import FunctionLayout, GlobalLayout, ModuleLayout
from pympsd.wire.records import Kind
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, connection_lost, invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.kernel_parameters import Packer
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.context import Context, current
from pympsd_client._objects.copies import upload
from pympsd_client._objects.handle_table import HandleTable

_ATTRIBUTES: Final = {value: name for name, value in members("CUfunction_attribute", "CU_FUNC_ATTRIBUTE_").items()}
_DYNAMIC_BYTES: Final = "MAX_DYNAMIC_SHARED_SIZE_BYTES"
_PRINTING: Final = b"vprintf"
"""The name of the function that an image calls if its kernels print."""
_MAX_INT: Final = (1 << 31) - 1
_SETTABLE: Final = {
    "PREFERRED_SHARED_MEMORY_CARVEOUT": (-1, 100),
    "REQUIRED_CLUSTER_WIDTH": (0, _MAX_INT),
    "REQUIRED_CLUSTER_HEIGHT": (0, _MAX_INT),
    "REQUIRED_CLUSTER_DEPTH": (0, _MAX_INT),
    "NON_PORTABLE_CLUSTER_SIZE_ALLOWED": (-_MAX_INT - 1, _MAX_INT),
    "CLUSTER_SCHEDULING_POLICY_PREFERENCE": (0, 2),
}
"""The other attributes that can be set, and their least and greatest values, as recorded on an H200."""
_MANAGED: Final = "pympsd_client._objects.memory.managed"
"""The module that places managed variables (`when_loaded`). Few programs have any, so it is not imported before."""
_ELF: Final = b"\x7fELF"
_FAT_BINARY: Final = (0xBA55ED50).to_bytes(4, "little")
_FAT_WRAPPER: Final = (0x466243B1).to_bytes(4, "little")


when_loaded: Final[list[Callable[[Module], None]]] = []
"""Functions that are called with each module that the program loads.

If one of them raises a CudaError, the module is unloaded again.
"""
when_unloaded: Final[list[Callable[[Module], None]]] = []
"""Functions that are called with each module that has been unloaded."""


class Module:
    """A loaded module. ``layout`` is the executor's description of it."""

    def __init__(self, handle: int, context: Context, layout: ModuleLayout) -> None:
        self.handle: Final = handle
        self.context: Final = context
        self.layout = layout
        self.library = 0
        """The handle of the library for which the module was loaded, or 0."""
        self._functions: Final[dict[str, Function]] = {
            item.name: Function(self, index, item) for index, item in enumerate(layout.functions)
        }
        self._globals = {item.name: item for item in layout.globals}

    def set_layout(self, layout: ModuleLayout) -> None:
        """Replace the layout after the addresses of variables have changed."""
        self.layout, self._globals = layout, {variable.name: variable for variable in layout.globals}

    def function(self, name: str) -> Function:
        """Load a kernel and return it; raise NOT_FOUND, or INVALID_PTX and others if it cannot be loaded."""
        self.context.usable()
        function = self._functions.get(name)
        if function is None:
            raise _not_found("kernel", name, self._functions)
        function.load()
        return functions.add(function)

    def list_functions(self) -> tuple[Function, ...]:
        """Return the module's kernels in the order of the image; some may not be loaded."""
        self.context.usable()
        return tuple(map(functions.add, self._functions.values()))

    def variable(self, name: str) -> GlobalLayout:
        """Return a variable by name; raise NOT_FOUND."""
        self.context.usable()
        variable = self._globals.get(name)
        if variable is None:
            raise _not_found("variable", name, self._globals)
        return variable

    def variable_at(self, address: int) -> GlobalLayout | None:
        """Return the variable that contains an address, or None."""
        for variable in self._globals.values():
            if variable.address <= address < variable.address + variable.size:
                return variable
        return None

    def unload(self) -> None:
        """Free the module once its running kernels have ended; its handle and its kernels' become invalid."""
        try:
            modules.destroy(self)
            for function in self._functions.values():
                functions.remove(function.handle)
            for free in when_unloaded:
                free(self)
        finally:
            invalidate()


class Function:
    """A kernel: its attributes by name, and the packers and checked shapes of earlier launches (`launch`)."""

    def __init__(self, module: Module, index: int, layout: FunctionLayout) -> None:
        self.module: Final = module.handle
        self.context: Final = module.context
        self.index: Final = index
        self.layout = layout
        self.handle: Final = module.context.allocate_handle()
        self.attributes: Final = dict(layout.attributes)
        self.packers: Final[dict[tuple[Any, ...], Packer]] = {}
        """The packers of earlier launches, by the types of the parameters."""
        self.checked: Final[set[tuple[int, ...]]] = set()
        """The shapes (grid, block and dynamic shared bytes) that have been checked and are within the limits."""

    def load(self) -> None:
        """Complete the layout: ask the executor to compile the kernel if necessary. Raise INVALID_PTX and others."""
        if self.layout.is_loaded:
            return
        answer = self.context.call(operations.LOAD_FUNCTION, self.module, self.index)
        try:
            self.layout = FunctionLayout.decode(answer)
        except RemoteError as error:
            raise connection_lost(f"the executor sent {error}") from None
        self.attributes.update(self.layout.attributes)

    def attribute(self, attribute_number: int) -> int:
        """Return an attribute's value.

        Raise INVALID_VALUE for an attribute that does not exist, or that pympsd does not support.
        """
        self.context.usable()
        name = attribute_name(attribute_number)
        if name not in self.attributes:
            raise invalid_value(f"{self.layout.name} does not have the function attribute {name}")
        return self.attributes[name]

    def set_attribute(self, attribute_number: int, value: int) -> None:
        """Set MAX_DYNAMIC_SHARED_SIZE_BYTES, or one of the other settable attributes (_SETTABLE).

        Raise INVALID_VALUE for any other attribute, and for a value out of range.
        """
        self.context.usable()
        name = attribute_name(attribute_number)
        check_attribute(self.layout, self.context.device, name, value)
        self.apply_attribute(name, value)

    def apply_attribute(self, name: str, value: int) -> None:
        """Change an attribute to a value that has been checked."""
        if value != self.attributes.get(name):
            self.attributes[name] = value
            self.checked.clear()
            invalidate()


def attribute_name(attribute_number: int) -> str:
    """Return the name of a CUfunction_attribute without its prefix.

    Raise INVALID_VALUE for a number that does not exist.
    """
    name = _ATTRIBUTES.get(attribute_number, "MAX")
    if name == "MAX":
        raise invalid_value(f"there is no function attribute {attribute_number}")
    return name


def check_attribute(layout: FunctionLayout, device: VisibleDevice, name: str, value: int) -> None:
    """Raise INVALID_VALUE unless an attribute of a kernel can have this value on a device."""
    if name == _DYNAMIC_BYTES:
        properties = device.properties.attributes
        maximum = properties.get(
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", properties.get("MAX_SHARED_MEMORY_PER_BLOCK", 0)
        )
        allowed = maximum - layout.attributes.get("SHARED_SIZE_BYTES", 0)
        if not 0 <= value <= allowed:
            raise invalid_value(f"{name} of {layout.name} must be 0 to {allowed} bytes here, not {value}")
        return
    minimum, maximum = _SETTABLE.get(name, (1, 0))
    if not minimum <= value <= maximum:
        raise invalid_value(f"function attribute {name} cannot be set to {value}")


modules: Final[HandleTable[Module]] = HandleTable("module", "unloaded, or never loaded", Kind.MODULE)
functions: Final[HandleTable[Function]] = HandleTable("kernel", "its module unloaded, perhaps")


def _not_found(kind: str, name: str, items: dict[str, Any]) -> CudaError:
    if not name:
        return invalid_value(f"the name of the {kind} is empty")
    has = ", ".join(sorted(items)[:20]) or "none"
    return CudaError(Result.ERROR_NOT_FOUND, f"the module has no {kind} {name!r}; it has {has}")


def load(image: bytes, context: Context | None = None, library: int = 0) -> Module:
    """Load an image into a context (None means the current one) and return the module.

    ``library`` is the handle of the library that the image belongs to, or 0.
    Raise CudaError; the reason of ERROR_INVALID_PTX is the compiler's log.
    """
    module = load_image(image, context)
    module.library = library
    try:
        if module.layout.managed_bytes:
            import_module(_MANAGED)
        for prepare in when_loaded:
            prepare(module)
    except CudaError:
        module.unload()
        raise
    return module


def load_image(image: bytes, context: Context | None = None) -> Module:
    """Load an image without calling `when_loaded`, for example to read its layout; raise CudaError."""
    context = context or current()
    handle = context.allocate_handle()
    if not image:
        raise CudaError(Result.ERROR_INVALID_IMAGE, "the image is empty")
    upload(context, operations.IMAGE_PART, handle, image)
    layout = decode_layout(context.call(operations.LOAD_MODULE, handle))
    context.prints |= _PRINTING in image
    return modules.add(Module(handle, context, layout))


def decode_layout(answer: bytes) -> ModuleLayout:
    """Return the layout of a module from the executor's answer; raise CudaError."""
    try:
        return ModuleLayout.decode(answer)
    except RemoteError as error:
        raise connection_lost(f"the executor sent {error}") from None


def image_of(path: bytes) -> bytes:
    """Return the content of a file; raise FILE_NOT_FOUND if it cannot be read, INVALID_VALUE for an empty name."""
    if not path:
        raise invalid_value("the name of the file is empty")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        reason = f"{path.decode('utf-8', 'replace')}: {error.strerror}"
        raise CudaError(Result.ERROR_FILE_NOT_FOUND, reason) from None


def image_at(memory: HostMemory) -> bytes:
    """Return the image at a pointer or in a buffer. Text ends at a NUL; a binary's header contains its size."""
    memory.check(0, to_be_written=False)
    head = ctypes.string_at(memory.address, 4 if memory.size is None else min(4, memory.size))
    if head == _FAT_WRAPPER:  # magic (4 bytes), version (4), pointer to the fatbin (fatbinary.h)
        memory.check(16, to_be_written=False)
        return image_at(HostMemory(ctypes.c_uint64.from_address(memory.address + 8).value))
    binary = head in (_ELF, _FAT_BINARY)
    if memory.size is not None:
        data = ctypes.string_at(memory.address, memory.size)
        return data if binary else data.split(b"\0", 1)[0]
    if binary:
        return ctypes.string_at(memory.address, _binary_size(memory.address, head))
    return ctypes.string_at(memory.address)


def _binary_size(address: int, head: bytes) -> int:
    if head == _FAT_BINARY:  # magic (4 bytes), version (2), header size (2), body size (8)
        header = ctypes.string_at(address, 16)
        return int.from_bytes(header[6:8], "little") + int.from_bytes(header[8:16], "little")
    header = ctypes.string_at(address, 64)  # elf(5), Elf64_Ehdr; the section headers are at the end of the file
    sections = int.from_bytes(header[40:48], "little")
    return sections + int.from_bytes(header[58:60], "little") * int.from_bytes(header[60:62], "little")
