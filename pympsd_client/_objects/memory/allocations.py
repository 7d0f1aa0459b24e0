"""Device memory: allocation, freeing, the owners of addresses, fills (CUDA driver API, Memory Management).

`allocations` is the table of everything that the program can address on a device: memory of cuMemAlloc, managed
memory, blocks of pools, mappings, memory of graphs. Each kind is a subclass of `Allocation` with its own way to free
it.

**Two ways to free.** `Allocation.free` returns when the memory is free, after the context's work queued before
(cuMemFree). `Allocation.free_in_order` returns immediately; the memory is free when a stream has reached this
point (cuMemFreeAsync). The executor gets a quiet record for it, or nothing if the memory belongs to a pool.

**Invariants**

- An allocation is removed from the table *before* it is freed. As soon as it is free, another thread may get the same
  address, and that thread's new entry must not be removed. If freeing fails, the entry is put back.
- Managed, host and registered memory is accessed by the CPU too, registered memory at an address of its own.
  `devices_address` returns the address that a context's device uses. While ``any_shared`` and ``any_synchronous`` are
  False, as in most programs, no look-ups are needed.
- The sorted list of addresses is made when it is needed. An addition replaces ``_version`` as its last step, so that
  a thread that sorts at the same moment notices and sorts again.

`PageStates` is the state of each page of a range: advice, and the target of its last prefetch.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from threading import RLock
from typing import Final

from attrs import define, frozen

from pympsd.vocabulary.device_properties import ordinal_of
from pympsd.vocabulary.results import Result
from pympsd.wire.records import FLAG_QUIET
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._objects.code.module import modules
from pympsd_client._objects.context import Context, context_on, current, require_context, this_thread
from pympsd_client._objects.handle_table import HandleTable, next_buffer_id
from pympsd_client._objects.memory.peer_access import peer_access
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import synchronize

PAGE_BYTES: Final = 4096
HOST: Final = -1
"""CU_DEVICE_CPU, which takes the place of a device's number."""


@frozen
class Place:
    """A location: a CUmemLocationType, and the number of the device or NUMA node."""

    type: int
    id: int


@frozen
class PageState:
    """The state of a page of managed memory: its advice, and the target of its last prefetch."""

    is_read_mostly: bool = False
    preferred: Place | None = None
    accessed_by: frozenset[int] = frozenset()
    """The numbers of the devices, and HOST."""
    prefetched: Place | None = None


class PageStates:
    """The states of the pages of ``size`` bytes; a change of a part of a page changes the whole page."""

    def __init__(self, size: int) -> None:
        self._starts = [0]
        self._states = [PageState()]
        self._size = _round_up(size)

    def change(self, start: int, end: int, change: Callable[[PageState], PageState]) -> None:
        """Apply ``change`` to the states of the pages that contain bytes ``start`` to ``end``."""
        first, last = self._split(start // PAGE_BYTES * PAGE_BYTES), self._split(min(_round_up(end), self._size))
        for index in range(first, last):
            self._states[index] = change(self._states[index])

    def _split(self, at: int) -> int:
        """Make a run of pages begin at an offset, and return its index."""
        if at >= self._size:
            return len(self._starts)
        index = bisect_right(self._starts, at) - 1
        if self._starts[index] == at:
            return index
        self._starts.insert(index + 1, at)
        self._states.insert(index + 1, self._states[index])
        return index + 1

    def list_states(self, start: int, end: int) -> Iterator[PageState]:
        """Yield the states of the pages that contain bytes ``start`` to ``end``, one for each run of equal pages."""
        for index in range(bisect_right(self._starts, start) - 1, len(self._starts)):
            if self._starts[index] >= end:
                return
            yield self._states[index]


def _round_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


_ELEMENT_BYTES: Final = (4, 8, 16)
_PITCH_ALIGNMENT: Final = 512
"""The alignment of cuMemAllocPitch's rows, as on devices of compute capability 2.0 and later."""


@define(eq=False)
class Allocation:
    """An allocation of ``size`` bytes, with its address as ``handle`` and the context that made it."""

    handle: int
    context: Context
    size: int
    synchronous: bool = False
    """Whether copies and fills of the memory return when they are done (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)."""
    is_managed: bool = False
    is_host: bool = False
    """Whether the memory is page-locked host memory."""
    states: PageStates | None = None
    """The states of managed memory's pages; None until one has changed."""
    _buffer_id: int = 0

    @property
    def shown_context(self) -> Context:
        """The context that the program finds by the memory's pointer attributes."""
        return self.context

    @property
    def is_shared(self) -> bool:
        """Whether the CPU can access the memory at the same address."""
        return self.is_managed or self.is_host

    @property
    def is_reached(self) -> bool:
        """Whether the context's device can access the memory."""
        return True

    @property
    def is_mapping(self) -> bool:
        """Whether the program has mapped the memory (cuMemMap), so that a range may continue in the next mapping."""
        return False

    def is_accessible_from(self, context: Context) -> bool:
        """Return whether calls in streams of another device's context can use the memory (pools may forbid it)."""
        return True

    def is_reached_from(self, context: Context) -> bool:
        """Return whether kernels and fills of a context can access the memory; copies need no such access."""
        if self.is_shared or context.device is self.context.device:
            return True
        return peer_access.is_enabled(context, self.context)

    def free(self) -> None:
        """Wait for the context's earlier work, then free the memory. Raise CudaError."""
        self.context.call(operations.FREE, self.handle)

    def free_in_order(self, context: Context, stream: int) -> None:
        """Return immediately, and free the memory after the earlier work of the stream. Raise CudaError."""
        opened = self.context.usable()
        transport = opened.transport
        transport.post(operations.FREE.record(opened.context_id, transport.sequence(), self.handle, flags=FLAG_QUIET))

    @property
    def buffer_id(self) -> int:
        """The memory's id, which no other memory of this process has or had."""
        if not self._buffer_id:
            self._buffer_id = next_buffer_id()
        return self._buffer_id


@define(eq=False)
class FreedImmediately(Allocation):
    """An allocation that cannot be freed in stream order: `free_in_order` is the same as `free`, which may refuse."""

    def free_in_order(self, context: Context, stream: int) -> None:
        """Free the memory as `free` does."""
        self.free()


def is_shareable(allocation: Allocation) -> bool:
    """Return whether cuIpcGetMemHandle accepts an allocation, which must be from cuMemAlloc."""
    return type(allocation) is Allocation and not allocation.is_shared


class Allocations(HandleTable[Allocation]):
    """The table of all allocations by address."""

    def __init__(self) -> None:
        super().__init__("allocation", "freed, or never made")
        self._ordering: Final = RLock()  # a finalizer may look up an address while this thread sorts
        self._ordered: list[int] = []
        self._version = self._ordered_version = object()
        """A new object after every addition; ``_ordered`` is up to date if ``_ordered_version`` is this object."""
        self.any_synchronous = False
        """Whether an allocation was ever synchronous."""
        self.any_shared = False
        """Whether an allocation ever existed that the CPU can access."""

    def add(self, owned: Allocation) -> Allocation:
        """Enter an allocation and return it."""
        self._objects[owned.handle] = owned
        self._version = object()  # last, so that a thread that sorts at this moment sorts again
        return owned

    def put_back(self, owned: Allocation) -> None:
        """Put back an allocation that could not be freed."""
        super().put_back(owned)
        self._version = object()

    def find_containing(self, address: int) -> Allocation | None:
        """Return the allocation that contains an address, or None."""
        with self._ordering:
            version = self._version
            if version is not self._ordered_version or len(self._ordered) > 2 * len(self._objects):
                self._ordered = sorted(self._objects)
                self._ordered_version = version
            at = bisect_right(self._ordered, address)
            allocation = self._objects.get(self._ordered[at - 1]) if at else None
        return allocation if allocation is not None and address < allocation.handle + allocation.size else None

    def is_shared(self, address: int) -> bool:
        """Return whether the CPU can access an address, because it is in managed or host memory."""
        allocation = self.find_containing(address) if self.any_shared else None
        return allocation is not None and allocation.is_shared

    def is_synchronous(self, *addresses: int) -> bool:
        """Return whether one of these addresses is in a synchronous allocation."""
        if not self.any_synchronous:
            return False
        return any(
            allocation is not None and allocation.synchronous for allocation in map(self.find_containing, addresses)
        )


allocations: Final = Allocations()


def allocate(count: int) -> int:
    """Return the address of new device memory of the current context.

    ``count``: bytes, at least 1. Raise INVALID_VALUE for 0, OUT_OF_MEMORY if the device or an MPS limit does not
    allow so many.
    """
    context = require_context()
    if count == 0:
        raise invalid_value("an allocation must have at least 1 byte")
    return allocations.add(Allocation(allocate_unlisted(context, count), context, count)).handle


def allocate_unlisted(context: Context, size: int) -> int:
    """Return the address of new device memory that cuMemFree does not free: of arrays, pools and graphs.

    Raise OUT_OF_MEMORY.
    """
    (address,) = context.query(operations.ALLOCATE, size)
    return int(address)


def allocate_pitch(width: int, height: int, element_bytes: int) -> tuple[int, int]:
    """Return the address of new device memory for rows, and the bytes from row to row, a multiple of 512.

    Raise INVALID_VALUE for an element size other than 4, 8 or 16 bytes and for an empty extent; OUT_OF_MEMORY.
    """
    require_context()
    if element_bytes not in _ELEMENT_BYTES:
        raise invalid_value(f"the element size must be 4, 8 or 16 bytes, not {element_bytes}")
    pitch = -(-width // _PITCH_ALIGNMENT) * _PITCH_ALIGNMENT
    if pitch * height >= 1 << 64:
        raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"{height} rows of {pitch} bytes are more than any device has")
    return allocate(pitch * height), pitch


def free(address: int) -> None:
    """Wait for the context's earlier work, then free memory that cuMemAlloc or a pool returned.

    Raise INVALID_VALUE for any other address, also one within an allocation. Address 0 has no effect.
    """
    # Removed first, because another thread may get the same address as soon as the memory is free.
    allocation = allocations.remove(address)
    if allocation is None:
        if address or this_thread.stack:
            current().usable()
        if address:
            raise invalid_value(f"{address:#x} is not the start of an allocation of this process")
        return
    try:
        allocation.free()
    except BaseException:
        allocations.put_back(allocation)
        raise


def info() -> tuple[int, int]:
    """Return the free and the total bytes of the current context; the total is its MPS limit if it has one."""
    free, total = current().query(operations.MEMORY_INFO)
    return int(free), int(total)


def ordinal_at(address: int) -> int:
    """Return the ordinal of the device whose window or whose module's variable contains an address.

    A real GPU's driver places variables outside of the windows.
    """
    ordinal = ordinal_of(address)
    if all(device.ordinal != ordinal for device in process.require().devices):
        for module in modules.list_all():
            if module.variable_at(address) is not None:
                return module.context.device.ordinal
    return ordinal


def is_on_a_device(address: int) -> bool:
    """Return whether an address is in a visible device's window or in a module's variable."""
    ordinal = ordinal_at(address)
    return any(device.ordinal == ordinal for device in process.require().devices)


def context_for(context: Context, address: int) -> Context:
    """Return a context if it is on the device of an address, else another one on that device; raise INVALID_VALUE."""
    ordinal = ordinal_at(address)
    return context if ordinal == context.device.ordinal else context_on(ordinal)


def owner(address: int) -> Context:
    """Return a context on the device that an address belongs to; raise INVALID_VALUE if it is not on a device."""
    current().usable()
    ordinal = ordinal_at(address)
    if not is_on_a_device(address):
        raise invalid_value(f"{address:#x} is not an address of a visible device (a host pointer, perhaps)")
    context = context_on(ordinal)
    context.usable()
    return context


def devices_address(context: Context, address: int, count: int) -> int:
    """Return the address at which a context's device accesses memory that the CPU accesses too, or 0 if it cannot.

    Such memory is managed, registered, or in a pool or a mapping of host memory.
    """
    allocation = allocations.find_containing(address) if allocations.any_shared else None
    if allocation is None:
        host_address, reached = pinned.addresses_of(address)
        region = pinned.region_at(host_address) if reached else None
        end = 0 if region is None else region.address + region.size
    else:
        reached = address if allocation.is_shared and allocation.is_reached else 0
        end = allocation.handle + allocation.size
    is_reached = reached and ordinal_at(reached) == context.device.ordinal
    return reached if is_reached and address + count <= end else 0


other_ranges: Final[list[Callable[[], Iterator[tuple[int, int]]]]] = []
"""Functions that yield (start, size) of memory that `allocations` does not contain: of arrays and graphs."""


def check_range(address: int, count: int, reached_from: Context | None = None) -> None:
    """Raise INVALID_VALUE unless a range is within one allocation, or within accessible mappings without gaps.

    ``reached_from``: a context whose kernels must have access to all of the range; None if any device may have it.
    The executor checks the range too, but a call that does not wait would leave the error to a later call.
    """
    owner(address)
    first = allocations.get(address) or allocations.find_containing(address)
    if first is None:
        start, size = _find_other_memory(address)
        if address + count > start + size:
            raise _beyond(address, count, start, size)
        return
    allocation = first
    while allocation.is_reached:
        if reached_from is not None and not allocation.is_reached_from(reached_from):
            raise invalid_value(
                f"the memory at {allocation.handle:#x} is not accessible to the stream's device "
                f"{reached_from.device.number}; call cuCtxEnablePeerAccess, or cuMemSetAccess for mapped memory"
            )
        end = allocation.handle + allocation.size
        if address + count <= end:
            return
        following = allocations.find_containing(end) if allocation.is_mapping else None
        if following is None or not following.is_mapping:
            raise _beyond(address, count, first.handle, end - first.handle)
        allocation = following
    raise invalid_value(
        f"no device has access to the memory that is mapped at {allocation.handle:#x}; call cuMemSetAccess"
    )


def _beyond(address: int, count: int, start: int, size: int) -> CudaError:
    return invalid_value(f"{count} bytes at {address:#x} are not all within the {size} bytes at {start:#x}")


def _find_other_memory(address: int) -> tuple[int, int]:
    """Return (start, size) of the memory at an address that is not in `allocations`; raise INVALID_VALUE."""
    for module in modules.list_all():
        if (variable := module.variable_at(address)) is not None:
            return variable.address, variable.size
    host_address, reached = pinned.addresses_of(address)
    if (region := pinned.region_at(host_address)) is not None:
        return region.address + (reached - host_address if reached == address else 0), region.size
    for start, size in chain.from_iterable(ranges() for ranges in other_ranges):
        if start <= address < start + size:
            return start, size
    raise invalid_value(f"{address:#x} is in no memory of this process (freed, or never allocated)")


def place(address: int, context: Context, stream: int, handle: int) -> tuple[Context, int]:
    """Return (context, stream) for work on an address that must follow a stream's earlier work.

    These are the given context and stream, unless the address is on another device. Then this function waits for the
    stream, and returns the legacy stream of a context on that device. In a stream that captures, the work becomes a
    node of the given context. Raise INVALID_VALUE for memory of a pool that gives the stream's device no access.
    """
    if context.device.ordinal == ordinal_at(address):
        return context, stream
    allocation = allocations.find_containing(address)
    if allocation is not None and not allocation.is_accessible_from(context):
        raise invalid_value(
            f"{address:#x} is from a memory pool to which the stream's device {context.device.number} has no access; "
            "call cuMemPoolSetAccess"
        )
    by = intercepted.by
    if by is not None and by.is_capturing(context, stream):
        return context, stream
    with nullcontext() if by is None else by.lift():
        synchronize(handle)
    return owner(address), 0


def fill(
    context: Context, stream: int, destination: int, value: int, width: int, count: int, pitch: int, height: int
) -> None:
    """Set ``count`` elements of ``width`` bytes in each of ``height`` rows, in stream order; return immediately.

    Rows begin ``pitch`` bytes apart.
    """
    pitch = check_fill(destination, width, count, pitch, height)
    context.post(operations.FILL, stream, destination, value, width, count, pitch, height)


def check_fill(destination: int, width: int, count: int, pitch: int, height: int) -> int:
    """Return the pitch, or 0 for a single row; raise INVALID_VALUE if address or pitch does not suit the elements."""
    if destination % width:
        raise invalid_value(f"{destination:#x} is not aligned to the element's {width} bytes")
    if height == 1:
        pitch = 0
    elif pitch % width or pitch < width * count:
        raise invalid_value(
            f"the pitch must be a multiple of the element's {width} bytes and at least a row, {width * count} bytes; "
            f"it is {pitch}"
        )
    elif destination + pitch * height > 1 << 64:
        raise invalid_value(f"{height} rows {pitch} bytes apart do not end within the address space")
    return pitch
