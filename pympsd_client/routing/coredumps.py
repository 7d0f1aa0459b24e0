"""Settings of core dumps through ``void *`` and a size."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_size_t, memmove, string_at
from typing import Any, Final

from pympsd_client._api import settings
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import check_count
from pympsd_client._objects.process import process

Resolved = tuple[Callable[..., Any], str]


def _get(core: Callable[[int], bool | int | bytes]) -> Callable[[], Resolved]:
    def get(wanted: int, value: int, size: int) -> None:
        process.require()
        found = core(wanted)
        data = (
            found + b"\0"
            if isinstance(found, bytes)
            else int(found).to_bytes(1 if type(found) is bool else 4, "little")
        )
        if not size:
            raise invalid_value("the address of the size is NULL")
        place = c_size_t.from_address(size)
        if value and place.value < len(data):
            raise invalid_value(f"the value has {len(data)} bytes, and room for {place.value}")
        if value:
            memmove(value, data, len(data))
        place.value = len(data)

    return lambda: (get, "iQQ")


def _set(core: Callable[[int, Any], None]) -> Callable[[], Resolved]:
    def put(wanted: int, value: int, size: int) -> None:
        process.require()
        if not value or not size:
            raise invalid_value("the address of the value, or of its size, is NULL")
        count = c_size_t.from_address(size).value
        check_count(count, "a setting")
        data = string_at(value, count)
        core(wanted, data if settings.is_dump_text(wanted) else int.from_bytes(data[:4], "little"))

    return lambda: (put, "iQQ")


SPECIAL: Final[dict[str, Callable[[], Resolved]]] = {
    "cuCoredumpGetAttribute": _get(settings.dump_setting),
    "cuCoredumpGetAttributeGlobal": _get(settings.global_dump_setting),
    "cuCoredumpSetAttribute": _set(settings.set_dump_setting),
    "cuCoredumpSetAttributeGlobal": _set(settings.set_global_dump_setting),
}
"""What resolves them."""
