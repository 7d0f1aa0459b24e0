"""Receive file descriptors with bytes (SCM_RIGHTS), close them, and explain why none is left."""

import errno
import os
import socket
import struct
from array import array
from collections.abc import Iterable
from typing import Final

FD_BYTES = array("i").itemsize
UCRED: Final = struct.Struct("=iII")
"""struct ucred (unix(7)): PID, uid and gid."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
ADVICE: Final = "raise the limit of open file descriptors to 16384 or more (ulimit -n)"
"""The remedy that the MPS documents recommend (4.4, Known Issues)."""
PROCESS_ADVICE: Final = "raise the limit of processes and threads of the user (ulimit -u)"


def descriptors_in(controls: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """Return the descriptors in the control messages of a recvmsg; the caller owns them.

    ``controls`` is the second item that `socket.recvmsg` returns. Control messages of other kinds are ignored.
    """
    fds = array("i")
    for level, kind, payload in controls:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % FD_BYTES])
    return tuple(fds)


def whole(fds: tuple[int, ...], flags: int) -> tuple[tuple[int, ...], bool]:
    """Return the descriptors of one recvmsg, and whether some were lost.

    Args:
        fds: The received descriptors.
        flags: The flags that it returned. With MSG_CTRUNC the kernel has dropped descriptors for lack of space; then
            the received ones are closed, and none is returned.
    """
    if not flags & socket.MSG_CTRUNC:
        return fds, False
    close_all(fds)
    return (), True


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def explain(error: OSError) -> str:
    """Return an error's message, with a remedy if descriptors, processes or threads have run out.

    The text continues a sentence; it has no full stop.
    """
    text = error.strerror or str(error)
    if error.errno == errno.EAGAIN:
        return f"{text}: {PROCESS_ADVICE}"
    return f"{text}: {ADVICE}" if error.errno in EXHAUSTED else text


def require_room(count: int) -> None:
    """Check that this process can open ``count`` more descriptors now, by opening them.

    Raises:
        OSError: The process cannot open that many (EMFILE, ENFILE).
    """
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        opened.extend(os.dup(opened[0]) for _ in range(count - 1))
    finally:
        close_all(opened)
