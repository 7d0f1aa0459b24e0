"""A fake of the vendor's control daemon, as a tool sees it; the test chooses the answer to each line."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from .peer import ANCILLARY_BYTES, CREDENTIALS, HELLO, SO_PASSCRED
from .programs import SECONDS

END = struct.pack("<ii", 1, 0)
PACKET_BYTES = 1 << 18
Printed = Callable[[str], list[bytes] | None]
"""The lines printed for a line; None: it closes immediately."""


class TheirDaemon:
    """The lines it received, and its misbehaviour: its hello, and packets instead of answers."""

    def __init__(self, printed: Printed) -> None:
        self.printed = printed
        self.lines: list[str] = []
        self.hello = HELLO
        self.sessions = 0
        self.timeout = SECONDS
        """Seconds within which a tool must read or send."""
        self.raw: list[bytes] | None = None
        """Packets to send after the role, whatever the tool sends; then the daemon closes."""

    def serve(self, connection: socket.socket) -> None:
        """Serve one tool to its end."""
        connection.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
        connection.send(self.hello)
        message, _, _, _ = connection.recvmsg(64, ANCILLARY_BYTES)
        if not message:
            return
        assert message == CREDENTIALS, message
        assert struct.unpack("<i", connection.recv(64)) == (4,)
        self.sessions += 1
        if self.raw is not None:
            for packet in self.raw:
                connection.send(packet)
            return
        while length := struct.unpack("<q", connection.recv(64))[0]:
            line = connection.recv(PACKET_BYTES)
            assert len(line) == length, (length, line)
            assert line.endswith(b"\n\0"), line
            self.lines.append(line[:-2].decode("utf-8", "surrogateescape"))
            printed = self.printed(self.lines[-1])
            if printed is None:
                return
            for text in printed:  # it reads no line while it writes
                connection.send(bytes(4) + text)
        connection.send(END)


@contextlib.contextmanager
def their_daemon(pipe_directory: Path, printed: Printed) -> Iterator[TheirDaemon]:
    """Serve tools at ``control``; errors in what the tools send fail the test at the end."""
    daemon = TheirDaemon(printed)
    errors: list[BaseException] = []
    path = pipe_directory / "control"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(64)

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # shut down
                with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.settimeout(daemon.timeout)
                    try:
                        daemon.serve(connection)
                    except (AssertionError, TimeoutError, struct.error) as error:
                        errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield daemon
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)
            os.unlink(path)
    assert not errors, errors
