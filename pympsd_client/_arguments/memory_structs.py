"""Locations, kinds and access of memory: the structures of cuda.bindings, or C's in memory, as plain values."""

from __future__ import annotations

import ctypes
from typing import Any

from attrs import frozen

from pympsd_client._arguments.bindings import from_bytes
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


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _PoolProperties(ctypes.Structure):
    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
    )


class _AllocationProperties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("is_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def _plain(raw: Any) -> Location:
    return Location(raw.type, raw.id)


def location(argument: Any) -> Location | None:
    """Return the values of a CUmemLocation, None for NULL; TypeError for anything else."""
    return None if argument is None else _plain(_Location.from_address(address_of(argument, "CUmemLocation")))


def pool_properties(argument: Any) -> PoolProperties | None:
    """Return the values of a CUmemPoolProps, None for NULL; TypeError for anything else."""
    if argument is None:
        return None
    raw: Any = _PoolProperties.from_address(address_of(argument, "CUmemPoolProps"))
    return PoolProperties(raw.allocation_type, raw.handle_types, _plain(raw.location), raw.max_size, raw.usage)


def allocation_properties(argument: Any) -> AllocationProperties | None:
    """Return the values of a CUmemAllocationProp, None for NULL; TypeError for anything else."""
    if argument is None:
        return None
    raw: Any = _AllocationProperties.from_address(address_of(argument, "CUmemAllocationProp"))
    return AllocationProperties(
        raw.type, raw.handle_types, _plain(raw.location), raw.compression, raw.is_rdma_capable, raw.usage
    )


def make_allocation_properties(values: AllocationProperties) -> Any:
    """Return a CUmemAllocationProp with these values."""
    location = _Location(values.location.type, values.location.id)
    raw = _AllocationProperties(values.type, values.handle_types, location)
    raw.compression, raw.is_rdma_capable, raw.usage = values.compression, values.is_rdma_capable, values.usage
    return from_bytes("CUmemAllocationProp", bytes(raw))


def accesses(argument: Any, count: int) -> list[Access]:
    """Return the values of ``count`` CUmemAccessDesc, a list or a C array; INVALID_VALUE if there are fewer."""
    addresses = addresses_of(argument, count, "CUmemAccessDesc", ctypes.sizeof(_Access))
    return [Access(_plain(raw.location), raw.flags) for raw in map(_Access.from_address, addresses)]


def locations(argument: Any, count: int) -> list[Location]:
    """Return the values of ``count`` CUmemLocation, a list or a C array; INVALID_VALUE if there are fewer."""
    addresses = addresses_of(argument, count, "CUmemLocation", ctypes.sizeof(_Location))
    return [_plain(_Location.from_address(address)) for address in addresses]
