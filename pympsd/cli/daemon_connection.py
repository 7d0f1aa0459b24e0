"""The connection of an operator's program to the daemon: which socket it has, whose daemon that is, and frames.

The problem: a pipe directory may contain the socket of any user's daemon, of one that has ended (its keeper holds the
connection for the next daemon), or of the vendor's own. A program must find out which of them it has reached before
it sends a line, and no daemon may make the program wait, or fill its memory, without limit.

- `control_socket` chooses the socket. The one that only privileged users may open is used if the other serves clients
  only. If a daemon manages the driver's server, pympsd's own protocol has another socket (`own_socket`).
- The kernel reports who listens: `DaemonConnection.pid` and `owner_warning`. After ``distrust``, each answer is
  limited to a time and to MAX_FOREIGN_ANSWER_BYTES.
- Each wait is limited by the socket's own time-outs, which saves a call of poll.

Imports almost nothing, as `pympsd.cli.control_client` does, because scripts and health probes run this in loops.
"""

import _socket
import posix

from pympsd.errors import DaemonError
from pympsd.vocabulary import files
from pympsd.wire import frames

TIMEOUT = 10.0
"""The number of seconds to wait for a silent daemon. While the daemon works on a command, the wait is not limited."""
OTHER_KIND = "Protocol wrong type for socket"
"""The message for a packet socket, whose daemon manages the driver's server or is the vendor's own."""
OWNER_WARNING = b"The MPS control daemon at %s is run by user %d, neither root nor you\n"
UNPROVEN_WARNING = (
    b"The MPS control daemon at %s is run by a user without a number in this user namespace, and has not proved that "
    b"it is root's or yours; PYMPSD_UNMAPPED_DAEMON=trust if you are sure that it is\n"
)
MAX_FOREIGN_ANSWER_BYTES = 16 << 20
"""The maximum number of bytes to read of an untrusted daemon's answer."""


class DaemonGone(DaemonError):
    """The daemon closed the connection; the optional argument is the line on which it was working."""


class DaemonConnection:
    """The connection, which sends and receives frames. The kernel limits each wait, which saves a call of poll."""

    def __init__(self) -> None:
        self._open()
        self._unread = b""
        self.is_foreign = False
        """True if the daemon is neither root's nor this user's (``distrust``)."""
        self._answer_seconds = 0.0
        self._deadline = 0.0
        self._room = 0
        """The number of bytes that a foreign daemon may still send in its answer to a line."""

    def _open(self) -> None:
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.close = self.socket.close

    def connect(self, path: bytes, timeout: float) -> str:
        """Connect to the daemon. Return an error message, or "" on success.

        Raise TimeoutError if the daemon does not accept connections.
        """
        self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, _time_value(timeout))
        self.wait_at_most(timeout)
        try:
            self.socket.connect(path)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def reach(self, timeout: float, folder: bytes = b"") -> "tuple[bytes, str]":
        """Connect to pympsd's socket in a pipe directory, by default the environment's.

        Return the socket's path, and an error message or "". With the driver's server the socket is next to
        ``control``; NVIDIA's own daemon does not have it. Raise TimeoutError as ``connect`` does.
        """
        path = control_socket(folder)
        reason = self.connect(path, timeout)
        if reason == OTHER_KIND:
            path = own_socket(folder)
            reason = self.connect(path, timeout)
        return path, reason or ("the daemon at this socket has ended" if self.has_ended() else "")

    def has_ended(self) -> bool:
        """Return whether the listening process has ended.

        If so, its keeper holds the connection for the next daemon.
        """
        pid = self.pid()
        return pid > 0 and _is_dead(pid)

    def pid(self) -> int:
        """Return the PID of the listening process; 0 if its PID namespace is not visible from here."""
        return int.from_bytes(_credentials(self.socket)[:4], "little")

    def owner_warning(self, path: bytes, timeout: float) -> bytes:
        """Return a line that names the owner of the daemon at the path; empty if it is root's or this user's.

        Request a proof from a daemon whose user has no uid in this user namespace; if the daemon is too old for that,
        connect again. Raise TimeoutError if the daemon is silent.
        """
        warning = owner_warning(self.socket, path)
        if warning != UNPROVEN_WARNING % path:
            return warning
        from pympsd.channel import daemon_owner

        try:
            with daemon_owner.Proof(self.socket) as proof:
                is_verified = proof.receive()
        except BlockingIOError:
            raise TimeoutError from None
        if is_verified is None:
            self.socket.close()
            self._open()
            self.connect(path, timeout)
        return b"" if is_verified else warning

    def distrust(self, seconds: float) -> None:
        """Limit each answer of the daemon to a time in seconds and to MAX_FOREIGN_ANSWER_BYTES."""
        self.is_foreign, self._answer_seconds = True, seconds
        self.begin_answer()

    def begin_answer(self) -> None:
        """Restart the limits of a foreign daemon's answer, its time and its bytes; do nothing for other daemons."""
        if self.is_foreign:
            import time

            self._deadline = time.monotonic() + self._answer_seconds
            self._room = MAX_FOREIGN_ANSWER_BYTES

    def protocol(self) -> bytes:
        """Receive and return the daemon's protocol; raise ConnectionError if the daemon does not accept commands."""
        kind, body = self.receive()
        if kind == frames.OPERATOR_STDERR:
            from pympsd.vocabulary.untrusted import escape_controls

            raise ConnectionError(escape_controls(body).decode("utf-8", "replace").rstrip())
        return body if kind == frames.OPERATOR_PROTOCOL else b""

    def wait_at_most(self, seconds: float) -> None:
        """Limit the waits for an answer; 0 lifts the limit. A foreign daemon's limit stays."""
        if self.is_foreign:
            return
        self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, _time_value(seconds))

    def send(self, data: bytes) -> None:
        """Send frames; raise TimeoutError if the daemon does not read."""
        try:
            while data:
                data = data[self.socket.send(data) :]
        except BlockingIOError:
            raise TimeoutError from None

    def end_sending(self) -> None:
        """End the sending direction, because no command follows."""
        self.socket.shutdown(_socket.SHUT_WR)

    def receive(self) -> "tuple[int, bytes]":
        """Return the kind and body of the next frame.

        Raise TimeoutError if the daemon is silent, or if a foreign daemon is too slow. Raise ConnectionError if it
        sends too much.
        """
        self._gather(frames.HEADER_BYTES)
        length, kind, _ = frames.decode_header(self._unread)
        if length > frames.MAX_BODY:
            raise ConnectionError(f"The MPS control daemon sent a frame of {length} bytes, which no daemon does")
        if self.is_foreign:
            self._room -= frames.HEADER_BYTES + length
            if self._room < 0:
                raise ConnectionError(f"The daemon's answer is longer than {MAX_FOREIGN_ANSWER_BYTES} bytes")
        end = frames.HEADER_BYTES + length
        self._gather(end)
        body, self._unread = self._unread[frames.HEADER_BYTES : end], self._unread[end:]
        return kind, body

    def _gather(self, count: int) -> None:
        while len(self._unread) < count:
            if self.is_foreign:
                self._bound_wait()
            try:
                more = self.socket.recv(65536)
            except BlockingIOError:
                raise TimeoutError from None
            if not more:
                raise DaemonGone
            self._unread += more

    def _bound_wait(self) -> None:
        import time

        if (remaining := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError
        self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, _time_value(max(remaining, 0.001)))


def _time_value(seconds: float) -> bytes:
    """Return a struct timeval."""
    whole, microseconds = divmod(int(seconds * 1e6), 1_000_000)
    return whole.to_bytes(8, "little") + microseconds.to_bytes(8, "little")


def owner_warning(daemon: "_socket.socket", path: bytes) -> bytes:
    """Return a line that names the owner of the daemon at the path; empty if it is root's or this user's.

    For a user without a uid in this user namespace the line is UNPROVEN_WARNING, unless PYMPSD_UNMAPPED_DAEMON is
    ``trust``.
    """
    owner = int.from_bytes(_credentials(daemon)[4:8], "little")
    if owner == 0:
        return b""
    from pympsd.channel import daemon_owner

    is_trusted = daemon_owner.is_trusted(daemon)
    if is_trusted is None:
        is_assured = posix.environ.get(daemon_owner.TRUST_VARIABLE.encode()) == b"trust"
        return b"" if is_assured else UNPROVEN_WARNING % path
    return b"" if is_trusted else OWNER_WARNING % (path, owner)


def _credentials(daemon: "_socket.socket") -> bytes:
    """Return the daemon's struct ucred: PID, uid and gid."""
    return daemon.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)


def _is_dead(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        fd = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY)
    except OSError:
        return not is_listed(pid)
    try:
        return posix.read(fd, 4096).rpartition(b")")[2][:2] in (b" Z", b" X")
    except OSError:
        return True
    finally:
        posix.close(fd)


def is_listed(pid: int) -> bool:
    """Return whether a process exists; one that has ended exists until it is reaped."""
    try:
        posix.stat(f"/proc/{pid}")
    except FileNotFoundError:
        return False
    return True


def control_socket(folder: bytes = b"") -> bytes:
    """Return the path of the socket for commands; ``folder``: the pipe directory, by default the environment's."""
    folder = folder or pipe_directory()
    path = folder + b"/" + files.CONTROL.encode()
    privileged = folder + b"/" + files.CONTROL_PRIVILEGED.encode()
    try:
        clients_only = posix.stat(path).st_mode & 0o777 == files.CLIENTS_ONLY_MODES[files.CONTROL]
    except OSError:
        return path
    return privileged if clients_only and posix.access(privileged, posix.W_OK) else path


def own_socket(folder: bytes = b"") -> bytes:
    """Return the path of the socket for pympsd's own protocol next to the driver's server."""
    return (folder or pipe_directory()) + b"/" + files.OWN_CONTROL.encode()


def pipe_directory() -> bytes:
    """Return the pipe directory that the environment names, or the default."""
    # posix has the environment as bytes; os would take 1 ms to decode it.
    return posix.environ.get(b"CUDA_MPS_PIPE_DIRECTORY") or _default_directory().encode()


def _default_directory() -> str:
    """Return the directory of root's daemon of protocol 3 if one runs, otherwise the default of protocol 2."""
    try:
        is_roots = posix.stat(f"{files.SYSTEM_PIPE_DIRECTORY}/{files.CONTROL}").st_uid == 0
    except OSError:
        is_roots = False
    return files.SYSTEM_PIPE_DIRECTORY if is_roots else files.DEFAULT_PIPE_DIRECTORY
