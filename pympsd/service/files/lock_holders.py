"""Find the processes that hold the lock of a pipe directory, or listen there.

Any user may hold the lock, because its file has the vendor's mode, 0666.
"""

import os
import socket
import time
from contextlib import suppress
from typing import Final

from attrs import frozen

from pympsd.channel.descriptors import UCRED
from pympsd.service.processes.status import STATE, stat

STARTING_SECONDS: Final = 2.0
"""The time in seconds within which a daemon listens after it has taken the lock."""
POLL_SECONDS: Final = 0.05


@frozen
class Holder:
    """A process that has the lock open, or listens at a socket; PID 0 if its PID namespace is not
    visible from here.
    """

    pid: int
    uid: int

    def __str__(self) -> str:
        return f"process {self.pid or '(of another PID namespace)'} of user {self.uid}"


def holders(lock: str) -> list[Holder]:
    """Return the other processes that have a lock open, as far as this user may see that."""
    holding = []
    with suppress(OSError):
        status = os.stat(lock)
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid() and has_open(int(name), status):
                with suppress(OSError):
                    holding.append(Holder(int(name), os.stat(f"/proc/{name}").st_uid))
    return holding


def are_foreign(holding: list[Holder], control: str) -> bool:
    """Return whether a lock's holders cannot be a daemon: none listens, and all belong to other users.

    Wait up to STARTING_SECONDS, because another user's daemon may just be starting.
    """
    if not holding or any(holder.uid in (0, os.geteuid()) for holder in holding):
        return False
    give_up = time.monotonic() + STARTING_SECONDS
    while find_listener(control) is None:
        if time.monotonic() > give_up:
            return True
        time.sleep(POLL_SECONDS)
    return False


def has_open(pid: int, status: os.stat_result) -> bool:
    """Return whether a process has a file open, as far as this user may see that."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # the process has ended, or is another user's
        return False
    for name in names:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), status):
                return True
    return False


def listener_of(control: str) -> tuple[int, int, int] | None:
    """Return PID, uid and gid of the process that began to listen at a socket. The socket may be its keeper's by now.

    The PID is 0 if its PID namespace is not visible from here. Return None if nobody listens.
    """
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as sock:
            sock.settimeout(POLL_SECONDS)
            with suppress(OSError):
                sock.connect(control)
                return UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    return None


def find_listener(control: str) -> Holder | None:
    """Return the process that listens at a socket; None if nobody does, or only the keeper of an ended process."""
    listener = listener_of(control)
    if listener is None:
        return None
    fields = stat(listener[0])
    is_alive = listener[0] == 0 or (bool(fields) and fields[STATE] not in (b"Z", b"X"))
    return Holder(*listener[:2]) if is_alive else None
