"""Identify the peer of a connection: its credentials, groups and pidfd are read once, when it connects.

The daemon does not trust a peer's own statements about its identity, only the kernel's record (SO_PEERCRED,
SO_PEERGROUPS, SO_PEERPIDFD, unix(7)). A PID may be reused and a forked child may hold the socket, so the end of a
client is the end of the process that its pidfd shows, and not the end of its connection.

Namespaces make three cases, which the functions below keep apart:

- another user namespace: the kernel reports a user without a uid in this namespace with the overflow uid, which may
  also be a real user's (nobody). `credentials` marks such a peer as foreign;
- another PID namespace: the PID is 0 if it cannot be seen from here; the pidfd works nevertheless;
- a container in this user namespace: its root is also root here, but must not lift the container's own limits
  (`operator_uid`).
"""

import contextlib
import errno
import fcntl
import itertools
import os
import socket
import struct
from pathlib import Path

import trio
from attrs import define

from pympsd.channel.daemon_owner import SO_PEERPIDFD, is_one_user
from pympsd.channel.descriptors import UCRED
from pympsd.journal.line_format import sanitise
from pympsd.service.processes.status import has_ended, status_numbers
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.identities import NO_USER, Peer
from pympsd.vocabulary.variables import RUN
from pympsd.wire import frames

_SO_PEERGROUPS = 59
_GET_CGROUP_NAMESPACE, _GET_PID_NAMESPACE, _GET_USER_NAMESPACE = 0xFF01, 0xFF05, 0xFF09
"""The ioctls of a pidfd that open the process's namespaces (linux/pidfd.h, Linux 6.11)."""
_GROUPS_ROOM = 1024
"""The size of the largest buffer that Python's getsockopt accepts, which is enough for 256 groups."""
ENVIRONMENT_BYTES = 1 << 18
"""The maximum number of bytes of an environment that are read."""
COMMAND_BYTES = 4096
"""The maximum number of bytes of a command line that are kept."""
AnySocket = socket.socket | trio.socket.SocketType


@define
class KnownPeer:
    """A peer with its pidfd (-1 if none is available); the owner closes the pidfd.

    The pidfd stands for this process even if its PID is used again (pidfd_open(2)).
    """

    peer: Peer
    pidfd: int

    def close(self) -> None:
        """Close the pidfd."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def credentials(sock: AnySocket) -> Peer:
    """Return the peer as the kernel recorded it; raise OSError if that cannot be read.

    They come from the kernel (SO_PEERCRED and SO_PEERGROUPS, unix(7)), never from the peer itself.
    """
    pid, uid, gid = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    is_foreign = not is_one_user(uid) and not _is_in_our_user_namespace(sock, pid)
    return Peer(pid, uid, gid, _groups(sock, pid), is_foreign)


def send_credentials(sock: AnySocket, peer: Peer) -> None:
    """Send a peer credentials that show whose daemon this is (``pympsd/channel/daemon_owner.py``).

    They are the peer's own PID and uid as far as the kernel lets this process send those: root may send both, a
    daemon of the peer's user the uid. Otherwise they are this process's.
    """
    data, gid = frames.encode(frames.CREDENTIALS), os.getegid()
    plain = socket.socket(fileno=sock.fileno())
    try:
        for pid, uid in itertools.product((peer.pid, os.getpid()), (peer.uid, os.geteuid())):
            control = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, UCRED.pack(pid, uid, gid))
            with contextlib.suppress(OSError):  # denied, or the user or process does not exist in this namespace
                plain.sendmsg([data], [control], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return
        # If a uid cannot be sent, nothing can be shown, and the peer need not wait.
        with contextlib.suppress(OSError):
            plain.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        plain.detach()


def user_of(sock: AnySocket) -> int | None:
    """Return the peer's uid, without opening a descriptor; None if it cannot be read."""
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
    except OSError:
        return None
    return int(UCRED.unpack(packed)[1])


def _is_in_our_user_namespace(sock: AnySocket, pid: int) -> bool:
    # The overflow uid may also be a real user's (nobody); then the peer is in this process's user namespace.
    try:
        own_namespace = os.stat("/proc/self/ns/user").st_ino
        if pid > 0:
            return os.stat(f"/proc/{pid}/ns/user").st_ino == own_namespace
        pidfd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return False
    try:
        return _namespace(pidfd, _GET_USER_NAMESPACE) == own_namespace
    finally:
        os.close(pidfd)


def _namespace(pidfd: int, which: int) -> int:
    """Return the inode of one of a process's namespaces; 0 if unknown. The process need not be visible from here."""
    if pidfd < 0:
        return 0
    try:
        fd = fcntl.ioctl(pidfd, which)
    except OSError:  # the kernel is older, or the process may not be examined
        return 0
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _groups(sock: AnySocket, pid: int) -> tuple[int, ...]:
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_ROOM)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        # The peer has more groups than fit in the buffer.
        return status_numbers(Path(f"/proc/{pid}/status").read_bytes(), b"Groups")
    return struct.unpack(f"={len(packed) // 4}I", packed)


def open_pidfd(sock: AnySocket, peer: Peer) -> KnownPeer:
    """Return the peer with a pidfd, from SO_PEERPIDFD (Linux 6.5) or else opened by PID.

    SO_PEERPIDFD also works for a process in another PID namespace, which has no PID here.
    """
    with contextlib.suppress(OSError):
        return KnownPeer(peer, sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
    with contextlib.suppress(OSError):  # EINVAL for a peer without a PID here
        return KnownPeer(peer, os.pidfd_open(peer.pid))
    return KnownPeer(peer, -1)


def operator_uid(sock: AnySocket, peer: Peer, daemon: Daemon) -> int:
    """Return the uid that decides an operator's privileges; in protocol 3, an operator in a container gets NO_USER.

    Root in a container without a user namespace of its own is root here, and could lift the container's own limits.
    """
    if daemon.options.protocol == 2 or daemon.options.trusts_containers or not _is_in_container(sock, peer):
        return peer.operator
    return NO_USER


def _is_in_container(sock: AnySocket, peer: Peer) -> bool:
    """Return whether a peer is in another PID or user namespace than this process, or cannot be seen."""
    known_peer = open_pidfd(sock, peer)
    try:
        pids = status_numbers(Path(f"/proc/{peer.pid}/status").read_bytes(), b"NSpid")
        # Every user can read uid_map, unlike the links in /proc/PID/ns.
        same = Path(f"/proc/{peer.pid}/uid_map").read_bytes() == Path("/proc/self/uid_map").read_bytes()
        return peer.pid == 0 or len(pids) != 1 or not same or (known_peer.pidfd >= 0 and has_ended(known_peer.pidfd))
    except OSError:
        return True
    finally:
        known_peer.close()


def process_of(pidfd: int) -> int:
    """Return a number that identifies a pidfd's process; 0 if the kernel has no such number (pidfs, Linux 6.9)."""
    if pidfd < 0:
        return 0
    try:
        reference = os.eventfd(0)
    except OSError:  # no descriptor is left
        return 0
    try:
        # Without pidfs all pidfds have the same inode, that of anonymous files.
        status, anonymous = os.fstat(pidfd), os.fstat(reference)
    finally:
        os.close(reference)
    return 0 if status.st_dev == anonymous.st_dev else status.st_ino


def command_of(pid: int, reported: str) -> str:
    """Return a process's command line for ps, as one line.

    If it cannot be read, return ``reported``, which the client itself sent.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            data = file.read(COMMAND_BYTES)
    except OSError:
        data = b""
    return sanitise((data.rstrip(b"\0") or reported.encode()).replace(b"\0", b" "))


def cuda_variables_of(known_peer: KnownPeer) -> dict[str, str]:
    """Return CUDA's variables, and RUN, in the environment with which a process began; none if it cannot be read.

    /proc/PID/environ does not have changes that the process has made since.
    """
    try:
        with open(f"/proc/{known_peer.peer.pid}/environ", "rb", buffering=0) as file:
            data = file.read(ENVIRONMENT_BYTES)
    except OSError:
        return {}
    if known_peer.pidfd < 0 or has_ended(known_peer.pidfd):  # another process may have the PID by now
        return {}
    entries = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0"))
    return {name: text for name, _, text in entries if name.startswith("CUDA_") or name == RUN}


def namespace_of(known_peer: KnownPeer, reported: int) -> int:
    """Return the inode of a process's PID namespace. If the inode cannot be read, return ``reported``."""
    try:
        return os.stat(f"/proc/{known_peer.peer.pid}/ns/pid").st_ino
    except OSError:
        return _namespace(known_peer.pidfd, _GET_PID_NAMESPACE) or reported


def container_pid_of(pid: int) -> int:
    """Return a process's PID in its own PID namespace; 0 if that namespace is also this process's, or if the PID
    cannot be read. The PID is the last number of NSpid in /proc/PID/status (proc(5)).
    """
    try:
        pids = status_numbers(Path(f"/proc/{pid}/status").read_bytes(), b"NSpid")
    except OSError:
        return 0
    return pids[-1] if len(pids) > 1 else 0


def command_of_hidden(known_peer: KnownPeer) -> str:
    """Return the text that ps shows as the command of a process without a PID here, from the kernel's report.

    It cannot name the cgroup: PIDFD_GET_INFO refuses a process whose PID namespace is not below this one (EREMOTE).
    """
    kinds = {"user": _GET_USER_NAMESPACE, "cgroup": _GET_CGROUP_NAMESPACE}
    inodes = {kind: _namespace(known_peer.pidfd, number) for kind, number in kinds.items()}
    texts = [f"{kind} namespace {namespace}" for kind, namespace in inodes.items() if namespace]
    return f"[{', '.join((f'user {known_peer.peer.uid}', *texts))}]"
