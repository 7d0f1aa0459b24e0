"""Decompression of LZ4 blocks (LZ4 Block Format Description)."""

from __future__ import annotations

from typing import Final

_MORE: Final = 15
_LEAST_MATCH: Final = 4


def decompress(data: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that a block holds; ValueError if it holds others."""
    out, at = bytearray(), 0
    try:
        while True:
            token = data[at]
            count, at = _length(data, at + 1, token >> 4)
            if at + count > len(data) or len(out) + count > size:
                raise ValueError("an LZ4 block that is cut off or too long")
            out += data[at : at + count]
            at += count
            if at == len(data):
                break
            distance = data[at] | data[at + 1] << 8
            count, at = _length(data, at + 2, token & 15)
            repeat(out, distance, count + _LEAST_MATCH, size)
    except IndexError:
        raise ValueError("an LZ4 block that is cut off") from None
    if len(out) != size:
        raise ValueError(f"an LZ4 block of {len(out)} bytes where {size} were announced")
    return bytes(out)


def _length(data: bytes, at: int, length: int) -> tuple[int, int]:
    if length == _MORE:
        while True:
            more = data[at]
            at += 1
            length += more
            if more != 255:
                break
    return length, at


def repeat(out: bytearray, distance: int, count: int, size: int) -> None:
    """Append ``count`` bytes that lie ``distance`` before the end; ValueError beyond the beginning or ``size``."""
    if not 0 < distance <= len(out) or len(out) + count > size:
        raise ValueError("a match outside of the data")
    start = len(out) - distance
    if distance >= count:
        out += out[start : start + count]
    else:
        piece = bytes(out[start:])
        out += (piece * (count // distance + 1))[:count]
