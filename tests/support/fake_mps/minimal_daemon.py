"""The smallest control daemon that the fakes work with: a test controls it step by step, in its own process."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import define, field

from .peer import ANCILLARY_BYTES, CREDENTIALS, DESCRIPTOR, HELLO, SCM_CREDENTIALS, SO_PASSCRED
from .programs import SECONDS, DriverClient

STAMP = struct.Struct("<I9iq")


@define
class MinimalDaemon:
    """Its directory, its listener, and the connection of its server."""

    directory: Path
    listener: socket.socket
    log_reader: int
    server: socket.socket | None = None
    ready: bytes = b""
    """The server's 516 bytes of registration."""
    process: subprocess.Popen[bytes] | None = None
    defaults: list[bytes] = field(factory=lambda: [struct.pack("<d", 100.0), bytes(8), bytes(4)])
    _log: bytes = b""

    def accept(self) -> tuple[int, socket.socket]:
        """Take whoever comes next; return its role, 0 for one that only looked."""
        connection, _ = self.listener.accept()
        connection.settimeout(SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
        connection.send(HELLO)
        try:
            message, ancillary, _, _ = connection.recvmsg(64, ANCILLARY_BYTES)
            if not message:
                connection.close()
                return 0, connection
            assert message == CREDENTIALS, message
            assert any(kind == SCM_CREDENTIALS for _, kind, _ in ancillary)
            role = connection.recv(64)
            assert len(role) == 4, "it ended before it gave its role"
        except BaseException:
            connection.close()
            raise
        return struct.unpack("<i", role)[0], connection

    def spawn(self, launcher: Path, *arguments: str, prefix: Sequence[str] = ()) -> None:
        """Start a server as the recorded daemon does, or under a command such as unshare; do not wait for it."""
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.directory), "PATH": os.defpath}
        self.process = subprocess.Popen(
            [*prefix, str(launcher), *arguments] if prefix else [launcher.name, *arguments],
            executable=None if prefix else launcher,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def start(self, launcher: Path, *arguments: str) -> None:
        """Start a server and wait until it is ready."""
        self.spawn(launcher, *arguments)
        self.take_server()

    def take_server(self) -> None:
        """Accept the server's connection, and send it the defaults."""
        role, self.server = self.accept()
        assert role == 1
        self.ready = self.server.recv(1024)
        for message in self.defaults:
            self.server.send(message)

    def send(self, *messages: bytes | int) -> None:
        """Send messages to the server; a number is an int32."""
        assert self.server is not None
        for message in messages:
            self.server.send(struct.pack("<i", message) if isinstance(message, int) else message)

    def hear(self) -> bytes:
        """Await the server's next message; empty at its end."""
        assert self.server is not None
        with contextlib.suppress(ConnectionResetError):
            return self.server.recv(1024)
        return b""

    def number(self, *messages: bytes | int) -> int:
        """Send a command; return its answer of one int32."""
        self.send(*messages)
        answer = self.hear()
        assert len(answer) == 4, answer
        return int(struct.unpack("<i", answer)[0])

    def connect(self, passes_credentials: bool = True) -> socket.socket:
        """Give the server one end of a new connection; return the other."""
        own_end, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (own_end, peer_end):
            end.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, int(passes_credentials))
        assert self.server is not None
        self.send(2)
        with peer_end:
            _send_descriptor(self.server, peer_end)
        own_end.settimeout(SECONDS)
        return own_end

    def hand_over(self, client: socket.socket, passes_credentials: bool = True) -> None:
        """Hand a client over to the server, and receive its last packet."""
        with self.connect(passes_credentials) as end:
            end.settimeout(None)
            _send_descriptor(client, end)
        assert client.recv(64) == bytes(4)
        assert client.recv(64) == b""
        client.close()

    def serve(self, client: DriverClient, line: str) -> str:
        """Give a client a line that needs the daemon ("init" or "ctx N"), and serve it; return its answer."""
        client.send(line)
        if line == "init":
            assert self.accept()[0] == 0
        role, connection = self.accept()
        assert role == 2
        self.hand_over(connection)
        return client.answer()

    def log(self) -> list[str]:
        """Return the lines that the server has written since the last time."""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self.log_reader, 1 << 16):
                self._log += more
        lines = []
        while self._log:
            *stamp, size = STAMP.unpack_from(self._log)
            assert stamp[0] in (0xABCDE001, 0xABCDE003), hex(stamp[0])
            lines.append(self._log[STAMP.size : STAMP.size + size].decode())
            self._log = self._log[STAMP.size + size :]
        return lines

    def await_line(self, line: str) -> None:
        """Wait until the server has written this line; those before it are not returned any more."""
        give_up = time.monotonic() + SECONDS
        while line not in self.log():
            remaining = give_up - time.monotonic()
            assert select.select([self.log_reader], [], [], max(0, remaining))[0], f"no line {line!r}"

    def is_silent(self) -> bool:
        """Whether the server has sent nothing that was not received yet."""
        assert self.server is not None
        return not select.select([self.server], [], [], 0)[0]

    def await_end(self) -> tuple[int, str]:
        """Wait until the server has ended; return its status and what it reported on standard error."""
        assert self.process is not None
        _, output = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, output.decode()


def _send_descriptor(receiver: socket.socket, end: socket.socket) -> None:
    fds = array.array("i", [end.fileno()])
    receiver.sendmsg([DESCRIPTOR], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


@contextlib.contextmanager
def minimal_daemon(directory: Path, log: bool = True) -> Iterator[MinimalDaemon]:
    """Listen in a directory, with a named pipe for the log or without; at the end kill the server that is left."""
    if log:
        os.mkfifo(directory / "log", 0o666)
    reader = os.open(directory / "log" if log else os.devnull, os.O_RDONLY | os.O_NONBLOCK)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(directory / "control"))
        listener.listen(64)
        listener.settimeout(SECONDS)
        daemon = MinimalDaemon(directory, listener, reader)
        try:
            yield daemon
        finally:
            os.close(reader)
            if daemon.server is not None:
                daemon.server.close()
            if daemon.process is not None:
                daemon.process.kill()
                daemon.process.communicate(timeout=SECONDS)
