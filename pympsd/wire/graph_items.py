"""An executable graph as bytes: its items, each a record of the command stream and the items that it comes after.

Each item is two numbers of 4 bytes (the length of the record, the number of dependencies), the dependencies as
indices of earlier items (4 bytes each, padded to 8), then the record. One without a record (length 0) joins others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from attrs import frozen

from pympsd.wire.errors import RemoteError
from pympsd.wire.records import HEADER_BYTES, RECORD_LIMIT, padded

_HEAD: Final = struct.Struct("=II")
ITEM_LIMIT: Final = 1 << 16
"""Items of one executable graph."""
EDGE_LIMIT: Final = 1 << 20
"""Dependencies of all of its items together."""


class TooLarge(RemoteError):
    """More items or dependencies than an executable graph may have."""


@frozen
class GraphItem:
    """One item; ``dependencies`` are indices below its own."""

    record: bytes
    dependencies: tuple[int, ...] = ()


def encode(items: Iterable[GraphItem]) -> bytes:
    """Return the bytes of items."""
    parts = []
    for item in items:
        count = len(item.dependencies)
        parts.append(_HEAD.pack(len(item.record), count))
        indices = struct.pack(f"={count}I", *item.dependencies)
        parts.append(indices.ljust(padded(len(indices)), b"\0"))
        parts.append(item.record)
    return b"".join(parts)


def decode(data: bytes) -> tuple[GraphItem, ...]:
    """Return the items; raise RemoteError where the bytes are none, TooLarge before there are too many."""
    items: list[GraphItem] = []
    at = edges = 0
    while at < len(data):
        if len(items) == ITEM_LIMIT:
            raise TooLarge(f"at most {ITEM_LIMIT} nodes are allowed")
        if len(data) - at < _HEAD.size:
            raise RemoteError(f"an item of {len(data) - at} bytes")
        length, count = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size + padded(4 * count)
        is_record = length % 8 == 0 and HEADER_BYTES <= length <= RECORD_LIMIT
        if not (is_record or length == 0) or len(data) - start < length:
            raise RemoteError(f"item {len(items)} has a record of {length} bytes, {count} dependencies")
        edges += count
        if edges > EDGE_LIMIT:
            raise TooLarge(f"at most {EDGE_LIMIT} dependencies are allowed")
        dependencies = struct.unpack_from(f"={count}I", data, at + _HEAD.size)
        if any(index >= len(items) for index in dependencies):
            raise RemoteError(f"item {len(items)} depends on what is not before it")
        items.append(GraphItem(data[start : start + length], dependencies))
        at = start + length
    return tuple(items)
