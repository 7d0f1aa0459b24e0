"""Functions of resources that take or give C arrays of them."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint32, memmove
from typing import Any, Final

from pympsd_client._api import green_context
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.resources import RESOURCE_BYTES
from pympsd_client._arguments.values import InMemory
from pympsd_client._objects.process import process

Resolved = tuple[Callable[..., Any], str]


def _given(address: int) -> InMemory | None:
    return InMemory(address) if address else None


def _put(parts: list[bytes], result: int, rest: bytes, remaining: int) -> None:
    data = b"".join(parts)
    if result:
        memmove(result, data, len(data))
    if remaining:
        memmove(remaining, rest, RESOURCE_BYTES)


def _split_by_count() -> Resolved:
    def split(result: int, number: int, given: int, remaining: int, flags: int, minimum: int) -> None:
        process.require()
        if not number:
            raise invalid_value("the address of nbGroups is NULL")
        place = c_uint32.from_address(number)
        wanted = place.value if result else 0
        parts, place.value, rest = green_context.split_by_count(wanted, _given(given), flags, minimum)
        _put(parts, result, rest, remaining)

    return split, "QQQQII"


def _split() -> Resolved:
    def split(result: int, number: int, given: int, remaining: int, flags: int, groups: int) -> None:
        process.require()
        parts, rest = green_context.split(number, _given(given), flags, _given(groups))
        _put(parts, result, rest, remaining)

    return split, "QIQQIQ"


SPECIAL: Final[dict[str, Callable[[], Resolved]]] = {
    "cuDevSmResourceSplit": _split,
    "cuDevSmResourceSplitByCount": _split_by_count,
}
"""What resolves them."""
