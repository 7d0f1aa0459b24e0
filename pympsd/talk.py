"""Say commands to the daemon and print its answers: from standard input line by line, or one from the arguments.

Imports almost nothing: scripts and health probes run this in loops (docs/performance.md).
"""

import _socket
import posix

from pympsd.vocabulary import files
from pympsd.wire import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOT_FOUND = b"Cannot find MPS control daemon process\n"
PATIENCE = 10.0
"""Seconds to wait for a silent daemon; one that says it is working is waited for without a bound."""
UNREACHABLE, SILENT = 1, 2
REAP_SECONDS = 2.0
"""Seconds to wait for PID 1 to reap a daemon that has ended."""
LINE_LIMIT = 1 << 17
"""Longer lines are cut here; the daemon has a ceiling of its own below this."""
SILENCE = b"The MPS control daemon does not answer: it was reached and said nothing for %g s\n"
CLOSED = b"The MPS control daemon closed the connection without an answer\n"


class _DaemonGone(Exception):
    """The daemon closed the connection: after it said it was working on a quit that is its answer."""


def talk(words: "Sequence[str]", strict: bool = False, patience: float = PATIENCE) -> int:
    """Give the command of ``words``, or without any the lines of standard input; return the exit status.

    ``strict``: 1 when a line was refused. ``patience``: seconds to wait for a daemon that says nothing.
    """
    daemon = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        if not _connect(daemon, _pipe_directory(), patience):
            posix.write(2, NOT_FOUND)
            return UNREACHABLE
        _send(daemon, frames.encode(frames.OPERATOR_HELLO))
        refused = _give(daemon, words, patience)
    except TimeoutError:
        posix.write(2, SILENCE % patience)
        return SILENT
    except (_DaemonGone, BrokenPipeError, ConnectionResetError):
        posix.write(2, CLOSED)
        return UNREACHABLE
    finally:
        daemon.close()
    return 1 if (words or strict) and refused else 0


def _give(daemon: "_socket.socket", words: "Sequence[str]", patience: float) -> bool:
    """Give every line; return whether any was refused. Ends early when the daemon has ended by one."""
    refused = False
    for line in _source(words):
        answer = _exchange(daemon, line, patience)
        if answer is None:
            break
        refused = answer or refused
    return refused


def _source(words: "Sequence[str]") -> "Iterator[bytes]":
    if words:
        return iter([" ".join(words).encode("utf-8", "surrogateescape")])
    if posix.isatty(0) and posix.isatty(1):
        from pympsd.terminal import typed_lines

        return typed_lines()
    return _lines(0)


def _pipe_directory() -> bytes:
    # The environment as posix has it, in bytes: os would make 1 ms of text of it.
    return posix.environ.get(b"CUDA_MPS_PIPE_DIRECTORY") or files.DEFAULT_PIPE_DIRECTORY.encode()


def _connect(daemon: "_socket.socket", directory: bytes, patience: float) -> bool:
    """Connect, and bound every later wait; raise TimeoutError when the daemon has stopped taking connections."""
    # Only a socket that blocks waits for room in a full queue of connections; its bound is the kernel's.
    seconds, rest = divmod(int(patience * 1e6), 1_000_000)
    bound = seconds.to_bytes(8, "little") + rest.to_bytes(8, "little")
    daemon.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, bound)
    try:
        daemon.connect(directory + b"/" + files.CONTROL.encode())
    except BlockingIOError:
        raise TimeoutError from None
    except OSError:
        return False
    daemon.settimeout(patience)
    return True


def _lines(fd: int) -> "Iterator[bytes]":
    rest = b""
    while data := posix.read(fd, 65536):
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
        if len(rest) > LINE_LIMIT:
            # Enough to be refused by; the line goes on to its end without being kept.
            rest = rest[:LINE_LIMIT]
    if rest:
        yield rest


def _exchange(daemon: "_socket.socket", line: bytes, patience: float) -> "bool | None":
    """Give one line and print its answer; return whether it was refused, None when the daemon has ended by it."""
    _send(daemon, frames.encode(frames.OPERATOR_LINE, line[:LINE_LIMIT]))
    watched = None
    while True:
        try:
            header = _receive(daemon, frames.HEADER_BYTES)
        except (_DaemonGone, ConnectionResetError):
            if watched is None:
                raise
            _await_end(watched)
            return None
        length, kind, _ = frames.decode_header(header)
        body = _receive(daemon, length)
        if kind == frames.OPERATOR_DONE:
            daemon.settimeout(patience)
            return body != b"\0"
        if kind == frames.OPERATOR_WORKING:
            watched = _watch(daemon)
            daemon.settimeout(None)
        elif kind == frames.OPERATOR_STDOUT:
            _write(1, body)
        elif kind == frames.OPERATOR_STDERR:
            _write(2, body)


def _watch(daemon: "_socket.socket") -> "tuple[int, int]":
    """Return the daemon's PID and a pidfd of it, -1 when there is none to be had (another PID namespace)."""
    credentials = daemon.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    pid = int.from_bytes(credentials[:4], "little")
    try:
        return pid, posix.pidfd_open(pid)
    except OSError:
        return pid, -1


def _await_end(watched: "tuple[int, int]") -> None:
    """Wait until the daemon's process has ended and is reaped: callers look for it in ps right after a quit."""
    import select
    import time

    pid, pidfd = watched
    if pidfd < 0:
        return
    select.select([pidfd], [], [], PATIENCE)
    posix.close(pidfd)
    give_up = time.monotonic() + REAP_SECONDS
    while _is_listed(pid) and time.monotonic() < give_up:
        time.sleep(0.001)


def _is_listed(pid: int) -> bool:
    try:
        posix.stat(f"/proc/{pid}")
    except FileNotFoundError:
        return False
    return True


def _send(daemon: "_socket.socket", data: bytes) -> None:
    while data:
        data = data[daemon.send(data) :]


def _receive(daemon: "_socket.socket", count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = daemon.recv(count - len(data))
        if not more:
            raise _DaemonGone
        data += more
    return data


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[posix.write(fd, data) :]
