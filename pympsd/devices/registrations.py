"""Register servers on the devices of an emulated machine, and list them with the memory that their clients hold
there.

A server is registered on a device from ``register`` until ``end`` or the end of its process. Its file
``<uuid>.<any>.server`` contains its PID and is locked while the process lives, so the files of a killed server are
recognized and removed. The file counts only if it belongs to that process's user, so that a user cannot register
another user's process. The file ``<uuid>.<any>.use`` next to it has a line for each client: its PID and the bytes
that it holds. A line that begins with -1 has the bytes that exited clients still hold. A line that begins with -2 has
the utilization in percent; it is absent if that is 0. Reading and registering both lock the folder.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable
from typing import Final

from attrs import define, frozen

from pympsd.devices.machine import BadMachine
from pympsd.devices.state_folder import READ_BYTES, StateFolder, read, replace
from pympsd.errors import DeviceError

GONE: Final = -1
"""The number that is in place of a PID for exited clients whose kernels still run."""
_UTILIZATION: Final = -2
"""The number that is in place of a PID in the line with the utilization."""
_SERVER: Final = ".server"
_USE: Final = ".use"


class InUse(DeviceError):
    """Raised when a server needs a device for itself, but another server uses the device.

    Args:
        pid: The other server's process.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} uses it")
        self.pid = pid


@frozen
class Registered:
    """A server on a device, as its files report it.

    ``clients`` has a (PID, bytes) pair for each client; the PID is GONE for memory that exited clients still hold.
    """

    pid: int
    clients: tuple[tuple[int, int], ...]
    utilization: int = 0
    """The percentage of the last second in which kernels of the server's clients ran on the device."""


@define
class Registration:
    """This process's registration on one device, from `register` until ``end``.

    The lock on its file ends with the process, so a server that is killed does not stay registered.
    """

    _folder: int
    _stem: str
    _lock: int

    def report(self, clients: Iterable[tuple[int, int]], utilization: int = 0) -> None:
        """Write how much memory the clients hold, and how busy the device was.

        If the file cannot be written, the last figures stay in it and nothing is raised.

        Args:
            clients: The PID of each client, and the bytes that it holds.
            utilization: The percentage of the last second in which kernels ran.
        """
        rows = *clients, *([(_UTILIZATION, utilization)] if utilization else [])
        text = "".join(f"{pid} {count}\n" for pid, count in rows)
        with contextlib.suppress(OSError):
            replace(self._folder, self._stem + _USE, text.encode())

    def end(self) -> None:
        """Leave the device: remove the files and release the lock. The registration cannot be used afterwards."""
        for suffix in (_USE, _SERVER):
            _remove(self._folder, self._stem + suffix)
        os.close(self._lock)
        os.close(self._folder)


def register(folder: StateFolder, uuid: str, alone: bool, timeout: float | None = None) -> Registration:
    """Register this process as a server on a device.

    Args:
        folder: The state folder of the machine.
        uuid: The device.
        alone: Whether this process must be the only server, as in compute mode EXCLUSIVE_PROCESS.
        timeout: Seconds to wait for the folder's lock; None means state_folder.LOCK_SECONDS.

    Raises:
        InUse: Another server has the device, and this one must be alone.
        TimeoutError: Another process kept the folder locked for that time.
        OSError: The folder cannot be used.
    """
    with folder.lock(timeout) as opened:
        registrants = _find_living(opened, uuid)
        if alone and registrants:
            raise InUse(next(iter(registrants.values())).pid)
        stem = f"{uuid}.{os.urandom(8).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        lock = os.open(stem + _SERVER, flags, dir_fd=opened)
        try:
            os.fchmod(lock, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, b"%d\n" % os.getpid())
            # Opened again: a copy of the descriptor would keep the folder locked.
            return Registration(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=opened), stem, lock)
        except BaseException:
            os.close(lock)
            _remove(opened, stem + _SERVER)
            raise


def list_registered(folder: StateFolder, uuid: str) -> list[Registered]:
    """Return the servers on a device, sorted by PID; an empty list if the folder does not exist.

    Raise BadMachine if they cannot be read.
    """
    try:
        with folder.lock() as opened:
            living = _find_living(opened, uuid)
            return sorted(
                (_add_use(opened, stem, server) for stem, server in living.items()), key=lambda server: server.pid
            )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadMachine(f"cannot determine which processes use the devices: {folder.explain(error)}") from None


def _find_living(folder: int, uuid: str) -> dict[str, Registered]:
    """Return the living servers by the stem of their files' names, and remove the files of dead ones."""
    names = [name for name in os.listdir(folder) if name.startswith(f"{uuid}.") and name.endswith(_SERVER)]
    servers = {name.removesuffix(_SERVER): _server(folder, name) for name in names}
    return {stem: server for stem, server in servers.items() if server is not None}


def _server(folder: int, name: str) -> Registered | None:
    """Return the server that a file registers, or None. Remove the files of a server that has ended."""
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
            for stale_file in (name.removesuffix(_SERVER) + _USE, name):
                _remove(folder, stale_file)
            return None
        pid = int(os.read(fd, READ_BYTES))
        return Registered(pid, ()) if _belongs_to(pid, status.st_uid) else None
    except (OSError, ValueError, OverflowError):
        return None
    finally:
        os.close(fd)


def _belongs_to(pid: int, uid: int) -> bool:
    """Return whether a process exists and belongs to a user; raise ProcessLookupError or OverflowError for no PID.

    The owner of /proc/PID is not compared, because that is root if the process is not dumpable.
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
        # The process exists, but /proc hides its user (hidepid), so an exclusive device stays reserved.
        return True


def _add_use(folder: int, stem: str, server: Registered) -> Registered:
    try:
        text, _ = read(folder, stem + _USE)
        pairs = [line.split() for line in text.decode().splitlines()]
        rows = [(int(pid), int(count)) for pid, count in pairs]
        utilization = next((count for pid, count in rows if pid == _UTILIZATION), 0)
        clients = tuple(row for row in rows if row[0] != _UTILIZATION)
        return Registered(server.pid, clients, max(0, utilization))
    except (OSError, ValueError):
        return server


def _remove(folder: int, name: str) -> None:
    # In a sticky folder like /tmp another user's file stays.
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
