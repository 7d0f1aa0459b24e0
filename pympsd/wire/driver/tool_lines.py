"""Packets between the daemon and the vendor's tool: command lines and printed lines, a packet each."""

import struct
from typing import Final

from pympsd.errors import RemoteError

_LENGTH: Final = struct.Struct("<q")
_PRINTED: Final = struct.pack("<i", 0)
LINE_BYTES: Final = 1 << 17
"""The rest of a longer line is lost; the daemon's own limit is lower."""
END_OF_ANSWERS: Final = struct.pack("<ii", 1, 0)


def length_of(packet: bytes) -> int:
    """Return the length of the line that follows, 0 if none does; raise RemoteError."""
    if len(packet) != _LENGTH.size:
        raise RemoteError(f"a length of {len(packet)} bytes, not {_LENGTH.size}")
    (length,) = _LENGTH.unpack(packet)
    if length < 0:
        raise RemoteError(f"a line of {length} bytes")
    return int(length)


def encode_printed(text: str) -> bytes:
    """Return the packet of a line to print; the tool adds the newline."""
    return _PRINTED + text.encode("utf-8", "surrogateescape")


def encode_line(line: bytes | None) -> tuple[bytes, ...]:
    """Return the packets of a line, or of the end of all lines (None)."""
    if line is None:
        return (_LENGTH.pack(0),)
    return _LENGTH.pack(len(line) + 2), line + b"\n\0"


def decode_printed(packet: bytes) -> bytes:
    """Return the text of a line to print; raise RemoteError for another packet."""
    if packet[: len(_PRINTED)] != _PRINTED:
        raise RemoteError(f"{packet[:8].hex()} in place of a line to print")
    return packet[len(_PRINTED) :]
