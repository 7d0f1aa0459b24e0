"""Virtual memory management: reserved addresses, physical memory by handle, and mappings (CUDA driver API).

The client handles cuMemAddressReserve alone: each device's window of addresses has an area for reservations, in which
`Reservations` finds free ranges. cuMemCreate makes `Physical` memory in an executor. cuMemMap makes a `Mapping`, an
allocation that copies and kernels use like any other once cuMemSetAccess has given access.

    reservation   |<------------------ addresses of device 0 ------------------>|
    mapping                 |<-- Mapping, access {0: rw, 1: rw} -->|
    physical                   Physical(handle, references, mappings)

**Lifetime.** Physical memory exists until the program has released its handle (``references``) *and* it is not mapped
any more (``mappings``). In CUDA it does not need a context. Here, if the program has no context on the device, the
client opens one for the memory (`own_contexts`) and closes it when its last memory is freed. Otherwise the
memory is in a context of the program and is lost when the context closes, unlike in CUDA. A program that cleans up
after cuCtxDestroy does not notice, because addresses to which nothing is mapped can be unmapped.

**Several devices.** Addresses belong to the device whose context was current when they were reserved. That device's
executor imports another device's memory to map it there (``imported``), which needs peer access. Further devices
access the memory through the device of the addresses (`peer_access`).

**Invariants:** mappings never overlap; only whole mappings are unmapped or given access; addresses in use are not
freed.
"""

from bisect import bisect_right, insort
from contextlib import suppress
from threading import RLock
from typing import Final

from attrs import define, field

from pympsd.vocabulary.device_properties import MAPPED_OFFSET, VIRTUAL_OFFSET, ordinal_of, window_of
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.memory_structs import AllocationProperties
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context, context_on, when_closed
from pympsd_client._objects.memory.allocations import FreedImmediately, allocations
from pympsd_client._objects.memory.peer_access import is_possible, peer_access
from pympsd_client._objects.memory.shared_pages import map_memory, unmap_memory
from pympsd_client._objects.own_contexts import own_contexts


class Reservations:
    """The reserved ranges in an area of addresses."""

    def __init__(self, base: int, end: int) -> None:
        self._base = base
        self._end = end
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def reserve(self, size: int, alignment: int, preferred: int) -> int | None:
        """Reserve a range, at the preferred address if it is free; return its start, or None if nothing fits."""
        if preferred % alignment == 0 and self._is_free(preferred, size):
            return self._add(preferred, size)
        at = self._base
        for start in (*self._starts, self._end):
            at = -(-at // alignment) * alignment
            if at + size <= start:
                return self._add(at, size)
            at = start + self._sizes.get(start, 0)
        return None

    def _is_free(self, start: int, size: int) -> bool:
        if start < self._base or start + size > self._end:
            return False
        at = bisect_right(self._starts, start)
        before = self._starts[at - 1] if at else None
        if before is not None and before + self._sizes[before] > start:
            return False
        return at == len(self._starts) or start + size <= self._starts[at]

    def _add(self, start: int, size: int) -> int:
        insort(self._starts, start)
        self._sizes[start] = size
        return start

    def free(self, start: int, size: int) -> bool:
        """Free a range; return False if exactly this range was not reserved."""
        if self._sizes.get(start) != size:
            return False
        del self._sizes[start]
        self._starts.remove(start)
        return True

    def is_reserved(self, start: int, size: int) -> bool:
        """Return whether all of a range is reserved, perhaps by several reservations."""
        at = start
        while at < start + size:
            index = bisect_right(self._starts, at) - 1
            if index < 0:
                return False
            end = self._starts[index] + self._sizes[self._starts[index]]
            if at >= end:
                return False
            at = end
        return True


@define(eq=False)
class Physical:
    """Physical memory. ``references``: the number of times that the program has to release its handle.

    ``is_host``: whether it is host memory, which is mapped in this process too if the host has access.
    """

    handle: int
    context: Context
    size: int
    properties: AllocationProperties
    is_host: bool = False
    references: int = 1
    mappings: int = 0


@define(eq=False)
class Mapping(FreedImmediately):
    """A mapping of physical memory, an allocation that only cuMemUnmap removes."""

    physical: Physical = field(kw_only=True)
    imported: int = 0
    """The handle of another device's memory that the device of the addresses has imported; 0 for its own memory."""
    access: dict[int, int] = field(factory=dict)
    """The CUmemAccess_flags of devices by ordinal; devices that are not listed have no access."""
    host_access: int = 0

    @property
    def is_reached(self) -> bool:
        """Whether the device of the addresses has access, which it has if any device has."""
        return any(self.access.values())

    @property
    def is_mapping(self) -> bool:
        """Whether the program has mapped this memory, which is always True."""
        return True

    def is_reached_from(self, context: Context) -> bool:
        """Return whether cuMemSetAccess has given the context's device access."""
        return bool(self.access.get(context.device.ordinal))

    def free(self) -> None:
        """Raise INVALID_VALUE."""
        raise invalid_value(f"{self.handle:#x} is mapped by cuMemMap; cuMemUnmap it")


class VirtualMemory:
    """The reservations, handles and mappings of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._reservations: Final[dict[int, Reservations]] = {}
        """The reservations in each device's window, by the device's ordinal."""
        self._physical: Final[dict[int, Physical]] = {}
        self._mappings: Final[dict[int, Mapping]] = {}
        when_closed.append(self._drop)
        own_contexts.needed.append(self._needs)

    # --- addresses

    def reserve(self, ordinal: int, size: int, alignment: int, preferred: int) -> int:
        """Reserve a range of addresses of a device and return its start.

        ``size`` and ``alignment``: bytes. ``preferred``: the address that the program prefers, which it gets if the
        range is free there; 0 for any. Raise OUT_OF_MEMORY if no range is large enough.
        """
        with self._lock:
            reservations = self._reservations.get(ordinal)
            if reservations is None:
                base = window_of(ordinal)
                reservations = self._reservations[ordinal] = Reservations(base + VIRTUAL_OFFSET, base + MAPPED_OFFSET)
            start = reservations.reserve(size, alignment, preferred)
        if start is None:
            raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"no range of {size} addresses is free")
        return start

    def free_addresses(self, start: int, size: int) -> None:
        """Free a range of addresses in which nothing is mapped; raise INVALID_VALUE."""
        with self._lock:
            if self._list_between(start, size):
                raise invalid_value(f"memory is mapped at {start:#x}; cuMemUnmap it first")
            reservations = self._reservations.get(ordinal_of(start))
            if reservations is None or not reservations.free(start, size):
                raise invalid_value(f"{size} bytes at {start:#x} were not returned by cuMemAddressReserve")

    # --- handles

    def add(self, physical: Physical) -> int:
        """Enter physical memory and return its handle."""
        self._physical[physical.handle] = physical
        return physical.handle

    def find(self, handle: int) -> Physical:
        """Return the physical memory of a handle that the program has not released; raise INVALID_VALUE."""
        physical = self._physical.get(handle)
        if physical is None or not physical.references:
            raise invalid_value(f"{handle:#x} is not a handle of memory of this process (released, or never created)")
        return physical

    def release(self, handle: int) -> None:
        """Release a reference; free the memory if this was the last one and it is not mapped."""
        with self._lock:
            physical = self.find(handle)
            physical.references -= 1
            self._free_unused(physical)

    def _free_unused(self, physical: Physical) -> None:
        if (
            not physical.references
            and not physical.mappings
            and self._physical.pop(physical.handle, None) is not None
        ):
            try:
                physical.context.call(operations.RELEASE_MEMORY, physical.handle)
            finally:
                own_contexts.close_unneeded(physical.context)

    def _needs(self, context: Context) -> bool:
        """Return whether a context has memory."""
        used = [physical.context for physical in tuple(self._physical.values())]
        used += [mapping.context for mapping in tuple(self._mappings.values())]
        return context in used

    def retain_at(self, address: int) -> int:
        """Add a reference to the memory that is mapped at an address, and return its handle.

        Raise INVALID_VALUE.
        """
        with self._lock:
            mapping = self._find_containing(address)
            mapping.physical.references += 1
            return mapping.physical.handle

    # --- mappings

    def map(self, physical: Physical, address: int, size: int) -> None:
        """Map physical memory as a whole at reserved addresses; no device has access until cuMemSetAccess.

        Addresses belong to the device whose context was current when they were reserved. Raise NOT_SUPPORTED for
        memory of a device to which that device has no peer access. Raise INVALID_VALUE for a size other than the
        memory's, and for addresses that are in use or not reserved.
        """
        if size != physical.size:
            raise invalid_value(f"memory must be mapped as a whole: {physical.size} bytes, not {size}")
        with self._lock:
            ordinal = ordinal_of(address)
            reservations = self._reservations.get(ordinal)
            if reservations is None or not reservations.is_reserved(address, size):
                raise invalid_value(f"{size} bytes at {address:#x} are not reserved by cuMemAddressReserve")
            if self._list_between(address, size):
                raise invalid_value(f"memory is mapped at {address:#x}, or within {size} bytes from it")
            context, imported = physical.context, 0
            if ordinal != context.device.ordinal:
                context, imported = _import(physical, ordinal)
            try:
                context.call(operations.MAP_MEMORY, imported or physical.handle, address)
            except CudaError:
                if imported:
                    context.call(operations.RELEASE_MEMORY, imported)
                raise
            physical.mappings += 1
            mapping = Mapping(address, context, size, physical=physical, imported=imported, is_host=physical.is_host)
            self._mappings[address] = mapping
            allocations.any_shared |= mapping.is_host
            allocations.add(mapping)

    def unmap(self, address: int, size: int) -> None:
        """Unmap the mappings in a range of reserved addresses. The range may have none, as on an H100.

        Raise INVALID_VALUE for a range that begins or ends within a mapping, and for addresses that are not reserved.
        """
        with self._lock:
            mappings = self._list_between(address, size)
            if not all(address <= mapping.handle <= address + size - mapping.size for mapping in mappings):
                raise invalid_value(f"{size} bytes at {address:#x} contain a part of a mapping; unmap all of it")
            reservations = self._reservations.get(ordinal_of(address))
            if reservations is None or not reservations.is_reserved(address, size):
                raise invalid_value(f"{size} bytes at {address:#x} are not reserved by cuMemAddressReserve")
            for mapping in mappings:
                mapping.context.call(operations.UNMAP_MEMORY, mapping.handle, mapping.size)
                if mapping.imported:
                    mapping.context.call(operations.RELEASE_MEMORY, mapping.imported)
                del self._mappings[mapping.handle]
                unmap_memory(mapping.handle)
                peer_access.drop(mapping.handle)
                allocations.remove(mapping.handle)
                mapping.physical.mappings -= 1
                with suppress(CudaError):  # the memory of a context that has failed is freed with it
                    self._free_unused(mapping.physical)
                own_contexts.close_unneeded(mapping.context)

    def set_access(self, address: int, size: int, ordinal: int, flags: int) -> None:
        """Make a range of whole mappings accessible to a device, or not.

        ``flags``: a CUmemAccess_flags, 0 for no access. Memory that any device can access is accessible to the device
        of the addresses too, through which the other devices access it. Raise INVALID_VALUE if the range does not
        consist of whole mappings.
        """
        with self._lock:
            mappings = self._exactly(address, size)
            for mapping in mappings:
                before, mapping.access[ordinal] = mapping.is_reached, flags
                if mapping.is_reached != before:
                    mapping.context.call(operations.SET_ACCESS, mapping.handle, mapping.size, int(mapping.is_reached))
                if ordinal != (own_index := mapping.context.device.ordinal):
                    peer_access.set_of(mapping.handle, (ordinal, own_index), flags != 0)

    def set_host_access(self, address: int, size: int, flags: int) -> None:
        """Make a range of whole mappings of host memory accessible to this process, or not; raise INVALID_VALUE."""
        with self._lock:
            mappings = self._exactly(address, size)
            if not all(mapping.is_host for mapping in mappings):
                raise invalid_value(f"the memory at {address:#x} is a device's, which the host does not access")
            for mapping in mappings:
                if flags and not mapping.host_access:
                    map_memory(mapping.context, mapping.physical.handle, mapping.handle, mapping.size)
                elif not flags:
                    unmap_memory(mapping.handle)
                mapping.host_access = flags

    def find_mapping(self, address: int) -> Mapping:
        """Return the mapping that contains an address; raise INVALID_VALUE."""
        with self._lock:
            return self._find_containing(address)

    def _find_containing(self, address: int) -> Mapping:
        mapping = allocations.find_containing(address)
        if not isinstance(mapping, Mapping):
            raise invalid_value(f"no memory is mapped at {address:#x}")
        return mapping

    def _list_between(self, start: int, size: int) -> list[Mapping]:
        return [
            mapping
            for mapping in self._mappings.values()
            if mapping.handle < start + size and start < mapping.handle + mapping.size
        ]

    def _exactly(self, start: int, size: int) -> list[Mapping]:
        mappings = sorted(self._list_between(start, size), key=lambda mapping: mapping.handle)
        at = start
        for mapping in mappings:
            if mapping.handle != at:
                break
            at += mapping.size
        if not mappings or at != start + size:
            raise invalid_value(f"{size} bytes at {start:#x} are not whole mappings of cuMemMap")
        return mappings

    def _drop(self, context: Context) -> None:
        """Remove the mappings and the memory of a closing context; other devices no longer have its memory mapped."""
        with self._lock:
            for mapping in tuple(self._mappings.values()):
                if context in (mapping.context, mapping.physical.context) and mapping.handle in self._mappings:
                    del self._mappings[mapping.handle]
                    unmap_memory(mapping.handle)
                    peer_access.drop(mapping.handle)
                    if mapping.context is not context:
                        _unmap_imported(mapping)
                    if mapping.physical.context is not context:  # another device's memory continues to exist
                        mapping.physical.mappings -= 1
                        with suppress(CudaError):
                            self._free_unused(mapping.physical)
            for physical in tuple(self._physical.values()):
                if physical.context is context:
                    self._physical.pop(physical.handle, None)


def _import(physical: Physical, ordinal: int) -> tuple[Context, int]:
    """Import physical memory into another device; return a context on it and the new handle. Raise NOT_SUPPORTED."""
    owner, context = physical.context, context_on(ordinal)
    if physical.is_host or not is_possible(context.device, owner.device):
        raise not_supported(
            "the addresses were reserved in a context on a device other than the memory's, and the two have no "
            f"peer access; reserve them in a context on device {owner.device.number}"
        )
    file = owner.query(operations.PUBLISH_MEMORY, physical.handle)
    handle = context.allocate_handle()
    context.call(operations.IMPORT_PEERS_MEMORY, handle, *file, physical.size)
    return context, handle


def _unmap_imported(mapping: Mapping) -> None:
    """Unmap imported memory whose own context has closed."""
    allocations.remove(mapping.handle)
    if mapping.context.active:
        with suppress(CudaError):
            mapping.context.call(operations.UNMAP_MEMORY, mapping.handle, mapping.size)
            mapping.context.call(operations.RELEASE_MEMORY, mapping.imported)


virtual_memory: Final = VirtualMemory()
