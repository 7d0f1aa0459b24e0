"""Operators over bare sockets: one that can misbehave, and a load generator with a thousand."""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack

from attrs import define, field

from pympsd.wire import frames

LIMIT = 30.0
"""The longest wait in this module, in seconds."""
CONVERSATION = frames.encode(frames.OPERATOR_HELLO)


def line_frame(line: str) -> bytes:
    """Return the frame of one command line."""
    return frames.encode(frames.OPERATOR_LINE, line.encode("utf-8", "surrogateescape"))


@define
class Operator:
    """A hand-operated user interface: it sends its hello and lines, and reads whole answers (or does not)."""

    sock: socket.socket
    _data: bytearray = field(factory=bytearray)

    @classmethod
    def at(cls, control: str) -> Operator:
        """Connect and say hello."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(LIMIT)
        sock.connect(control)
        sock.sendall(CONVERSATION)
        return cls(sock)

    def send(self, *lines: str) -> None:
        """Send lines without reading."""
        self.sock.sendall(b"".join(map(line_frame, lines)))

    def answer(self) -> tuple[str, str, bool]:
        """Read one whole answer: stdout, stderr, whether it was refused."""
        printed, output = b"", b""
        while True:
            kind, body = self._frame()
            if kind == frames.OPERATOR_STDOUT:
                printed += body
            elif kind == frames.OPERATOR_STDERR:
                output += body
            elif kind == frames.OPERATOR_DONE:
                return printed.decode(), output.decode(), body != b"\0"

    def run_command(self, line: str) -> str:
        """Send a command line; return what the daemon printed on standard output."""
        self.send(line)
        return self.answer()[0]

    def _frame(self) -> tuple[int, bytes]:
        while len(self._data) < frames.HEADER_BYTES or len(self._data) < frames.HEADER_BYTES + self._length():
            more = self.sock.recv(1 << 16)
            assert more, "the daemon closed the connection"
            self._data += more
        kind = frames.decode_header(bytes(self._data[: frames.HEADER_BYTES]))[1]
        end = frames.HEADER_BYTES + self._length()
        body = bytes(self._data[frames.HEADER_BYTES : end])
        del self._data[:end]
        return kind, body

    def _length(self) -> int:
        return frames.decode_header(bytes(self._data[: frames.HEADER_BYTES]))[0]

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_on_many_connections(control: str, count: int, line: str) -> list[float]:
    """Open that many connections, give each one line, read every answer; return the seconds of each from the start.

    Raise AssertionError if one is closed without its answer or exceeds the limit.
    """
    done_mark = frames.encode(frames.OPERATOR_DONE)[:6]
    seconds: list[float] = []
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        socks: dict[int, tuple[socket.socket, bytearray]] = {}
        start = time.perf_counter()
        for _ in range(count):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.settimeout(LIMIT)
            sock.connect(control)
            socks[sock.fileno()] = sock, bytearray()
            poll.register(sock.fileno(), select.EPOLLIN)
        for sock, _ in socks.values():
            sock.sendall(CONVERSATION + line_frame(line))
        while socks:
            remaining = start + LIMIT - time.perf_counter()
            assert remaining > 0, f"{len(socks)} of {count} connections got no answer within {LIMIT:.0f} s"
            for fd, _ in poll.poll(remaining):
                sock, data = socks[fd]
                more = sock.recv(1 << 16)
                assert more, "a connection was closed without an answer"
                data += more
                # The last frame of an answer: length 1, its kind, no descriptors, one byte.
                if data[-9:-5] == b"\1\0\0\0" and data[-5:-3] == done_mark[4:6]:
                    seconds.append(time.perf_counter() - start)
                    poll.unregister(fd)
                    del socks[fd]
    return seconds
