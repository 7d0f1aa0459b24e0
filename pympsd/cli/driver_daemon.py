"""Give commands to the vendor's own control daemon, as its nvidia-cuda-mps-control does.

That daemon does not report which commands it refuses, and does not mark where the answer to a line ends, except the
last.
"""

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable

from pympsd.channel.descriptors import UCRED
from pympsd.errors import BAD_USAGE, DaemonError, RemoteError
from pympsd.vocabulary import files
from pympsd.vocabulary.answers import CLIENTS_ONLY, CLIENTS_ONLY_AT_CONTROL
from pympsd.vocabulary.untrusted import escape_controls
from pympsd.wire.driver import handshake

Selection = Callable[[socket.socket, list[bytes]], tuple[list[bytes], bool]]
_REFUSALS = {CLIENTS_ONLY.encode(), CLIENTS_ONLY_AT_CONTROL.encode()}
"""The texts that pympsd's daemon prints at a socket for clients only, because the protocol cannot carry a refusal."""


class _TakesNoCommands(DaemonError, ConnectionError):
    """The daemon does not accept commands at this socket; the message is the daemon's."""


def give_commands(
    path: bytes,
    groups: Iterable[list[bytes]],
    strict: bool,
    timeout: float,
    select: Selection,
) -> int:
    """Send groups of command lines, each small enough for the socket's buffer; return the exit status.

    The daemon does not read lines until its answers have been read. ``timeout``: seconds to wait for a daemon's first
    packet; the time of a command is not limited. ``select`` returns the lines that may be sent to the daemon at a
    socket, and whether the daemon is another user's. The time and the texts of another user's daemon are limited.
    Raise TimeoutError for a silent daemon, and ConnectionError for a daemon that does not use this protocol or does
    not accept commands.
    """
    if strict:
        sys.stderr.write("--strict: this is NVIDIA's own daemon, which does not report which commands it refuses\n")
        return BAD_USAGE
    try:
        for lines in groups:
            _give(path, lines, timeout, select)
    except (TimeoutError, _TakesNoCommands):
        raise
    except (OSError, RemoteError) as error:
        raise ConnectionError(f"Cannot communicate with the MPS control daemon: {error}") from error
    return 0


def _give(path: bytes, lines: list[bytes], timeout: float, select: Selection) -> None:
    """Send lines to the daemon at a path and print the answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.settimeout(timeout)
        try:
            # Only the privileged socket accepts changes of settings; only root and the daemon's user can connect to
            # it.
            daemon.connect(os.path.join(os.path.dirname(path), files.CONTROL_PRIVILEGED.encode()))
        except OSError:
            daemon.connect(path)
        if daemon.recv(handshake.LINE_BYTES) != handshake.HELLO:
            raise RemoteError("the daemon uses another protocol, perhaps that of an older driver")
        lines, is_foreign = select(daemon, lines)
        own = UCRED.pack(os.getpid(), os.getuid(), os.getgid())
        daemon.sendmsg([handshake.CREDENTIALS], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)])
        daemon.send(handshake.encode_role(handshake.Role.TOOL))
        # The time of a command is not limited if the daemon is root's or this user's.
        daemon.settimeout(timeout if is_foreign else None)
        give_up = time.monotonic() + (timeout if is_foreign else math.inf)
        # A daemon that was asked to quit may end before the last line is sent; its answers can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for line in lines:
                for packet in handshake.encode_line(line):
                    daemon.send(packet)
            daemon.send(handshake.encode_line(None)[0])
        while (packet := _receive(daemon, give_up)) not in (b"", handshake.END_OF_ANSWERS):
            if (text := handshake.decode_printed(packet)) in _REFUSALS:
                raise _TakesNoCommands(text.decode())  # pympsd's daemon printed this
            is_escaped = is_foreign or sys.stdout.isatty()
            sys.stdout.buffer.write((escape_controls(text) if is_escaped else text) + b"\n")
        sys.stdout.flush()
        if not packet and not any(line.split()[:1] == [b"quit"] for line in lines):
            raise RemoteError("the daemon closed the connection before answering")


def _receive(daemon: socket.socket, give_up: float) -> bytes:
    while True:
        remaining = give_up - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        try:
            daemon.settimeout(None if math.isinf(remaining) else remaining)
            return daemon.recv(handshake.LINE_BYTES)
        except ConnectionResetError:
            # The daemon has not read all lines; its last packets come after this error.
            continue
