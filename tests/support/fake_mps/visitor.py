"""A peer that connects to a daemon's socket and sends what a test requests, right or wrong."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import define
from readable import is_readable

from .peer import ANCILLARY_BYTES, CLIENT, CREDENTIALS, DESCRIPTOR, HELLO, SCM_CREDENTIALS
from .programs import SECONDS

TOOL = 4
END_OF_ANSWERS = struct.pack("<ii", 1, 0)
PACKET_BYTES = 1 << 18


@define
class Visitor:
    """A connection; every wait has a limit."""

    connection: socket.socket

    def send(self, *packets: bytes | int, fds: Sequence[int] = ()) -> None:
        """Send packets, with descriptors on each; a number is an int32."""
        for packet in packets:
            data = struct.pack("<i", packet) if isinstance(packet, int) else packet
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            self.connection.sendmsg([data], rights)

    def introduce(self, text: bytes = CREDENTIALS, fds: Sequence[int] = ()) -> None:
        """Send credentials, and descriptors with them."""
        own = struct.pack("<iII", os.getpid(), os.getuid(), os.getgid())
        ancillary: list[tuple[int, int, bytes | array.array[int]]] = [(socket.SOL_SOCKET, SCM_CREDENTIALS, own)]
        if fds:
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds)))
        self.connection.sendmsg([text], ancillary)

    def hear(self) -> bytes:
        """Return the next packet; empty at the end."""
        with contextlib.suppress(ConnectionResetError):
            return self.connection.recv(PACKET_BYTES)
        return b""

    def is_silent(self) -> bool:
        """Whether nothing has arrived, not even the end."""
        return not is_readable(self.connection)

    def is_closed(self) -> bool:
        """Whether the daemon closes within the limit without sending more."""
        return self.hear() == b""

    def as_client(self) -> None:
        """Ask for a server."""
        self.introduce()
        self.send(CLIENT)

    def take_connection(self) -> socket.socket:
        """Return the connection to the server that the daemon sends."""
        message, ancillary, _, _ = self.connection.recvmsg(64, ANCILLARY_BYTES)
        assert message == DESCRIPTOR, message
        fds = array.array("i")
        for level, kind, body in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(body)
        (fd,) = fds
        return socket.socket(fileno=fd)

    def as_tool(self) -> None:
        """Become an operator."""
        self.introduce()
        self.send(TOOL)

    def give(self, *lines: bytes, ends: bool = True) -> None:
        """Send an operator's lines; ``ends``: these are the last ones."""
        for line in lines:
            self.send(struct.pack("<q", len(line) + 2), line + b"\n\0")
        if ends:
            self.send(bytes(8))

    def answers(self) -> list[bytes]:
        """Return the printed text up to the end of the answers."""
        printed = []
        while (packet := self.hear()) != END_OF_ANSWERS:
            assert packet[:4] == bytes(4), packet
            printed.append(packet[4:])
        return printed


@contextlib.contextmanager
def visitor(path: Path, greeted: bool = True) -> Iterator[Visitor]:
    """Connect, and receive the hello."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(path))
        here = Visitor(connection)
        if greeted:
            assert here.hear() == HELLO
        yield here
