"""Managed variables of modules (`__managed__`), in pages that the executor and this process share."""

from __future__ import annotations

from typing import Final

from attrs import define

from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context, when_closed
from pympsd_client._objects.memory import Allocation, allocations
from pympsd_client._objects.module import Module, decode_layout, when_unloaded
from pympsd_client._objects.shared_pinned_memory import SharedPages, share


@define(eq=False)
class ManagedVariable(Allocation):
    """A managed variable, as an allocation that only its module's unloading frees."""

    def free(self) -> None:
        """Fail with INVALID_VALUE."""
        raise invalid_value(f"{self.handle:#x} is a variable of a module; cuModuleUnload frees it")

    def free_in_order(self, context: Context, stream: int) -> None:
        """Fail with INVALID_VALUE."""
        self.free()


_pages: Final[dict[Module, SharedPages]] = {}


def place(module: Module) -> None:
    """Move a new module's managed variables to pages of this process, before the program knows of them."""
    size = module.layout.managed_bytes
    if not size:
        return
    context = module.context
    pages = share(context, size)
    try:
        module.have_layout(decode_layout(context.call(operations.PLACE_MANAGED, module.handle, pages.address)))
    except CudaError:
        pages.close()
        raise
    _pages[module] = pages
    allocations.any_shared = True
    for each in _variables(module):
        allocations.add(each)


def _variables(module: Module) -> list[ManagedVariable]:
    context = module.context
    managed = [each for each in module.layout.globals if each.managed]
    return [ManagedVariable(each.address, context, each.size, is_managed=True) for each in managed]


def _free(module: Module) -> None:
    pages = _pages.pop(module, None)
    if pages is not None:
        for each in _variables(module):
            allocations.remove(each.handle)
        pages.close()


def _drop(context: Context) -> None:
    for module in tuple(_pages):
        if module.context is context:
            _free(module)


when_unloaded.append(_free)
when_closed.append(_drop)
