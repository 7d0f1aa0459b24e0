"""Who is at the other end of a connection: credentials, groups and a pidfd, taken once, at the door."""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

import trio
from attrs import define

from pympsd.journal.line_format import sanitised
from pympsd.vocabulary.identities import OVERFLOW_UID, Peer

_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77
_GROUPS_ROOM = 1024
"""The most that getsockopt takes in Python: 256 groups."""
COMMAND_BYTES = 4096
"""More of a command line nobody shows."""
_CREDENTIALS = struct.Struct("=iII")


@define
class KnownPeer:
    """A peer with a pidfd of it (-1 where none can be had); the owner closes the pidfd."""

    peer: Peer
    pidfd: int

    def close(self) -> None:
        """Close the pidfd."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def credentials(sock: socket.socket) -> Peer:
    """Return who connected, as the kernel noted it; raise OSError when it cannot be read."""
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid, gid, _groups(sock, pid), uid == OVERFLOW_UID and not _shares_our_users(pid))


def user_of(sock: trio.socket.SocketType) -> int | None:
    """Return the uid of who connected, which costs no descriptor; None when it cannot be read."""
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(packed)[1])


def _shares_our_users(pid: int) -> bool:
    # The overflow uid is a user's own number too (nobody): then it comes from our own user namespace.
    try:
        return os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino
    except OSError:
        return False


def _groups(sock: socket.socket, pid: int) -> tuple[int, ...]:
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_ROOM)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        # More groups than fit: the process itself says them.
        status = Path(f"/proc/{pid}/status").read_bytes()
        # At the start of a line: the process's own name, which comes first, may hold the word.
        return tuple(map(int, status.partition(b"\nGroups:")[2].partition(b"\n")[0].split()))
    return struct.unpack(f"={len(packed) // 4}I", packed)


def with_pidfd(sock: socket.socket, peer: Peer) -> KnownPeer:
    """Return the peer with a pidfd: the kernel's own where it has one (Linux 6.5), else opened by PID.

    The kernel's is of a process in another PID namespace too, which has no PID here.
    """
    try:
        return KnownPeer(peer, sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError:
        pass
    if peer.pid <= 0:
        return KnownPeer(peer, -1)
    try:
        return KnownPeer(peer, os.pidfd_open(peer.pid))
    except OSError:
        return KnownPeer(peer, -1)


def command_of(pid: int, told: str) -> str:
    """Return a process's command line for ps, in one line; what it told of itself where it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            data = file.read(COMMAND_BYTES)
    except OSError:
        data = b""
    return sanitised((data.rstrip(b"\0") or told.encode()).replace(b"\0", b" "))


def namespace_of(pid: int, told: int) -> int:
    """Return the inode of a process's PID namespace; what it told of itself where it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return told
