"""Encode an executable graph as bytes: items, each with a record of the command stream and the items on which it
depends.

Each item begins with four numbers of 4 bytes: the length of its record, the number of its dependencies, the number of
its bodies, and its kind of conditional. The dependencies follow as indices of earlier items (4 bytes each, padded to
8), then the record. An item without a record (length 0) joins others, or is a conditional node. A conditional node
continues with its handle (8 bytes), the handle's default and whether that is assigned (4 bytes each), and for each
body its length in bytes (8 bytes) and its items.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from attrs import define, frozen

from pympsd.errors import RemoteError
from pympsd.wire.records import HEADER_BYTES, MAX_RECORD, pad

_HEAD: Final = struct.Struct("=IIII")
_CONDITION: Final = struct.Struct("=QII")
_LENGTH: Final = struct.Struct("=Q")
MAX_ITEMS: Final = 1 << 16
"""The maximum number of items and bodies of an executable graph together, including those in bodies."""
MAX_EDGES: Final = 1 << 20
"""The maximum number of dependencies of all its items together."""
MAX_NESTING: Final = 16
"""The maximum depth of bodies within bodies."""


class TooLarge(RemoteError):
    """More items, dependencies or nested bodies than an executable graph may have."""


class ConditionalKind(IntEnum):
    """The condition under which a conditional node executes a body (CUgraphConditionalNodeType)."""

    IF = 0
    """The first body is executed if the handle's value is not 0, otherwise the second body, if there is one."""
    WHILE = 1
    """The body is repeated as long as the handle's value is not 0."""
    SWITCH = 2
    """The body whose index is the handle's value is executed, if there is one."""


@frozen
class Conditional:
    """A conditional node; ``default`` is the value of its handle at the start of a launch, or None to leave the
    value.
    """

    handle: int
    kind: ConditionalKind
    default: int | None
    bodies: tuple[tuple[GraphItem, ...], ...]


@frozen
class GraphItem:
    """One item; ``dependencies`` are indices below its own. An item with a conditional has no record."""

    record: bytes
    dependencies: tuple[int, ...] = ()
    conditional: Conditional | None = None


def encode(items: Iterable[GraphItem]) -> bytes:
    """Return the bytes of items."""
    parts = []
    for item in items:
        count, node = len(item.dependencies), item.conditional
        bodies, kind = (len(node.bodies), node.kind) if node is not None else (0, 0)
        parts.append(_HEAD.pack(len(item.record), count, bodies, kind))
        indices = struct.pack(f"={count}I", *item.dependencies)
        parts.append(indices.ljust(pad(len(indices)), b"\0"))
        parts.append(item.record)
        if node is not None:
            parts.append(_CONDITION.pack(node.handle, node.default or 0, node.default is not None))
            for body in map(encode, node.bodies):
                parts += (_LENGTH.pack(len(body)), body)
    return b"".join(parts)


def decode(data: bytes) -> tuple[GraphItem, ...]:
    """Return the items.

    Raise RemoteError if the bytes are not a graph, or TooLarge as soon as a maximum is exceeded.
    """
    return _Reader(data).items(0, len(data), 0)


@define
class _Reader:
    data: bytes
    count: int = 0
    edges: int = 0

    def items(self, at: int, end: int, depth: int) -> tuple[GraphItem, ...]:
        """Return the items between two offsets."""
        items: list[GraphItem] = []
        while at < end:
            self._count(1)
            item, at = self._item(at, end, len(items), depth)
            items.append(item)
        return tuple(items)

    def _count(self, more: int) -> None:
        """Count items or bodies. Raise TooLarge."""
        self.count += more
        if self.count > MAX_ITEMS:
            raise TooLarge(f"at most {MAX_ITEMS} nodes and bodies of conditional nodes are allowed")

    def _item(self, at: int, end: int, index: int, depth: int) -> tuple[GraphItem, int]:
        """Return the item that begins at an offset, and the offset after it. Raise RemoteError or TooLarge."""
        if end - at < _HEAD.size:
            raise RemoteError(f"an item of {end - at} bytes")
        length, count, bodies, kind = _HEAD.unpack_from(self.data, at)
        start = at + _HEAD.size + pad(4 * count)
        is_record = length % 8 == 0 and HEADER_BYTES <= length <= MAX_RECORD
        if not (is_record or length == 0) or end - start < length or (length and bodies):
            raise RemoteError(f"item {index} has a record of {length} bytes, {count} dependencies, {bodies} bodies")
        self.edges += count
        if self.edges > MAX_EDGES:
            raise TooLarge(f"at most {MAX_EDGES} dependencies are allowed")
        dependencies = struct.unpack_from(f"={count}I", self.data, at + _HEAD.size)
        if any(dependency >= index for dependency in dependencies):
            raise RemoteError(f"item {index} depends on an item that does not precede it")
        if not bodies:
            return GraphItem(self.data[start : start + length], dependencies), start + length
        if depth == MAX_NESTING:
            raise TooLarge(f"at most {MAX_NESTING} bodies of conditional nodes within each other are allowed")
        conditional, start = self._conditional(start, end, bodies, kind, depth)
        return GraphItem(b"", dependencies, conditional), start

    def _conditional(self, at: int, end: int, bodies: int, kind: int, depth: int) -> tuple[Conditional, int]:
        """Return the conditional node at an offset, and the offset after it. Raise RemoteError or TooLarge."""
        if kind >= len(ConditionalKind) or end - at < _CONDITION.size + bodies * _LENGTH.size:
            raise RemoteError(f"an item of {end - at} bytes with {bodies} bodies of the kind {kind}")
        self._count(bodies)  # because a body without items takes memory, too
        handle, default, assigns = _CONDITION.unpack_from(self.data, at)
        at += _CONDITION.size
        nested = []
        for _ in range(bodies):
            if end - at < _LENGTH.size:
                raise RemoteError(f"the body of an item in {end - at} bytes")
            (length,) = _LENGTH.unpack_from(self.data, at)
            at += _LENGTH.size
            if length > end - at:
                raise RemoteError(f"the body of an item has {length} bytes, and {end - at} are left")
            nested.append(self.items(at, at + length, depth + 1))
            at += length
        return Conditional(handle, ConditionalKind(kind), default if assigns else None, tuple(nested)), at
