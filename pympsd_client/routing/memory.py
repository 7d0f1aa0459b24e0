"""Functions of memory that get or give values through ``void *``, or arrays of structures."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint64, memmove
from typing import Any, Final

from pympsd_client._api.memory import managed, pointer, pools, virtual
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import AttributeValue, InMemory
from pympsd_client._objects.process import process

Resolved = tuple[Callable[..., Any], str]


def _write(value: AttributeValue, place: int) -> None:
    memmove(place, value.packed, len(value.packed))


def _check(*places: int) -> None:
    process.require()
    if 0 in places:
        raise invalid_value("the address for the value is NULL")


def _get_pointer_attribute() -> Resolved:
    def get(data: int, attribute: int, address: int) -> None:
        _check(data)
        _write(pointer.attribute(attribute, address), data)

    return get, "QiQ"


def _get_pointer_attributes() -> Resolved:
    def get(count: int, attributes: int, data: int, address: int) -> None:
        _check(attributes, data)
        places = (c_uint64 * count).from_address(data)
        for value, place in zip(pointer.attributes(count, InMemory(attributes), address), places, strict=True):
            _check(place)
            _write(value, place)

    return get, "IQQQ"


def _set_pointer_attribute() -> Resolved:
    def put(value: int, attribute: int, address: int) -> None:
        _check(value)
        pointer.set_attribute(InMemory(value), attribute, address)

    return put, "QiQ"


def _get_range_attribute() -> Resolved:
    def get(data: int, size: int, attribute: int, address: int, count: int) -> None:
        _check(data)
        _write(managed.attribute(size, attribute, address, count), data)

    return get, "QQiQQ"


def _get_range_attributes() -> Resolved:
    def get(data: int, sizes: int, attributes: int, count: int, address: int, length: int) -> None:
        _check(data, sizes, attributes)
        places = (c_uint64 * count).from_address(data)
        found = managed.attributes(InMemory(sizes), InMemory(attributes), count, address, length)
        for value, place in zip(found, places, strict=True):
            _check(place)
            _write(value, place)

    return get, "QQQQQQ"


def _get_pool_attribute() -> Resolved:
    def get(pool: int, attribute: int, place: int) -> None:
        _check(place)
        _write(pools.attribute(pool, attribute), place)

    return get, "QiQ"


def _set_pool_attribute() -> Resolved:
    def put(pool: int, attribute: int, value: int) -> None:
        _check(value)
        pools.set_attribute(pool, attribute, InMemory(value))

    return put, "QiQ"


def _set_pool_access() -> Resolved:
    def put(pool: int, accesses: int, count: int) -> None:
        _check(accesses)
        pools.set_access(pool, InMemory(accesses), count)

    return put, "QQQ"


def _set_access() -> Resolved:
    def put(address: int, size: int, accesses: int, count: int) -> None:
        _check(accesses)
        virtual.set_access(address, size, InMemory(accesses), count)

    return put, "QQQQ"


def _export() -> Resolved:
    def get(place: int, handle: int, kind: int, flags: int) -> None:
        _check(place)
        _write(virtual.export(handle, kind, flags), place)

    return get, "QQiQ"


SPECIAL: Final = {
    "cuMemExportToShareableHandle": _export,
    "cuMemSetAccess": _set_access,
    "cuMemPoolGetAttribute": _get_pool_attribute,
    "cuMemPoolSetAccess": _set_pool_access,
    "cuMemRangeGetAttribute": _get_range_attribute,
    "cuMemRangeGetAttributes": _get_range_attributes,
    "cuMemPoolSetAttribute": _set_pool_attribute,
    "cuPointerGetAttribute": _get_pointer_attribute,
    "cuPointerGetAttributes": _get_pointer_attributes,
    "cuPointerSetAttribute": _set_pointer_attribute,
}
"""What resolves them."""
