"""Wedge an executor: the thread of its link hangs in the kernel for ever; its other threads continue.

The link's socket is set to deliver nothing before a MiB has arrived, which never happens, so the thread's receive
does not return. Unlike after a SIGSTOP or under a debugger, the process looks like one that waits for a message.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from pathlib import Path

from attrs import frozen

_PIDFD_GETFD = 438
"""pidfd_getfd(2), the same number on every architecture."""
_NEVER = 1 << 20
_CREDENTIALS = struct.Struct("=iII")


@frozen
class NoLink(Exception):
    """Raised if a process does not have exactly one link to that owner."""

    found: int


def wedge(executor: int, owner: int) -> None:
    """Wedge an executor of a server. Its link's thread still receives the packet that it is waiting for."""
    sockets = [_take_socket(executor, fd) for fd in _sockets(executor)]
    try:
        # A pair belongs to the process that made it: the link's to the owner, a client's stream's to the executor.
        links = [sock for sock in sockets if _maker(sock) == owner]
        if len(links) != 1:
            raise NoLink(len(links))
        links[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _NEVER)
    finally:
        for sock in sockets:
            sock.close()


def _sockets(pid: int) -> list[int]:
    descriptors = []
    for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # closed
            if os.readlink(entry).startswith("socket:"):
                descriptors.append(int(entry.name))
    return descriptors


def _take_socket(pid: int, fd: int) -> socket.socket:
    """Return a socket of another process (the same socket, by another descriptor)."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        taken = libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    os.set_inheritable(taken, False)
    return socket.socket(fileno=taken)


def _maker(sock: socket.socket) -> int:
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[0])
