"""The packets between a daemon and its keeper, one each on a SOCK_SEQPACKET socket.

A packet is a byte for its kind, a byte for the length of the name, the name, and the note, which is the rest. The
keeper's program imports this module, which therefore imports almost nothing.
"""

from pympsd.errors import ProtocolError

HOLD = 1
"""Packet kind. From a daemon: hold the packet's descriptor under the name, in place of an earlier one of that name.

From a keeper: an entry or, after COMPLETE, the connection that ACCEPT requested."""
NOTE = 2
"""Packet kind from a daemon: the keeper replaces the note of an entry."""
DROP = 3
"""Packet kind from a daemon: the keeper closes an entry's descriptor and removes the entry."""
END = 4
"""Packet kind from a daemon that exits normally: the keeper exits, too."""
COMPLETE = 5
"""Packet kind from a keeper: every entry has been sent."""
REFUSED = 6
"""Packet kind from a keeper: the descriptor of this name could not be kept; the note explains why.

Without a note: there was no connection for ACCEPT."""
REPLACED = 7
"""Packet kind from a keeper: another daemon has connected, and the keeper takes nothing more from this one."""
ACCEPT = 8
"""Packet kind from a daemon: accept a connection at the socket of this name, hold it, and send it (HOLD).

The note is the name of the connection, a zero byte, and the first bytes to send over the connection.
"""

KINDS = frozenset(range(HOLD, ACCEPT + 1))
NAME_BYTES = 255
NOTE_BYTES = 1 << 16
PACKET_BYTES = 2 + NAME_BYTES + NOTE_BYTES


class Malformed(ProtocolError, ValueError):
    """The bytes are not a packet."""


def encode(kind: int, name: str = "", note: bytes = b"") -> bytes:
    """Return a packet; raise ValueError if the name or the note is too long."""
    packed = name.encode()
    if len(packed) > NAME_BYTES or len(note) > NOTE_BYTES:
        sizes = f"{len(packed)} and {len(note)} bytes"
        raise ValueError(f"a keeper's names have up to {NAME_BYTES} and its notes up to {NOTE_BYTES}, not {sizes}")
    return bytes((kind, len(packed))) + packed + note


def decode(packet: bytes) -> tuple[int, str, bytes]:
    """Return the kind, the name and the note of a packet; raise Malformed."""
    if not 2 <= len(packet) <= PACKET_BYTES or packet[0] not in KINDS:
        raise Malformed("not a packet of a keeper")
    end = 2 + packet[1]
    try:
        name = packet[2:end].decode()
    except UnicodeDecodeError:
        raise Malformed("the name is not UTF-8") from None
    if len(packet) < end or len(packet) - end > NOTE_BYTES:
        raise Malformed("the lengths are wrong")
    return packet[0], name, packet[end:]
