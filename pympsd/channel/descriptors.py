"""File descriptors that come along with bytes (SCM_RIGHTS), and closing those nobody wants."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterable

FD_BYTES = array("i").itemsize


def received(controls: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """Return the descriptors among the control messages of a recvmsg; the caller owns them."""
    fds = array("i")
    for level, kind, payload in controls:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % FD_BYTES])
    return tuple(fds)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
