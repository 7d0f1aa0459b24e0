"""Libraries: code that each context loads as a module when it first uses it (CUDA driver API, Library Management).

To list a library's kernels and variables in a process without a context, the client loads it into a temporary one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import FunctionLayout, ModuleLayout
from pympsd_client._arguments.errors import CudaError, invalid_handle
from pympsd_client._arguments.values import find_by_handle
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.code.module import (
    Function,
    Module,
    attribute_name,
    check_attribute,
    functions,
    load,
    modules,
)
from pympsd_client._objects.context import Context, contexts, current, new_handle, this_thread
from pympsd_client._objects.process import process

_OF_PROCESS: Final = "of this process (its library unloaded, or never loaded)"


class Library:
    """An image, and its module in each context that has used it. Thread-safe.

    Kernels keep their handles when contexts are opened and closed. Attributes that the program sets for a device
    apply to later contexts on the device too.
    """

    def __init__(self, image: bytes) -> None:
        self.handle: Final = new_handle()
        self._image: Final = image
        self._loading: Final = RLock()
        self._modules: dict[Context, Module] = {}
        self._layouts: Final[dict[VisibleDevice, ModuleLayout]] = {}
        self._kernels: Final[dict[str, Kernel]] = {}
        self._is_unloaded = False

    def module_in(self, context: Context) -> Module:
        """Return the library's module in a context, and load it there at the first use; raise CudaError."""
        with self._loading:
            if self._is_unloaded:
                raise invalid_handle(f"{self.handle:#x} is not a library {_OF_PROCESS}")
            module = self._modules.get(context)
            if module is not None and (modules.get(module.handle) is module or context.sticky_error is not None):
                context.usable()
                return module
            loaded = load(self._image, context, self.handle)
            # Forget the modules of contexts that have closed.
            self._modules = {
                user: user_module
                for user, user_module in self._modules.items()
                if modules.get(user_module.handle) is user_module
            }
            self._modules[context] = loaded
            self._layouts[context.device] = loaded.layout
            if not self._kernels:
                for index, function in enumerate(loaded.layout.functions):
                    kernel = self._kernels[function.name] = Kernel(self, index, function)
                    kernels[kernel.handle] = kernel
            for kernel in self._kernels.values():
                kernel.apply(context.device, loaded)
            return loaded

    def modules_on(self, device: VisibleDevice) -> tuple[Module, ...]:
        """Return the library's modules in the contexts of a device that have used it."""
        with self._loading:
            return tuple(
                module
                for module in self._modules.values()
                if module.context.device is device and modules.get(module.handle) is module
            )

    def layout_on(self, device: VisibleDevice | None = None) -> ModuleLayout:
        """Return the layout of the library's kernels and variables on a device (None means any device).

        If no context has used the library yet, it is loaded into a usable context, or into a temporary one. Raise
        CudaError, for example INVALID_PTX.
        """
        with self._loading:
            layout = self._layouts.get(device) if device else next(iter(self._layouts.values()), None)
            if layout is not None:
                return layout
            with _open_some_context(device) as context:
                return self.module_in(context).layout

    def function_layout(self, index: int, device: VisibleDevice | None = None) -> FunctionLayout:
        """Return the layout of a kernel on a device (None means any device), loading it as `layout_on` does."""
        with self._loading:
            layout = self.layout_on(device).functions[index]
            if layout.is_loaded:
                return layout
            with _open_some_context(device) as context:
                return self.module_in(context).function(layout.name).layout

    def kernels(self) -> dict[str, Kernel]:
        """Return the library's kernels by name."""
        self.layout_on()
        return self._kernels

    def kernel(self, name: str) -> Kernel:
        """Return a kernel by name; raise NOT_FOUND."""
        kernel = self.kernels().get(name)
        if kernel is None:
            has = ", ".join(sorted(self._kernels)[:20]) or "none"
            raise CudaError(Result.ERROR_NOT_FOUND, f"the library has no kernel {name!r}; it has {has}")
        return kernel

    def unload(self) -> None:
        """Unload the library from all contexts; its handle and those of its kernels and functions become invalid."""
        with self._loading:
            self._is_unloaded = True
            libraries.pop(self.handle, None)
            for kernel in self._kernels.values():
                kernels.pop(kernel.handle, None)
            for module in self._modules.values():
                if modules.get(module.handle) is module:
                    with suppress(CudaError):  # the context's error, which the next call in it returns
                        module.unload()
            self._modules = {}
            for free in when_unloaded:
                free(self.handle)


class Kernel:
    """A kernel of a library. It has a function in each context, and attributes for each device."""

    def __init__(self, library: Library, index: int, layout: FunctionLayout) -> None:
        self.handle: Final = new_handle()
        self.library: Final = library
        self.name: Final = layout.name
        self._index: Final = index
        self._set: Final[dict[tuple[VisibleDevice, str], int]] = {}

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        """The (offset, size) of each parameter in bytes. Reading this loads the kernel."""
        return self.library.function_layout(self._index).parameters

    def function_in(self, context: Context) -> Function:
        """Return the kernel's function in a context; raise CudaError."""
        return self.library.module_in(context).function(self.name)

    def attribute(self, attribute_number: int, device: VisibleDevice) -> int:
        """Return an attribute's value on a device: the one that the program has set, or else the image's.

        Raise INVALID_VALUE for an attribute that the kernel does not have.
        """
        name = attribute_name(attribute_number)
        attributes = self._layout(device).attributes
        if name not in attributes:
            raise CudaError(Result.ERROR_INVALID_VALUE, f"{self.name} does not have the function attribute {name}")
        return self._set.get((device, name), attributes[name])

    def set_attribute(self, attribute_number: int, value: int, device: VisibleDevice) -> None:
        """Change an attribute in all present and later contexts of a device; see `Function.set_attribute`."""
        name = attribute_name(attribute_number)
        check_attribute(self._layout(device), device, name, value)
        self._set[device, name] = value
        for module in self.library.modules_on(device):
            module.function(self.name).apply_attribute(name, value)

    def apply(self, device: VisibleDevice, module: Module) -> None:
        """Apply the attributes that were set for this kernel to its function in a newly loaded module."""
        for (its_device, name), value in self._set.items():
            if its_device is device:
                module.function(self.name).apply_attribute(name, value)

    def _layout(self, device: VisibleDevice) -> FunctionLayout:
        return self.library.function_layout(self._index, device)


when_unloaded: Final[list[Callable[[int], None]]] = []
"""Functions that free the resources of a library that are in no context. Each is called with the handle of every
unloaded library."""
libraries: Final[dict[int, Library]] = {}
"""The libraries of this process by handle."""
kernels: Final[dict[int, Kernel]] = {}


def library_of(handle: int) -> Library:
    """Return a library by its handle; raise INVALID_HANDLE."""
    return find_by_handle(libraries, handle, f"a library {_OF_PROCESS}", invalid_handle)


def kernel_of(handle: int) -> Kernel:
    """Return a kernel by its handle; raise INVALID_HANDLE."""
    return find_by_handle(kernels, handle, f"a kernel {_OF_PROCESS}", invalid_handle)


def function_of(handle: int, context: Context | None = None) -> Function:
    """Return the loaded function of a handle, which may name a function or a library's kernel.

    A library's kernel is looked up in ``context`` (None means the current one), and loaded there at its first use.
    Raise INVALID_HANDLE, or INVALID_PTX and others if loading fails.
    """
    function = find_function(handle, context)
    function.load()
    return function


def find_function(handle: int, context: Context | None = None) -> Function:
    """Return the function of a handle as `function_of` does, but do not load a module's function."""
    function = functions.get(handle)
    if function is not None:
        return function
    kernel = kernels.get(handle)
    return functions.find(handle) if kernel is None else kernel.function_in(context or current())


def new_library(image: bytes) -> Library:
    """Make a library from an image; raise INVALID_IMAGE if it is empty."""
    if not image:
        raise CudaError(Result.ERROR_INVALID_IMAGE, "the image is empty")
    library = Library(image)
    libraries[library.handle] = library
    return library


@contextmanager
def _open_some_context(device: VisibleDevice | None) -> Iterator[Context]:
    """Yield a usable context on a device (None means any), opening one for the block if there is none.

    Raise CudaError.
    """
    usable = _usable_context(device)
    if usable is not None:
        yield usable
        return
    temporary = Context.open_new(process.require(), device or process.device(0))
    try:
        yield temporary
    finally:
        contexts.pop(temporary.handle, None)
        temporary.close(process.require())


def _usable_context(device: VisibleDevice | None) -> Context | None:
    candidates = (*reversed(this_thread.stack), *tuple(contexts.values()))
    return next(
        (
            context
            for context in candidates
            if context.active and context.sticky_error is None and (device is None or context.device is device)
        ),
        None,
    )
