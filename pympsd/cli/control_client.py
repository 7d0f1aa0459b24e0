"""Send commands (the lines of standard input, or one command from the arguments) to the daemon and print its answers.

Lines are sent in groups before their answers come, which saves a round trip for each line of a script. A group fits
into the socket's buffer, so that the program does not wait for the daemon while the daemon waits for it:

    program -> daemon    LINE get_server_list, LINE ps                  one group
    daemon -> program    STDOUT 847, DONE, STDOUT ..., WORKING, DONE    each line's answer ends with DONE

A daemon that is silent for ``timeout`` seconds is reported. While the daemon works on a line (WORKING), the wait is
not limited, but the program watches the daemon's process. After a quit it waits until ps no longer lists the process.

Imports almost nothing: scripts and health probes run this in loops (docs/performance.md).
"""

import posix

from pympsd.cli.daemon_connection import (
    OTHER_KIND,
    TIMEOUT,
    DaemonConnection,
    DaemonGone,
    control_socket,
    is_listed,
    own_socket,
    owner_warning,
)
from pympsd.wire import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator, Sequence

NOT_FOUND = b"Cannot find MPS control daemon process\n"
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
SILENCE = b"The MPS control daemon does not answer: it accepted the connection, then sent nothing for %g s\n"
QUERIES, LINES, FILES = range(3)
"""What may be sent to a daemon that is neither root's nor the caller's: queries, all lines, or also files."""
NOT_SENT = (
    b"'%s' was not sent: it may change something or contain a file, and that daemon is another user's; "
    b"--trust-daemon sends it\n"
)
CLOSED = b"The MPS control daemon closed the connection without an answer\n"
UNFINISHED = b"The MPS control daemon closed the connection before '%s' was done; part of it may have been done\n"


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
            reason = "the daemon at this socket has ended"
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


def _watch(daemon: "DaemonConnection") -> "tuple[int, int]":
    """Return the daemon's PID and a pidfd, which is -1 if it cannot be opened (in another PID namespace)."""
    pid = daemon.pid()
    try:
        return pid, posix.pidfd_open(pid)
    except OSError:
        return pid, -1


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
    while is_listed(pid) and time.monotonic() < give_up:
        time.sleep(0.001)


def _close(watched: "tuple[int, int]") -> None:
    if watched[1] >= 0:
        posix.close(watched[1])


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
