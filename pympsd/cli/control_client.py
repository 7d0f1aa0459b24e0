"""Send commands (the lines of standard input, or one command from the arguments) to the daemon and print its answers.

Imports almost nothing: scripts and health probes run this in loops (docs/performance.md).
"""

import _socket
import posix

from pympsd.errors import DaemonError
from pympsd.vocabulary import files
from pympsd.wire import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOT_FOUND = b"Cannot find MPS control daemon process\n"
TIMEOUT = 10.0
"""The number of seconds to wait for a silent daemon. While the daemon works on a command, the wait is not limited."""
REMEDY = b"; check CUDA_MPS_PIPE_DIRECTORY, or start the daemon with -d\n"
REFUSED = UNREACHABLE = 1
SILENT = 2
NO_OUTPUT = 74
"""The exit status if the output is incomplete (EX_IOERR of sysexits.h); 1 would mean that no daemon runs."""
REAP_SECONDS = 0.1
"""The number of seconds to wait until PID 1 reaps an ended daemon: in some containers PID 1 reaps only every few
seconds, or never.

Until then ps shows the daemon's process under another name (daemonize.py).
"""
MAX_LINE = 1 << 17
"""The length in bytes at which longer lines are cut; the daemon's own limit is lower."""
LINE_SHOWN = 200
"""The maximum number of bytes of a line that a message quotes."""
AHEAD_LINES, AHEAD_BYTES = 32, 16 * 1024
"""The maximum number of lines, and of bytes in these lines, that are sent before the first line is answered."""
OTHER_KIND = "Protocol wrong type for socket"
"""The message for a packet socket, whose daemon manages the driver's server or is the vendor's own."""
SILENCE = b"The MPS control daemon does not answer: it accepted the connection, then sent nothing for %g s\n"
OWNER_WARNING = b"The MPS control daemon at %s is run by user %d, neither root nor you\n"
UNPROVEN_WARNING = (
    b"The MPS control daemon at %s is run by a user without a number in this user namespace, and has not proved that "
    b"it is root's or yours; PYMPSD_UNMAPPED_DAEMON=trust if you are sure that it is\n"
)
QUERIES, LINES, FILES = range(3)
"""What may be sent to a daemon that is neither root's nor the caller's: queries, all lines, or also files."""
NOT_SENT = (
    b"'%s' was not sent: it may change something or contain a file, and that daemon is another user's; "
    b"--trust-daemon sends it\n"
)
MAX_FOREIGN_ANSWER_BYTES = 16 << 20
"""The maximum number of bytes to read of an untrusted daemon's answer."""
CLOSED = b"The MPS control daemon closed the connection without an answer\n"
UNFINISHED = b"The MPS control daemon closed the connection before '%s' was done; part of it may have been done\n"


class DaemonGone(DaemonError):
    """The daemon closed the connection; the optional argument is the line on which it was working."""


class _NoOutput(Exception):
    """Standard output or standard error cannot be written; the message states which one, and why."""


def give_commands(
    words: "Sequence[str]",
    strict: bool = False,
    timeout: float = TIMEOUT,
    if_protocol: bytes = b"",
    sendable: int = QUERIES,
) -> int:
    """Send the command of ``words``, or without words the lines of standard input; return the exit status.

    ``strict``: the status is 1 if a line was refused. ``timeout``: seconds to wait for a silent daemon.
    ``if_protocol``: send the words only to a daemon of this protocol, and standard input to any other. ``sendable``:
    what may be sent to a daemon that is neither root's nor the caller's (QUERIES, LINES or FILES); other lines are
    reported, and the status is 1.
    """
    daemon = DaemonConnection()
    try:
        path = control_socket()
        reason = daemon.connect(path, timeout)
        if reason == OTHER_KIND and (reason := daemon.connect(own_socket(), timeout)):
            return _give_to_driver(path, [] if if_protocol else words, strict, timeout, sendable)
        if not reason and daemon.has_ended():
            reason = "its daemon has ended"
        if reason:
            _complain(NOT_FOUND + path + b": " + reason.encode() + REMEDY)
            return UNREACHABLE
        if warning := daemon.owner_warning(path, timeout):
            _complain(warning)
            daemon.distrust(timeout)
        return _converse(daemon, words, strict, timeout, if_protocol, sendable)
    except KeyboardInterrupt:
        import _signal  # type: ignore[import-not-found]

        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # end by the signal without a traceback, as a shell expects
        posix.kill(posix.getpid(), _signal.SIGINT)
        raise
    except _NoOutput as error:
        return _report_no_output(error)
    except LookupError as error:  # the command's file cannot be read
        _complain(f"{error.args[0]}\n".encode("utf-8", "surrogateescape"))
        return REFUSED
    except (TimeoutError, DaemonGone, ConnectionError) as error:
        return _report_end(error, timeout)
    finally:
        daemon.close()


def _give_to_driver(path: bytes, words: "Sequence[str]", strict: bool, timeout: float, sendable: int) -> int:
    """Send commands to a daemon that manages the driver's server; return the exit status."""
    from pympsd.cli import driver_daemon

    withheld: list[bytes] = []

    def select(daemon: "_socket.socket", lines: "list[bytes]") -> "tuple[list[bytes], bool]":
        if not (warning := owner_warning(daemon, path)):
            return lines, False
        _complain(warning)
        return _select_sendable(lines, sendable, withheld), True

    status = driver_daemon.give_commands(path, _source(words), strict, timeout, select)
    return REFUSED if withheld else status


def _converse(
    daemon: "DaemonConnection",
    words: "Sequence[str]",
    strict: bool,
    timeout: float,
    if_protocol: bytes,
    sendable: int,
) -> int:
    """Send commands over a connection; return the exit status. The arguments are those of `give_commands`."""
    typed = not words and posix.isatty(0) and posix.isatty(1)
    daemon.send(frames.encode(frames.OPERATOR_HELLO, frames.ASKS_PROTOCOL if if_protocol or typed else b""))
    protocol = daemon.protocol() if if_protocol or typed else b""
    if protocol != if_protocol:
        words = ()
    if words[:1] == ["config"]:
        words = _attach_file(daemon, words, sendable == FILES or not daemon.is_foreign)
    groups = _source(words, protocol)
    withheld: list[bytes] = []
    if daemon.is_foreign:
        groups = (_select_sendable(lines, sendable, withheld) for lines in groups)
    refused = _give(daemon, groups, timeout)
    return REFUSED if withheld or ((words or strict) and refused) else 0


def _attach_file(daemon: "DaemonConnection", words: "Sequence[str]", may_send: bool) -> "Sequence[str]":
    """Return the words to send: after sending the file of `config apply`, or with a file's hash for
    `config status`.
    """
    from pympsd.channel import attached_file

    if words[1:2] == ["apply"] and may_send:
        daemon.send(frames.encode(frames.OPERATOR_FILE, attached_file.text_of(words[2:])))
        return [*words[:2], *attached_file.expand_path(words[2:])]
    if words[1:2] == ["status"] and "/" in "".join(words):
        return attached_file.hash_expected_file(words)
    return words


def _report_end(error: Exception, timeout: float) -> int:
    """Report why a conversation ended early; return the exit status."""
    if isinstance(error, TimeoutError):
        _complain(SILENCE % timeout)
        return SILENT
    if isinstance(error, DaemonGone):
        _complain(UNFINISHED % error.args[0] if error.args else CLOSED)
    elif isinstance(error, (BrokenPipeError, ConnectionResetError)):
        _complain(CLOSED)
    else:  # the vendor's daemon
        _complain(f"{error}\n".encode())
    return UNREACHABLE


def print_text(text: str) -> int:
    """Print a text; return the exit status."""
    try:
        _write(1, text.encode())
    except _NoOutput as error:
        return _report_no_output(error)
    return 0


def _select_sendable(lines: "list[bytes]", sendable: int, withheld: "list[bytes]") -> "list[bytes]":
    """Return the lines that may be sent to another user's daemon; report the others and add them to ``withheld``."""
    from pympsd.vocabulary.untrusted import escape_controls, is_query

    allowed = []
    for line in lines:
        text = line.decode("utf-8", "surrogateescape")
        names_file = text.split()[:2] == ["config", "apply"]
        if sendable == FILES or is_query(text) or (sendable == LINES and not names_file):
            allowed.append(line)
        else:
            withheld.append(line)
            _complain(NOT_SENT % escape_controls(line.strip()[:LINE_SHOWN]))
    return allowed


def _give(daemon: "DaemonConnection", source: "Iterator[list[bytes]]", timeout: float) -> bool:
    """Send all lines; return whether one was refused. Stop early if a line ended the daemon."""
    refused = False
    for lines in source:
        daemon.send(b"".join(frames.encode(frames.OPERATOR_LINE, line[:MAX_LINE]) for line in lines))
        for line in lines:
            answer = _answer(daemon, line, timeout)
            if answer is None:
                return refused
            refused = answer or refused
    return refused


def _source(words: "Sequence[str]", protocol: bytes = b"") -> "Iterator[list[bytes]]":
    """Yield lines in groups; a group's lines may be sent before its first line is answered."""
    if words:
        return iter([[" ".join(words).encode("utf-8", "surrogateescape")]])
    if posix.isatty(0) and posix.isatty(1):
        from pympsd.cli.terminal import read_lines

        return ([line] for line in read_lines(protocol == b"3"))
    return _batches(_chunks(0))


def _batches(chunks: "Iterator[list[bytes]]") -> "Iterator[list[bytes]]":
    """Split the lines of each read into groups that fit into the socket's buffer, so that sending does not wait."""
    for lines in chunks:
        batch: list[bytes] = []
        size = 0
        for line in lines:
            if batch and (len(batch) == AHEAD_LINES or size + len(line) > AHEAD_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        if batch:
            yield batch


def _chunks(fd: int) -> "Iterator[list[bytes]]":
    """Yield the lines that each read completes."""
    partial_line = b""
    while data := posix.read(fd, 65536):
        *whole, partial_line = (partial_line + data).split(b"\n")
        yield whole
        if len(partial_line) > MAX_LINE:
            # The beginning is long enough to be refused; the rest of the line is read and dropped.
            partial_line = partial_line[:MAX_LINE]
    if partial_line:
        yield [partial_line]


def _answer(daemon: "DaemonConnection", line: bytes, timeout: float) -> "bool | None":
    """Print the answer to a line; return whether the line was refused, or None if it was a quit that succeeded."""
    watched = None
    daemon.begin_answer()
    while True:
        try:
            kind, body = daemon.receive()
        except (DaemonGone, ConnectionResetError):
            if watched is None:
                raise
            if line.split()[:1] == [b"quit"]:
                _await_end(watched)
                return None
            _close(watched)
            raise DaemonGone(line[:LINE_SHOWN]) from None
        if kind == frames.OPERATOR_DONE:
            if watched is not None:
                _close(watched)
                daemon.wait_at_most(timeout)
            return body != b"\0"
        if kind == frames.OPERATOR_WORKING:
            watched = _watch(daemon)
            daemon.wait_at_most(0)
        elif kind == frames.OPERATOR_STDOUT:
            _write(1, _sanitise_for_display(daemon, 1, body))
        elif kind == frames.OPERATOR_STDERR:
            _write(2, _sanitise_for_display(daemon, 2, body))


def _sanitise_for_display(daemon: "DaemonConnection", fd: int, body: bytes) -> bytes:
    """Return an answer to print, without control characters if it is for a terminal or from another user's daemon."""
    if not daemon.is_foreign and not posix.isatty(fd):
        return body
    from pympsd.vocabulary.untrusted import escape_controls

    return escape_controls(body)


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
        return path, reason or ("its daemon has ended" if self.has_ended() else "")

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


def _watch(daemon: "DaemonConnection") -> "tuple[int, int]":
    """Return the daemon's PID and a pidfd, which is -1 if it cannot be opened (in another PID namespace)."""
    pid = daemon.pid()
    try:
        return pid, posix.pidfd_open(pid)
    except OSError:
        return pid, -1


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


def _await_end(watched: "tuple[int, int]") -> None:
    """Wait until the daemon has ended and is reaped, because scripts look for it in ps right after a quit."""
    import select
    import time

    pid, pidfd = watched
    if pidfd < 0:
        return
    select.select([pidfd], [], [], TIMEOUT)
    posix.close(pidfd)
    give_up = time.monotonic() + REAP_SECONDS
    while _is_listed(pid) and time.monotonic() < give_up:
        time.sleep(0.001)


def _close(watched: "tuple[int, int]") -> None:
    if watched[1] >= 0:
        posix.close(watched[1])


def _is_dead(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        fd = posix.open(f"/proc/{pid}/stat", posix.O_RDONLY)
    except OSError:
        return not _is_listed(pid)
    try:
        return posix.read(fd, 4096).rpartition(b")")[2][:2] in (b" Z", b" X")
    except OSError:
        return True
    finally:
        posix.close(fd)


def _is_listed(pid: int) -> bool:
    try:
        posix.stat(f"/proc/{pid}")
    except FileNotFoundError:
        return False
    return True


def _write(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[posix.write(fd, data) :]
    except OSError as error:
        raise _NoOutput(f"standard {'output' if fd == 1 else 'error'}: {error.strerror}") from None


def _complain(line: bytes) -> None:
    """Write a line to standard error, if possible; the exit status also reports the failure."""
    try:
        posix.write(2, line)
    except OSError:
        return


def _report_no_output(error: _NoOutput) -> int:
    _complain(f"{error}: not all could be printed\n".encode())
    return NO_OUTPUT


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
