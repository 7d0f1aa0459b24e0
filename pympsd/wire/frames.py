"""Encode and decode frames: an 8-byte header and a body. This module imports nothing, because the command line uses
it and must start fast.

Header, in the machine's byte order (both ends are on one machine): body length (4 bytes), kind (2), number of file
descriptors sent with the frame (1), reserved, zero (1).
"""

from sys import byteorder

HEADER_BYTES = 8
MAX_BODY = 1 << 20
"""The maximum size of a body, 1 MiB; a peer that announces more is disconnected."""

# In an operator's conversation bodies are raw bytes, so that a command is echoed unchanged.
OPERATOR_HELLO = 1
OPERATOR_LINE = 2
OPERATOR_WORKING = 3
OPERATOR_STDOUT = 4
OPERATOR_STDERR = 5
OPERATOR_DONE = 6
"""The kind of the frame that ends the answer to one line; the body is one byte: 0 accepted, 1 refused."""
OPERATOR_PROTOCOL = 7
"""The daemon's protocol, "2" or "3", for an operator whose hello has the body ASKS_PROTOCOL."""
OPERATOR_FILE = 8
"""The text of the file that the next line names; the operator's side reads it, with the operator's rights."""
ASKS_PROTOCOL = b"?"
CREDENTIALS_REQUEST = 9
"""The request that clients and operators send before their hello: the daemon must prove its owner
(``channel/daemon_owner.py``).
"""
CREDENTIALS = 10
"""The daemon's answer to CREDENTIALS_REQUEST, with its credentials from the kernel (SCM_CREDENTIALS)."""
OPERATOR_MACHINE = 11
"""The only answer to a hello with the body ASKS_MACHINE: the daemon's backend and its values of
PYMPSD_EMULATED_DEVICES and PYMPSD_STATE_DIRECTORY, as JSON.
"""
ASKS_MACHINE = b"machine"

FIRST_MESSAGE_KIND = 16
"""The lowest kind of a message (messages.py)."""

if byteorder != "little":  # the command stream's records are laid out for little-endian machines
    raise ImportError("pympsd runs on little-endian machines only")


def encode(kind: int, body: bytes = b"", fds: int = 0) -> bytes:
    """Return one frame."""
    return len(body).to_bytes(4, byteorder) + kind.to_bytes(2, byteorder) + bytes((fds, 0)) + body


def decode_header(header: bytes) -> tuple[int, int, int]:
    """Return (body length, kind, number of fds) of an 8-byte header."""
    return int.from_bytes(header[:4], byteorder), int.from_bytes(header[4:6], byteorder), header[6]
