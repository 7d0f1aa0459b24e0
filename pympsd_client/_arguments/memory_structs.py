"""The structures for locations, kinds and access of memory, as cuda.bindings or C has them, as plain values."""

import ctypes
import struct
from typing import Any, Final

from attrs import frozen

from pympsd_client._arguments.bindings import make_struct
from pympsd_client._arguments.values import address_of, addresses_of


@frozen
class Location:
    """A CUmemLocation: ``type`` is a CUmemLocationType, ``id`` a device's or a NUMA node's number."""

    type: int
    id: int


@frozen
class PoolProperties:
    """A CUmemPoolProps."""

    allocation_type: int
    handle_types: int
    location: Location
    max_size: int
    usage: int


@frozen
class AllocationProperties:
    """A CUmemAllocationProp."""

    type: int
    handle_types: int
    location: Location
    compression: int
    is_rdma_capable: int
    usage: int


@frozen
class Access:
    """A CUmemAccessDesc: ``flags`` is a CUmemAccess_flags."""

    location: Location
    flags: int


_LOCATION: Final = struct.Struct("=2i")
_ACCESS: Final = struct.Struct("=3i")
_POOL: Final = struct.Struct("=4i8xQH")
"""CUmemPoolProps: type, types of handles, location, security attributes, maximum size, usage."""
_ALLOCATION: Final = struct.Struct("=4i8x2BH4x")
"""CUmemAllocationProp: type, types of handles, location, metadata of Win32, compression, RDMA, usage."""


def _unpack(argument: Any, name: str, layout: struct.Struct) -> tuple[Any, ...]:
    # Not ctypes.string_at, which would take longer than all the rest.
    return layout.unpack_from((ctypes.c_char * layout.size).from_address(address_of(argument, name)))


def location(argument: Any) -> Location | None:
    """Return the values of a CUmemLocation, None for NULL; raise TypeError for anything else."""
    return None if argument is None else Location(*_unpack(argument, "CUmemLocation", _LOCATION))


def pool_properties(argument: Any) -> PoolProperties | None:
    """Return the values of a CUmemPoolProps, None for NULL; raise TypeError for anything else."""
    if argument is None:
        return None
    kind, handle_types, where, number, max_size, usage = _unpack(argument, "CUmemPoolProps", _POOL)
    return PoolProperties(kind, handle_types, Location(where, number), max_size, usage)


def allocation_properties(argument: Any) -> AllocationProperties | None:
    """Return the values of a CUmemAllocationProp, None for NULL; raise TypeError for anything else."""
    if argument is None:
        return None
    kind, handle_types, where, number, *flags = _unpack(argument, "CUmemAllocationProp", _ALLOCATION)
    return AllocationProperties(kind, handle_types, Location(where, number), *flags)


def make_allocation_properties(values: AllocationProperties) -> Any:
    """Return a CUmemAllocationProp with these values."""
    at, flags = values.location, (values.compression, values.is_rdma_capable, values.usage)
    return make_struct(
        "CUmemAllocationProp", _ALLOCATION.pack(values.type, values.handle_types, at.type, at.id, *flags)
    )


def _unpack_each(argument: Any, count: int, name: str, layout: struct.Struct) -> list[tuple[Any, ...]]:
    addresses = addresses_of(argument, count, name, layout.size)
    return [layout.unpack(ctypes.string_at(address, layout.size)) for address in addresses]


def accesses(argument: Any, count: int) -> list[Access]:
    """Return the values of ``count`` CUmemAccessDesc, a list or a C array; raise INVALID_VALUE if there are fewer."""
    fields = _unpack_each(argument, count, "CUmemAccessDesc", _ACCESS)
    return [Access(Location(where, number), flags) for where, number, flags in fields]


def locations(argument: Any, count: int) -> list[Location]:
    """Return the values of ``count`` CUmemLocation, a list or a C array; raise INVALID_VALUE if there are fewer."""
    return [Location(*fields) for fields in _unpack_each(argument, count, "CUmemLocation", _LOCATION)]
