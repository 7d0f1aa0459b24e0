"""How the vendor's server and clients begin to talk with the control daemon, and how they get descriptors."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct

HELLO = b"OUTBHELL\0"
CREDENTIALS = b"OUTBCRED\0"
DESCRIPTOR = b"OUTBCUFD\0"
SERVER, CLIENT = 1, 2
GREETING_DESCRIPTORS = 4
"""The number of descriptors that a server first sends a client, one with each packet; a zero byte follows."""
INIT, CONTEXT = (0, 255), (1, 0)
"""What a client reports after its credentials: in cuInit, and for a context."""
SO_PASSCRED = getattr(socket, "SO_PASSCRED", 16)
SCM_CREDENTIALS = getattr(socket, "SCM_CREDENTIALS", 2)
MESSAGE_BYTES = 1 << 16
ANCILLARY_BYTES = socket.CMSG_SPACE(16) + socket.CMSG_SPACE(12)


def pipe_directory() -> str:
    """Return where the daemon's sockets are."""
    return os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")


def connect() -> socket.socket:
    """Connect to the daemon; raise OSError when nothing listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(os.path.join(pipe_directory(), "control"))
    except OSError:
        connection.close()
        raise
    return connection


def send_credentials(connection: socket.socket, text: bytes = CREDENTIALS) -> None:
    """Answer the daemon's hello."""
    own = struct.pack("<iII", os.getpid(), os.getuid(), os.getgid())
    connection.sendmsg([text], [(socket.SOL_SOCKET, SCM_CREDENTIALS, own)])


def receive(connection: socket.socket) -> tuple[bytes, list[int], int | None]:
    """Return the next message (empty at the end), its descriptors, and its sender's PID where the socket has it."""
    while True:
        with contextlib.suppress(ConnectionResetError):  # it left something unread; its last packets come after this
            message, ancillary, _, _ = connection.recvmsg(MESSAGE_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            break
    descriptors = array.array("i")
    pid = None
    for level, kind, body in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(body[: len(body) // 4 * 4])
        elif (level, kind) == (socket.SOL_SOCKET, SCM_CREDENTIALS):
            pid = struct.unpack_from("<i", body)[0]
    return message, list(descriptors), pid
