"""Which servers are on a device of a machine that a file describes, and what their clients hold there.

A server is on a device from ``register`` to ``end``, or to its process's end: its file ``<uuid>.<any>.server`` holds
its PID and is locked while it lives, so what a killed one leaves behind is known as such, and removed. It counts only
as the file of that process's own user: nobody registers a process of somebody else. Beside it ``<uuid>.<any>.use``
has a line of PID and bytes for every client, and one of -1 and bytes for what those who have gone still hold. Whoever
looks or registers locks the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable
from typing import Final

from attrs import define, frozen

from pympsd.devices.machine import BadMachine
from pympsd.devices.state_folder import READ_BYTES, StateFolder, read, replace

GONE: Final = -1
"""Instead of a PID: clients that have gone, whose kernels still run."""
_SERVER: Final = ".server"
_USE: Final = ".use"


class InUse(Exception):
    """A device that a server wants for itself has another one, whose PID is ``pid``."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} uses it")
        self.pid = pid


@frozen
class Registered:
    """A server that is on a device, with (PID, bytes) of its clients there."""

    pid: int
    clients: tuple[tuple[int, int], ...]


@define
class Registration:
    """This process's registration on one device."""

    _folder: int
    _stem: str
    _lock: int

    def report(self, clients: Iterable[tuple[int, int]]) -> None:
        """Say what clients hold, (PID, bytes) of each. Where it cannot be written the last figures stay."""
        text = "".join(f"{pid} {count}\n" for pid, count in clients)
        with contextlib.suppress(OSError):
            replace(self._folder, self._stem + _USE, text.encode())

    def end(self) -> None:
        """Leave the device."""
        for suffix in (_USE, _SERVER):
            _remove(self._folder, self._stem + suffix)
        os.close(self._lock)
        os.close(self._folder)


def register(folder: StateFolder, uuid: str, alone: bool, patience: float | None = None) -> Registration:
    """Enter this process as a server on a device; raise InUse when it is to be ``alone`` and is not, or OSError.

    TimeoutError: somebody kept the folder locked for ``patience`` seconds, or as many as it has unless given.
    """
    with folder.locked(patience) as opened:
        others = _living(opened, uuid)
        if alone and others:
            raise InUse(next(iter(others.values())).pid)
        stem = f"{uuid}.{os.urandom(8).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        lock = os.open(stem + _SERVER, flags, dir_fd=opened)
        try:
            os.fchmod(lock, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, b"%d\n" % os.getpid())
            # Opened anew: a copy of the descriptor would keep the folder locked.
            return Registration(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=opened), stem, lock)
        except BaseException:
            os.close(lock)
            _remove(opened, stem + _SERVER)
            raise


def registered(folder: StateFolder, uuid: str) -> list[Registered]:
    """Return the servers on a device in order of their PIDs; none where there is no folder.

    Raises BadMachine when it cannot be seen who is there.
    """
    try:
        with folder.locked() as opened:
            found = _living(opened, uuid)
            return sorted((_with_use(opened, stem, one) for stem, one in found.items()), key=lambda one: one.pid)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadMachine(f"who uses the devices cannot be seen: {folder.trouble(error)}") from None


def _living(folder: int, uuid: str) -> dict[str, Registered]:
    """Return the servers that live, by the stem of their files' names, and remove what dead ones left."""
    names = [name for name in os.listdir(folder) if name.startswith(f"{uuid}.") and name.endswith(_SERVER)]
    looked_at = {name.removesuffix(_SERVER): _server(folder, name) for name in names}
    return {stem: server for stem, server in looked_at.items() if server is not None}


def _server(folder: int, name: str) -> Registered | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            for left in (name.removesuffix(_SERVER) + _USE, name):
                _remove(folder, left)
            return None
        pid = int(os.read(fd, READ_BYTES))
        return Registered(pid, ()) if _belongs_to(pid, status.st_uid) else None
    except (OSError, ValueError, OverflowError):
        return None
    finally:
        os.close(fd)


def _belongs_to(pid: int, uid: int) -> bool:
    """Whether a process is there and a user's; raises ProcessLookupError or OverflowError when it cannot be there.

    The owner of /proc/PID is no answer: it is root for a process that cannot be dumped.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file if b":" in line)
        return int(fields[b"Uid"].split()[1]) == uid
    except OSError:
        pass
    try:
        if pid > 0:
            os.kill(pid, 0)
        return False
    except PermissionError:
        # It is there, and /proc hides it (hidepid): whose it is cannot be seen, so an exclusive device stays kept.
        return True


def _with_use(folder: int, stem: str, server: Registered) -> Registered:
    try:
        text, _ = read(folder, stem + _USE)
        pairs = [line.split() for line in text.decode().splitlines()]
        return Registered(server.pid, tuple((int(pid), int(count)) for pid, count in pairs))
    except (OSError, ValueError):
        return server


def _remove(folder: int, name: str) -> None:
    # In a folder like /tmp another user's file stays.
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
