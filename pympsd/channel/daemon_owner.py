"""Find out whose daemon is at the other end of a connection: a program trusts only root's and its own user's.

The problem: in a user namespace the kernel shows one number, the overflow uid (65534), for every user that has no
number there: for root outside a container, and for every untrusted user as well. Then neither SO_PEERCRED nor the
owner of a file or of a directory in /proc distinguishes them.

The idea: the daemon shows what it may do, not who it is. A sender can put credentials into a message
(SCM_CREDENTIALS, unix(7)), and the kernel passes them on only

- with a uid other than its own if the sender has CAP_SETUID in its user namespace and the uid exists there: it could
  become that user;
- with a PID other than its own if it has CAP_SYS_ADMIN over its PID namespace, in which that process exists.

So a daemon that is asked (``frames.CREDENTIALS_REQUEST``) answers with the client's own uid and PID, as far as the
kernel allows it. A message with this process's uid therefore comes from its user, or from a process that may become
that user. A message with this process's PID comes from the administrator of its PID namespace. Another user's process
can send neither, and cannot pass on a message that root's daemon sent to it: the kernel checks each message's
credentials.

The uid proves nothing if this process's own user has no number either (``unshare -U``, or user 65534 in a namespace).
Then a daemon of the same user is recognised by its process, to which this process may send signals (kill(2)): without
privileges it may do that to processes of its own user only. The pidfd of the connection (SO_PEERPIDFD, Linux 6.5)
identifies the process. A process of another user may have executed a set-user-ID program of this user after it began
to listen, and such a program must not count. Therefore the process must permit the signal before it is asked, and
must then answer itself.

Nothing else counts as a proof. ``TRUST_VARIABLE`` is for cases that the kernel cannot decide: an old daemon, or
root's daemon without these capabilities. This module imports almost nothing, because the command line uses it too.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import posix

from pympsd.wire import frames

TRUST_VARIABLE = "PYMPSD_UNMAPPED_DAEMON"
"""The name of the variable whose value ``trust`` makes a daemon without a uid in the program's user namespace count
as root's.
"""
SO_PEERPIDFD = 77
UCRED_BYTES = 12
"""The size of struct ucred: PID, uid and gid, 4 bytes each."""
ALL_USERS = 4294967295
"""The number of uids in the initial user namespace (user_namespaces(7))."""


def uid_of(connection: "_socket.socket") -> int:
    """Return the uid of the process that listens, as this process's user namespace shows it."""
    return _uid(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, UCRED_BYTES))


def is_one_user(uid: int) -> bool:
    """Return whether a uid stands for one user, and not for all users without a uid in this user namespace."""
    try:
        if uid != int(_read("/proc/sys/kernel/overflowuid")):
            return True
        counts = [int(line.split()[2]) for line in _read("/proc/self/uid_map").splitlines()]
    except OSError:  # /proc does not exist
        return False
    return sum(counts) >= ALL_USERS


def is_trusted(connection: "_socket.socket") -> "bool | None":
    """Return whether a daemon is root's or this user's; None if a Proof is needed, because the daemon's user has no
    uid here.

    ``connection`` is a connected socket. Another user's daemon could read a client's data, so a program does not
    become the client of a daemon that is not trusted.
    """
    uid = uid_of(connection)
    if not is_one_user(uid):
        return None
    return uid in (0, posix.getuid())


class Proof:
    """The proof that a daemon sends on request: ``with Proof(connection) as proof: ... proof.receive()``."""

    def __init__(self, connection: "_socket.socket") -> None:
        """Send the request to the daemon. Raise OSError if it cannot be sent."""
        self._connection = connection
        self._pidfd = -1 if is_one_user(posix.getuid()) else _pidfd_of(connection)
        self._may_be_own = _permits_signals(self._pidfd)
        connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        connection.sendall(frames.encode(frames.CREDENTIALS_REQUEST))

    def __enter__(self) -> "Proof":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pidfd >= 0:
            posix.close(self._pidfd)

    def receive(self) -> "bool | None":
        """Receive the answer; return whether it proves that the daemon is root's or this user's.

        Return None if the connection has ended: older daemons close it. Raise OSError.
        """
        # One read is enough, because the daemon sends nothing else before the hello, and sends this frame separately.
        try:
            data, controls, _, _ = self._connection.recvmsg(frames.HEADER_BYTES, _socket.CMSG_SPACE(UCRED_BYTES))
        except ConnectionResetError:
            return None
        # Turn credentials off again: later messages bring descriptors, which need the space.
        self._connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 0)
        if not data:
            return None
        credentials = b"".join(
            payload
            for level, kind, payload in controls
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_CREDENTIALS)
        )
        if data != frames.encode(frames.CREDENTIALS) or len(credentials) != UCRED_BYTES:
            return False
        pid, uid = int.from_bytes(credentials[:4], "little"), _uid(credentials)
        if pid == posix.getpid() or (uid == posix.getuid() and is_one_user(uid)):
            return True
        # The process has not ended meanwhile, so the PID is its own.
        return self._may_be_own and _permits_signals(self._pidfd) and pid == _pid_of(self._pidfd)


def _pidfd_of(connection: "_socket.socket") -> int:
    """Return a pidfd of the process that listens; -1 if none is available."""
    try:
        return connection.getsockopt(_socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return -1


def _permits_signals(pidfd: int) -> bool:
    try:
        _signal.pidfd_send_signal(pidfd, 0)
    except OSError:
        return False
    return True


def _pid_of(pidfd: int) -> int:
    """Return a process's PID; 0 if it has no PID in this PID namespace. Raise OSError."""
    return max(0, int(_read(f"/proc/self/fdinfo/{pidfd}").partition(b"\nPid:")[2].split()[0]))


def _uid(credentials: bytes) -> int:
    return int.from_bytes(credentials[4:8], "little")


def _read(path: str) -> bytes:
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(fd, 1 << 16)
    finally:
        posix.close(fd)
