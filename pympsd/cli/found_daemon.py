"""Identify the daemon of the pipe directory, in one line, and its protocol.

``python -m pympsd.cli.found_daemon`` prints the line. The exit status is 1 without a daemon, 2 if it does not answer.
"""

import errno
import os
import sys
from typing import Final

from pympsd.cli import daemon_connection
from pympsd.cli.control_client import SILENT, UNREACHABLE
from pympsd.cli.daemon_connection import OTHER_KIND, TIMEOUT, DaemonConnection, DaemonGone
from pympsd.vocabulary import files
from pympsd.wire import frames

LISTENING: Final = "00010000"
STREAM: Final = "0001"
"""The values of LISTENING and STREAM in /proc/net/unix: the flags of a listening socket, and the type of a stream
socket.
"""
OF_A_DAEMON: Final = (files.CONTROL, files.CONTROL_PRIVILEGED, files.OWN_CONTROL)
"""The names of a daemon's sockets."""


def identify_daemon(timeout: float) -> tuple[str, int, bytes]:
    """Return a line that names the daemon, the exit status, and the protocol, which is empty if it is unknown."""
    daemon = DaemonConnection()
    path, status, protocol = daemon_connection.control_socket(), 0, b""
    contacted_path = path
    try:
        reason = daemon.connect(path, timeout)
        kind = "pympsd, with servers of its own"
        if reason == OTHER_KIND:
            contacted_path = daemon_connection.own_socket()
            is_vendor = daemon.connect(contacted_path, timeout)
            kind, reason = "NVIDIA's own daemon" if is_vendor else "pympsd, which manages the driver's server", ""
        elif not reason and daemon.has_ended():
            reason = "the daemon has ended; the next daemon takes over its servers"
        if reason:
            kind, status = f"no daemon ({reason})", UNREACHABLE
        elif not kind.startswith("NVIDIA"):
            protocol = _ask_protocol(daemon, contacted_path)
    except TimeoutError:
        remedy = f"if the daemon is stopped, continue it: kill -CONT {daemon.pid()}"
        kind, status = f"a daemon that has sent nothing for {timeout:g} s; {remedy}", SILENT
    finally:
        daemon.close()
    return f"at {path.decode('utf-8', 'backslashreplace')}: {kind}\n", status, protocol


def _ask_protocol(daemon: DaemonConnection, path: bytes) -> bytes:
    """Return the protocol of a daemon; empty if it does not report one. Raise TimeoutError."""
    if daemon.owner_warning(path, TIMEOUT):
        daemon.distrust(TIMEOUT)
    try:
        daemon.send(frames.encode(frames.OPERATOR_HELLO, frames.ASKS_PROTOCOL))
        return daemon.protocol()
    except (DaemonGone, ConnectionError):
        return b""


def look_for_daemon() -> tuple[str, str]:
    """Return a line that names the daemon, and its protocol; both empty without a daemon.

    The daemon is not contacted, because it would log the connection. Instead this function reads the kernel's list of
    sockets at which processes listen, and the file with which a daemon of protocol 3 marks its directory.
    """
    path = os.fsdecode(daemon_connection.control_socket())
    types = _read_socket_types()
    kind = types.get(os.path.realpath(path), "")
    protocol = ""
    if not os.path.exists(path):
        text = f"no daemon ({os.strerror(errno.ENOENT)})"
    elif not kind:
        text = "no daemon (nothing in this network namespace listens there)"
    elif kind == STREAM or os.path.realpath(os.fsdecode(daemon_connection.own_socket())) in types:
        text = "pympsd, with servers of its own" if kind == STREAM else "pympsd, which manages the driver's server"
        is_marked = os.path.lexists(os.path.join(os.path.dirname(path), files.NAMED_SERVERS))
        protocol = "3" if is_marked else "2"
    else:
        text, protocol = "NVIDIA's own daemon", "2"
    return (
        f"at {path.encode('utf-8', 'surrogateescape').decode('utf-8', 'backslashreplace')}: {text}\n",
        protocol,
    )


def _read_socket_types() -> dict[str, str]:
    """Return the types of the sockets at which processes listen, by path (proc(5), /proc/net/unix)."""
    types = {}
    try:
        with open("/proc/net/unix", errors="surrogateescape") as file:
            for line in file:
                # Num RefCount Protocol Flags Type St Inode Path
                words = line.rstrip("\n").split(None, 7)
                if len(words) == 8 and words[3] == LISTENING and os.path.basename(words[7]) in OF_A_DAEMON:
                    types[os.path.realpath(words[7])] = words[4]
    except OSError:  # /proc hides the file, as in some containers
        pass
    return types


if __name__ == "__main__":
    line, status, _ = identify_daemon(TIMEOUT)
    print(line, end="")
    sys.exit(status)
