"""Memory of graphs: allocated with the node, at one address for all launches (CUDA driver API, Graph Management).

The memory is released when the node, all executable graphs with it, and the program's use of it have ended;
``holders`` counts them.
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
    """The graph memory of one device, in bytes. It is in use from the node's creation on."""

    def __init__(self) -> None:
        self.current = self.used_high = self.reserved_high = 0
        self._changing: Final = RLock()  # a finalizer may call it again

    def change(self, size: int) -> None:
        """Count memory that is allocated, or (negative) given back."""
        with self._changing:
            self.current += size
            if self.current > self.used_high:
                self.used_high = self.current
            if self.current > self.reserved_high:
                self.reserved_high = self.current


_usages: Final[dict[int, GraphMemoryUse]] = {}


def usage_of(number: int) -> GraphMemoryUse:
    """Return the usage of a device."""
    return _usages.setdefault(number, GraphMemoryUse())


@define(eq=False)
class GraphAllocation(Allocation):
    """The memory of an allocation node. ``holders``: the graphs that have the node, and its use outside of them."""

    pages: SharedPages | None = field(default=None, kw_only=True)
    """The pages of managed and host memory, which the program reaches too."""
    holders: int = field(default=1, init=False)
    _is_freed: bool = field(default=False, init=False)
    is_live: bool = field(default=False, init=False)
    """Whether a launched graph has left it to the program."""
    _changing: RLock = field(factory=RLock, init=False)
    """A finalizer may count while this thread counts."""

    def hold(self) -> None:
        """Count one more holder."""
        with self._changing:
            self.holders += 1

    def drop(self) -> None:
        """Release a holder's claim; the last release gives the memory back when the earlier work is done."""
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
        """Leave the allocation to the program: from now on it can be freed."""
        if not self.is_live:
            self.is_live = True
            self.hold()
            allocations.add(self)

    def end(self) -> None:
        """Take the allocation from the program again."""
        if self.is_live:
            self.is_live = False
            allocations.remove(self.handle)
            self.drop()

    def free(self) -> None:
        """Take the allocation from the program when the context's earlier work is done."""
        self.context.synchronize()
        self.end()

    def free_in_order(self, context: Context, stream: int) -> None:
        """Take the allocation from the program; the memory stays with its node."""
        self.end()


graph_allocations: Final = HandleTable[GraphAllocation]("memory of a node", "freed, or never allocated")
"""The memory of all nodes by address, whether the program has it now or not."""
other_ranges.append(lambda: ((allocation.handle, allocation.size) for allocation in graph_allocations.list_all()))


def allocate(size: int, context: Context, kind: PoolKind) -> GraphAllocation:
    """Return memory for an allocation node, as a pool of this kind has; raise CudaError."""
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
    """Return the graph memory that begins at an address and is the program's, or None."""
    allocation = allocations.get(address)
    return allocation if isinstance(allocation, GraphAllocation) else None


def release_quietly(allocation: GraphAllocation) -> None:
    """Release a holder's claim when an error would come too late."""
    try:
        allocation.drop()
    except CudaError:  # the executor is gone, and the memory with it
        return
