"""Give commands to the vendor's own control daemon, as its nvidia-cuda-mps-control does.

It says neither which commands it refuses nor, before the last one, where the answer to each line ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from pympsd.vocabulary import files
from pympsd.wire.errors import RemoteError
from pympsd.wire.vendor.handshake import CREDENTIALS, HELLO, Role, encode_role
from pympsd.wire.vendor.tool_lines import END_OF_ANSWERS, LINE_BYTES, encode_line, printed_of

_SCM_CREDENTIALS: Final = 2
_UCRED: Final = struct.Struct("=iII")
UNREACHABLE, SILENT = 1, 2
BAD_USAGE: Final = 2


def give_commands(path: bytes, groups: Iterable[list[bytes]], strict: bool, timeout: float) -> int:
    """Give groups of command lines, few enough that the socket holds them; return the exit status.

    The daemon reads no lines while it waits for its answers to be read. ``timeout``: seconds to wait for a daemon
    that says nothing at first; commands take as long as they take.
    """
    if strict:
        sys.stderr.write("--strict: this is NVIDIA's own daemon, which does not say which commands it refuses\n")
        return BAD_USAGE
    try:
        return max((_session(path, lines, timeout) for lines in groups), default=0)
    except TimeoutError:
        sys.stderr.write(
            f"The MPS control daemon does not answer: it was reached and said nothing for {timeout:g} s\n"
        )
        return SILENT
    except (OSError, RemoteError) as error:
        sys.stderr.write(f"The MPS control daemon cannot be spoken to: {error}\n")
        return UNREACHABLE


def _session(path: bytes, lines: Sequence[bytes], timeout: float) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.settimeout(timeout)
        try:
            # There alone settings may be changed; only root and the daemon's user can connect to it.
            daemon.connect(os.path.join(os.path.dirname(path), files.CONTROL_PRIVILEGED.encode()))
        except OSError:
            daemon.connect(path)
        if daemon.recv(LINE_BYTES) != HELLO:
            sys.stderr.write("The MPS control daemon speaks another protocol: is it of an older driver?\n")
            return UNREACHABLE
        own = _UCRED.pack(os.getpid(), os.getuid(), os.getgid())
        daemon.sendmsg([CREDENTIALS], [(socket.SOL_SOCKET, _SCM_CREDENTIALS, own)])
        daemon.send(encode_role(Role.TOOL))
        daemon.settimeout(None)
        # A daemon that was told to quit may have gone before the last line; what it answered is still there.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for line in lines:
                for packet in encode_line(line):
                    daemon.send(packet)
            daemon.send(encode_line(None)[0])
        while (packet := _received(daemon)) not in (b"", END_OF_ANSWERS):
            sys.stdout.buffer.write(printed_of(packet) + b"\n")
        sys.stdout.flush()
    return 0


def _received(daemon: socket.socket) -> bytes:
    while True:
        try:
            return daemon.recv(LINE_BYTES)
        except ConnectionResetError:
            # It left lines unread; its last packets come after this error.
            continue
