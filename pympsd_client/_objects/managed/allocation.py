"""Allocations of managed memory: pages that an executor and this process share, until their context ends."""

from __future__ import annotations

from typing import Final

from attrs import define, field

from pympsd_client._objects.context import Context, when_closed
from pympsd_client._objects.memory import Allocation, allocations
from pympsd_client._objects.shared_pinned_memory import SharedPages, share


@define(eq=False)
class Managed(Allocation):
    """An allocation of managed memory."""

    pages: SharedPages = field(kw_only=True)

    def free(self) -> None:
        """Free it once the context's work so far is done; return then. Raise CudaError."""
        self.context.synchronize()
        _managed.pop(self.handle, None)
        self.pages.close()

    def free_in_order(self, context: Context, stream: int) -> None:
        """Free it as `free` does: the program must not reach it any more when the call returns."""
        self.free()


_managed: Final[dict[int, Managed]] = {}


def allocate(context: Context, size: int) -> int:
    """Return the address of new zeroed managed memory; raise CudaError."""
    pages = share(context, size)
    made = Managed(pages.address, context, size, pages=pages, is_managed=True)
    _managed[made.handle] = made
    allocations.any_shared = True
    return allocations.add(made).handle


def _drop(context: Context) -> None:
    for one in tuple(_managed.values()):
        if one.context is context and _managed.pop(one.handle, None) is not None:
            one.pages.close()


when_closed.append(_drop)
