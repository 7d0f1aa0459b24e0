"""Encode and decode the beginning of every conversation with the driver's control daemon: its hello, the peer's
credentials and role.

The daemon sends the first packet. Each message is one packet of a SOCK_SEQPACKET socket; integers are little-endian.
After the handshake, the driver's own tool sends command lines and gets printed lines, one packet each.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from pympsd.errors import RemoteError

HELLO: Final = b"OUTBHELL\0"
CREDENTIALS: Final = b"OUTBCRED\0"
"""The packet that a peer sends with its credentials (SCM_CREDENTIALS)."""
DESCRIPTOR: Final = b"OUTBCUFD\0"
"""The packet that has a descriptor: one end of the connection between a client and its server."""
PACKET_BYTES: Final = 4096
"""The maximum size of a packet from a server or client; the rest of a longer packet would be lost."""
DEVICE_BYTES: Final = 41
"""The size of a packet that names a device, by its ordinal or UUID in ASCII, padded with zeros."""
ROLE_BYTES: Final = 4
_INT: Final = struct.Struct("<i")
_LONG: Final = struct.Struct("<q")
_DOUBLE: Final = struct.Struct("<d")
_SIZE: Final = struct.Struct("<Q")
_REGISTRATION: Final = struct.Struct("<256s256s4x")


class Role(IntEnum):
    """The kind of a peer, as it reports it."""

    SERVER = 1
    CLIENT = 2
    TOOL = 4


def role_of(packet: bytes) -> Role:
    """Return the role in a packet; raise RemoteError for any other packet."""
    if len(packet) != _INT.size:
        raise RemoteError(f"a role of {len(packet)} bytes, not {_INT.size}")
    (number,) = _INT.unpack(packet)
    try:
        return Role(number)
    except ValueError:
        raise RemoteError(f"there is no role {number}") from None


def encode_role(role: Role) -> bytes:
    """Return the packet of a role."""
    return _INT.pack(role)


def shared_memory_of(packet: bytes) -> str:
    """Return the name in a server's registration, ``mps.shm.UID.PID``; raise RemoteError for any other packet."""
    if len(packet) != _REGISTRATION.size:
        raise RemoteError(f"a registration of {len(packet)} bytes, not {_REGISTRATION.size}")
    _, name = _REGISTRATION.unpack(packet)
    text = bytes(name).rstrip(b"\0")
    if not text.startswith(b"mps.shm.") or not text.isascii():
        raise RemoteError(f"a registration that names {text[:64]!r}")
    return text.decode()


def encode_defaults(percentage: float, memory_limits: Mapping[int, int], priority: int) -> tuple[bytes, ...]:
    """Return the packets that answer a registration, with the limits for new clients.

    ``percentage`` is of SMs; ``memory_limits`` are in bytes by device ordinal.
    """
    limits = [part for device, count in memory_limits.items() for part in (encode_device(device), _SIZE.pack(count))]
    return (_DOUBLE.pack(percentage), _LONG.pack(len(memory_limits)), *limits, _INT.pack(priority))


def encode_device(ordinal: int) -> bytes:
    """Return the packet that names a device."""
    return str(ordinal).encode().ljust(DEVICE_BYTES, b"\0")


_LENGTH: Final = struct.Struct("<q")
_PRINTED: Final = struct.pack("<i", 0)
LINE_BYTES: Final = 1 << 17
"""The maximum size of a line in bytes; the rest of a longer line is lost. The daemon's own limit is lower."""
END_OF_ANSWERS: Final = struct.pack("<ii", 1, 0)


def length_of(packet: bytes) -> int:
    """Return the length in bytes of the line that follows; 0 after the last line. Raise RemoteError."""
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
    """Return the packets of a line; None stands for the end of all lines."""
    if line is None:
        return (_LENGTH.pack(0),)
    return _LENGTH.pack(len(line) + 2), line + b"\n\0"


def decode_printed(packet: bytes) -> bytes:
    """Return the text of a line to print; raise RemoteError for another packet."""
    if packet[: len(_PRINTED)] != _PRINTED:
        raise RemoteError(f"{packet[:8].hex()} in place of a line to print")
    return packet[len(_PRINTED) :]
