"""Give commands to the vendor's own control daemon, as its nvidia-cuda-mps-control does.

It says neither which commands it refuses nor, before the last one, where the answer to each line ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

from pympsd.control_client import batches, chunks
from pympsd.vocabulary import files
from pympsd.wire.errors import RemoteError
from pympsd.wire.vendor.handshake import CREDENTIALS, HELLO, Role, encode_role
from pympsd.wire.vendor.tool_lines import END_OF_ANSWERS, LINE_BYTES, encode_line, printed_of

_SCM_CREDENTIALS: Final = 2
_UCRED: Final = struct.Struct("=iII")
UNREACHABLE, SILENT = 1, 2
BAD_USAGE: Final = 2


def give_commands(path: bytes, words: Sequence[str], strict: bool, timeout: float) -> int:
    """Give the command of ``words``, or without words the lines of standard input; return the exit status.

    ``timeout``: seconds to wait for a daemon that does not speak; commands take as long as they take.
    """
    if strict:
        sys.stderr.write("--strict: this is NVIDIA's own daemon, which does not say which commands it refuses\n")
        return BAD_USAGE
    try:
        if words:
            return _session(path, [" ".join(words).encode("utf-8", "surrogateescape")], timeout)
        if os.isatty(0) and os.isatty(1):
            from pympsd.terminal import typed_lines

            return max((_session(path, [line], timeout) for line in typed_lines()), default=0)
        # Few at a time: the daemon reads none while it waits for its answers to be read.
        return max((_session(path, batch, timeout) for batch in batches(chunks(0))), default=0)
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
