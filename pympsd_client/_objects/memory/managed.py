"""Managed memory: cuMemAllocManaged, and managed variables of modules (``__managed__``).

The program and the kernels use managed memory by one address, without copies. Here they share its pages: the executor
makes and maps the pages, and the client maps them at the same address (`shared_pages`). Pages do not migrate. Advice
and prefetches are recorded for each page (`allocations.PageStates`), only so that queries return them.

    kernel  ->  executor's mapping  ->  |  the same pages  |  <-  client's mapping  <-  program

- Freeing waits for the context's work and unmaps the pages here, because the program must not touch them
  afterwards; so `free_in_order` waits too.
- A module's variables are moved to such pages when the module is loaded, before the program can ask for their
  addresses (PLACE_MANAGED). They are freed with the module; cuMemFree refuses them.
- The modules of a library have their variables in common, on all devices (CUDA driver API, cuLibraryGetManaged). So
  they keep address and values when contexts are closed and opened (recorded on an H200), and are freed with the
  library. Only a device that cannot access them has variables of its own (`peer_access`).
- The executor keeps the pages for the process, not for the context. So when a context closes, this module frees the
  pages that were made in it, except those of a library.
"""

from collections.abc import Iterable
from typing import Final

from attrs import define, field

from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._objects.code import library
from pympsd_client._objects.code.module import Module, decode_layout, when_loaded, when_unloaded
from pympsd_client._objects.context import Context, when_closed
from pympsd_client._objects.memory.allocations import FreedImmediately, allocations
from pympsd_client._objects.memory.peer_access import peer_access
from pympsd_client._objects.memory.shared_pages import SharedPages, share


@define(eq=False)
class Managed(FreedImmediately):
    """An allocation of managed memory. Freeing it waits, because the program must not access it afterwards."""

    pages: SharedPages = field(kw_only=True)

    def free(self) -> None:
        """Wait for the context's earlier work, then free the memory. Raise CudaError."""
        self.context.synchronize()
        peer_access.wait_for_peers(self.pages.device)
        _managed.pop(self.handle, None)
        self.pages.close()


_managed: Final[dict[int, Managed]] = {}


def allocate(context: Context, size: int) -> int:
    """Return the address of new managed memory, all zero; raise CudaError."""
    pages = share(context, size)
    allocation = Managed(pages.address, context, size, pages=pages, is_managed=True)
    _managed[allocation.handle] = allocation
    allocations.any_shared = True
    return allocations.add(allocation).handle


def _drop_allocations(context: Context) -> None:
    for allocation in tuple(_managed.values()):
        if allocation.context is context and _managed.pop(allocation.handle, None) is not None:
            allocation.pages.close()


when_closed.append(_drop_allocations)


@define(eq=False)
class ManagedVariable(FreedImmediately):
    """A managed variable, an allocation that is freed only when its module is unloaded."""

    def free(self) -> None:
        """Raise INVALID_VALUE."""
        raise invalid_value(f"{self.handle:#x} is a variable of a module; cuModuleUnload frees it")


_pages: Final[dict[Module, SharedPages]] = {}
"""The pages of modules whose variables are their own."""
_of_libraries: Final[dict[int, tuple[SharedPages, tuple[int, ...]]]] = {}
"""The pages of libraries and the addresses of their variables, by handle."""


def place_variables(module: Module) -> None:
    """Move a new module's managed variables to shared pages, before the program can ask for their addresses."""
    size = module.layout.managed_bytes
    if not size:
        return
    context = module.context
    in_use = _find_pages(module)
    pages = in_use or share(context, size)
    try:
        operands = module.handle, pages.address, int(in_use is not None)
        module.set_layout(decode_layout(context.call(operations.PLACE_MANAGED, *operands)))
    except CudaError:
        if in_use is None:
            pages.close()
        raise
    variables = _variables(module)
    if in_use is None and module.library and module.library not in _of_libraries:
        _of_libraries[module.library] = pages, tuple(variable.handle for variable in variables)
    elif in_use is None:
        _pages[module] = pages
    allocations.any_shared = True
    for variable in variables:
        if allocations.get(variable.handle) is None:  # another device's module may have them, too
            allocations.add(variable)


def _find_pages(module: Module) -> SharedPages | None:
    """Return the pages of a module's library; None if it has none yet, or the module's device cannot access them."""
    pages, _ = _of_libraries.get(module.library, (None, ()))
    if pages is None or pages.size != module.layout.managed_bytes:
        return None
    device = module.context.device
    return pages if pages.device is device or peer_access.is_mapped(device, pages.device) else None


def _variables(module: Module) -> list[ManagedVariable]:
    context = module.context
    managed = [variable for variable in module.layout.globals if variable.managed]
    return [ManagedVariable(variable.address, context, variable.size, is_managed=True) for variable in managed]


def _free_variables(module: Module) -> None:
    pages = _pages.pop(module, None)
    if pages is not None:
        _free(pages, [variable.handle for variable in _variables(module)])


def _free_variables_of_library(handle: int) -> None:
    pages, addresses = _of_libraries.pop(handle, (None, ()))
    if pages is not None:
        peer_access.wait_for_peers(pages.device)
        _free(pages, addresses)


def _free(pages: SharedPages, variables: Iterable[int]) -> None:
    for address in variables:
        allocations.remove(address)
    pages.close()


def _drop_variables(context: Context) -> None:
    for module in tuple(_pages):
        if module.context is context:
            _free_variables(module)


when_loaded.append(place_variables)
when_unloaded.append(_free_variables)
library.when_unloaded.append(_free_variables_of_library)
when_closed.append(_drop_variables)
