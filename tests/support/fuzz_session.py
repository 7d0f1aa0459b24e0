"""Invalid session messages thrown at a live server, while another client computes: it continues, and leaks nothing.

The bad client has a session as any other: what it reports there is cut, spoilt, not for the server, or not its own.
"""

from __future__ import annotations

import array
import contextlib
import os
import random
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from attrs import define, field, frozen
from processes import SECONDS, ClientProcess, DaemonProcess, children_of, wait_until

from pympsd.wire import frames, link_messages, messages
from pympsd.wire.framing import FrameReader
from pympsd.wire.messages import ClientHello, CloseContext, OpenContext, SessionGranted, SessionWelcome, Versions

RIGHT: Final = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
CHECK_EVERY: Final = 10
_NUMBERS: Final = (0, 1, 2, 3, 47, 48, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63))


@frozen
class FoundSessions:
    """The counts of what a server received."""

    sessions: int
    messages: int
    answered: int
    checks: int
    descriptors_before: int
    descriptors_after: int


@define
class RawSession:
    """A session with a server, made of bare frames."""

    sock: socket.socket
    _reader: FrameReader = field(factory=lambda: FrameReader(fds_allowed=2))
    answers: int = 0

    @classmethod
    def open(cls, control: str) -> RawSession:
        """Connect as a client does; return the session, welcomed."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SECONDS)
            connection.connect(control)
            connection.sendall(messages.encode(ClientHello(Versions(), os.getpid(), "fuzz", 0, {})))
            granted, fds = next(_receive(connection, FrameReader(fds_allowed=2)))
        assert isinstance(granted, SessionGranted), granted
        sock = socket.socket(fileno=fds[0])
        sock.settimeout(SECONDS)
        session = cls(sock)
        welcome, _ = next(_receive(sock, session._reader))
        assert isinstance(welcome, SessionWelcome), welcome
        return session

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> bool:
        """Send bytes; return whether the server still listens."""
        try:
            sent = socket.send_fds(self.sock, [data], fds) if fds else 0
            self.sock.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read(self, *, to_its_end: bool) -> None:
        """Take the answers that are there, or all until the server closes."""
        while to_its_end or select.select([self.sock], [], [], 0)[0]:
            try:
                for _, fds in _receive(self.sock, self._reader, once=True):
                    self.answers += 1
                    for fd in fds:
                        os.close(fd)
            except (EOFError, ConnectionResetError):
                return


def _receive(
    sock: socket.socket, reader: FrameReader, *, once: bool = False
) -> Iterator[tuple[Any, tuple[int, ...]]]:
    while True:
        data, ancillary, _, _ = sock.recvmsg(1 << 16, socket.CMSG_SPACE(2 * array.array("i").itemsize))
        if not data:
            raise EOFError
        fds = array.array("i")
        for _, _, content in ancillary:
            fds.frombytes(content)
        for frame in reader.feed(data, tuple(fds)):
            yield messages.decode(frame), frame.fds
        if once:
            return


def _draw_message(source: random.Random) -> tuple[bytes, int]:
    """Return one message, with that many descriptors."""
    request, number = source.randrange(1 << 16), source.choice((*_NUMBERS[:10], source.getrandbits(63)))
    match source.randrange(12):
        case 0 | 1:
            # What others have: their ids are small numbers, and easy to guess.
            frame = messages.encode(CloseContext(request, source.randrange(64)))
        case 2:
            frame = messages.encode(CloseContext(request, number))
        case 3 | 4:
            frame = messages.encode(OpenContext(request, 0, 0, source.choice((None, 0.5, 1e300, -1.0)), None))
        case 5:
            frame = messages.encode(OpenContext(request, number, number, None, source.choice((None, *_NUMBERS[:10]))))
        case 6:
            foreign = (
                link_messages.ShutDown(True),
                link_messages.TerminateClient(1, os.getpid()),
                link_messages.ClientGone(1),
                link_messages.StatusChanged("FAULT"),
                link_messages.LogRecord("server_exiting", {}, 0.0),
                ClientHello(Versions(), 1, "again", 0, {}),
            )
            frame = messages.encode(source.choice(foreign))
        case 7:
            frame = frames.encode(source.randrange(1 << 16), source.randbytes(source.choice((0, 1, 100, 70000))))
        case 8:
            body = messages.encode(OpenContext(request, 0))[frames.HEADER_BYTES :]
            kind = frames.FIRST_MESSAGE_KIND + source.choice((9, 11))
            frame = frames.encode(kind, bytes(_spoilt(body, source)))
        case 9:
            frame = bytes(_spoilt(messages.encode(CloseContext(request, 1)), source))
        case 10:
            # Half a frame: the rest never comes, or is something else.
            whole = messages.encode(OpenContext(request, 0))
            frame = whole[: source.randrange(1, len(whole))]
        case _:
            return messages.encode(OpenContext(request, 0), fds=source.choice((0, 1))), source.choice((1, 2, 10))
    return frame, 0


def _spoilt(data: bytes, source: random.Random) -> bytearray:
    spoilt = bytearray(data)
    for _ in range(source.randint(1, 3)):
        spoilt[source.randrange(len(spoilt))] = source.randrange(256)
    return spoilt


def fuzz_session(daemon: DaemonProcess, good: ClientProcess, seed: int, sessions: int) -> FoundSessions:
    """Run that many sessions; raise AssertionError if the server or ``good`` was harmed.

    ``good``: a client that is connected to the only server.
    """
    control = str(daemon.directory / "pipe" / "control")
    (server,) = daemon.servers()
    executors = children_of(server)
    (pid,) = (line for line in daemon.run_command(f"get_client_list {server}").split())
    assert pid == str(good.pid)
    before, output, answered, checks = _descriptors(server), 0, 0, 0
    for number in range(sessions):
        source = random.Random(f"{seed}/session/{number}")
        count, answers = _one(control, source)
        output, answered = output + count, answered + answers
        if number % CHECK_EVERY == 0:
            assert good.call("add") == RIGHT, f"session {number} of seed {seed} harmed another client"
            checks += 1
    assert good.call("add") == RIGHT
    wait_until(lambda: _descriptors(server) <= before, "the server's descriptors back to before")
    assert daemon.servers() == [server]
    assert children_of(server) == executors
    wait_until(lambda: daemon.run_command(f"get_client_list {server}").split() == [pid], "the bad client's end")
    log = (daemon.directory / "log" / "server.log").read_bytes()
    assert b"internal error" not in log
    assert b"Traceback" not in log
    return FoundSessions(sessions, output, answered, checks + 1, before, _descriptors(server))


def _one(control: str, source: random.Random) -> tuple[int, int]:
    session = RawSession.open(control)
    output = 0
    with contextlib.ExitStack() as open_ones:
        open_ones.callback(session.sock.close)
        null = os.open(os.devnull, os.O_RDONLY)
        open_ones.callback(os.close, null)
        for _ in range(source.randint(1, 12)):
            frame, fds = _draw_message(source)
            if not session.send(frame, (null,) * fds):
                break
            output += 1
            session.read(to_its_end=False)
        if source.random() < 0.5:
            # To be read to its end, or left in the midst of whatever it was.
            with contextlib.suppress(OSError):
                session.sock.shutdown(socket.SHUT_WR)
            session.read(to_its_end=True)
    return output, session.answers


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
