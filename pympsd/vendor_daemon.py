"""Give commands to the vendor's own control daemon, as its nvidia-cuda-mps-control does.

It says neither which commands it refuses nor, before the last one, where the answer to each line ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterable, Sequence

from pympsd.channel.descriptors import UCRED
from pympsd.options import BAD_USAGE
from pympsd.vocabulary import files
from pympsd.vocabulary.answers import CLIENTS_ONLY, CLIENTS_ONLY_AT_CONTROL
from pympsd.wire.errors import RemoteError
from pympsd.wire.vendor.handshake import CREDENTIALS, HELLO, Role, encode_role
from pympsd.wire.vendor.tool_lines import END_OF_ANSWERS, LINE_BYTES, encode_line, printed_of

_REFUSALS = {CLIENTS_ONLY.encode(), CLIENTS_ONLY_AT_CONTROL.encode()}
"""Printed by our daemon at a socket for clients only: the protocol has no place for what is wrong."""


class _TakesNoCommands(ConnectionError):
    """The message is what the daemon says."""


def give_commands(path: bytes, groups: Iterable[list[bytes]], strict: bool, timeout: float) -> int:
    """Give groups of command lines, few enough that the socket holds them; return the exit status.

    The daemon reads no lines while it waits for its answers to be read. ``timeout``: seconds to wait for a daemon
    that says nothing at first; commands take as long as they take. Raise TimeoutError for a silent daemon, and
    ConnectionError for one that cannot be spoken to or takes no commands.
    """
    if strict:
        sys.stderr.write("--strict: this is NVIDIA's own daemon, which does not say which commands it refuses\n")
        return BAD_USAGE
    try:
        for lines in groups:
            _give(path, lines, timeout)
    except (TimeoutError, _TakesNoCommands):
        raise
    except (OSError, RemoteError) as error:
        raise ConnectionError(f"The MPS control daemon cannot be spoken to: {error}") from error
    return 0


def _give(path: bytes, lines: Sequence[bytes], timeout: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.settimeout(timeout)
        try:
            # There alone settings may be changed; only root and the daemon's user can connect to it.
            daemon.connect(os.path.join(os.path.dirname(path), files.CONTROL_PRIVILEGED.encode()))
        except OSError:
            daemon.connect(path)
        if daemon.recv(LINE_BYTES) != HELLO:
            raise RemoteError("it speaks another protocol: is it of an older driver?")
        own = UCRED.pack(os.getpid(), os.getuid(), os.getgid())
        daemon.sendmsg([CREDENTIALS], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)])
        daemon.send(encode_role(Role.TOOL))
        daemon.settimeout(None)
        # A daemon that was asked to quit may have gone before the last line; what it answered is still there.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for line in lines:
                for packet in encode_line(line):
                    daemon.send(packet)
            daemon.send(encode_line(None)[0])
        while (packet := _received(daemon)) not in (b"", END_OF_ANSWERS):
            if (text := printed_of(packet)) in _REFUSALS:
                raise _TakesNoCommands(text.decode())
            sys.stdout.buffer.write(text + b"\n")
        sys.stdout.flush()
        if not packet and not any(line.split()[:1] == [b"quit"] for line in lines):
            raise RemoteError("it closed the connection before it had answered")


def _received(daemon: socket.socket) -> bytes:
    while True:
        try:
            return daemon.recv(LINE_BYTES)
        except ConnectionResetError:
            # It left lines unread; its last packets come after this error.
            continue
