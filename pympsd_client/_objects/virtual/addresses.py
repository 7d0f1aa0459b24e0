"""Whether all of a range of device addresses is memory that this process has."""

from __future__ import annotations

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._objects.arrays.array import arrays
from pympsd_client._objects.memory import allocations, owner
from pympsd_client._objects.module import modules
from pympsd_client._objects.pinned_memory import pinned
from pympsd_client._objects.pools.graph_memory import graph_allocations
from pympsd_client._objects.virtual.memory import Mapping


def check(address: int, count: int) -> None:
    """Raise INVALID_VALUE unless all of a range is in one allocation, or in mapped memory without gaps, with access.

    The executor checks it too, but of work that is not waited for a later call would return the error, and the bytes
    of host memory would have been read.
    """
    owner(address)
    found = allocations.get(address) or allocations.containing(address)
    if found is None:
        start, size = _other_memory(address)
        if address + count > start + size:
            raise _beyond(address, count, start, size)
        return
    at = found
    while at.is_reached:
        if address + count <= at.handle + at.size:
            return
        after = allocations.containing(at.handle + at.size) if isinstance(at, Mapping) else None
        if not isinstance(after, Mapping):
            raise _beyond(address, count, found.handle, at.handle + at.size - found.handle)
        at = after
    raise invalid_value(f"no device has access to the memory that is mapped at {at.handle:#x}; call cuMemSetAccess")


def _beyond(address: int, count: int, start: int, size: int) -> Exception:
    return invalid_value(f"{count} bytes at {address:#x} are not all within the {size} bytes at {start:#x}")


def _other_memory(address: int) -> tuple[int, int]:
    """Return start and size of the memory at an address that no function for allocations has returned."""
    for module in modules.all():
        if (variable := module.variable_at(address)) is not None:
            return variable.address, variable.size
    host_address, reached = pinned.addresses_of(address)
    if (region := pinned.region_at(host_address)) is not None:
        return region.address + (reached - host_address if reached == address else 0), region.size
    others = [(one.handle, one.size) for one in graph_allocations.all()]
    for start, size in (*others, *((one.address, one.size) for one in arrays.all())):
        if start <= address < start + size:
            return start, size
    raise invalid_value(f"{address:#x} is in no memory of this process (freed, or never allocated)")
