"""Memory of graphs: allocated with the node, at the same address in all launches (CUDA driver API, Graph Management).

The memory is released when the node and all executable graphs with a copy of the node are destroyed, and the program
does not use the memory. `GraphAllocation.holders` counts the graphs that have the node, and the program's use.
"""

from threading import RLock
from typing import Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._objects.context import Context
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.memory.allocations import Allocation, allocate_unlisted, allocations, other_ranges
from pympsd_client._objects.memory.shared_pages import SharedPages, share
from pympsd_client._objects.pools.arena import round_up
from pympsd_client._objects.pools.pool import PoolKind


class GraphMemoryUse:
    """The graph memory of one device, in bytes. It counts as used from the node's creation on."""

    def __init__(self) -> None:
        self.current = self.used_high = self.reserved_high = 0
        self._changing: Final = RLock()  # a finalizer may call `change` again

    def change(self, size: int) -> None:
        """Add allocated bytes, or subtract freed ones if ``size`` is negative."""
        with self._changing:
            self.current += size
            self.used_high = max(self.used_high, self.current)
            self.reserved_high = max(self.reserved_high, self.current)


_usages: Final[dict[int, GraphMemoryUse]] = {}


def usage_of(number: int) -> GraphMemoryUse:
    """Return the graph memory of the device with this number."""
    return _usages.setdefault(number, GraphMemoryUse())


@define(eq=False)
class GraphAllocation(Allocation):
    """The memory of an allocation node. ``holders`` counts the graphs that have the node, and the program's use."""

    pages: SharedPages | None = field(default=None, kw_only=True)
    """The pages, if it is managed or host memory."""
    holders: int = field(default=1, init=False)
    _is_freed: bool = field(default=False, init=False)
    is_live: bool = field(default=False, init=False)
    """Whether a launched graph has left the memory to the program."""
    _changing: RLock = field(factory=RLock, init=False)
    """Protects the counts; reentrant, because a finalizer may count while this thread counts."""

    def hold(self) -> None:
        """Add a holder."""
        with self._changing:
            self.holders += 1

    def drop(self) -> None:
        """Remove a holder; after the last one, free the memory when the context's earlier work is done."""
        with self._changing:
            self.holders -= 1
            is_last = not (self.holders or self._is_freed)
            self._is_freed |= is_last
        if is_last:
            graph_allocations.remove(self.handle)
            usage_of(self.context.device.number).change(-round_up(self.size))
            if self.pages is not None:
                self.pages.close()
            elif self.context.active and self.context.sticky_error is None:
                super().free_in_order(self.context, 0)

    def begin(self) -> None:
        """Leave the memory to the program, which can free it from now on."""
        if not self.is_live:
            self.is_live = True
            self.hold()
            allocations.add(self)

    def end(self) -> None:
        """Take the memory back from the program."""
        if self.is_live:
            self.is_live = False
            allocations.remove(self.handle)
            self.drop()

    def free(self) -> None:
        """Take the memory back from the program when the context's earlier work is done."""
        self.context.synchronize()
        self.end()

    def free_in_order(self, context: Context, stream: int) -> None:
        """Take the memory back from the program; the node keeps it."""
        self.end()


graph_allocations: Final = HandleTable[GraphAllocation]("memory of a node", "freed, or never allocated")
"""The memory of all nodes by address, whether or not the program has it at present."""
other_ranges.append(lambda: ((allocation.handle, allocation.size) for allocation in graph_allocations.list_all()))


def allocate(size: int, context: Context, kind: PoolKind) -> GraphAllocation:
    """Return new memory for an allocation node, of the kind that a pool of ``kind`` has; raise CudaError."""
    if size == 0:
        raise invalid_value("an allocation must have at least 1 byte")
    if size > context.device.properties.memory_bytes:
        raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"{size} bytes are more than the device has")
    if kind.is_shared:
        pages = share(context, size)
        allocation = GraphAllocation(pages.address, context, size, pages=pages)
        allocation.is_managed, allocation.is_host = kind.is_managed, kind.is_host
        allocations.any_shared = True
    else:
        allocation = GraphAllocation(allocate_unlisted(context, size), context, size)
    usage_of(context.device.number).change(round_up(size))
    return graph_allocations.add(allocation)


def live_at(address: int) -> GraphAllocation | None:
    """Return the graph memory at an address if a launch has left it to the program, else None."""
    allocation = allocations.get(address)
    return allocation if isinstance(allocation, GraphAllocation) else None


def release_quietly(allocation: GraphAllocation) -> None:
    """Call `GraphAllocation.drop` and ignore errors, for callers that can no longer report them."""
    try:
        allocation.drop()
    except CudaError:  # the executor has exited, which frees the memory
        return
