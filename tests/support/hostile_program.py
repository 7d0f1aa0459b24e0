"""A user who tries to take all of a daemon's resources: hostile_program.py CONTROL COUNT KIND [KIND ...].

It keeps COUNT connections of each kind open, and opens another whenever the daemon closes one. It writes a line to
standard output when it has tried all of them, and ends with its standard input.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from attrs import define, field

from pympsd.wire import frames
from pympsd.wire.driver.handshake import CREDENTIALS, Role, encode_line, encode_role

PACE_SECONDS = 0.01
"""Seconds between two connections of each kind, once all were tried, so that it does not use up the processor."""
HELLO = frames.encode(frames.OPERATOR_HELLO)
HALF_LINE = frames.encode(frames.OPERATOR_LINE, bytes(frames.MAX_BODY))[:-1]
UNREAD = frames.encode(frames.OPERATOR_LINE, b"x" * 60_000) * 20
"""Each line is answered twice as long."""


def _garbage() -> bytes:
    return random.randbytes(random.randrange(1, 4096))


KINDS: dict[str, Callable[[], list[bytes]]] = {
    "unresponsive": list,
    "idle": lambda: [HELLO],
    "half_frames": lambda: [HELLO + HALF_LINE],
    "unread": lambda: [HELLO + UNREAD],
    "garbage": lambda: [_garbage()],
}
"""The packets that a connection of each kind sends."""
TOOL = [CREDENTIALS, encode_role(Role.TOOL)]
OF_DRIVER: dict[str, Callable[[], list[bytes]]] = {
    "unresponsive": list,
    "idle": lambda: TOOL,
    "half_frames": lambda: [*TOOL, encode_line(b"ps")[0]],
    "unread": lambda: [*TOOL, *200 * encode_line(b"x" * 60_000)],
    "garbage": lambda: [_garbage()],
}
"""The same for the packet socket of a daemon that manages the driver's server."""
COMMANDS = {
    "servers": ("server create {name}",),
    "namespaces": ("server create {server}", "namespace create {name} --server={server}"),
}
"""The commands that are repeated, in protocol 3."""


@define
class Connection:
    """A connection, and the bytes that it has not sent yet."""

    sock: socket.socket
    rest: list[memoryview]

    def push(self) -> bool:
        """Send as much as the socket takes; return False if the daemon has closed the connection."""
        try:
            while self.rest:
                self.rest[0] = self.rest[0][self.sock.send(self.rest[0]) :]
                if not self.rest[0]:
                    del self.rest[0]
            return self.sock.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


@define
class Hostile:
    """A user with connections of one kind."""

    control: str
    kind: str
    count: int
    opened: list[Connection] = field(factory=list)
    number: int = 0

    def tick(self) -> None:
        """Open another connection, or continue with the next open one."""
        if self.kind in COMMANDS:
            self._give_commands()
        elif len(self.opened) < self.count:
            self._open()
        elif not (entry := self.opened[self.number % self.count]).push():
            entry.sock.close()
            self.opened.remove(entry)
        self.number += 1

    def _open(self) -> None:
        for socket_type, kinds in ((socket.SOCK_STREAM, KINDS), (socket.SOCK_SEQPACKET, OF_DRIVER)):
            sock = socket.socket(socket.AF_UNIX, socket_type)
            sock.setblocking(False)
            try:
                sock.connect(self.control)
            except OSError as error:
                sock.close()
                if error.errno == errno.EPROTOTYPE:
                    continue
                return
            connection = Connection(sock, [memoryview(packet) for packet in kinds[self.kind]()])
            connection.push()
            self.opened.append(connection)
            return

    def _give_commands(self) -> None:
        first = f"hostile_{self.kind}_{os.getuid()}"
        names = {"name": f"{first}_{self.number}", "server": first}
        lines = [line.format(**names) for line in COMMANDS[self.kind]]
        with suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(self.control)
            sock.sendall(HELLO + b"".join(frames.encode(frames.OPERATOR_LINE, line.encode()) for line in lines))
            sock.recv(1 << 16)


def main() -> None:
    """Be hostile until standard input ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    control, count, *kinds = sys.argv[1:]
    users = [Hostile(control, kind, int(count)) for kind in kinds]
    for _ in range(int(count)):
        for user in users:
            if user.kind not in COMMANDS:
                user.tick()
    print("all tried", flush=True)
    while not select.select([sys.stdin], [], [], PACE_SECONDS)[0]:
        for user in users:
            user.tick()


if __name__ == "__main__":
    main()
