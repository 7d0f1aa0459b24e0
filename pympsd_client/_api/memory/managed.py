"""Managed memory (CUDA driver API, Unified Addressing), which the program and kernels access at the same address.

On the emulated device the executor and the program share this memory, so advice and prefetching change only the
results of cuMemRangeGetAttribute. On a device without managed memory (attribute MANAGED_MEMORY is 0) all functions
raise NOT_SUPPORTED.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import CudaError, check_no_flags, invalid_value, not_supported
from pympsd_client._arguments.memory_structs import Location, location
from pympsd_client._arguments.values import AttributeValue, InMemory, number, read_numbers, read_unsigned
from pympsd_client._objects.context import Context, require_context
from pympsd_client._objects.memory import managed
from pympsd_client._objects.memory.allocations import HOST, PageState, PageStates, Place, allocations
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import LEGACY, resolve

_ADVICE: Final = members("CUmem_advise", "CU_MEM_ADVISE_")
_ATTRIBUTES: Final = members("CUmem_range_attribute", "CU_MEM_RANGE_ATTRIBUTE_")
_LOCATIONS: Final = members("CUmemLocationType", "CU_MEM_LOCATION_TYPE_")
_DEVICE, _HOST = _LOCATIONS["DEVICE"], _LOCATIONS["HOST"]
_NODES: Final = (_LOCATIONS["HOST_NUMA"], _LOCATIONS["HOST_NUMA_CURRENT"])
_GLOBAL, _HOST_FIRST, _SINGLE = 1, 2, 4
"""Values of CUmemAttach_flags."""
_NOWHERE: Final = -2
"""CU_DEVICE_INVALID."""
_NOT_MANAGED: Final = (
    "managed memory is not supported (device attribute MANAGED_MEMORY is 0). Use cuMemAlloc, and cuMemcpyHtoD and "
    "cuMemcpyDtoH"
)


def require_support(name: str) -> Context:
    """Return the current context; raise NOT_SUPPORTED if its device has no managed memory."""
    context = require_context()
    if not context.device.properties.attributes.get("MANAGED_MEMORY"):
        raise not_supported(f"{name}: {_NOT_MANAGED}")
    return context


def allocate(size: int, flags: int) -> int:
    """Return the address of new managed memory, all zero. It exists until cuMemFree, or the end of its context.

    ``flags``: CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST. Raise OUT_OF_MEMORY, INVALID_VALUE, NOT_SUPPORTED.
    """
    context = require_support("cuMemAllocManaged")
    if flags not in (_GLOBAL, _HOST_FIRST):
        raise invalid_value(f"the flags must be CU_MEM_ATTACH_GLOBAL (1) or CU_MEM_ATTACH_HOST (2), not {flags}")
    if size == 0:
        raise invalid_value("an allocation must have at least 1 byte")
    if size >= 1 << 48:
        raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"{size} bytes of addresses are not available")
    return managed.allocate(context, size)


@frozen
class Range:
    """A range of managed memory: the states of its allocation's pages, and its offsets in the allocation."""

    states: PageStates
    start: int
    end: int

    def prefetch(self, place: Place) -> None:
        """Note the place where the range will be used next."""
        self.states.change(self.start, self.end, lambda state: evolve(state, prefetched=place))


def find_range(address: int, count: int) -> Range:
    """Return a range that is within one managed allocation; raise INVALID_VALUE for any other."""
    allocation = allocations.find_containing(address)
    if allocation is None or not allocation.is_managed:
        raise invalid_value(f"{address:#x} is not in managed memory of this process")
    if count == 0 or address + count > allocation.handle + allocation.size:
        raise invalid_value(
            f"{count} bytes at {address:#x} are not all within the {allocation.size} of the allocation"
        )
    if allocation.states is None:
        allocation.states = PageStates(allocation.size)
    offset = address - allocation.handle
    return Range(allocation.states, offset, offset + count)


def _place(argument: Any) -> Place:
    """Return the location in a CUmemLocation, or, as before CUDA 13, in a device's number (-1 for the host)."""
    where = location(argument) if hasattr(argument, "getPtr") or isinstance(argument, InMemory) else None
    if where is None:
        ordinal = number(argument)
        where = Location(_HOST, 0) if ordinal == HOST else Location(_DEVICE, ordinal)
    return place_of(where)


def place_of(location: Location) -> Place:
    """Return a location as a place of managed memory; raise INVALID_VALUE, INVALID_DEVICE if it cannot be one."""
    if location.type == _DEVICE:
        device = process.device(location.id)
        if not device.properties.attributes.get("CONCURRENT_MANAGED_ACCESS"):
            raise CudaError(
                Result.ERROR_INVALID_DEVICE,
                f"device {device.number} and the host have no concurrent access to managed memory (device attribute "
                "CONCURRENT_MANAGED_ACCESS is 0)",
            )
    elif location.type != _HOST and location.type not in _NODES:
        raise invalid_value(f"there is no location of type {location.type} for managed memory")
    return Place(location.type, location.id)


def advise(devPtr: Any, count: Any, advice: Any, location: Any) -> None:
    """Note how managed memory will be used; raise INVALID_VALUE, INVALID_DEVICE.

    ``location`` is a CUmemLocation, or with cuda-bindings 12 the number of a device.
    """
    require_support("cuMemAdvise")
    start, size, kind = number(devPtr), read_unsigned(count), number(advice)
    change = _CHANGES.get(kind)
    if change is None:
        raise invalid_value(f"there is no advice {kind}")
    area = find_range(start, size)
    place = Place(0, 0) if kind in _FOR_ALL_LOCATIONS else _place(location)
    area.states.change(area.start, area.end, lambda state: change(state, place))


def _number(place: Place) -> int:
    return place.id if place.type == _DEVICE else HOST


_FOR_ALL_LOCATIONS: Final = {
    _ADVICE[name] for name in ("SET_READ_MOSTLY", "UNSET_READ_MOSTLY", "UNSET_PREFERRED_LOCATION")
}
_CHANGES: Final[dict[int, Callable[[PageState, Place], PageState]]] = {
    _ADVICE["SET_READ_MOSTLY"]: lambda state, _: evolve(state, is_read_mostly=True),
    _ADVICE["UNSET_READ_MOSTLY"]: lambda state, _: evolve(state, is_read_mostly=False),
    _ADVICE["SET_PREFERRED_LOCATION"]: lambda state, place: evolve(state, preferred=place),
    _ADVICE["UNSET_PREFERRED_LOCATION"]: lambda state, _: evolve(state, preferred=None),
    _ADVICE["SET_ACCESSED_BY"]: lambda state, at: evolve(state, accessed_by=state.accessed_by | {_number(at)}),
    _ADVICE["UNSET_ACCESSED_BY"]: lambda state, place: evolve(
        state, accessed_by=state.accessed_by - {_number(place)}
    ),
}


def prefetch(devPtr: Any, count: Any, location: Any, *arguments: Any, **keywords: Any) -> None:
    """Note where managed memory will be used; raise INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE.

    ``arguments`` are ``flags`` (0) and the stream, or with cuda-bindings 12 only the stream.
    """
    require_support("cuMemPrefetchAsync")
    flags, stream = _rest(arguments, keywords)
    resolve(stream)
    check_no_flags("cuMemPrefetchAsync", flags)
    area, place = find_range(number(devPtr), read_unsigned(count)), _place(location)
    area.prefetch(place)


def _rest(positional: Sequence[Any], keywords: dict[str, Any]) -> tuple[int, int]:
    arguments = [*positional, *(keywords[name] for name in ("flags", "hStream") if name in keywords)]
    if not 1 <= len(arguments) <= 2:
        raise TypeError(f"cuMemPrefetchAsync takes 4 or 5 arguments, {3 + len(arguments)} were given")
    return (read_unsigned(arguments[0], 32) if len(arguments) == 2 else 0), number(arguments[-1])


def attach(stream: int, address: int, length: int, flags: int) -> None:
    """Check an announcement that managed memory will be used by one stream, by all, or only by the host.

    Raise INVALID_VALUE.
    """
    require_support("cuStreamAttachMemAsync")
    resolve(stream)
    allocation = allocations.find_containing(address)
    if allocation is None or not allocation.is_managed or address != allocation.handle:
        raise invalid_value(f"{address:#x} is not the start of managed memory")
    if length not in (0, allocation.size):
        raise invalid_value(f"the length must be 0 or the size of the allocation, {allocation.size}, not {length}")
    if flags not in (_GLOBAL, _HOST_FIRST, _SINGLE):
        raise invalid_value(f"the flags must be one of CU_MEM_ATTACH_*, not {flags}")
    if flags == _SINGLE and stream in LEGACY:
        raise invalid_value("memory must be attached to a single stream that is not the default one")


# --- attributes


def attribute(size: int, requested: int, address: int, count: int) -> AttributeValue:
    """Return an attribute of a range of managed memory; raise INVALID_VALUE.

    ``dataSize`` must be 4, or a multiple of 4 for ACCESSED_BY.
    """
    require_support("cuMemRangeGetAttribute")
    area = find_range(address, count)
    states = set(area.states.list_states(area.start, area.end))
    if requested not in _ATTRIBUTES.values():
        raise invalid_value(f"there is no attribute {requested} of a range")
    if requested == _ATTRIBUTES["ACCESSED_BY"]:
        if size == 0 or size % 4:
            raise invalid_value(f"dataSize must be a multiple of 4, not {size}")
        common = frozenset.intersection(*(state.accessed_by for state in states))
        ordered = [*sorted(index for index in common if index != HOST), *(index for index in common if index == HOST)]
        numbers = [*ordered, *(_NOWHERE,) * (size // 4)][: size // 4]
        return AttributeValue(tuple(numbers), f"{len(numbers)}i")
    if size != 4:
        raise invalid_value(f"dataSize must be 4, not {size}")
    if requested == _ATTRIBUTES["READ_MOSTLY"]:
        return AttributeValue(int(all(state.is_read_mostly for state in states)), "i")
    is_prefetch = requested in _PREFETCH
    places = {state.prefetched if is_prefetch else state.preferred for state in states}
    place = places.pop() if len(places) == 1 else None
    if requested in _TYPES:
        return AttributeValue(0 if place is None else place.type, "i")
    if place is None:
        return AttributeValue(_NOWHERE, "i")
    return AttributeValue(place.id if requested in _IDS else _number(place), "i")


_PREFETCH: Final = {value for name, value in _ATTRIBUTES.items() if name.startswith("LAST_PREFETCH")}
_TYPES: Final = {value for name, value in _ATTRIBUTES.items() if name.endswith("_TYPE")}
_IDS: Final = {value for name, value in _ATTRIBUTES.items() if name.endswith("_ID")}


def attributes(sizes: Any, requested: Any, count: int, address: int, length: int) -> list[AttributeValue]:
    """Return several attributes of a range of managed memory; raise INVALID_VALUE."""
    require_support("cuMemRangeGetAttributes")
    lengths, numbers = read_numbers(sizes, count, "Q"), read_numbers(requested, count, "i")
    if count == 0 or count > len(numbers) or count > len(lengths):
        raise invalid_value(f"numAttributes is {count}; there are {len(numbers)} attributes and {len(lengths)} sizes")
    return [attribute(*pair, address, length) for pair in zip(lengths[:count], numbers[:count], strict=True)]
