"""Claim the pipe directory, and make its lock, PID file, sockets and FIFO with the modes of the vendor's daemon.

Only files that a killed daemon left are replaced (``remains``). A daemon does not start in a directory where one of
its names belongs to a file of another kind, or to another program's socket.

A path with a symbolic link is refused if another user decides, or could decide, where it leads (`process.links`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Collection, Iterator
from typing import Final

from attrs import define, field

from pympsd.errors import StartError
from pympsd.process.links import UntrustedLink, check_links
from pympsd.service.files import remains
from pympsd.service.files.lock_holders import Holder, are_foreign, find_holders, find_listener
from pympsd.vocabulary import files

DIRECTORY_MODE = 0o755
MODES = {
    files.CONTROL: 0o666,
    files.OWN_CONTROL: 0o666,
    files.LOCK: 0o666,
    files.CONTROL_PRIVILEGED: 0o755,
    files.LOG_FIFO: 0o777,
    files.KEEPER: 0o600,
}
PID_MODE = 0o644
DRIVERS_PID_MODE = 0o666
"""The mode of the driver's PID file, as recorded: all users can write to it. A script that trusts the file would kill
any PID that somebody writes there.
"""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
BACKLOG = 4096
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""Symbolic links are not followed: with one, a user could make root's daemon open any file to all users."""


class Unusable(StartError):
    """The directory cannot hold a daemon; the message contains the reason and a remedy."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(reason)
        self.directory = directory


class AlreadyRunning(StartError):
    """Another daemon holds the lock of the directory; the message names the process, if it is visible."""


@define
class PipeDirectory:
    """A claimed pipe directory: the lock is held until the process ends."""

    requested_path: str
    """The path as the environment gives it, for logs and answers."""
    path: str
    _lock: int
    _fds: list[int] = field(factory=list, init=False)

    @classmethod
    def claim(cls, requested_path: str) -> PipeDirectory:
        """Lock the directory, creating it if its parent exists.

        Replace a lock that only other users' processes hold if none of these is a daemon, and if this user may
        replace files in the directory.

        Raise AlreadyRunning if a daemon holds the lock. Raise Unusable if the directory cannot hold a daemon, if
        another user decides where its path leads, or if somebody's own files or sockets have a daemon's names there.
        """
        path = os.path.abspath(requested_path)
        file = os.path.join(path, files.LOCK)
        longest = os.path.join(path, files.CONTROL_PRIVILEGED)
        if len(os.fsencode(longest)) > files.MAX_SOCKET_PATH:
            maximum = files.MAX_SOCKET_PATH - len(files.CONTROL_PRIVILEGED) - 1
            raise Unusable(
                requested_path,
                f"{requested_path} is too long for a socket: choose a path of at most {maximum} bytes",
            )
        try:
            check_links(path)
            if not os.path.isdir(path):
                os.mkdir(path, DIRECTORY_MODE)
            for name in files.OF_THE_DAEMON:
                # A PID file that this user may not read is another user's, whose daemon may run: the lock decides.
                with contextlib.suppress(PermissionError):
                    remains.check(os.path.join(path, name))
            lock = os.open(file, LOCK_FLAGS, MODES[files.LOCK])
        except UntrustedLink as error:
            raise Unusable(requested_path, f"{error.filename}: {error.strerror}") from None
        except remains.NotOfADaemon as error:
            raise Unusable(requested_path, f"{error}, or choose another directory") from None
        except OSError as error:
            raise Unusable(
                requested_path, f"{requested_path}: {error.strerror}; choose a directory that can be made or written"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            holders = find_holders(file)
            if not are_foreign(holders, os.path.join(path, files.CONTROL)):
                raise AlreadyRunning(_describe_holder(path, holders)) from None
            lock = _replace_lock(requested_path, file, holders[0])
        try:
            _check_listeners(requested_path, path)
        except Unusable:
            os.close(lock)
            raise
        # The mode of a lock that another user's daemon left cannot be changed; that the lock could be opened is
        # enough.
        with contextlib.suppress(PermissionError):
            os.fchmod(lock, MODES[files.LOCK])
        return cls(requested_path, path, lock)

    @property
    def control_socket(self) -> str:
        """The path of the daemon's main socket, as the environment gives the directory."""
        return os.path.join(self.requested_path, files.CONTROL)

    def name(self, file: str) -> str:
        """Return the full path of one of the directory's files."""
        return os.path.join(self.path, file)

    def listen(self, file: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """Return a listening socket; replace one that a dead daemon left. Raise Unusable."""
        with self._replace(file), contextlib.ExitStack() as on_error:
            listener = on_error.enter_context(socket.socket(socket.AF_UNIX, kind))
            listener.bind(self.name(file))
            _set_mode(self.name(file))
            listener.listen(BACKLOG)
            on_error.pop_all()
            return listener

    def set_modes(self, clients_only: bool, sockets: Collection[str]) -> None:
        """Set the modes of sockets, which depend on whether operators are refused at ``control``."""
        for file, mode in files.CLIENTS_ONLY_MODES.items():
            if file in sockets:
                os.chmod(self.name(file), mode if clients_only else MODES[file])

    def open_fifo(self) -> int:
        """Create the log FIFO and open it for reading and writing, so that reading it never meets an end of file."""
        with self._replace(files.LOG_FIFO):
            os.mkfifo(self.name(files.LOG_FIFO))
            _set_mode(self.name(files.LOG_FIFO))
            return os.open(self.name(files.LOG_FIFO), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def write_pid(self, pid: int, mode: int = PID_MODE) -> None:
        """Write the pid file, in decimal without a newline."""
        with self._replace(files.PID):
            fd = os.open(self.name(files.PID), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                os.fchmod(fd, mode)
                os.write(fd, str(pid).encode())
            finally:
                os.close(fd)

    def mark_named_servers(self, has_named_servers: bool) -> None:
        """Create or remove the file from which clients learn that named servers exist. Raise Unusable."""
        path = self.name(files.NAMED_SERVERS)
        if has_named_servers:
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PID_MODE))
            except OSError as error:
                raise Unusable(self.requested_path, f"{path}: {error.strerror}; remove it") from None
        else:
            # If the file stays, programs that would run without MPS are refused, so no limit is bypassed.
            with contextlib.suppress(OSError):
                remains.remove(path)

    def remove(self, file: str) -> None:
        """Remove one of the directory's files if a daemon made it, unless another daemon has taken the directory."""
        if not self.is_taken_by_another():
            with contextlib.suppress(remains.NotOfADaemon):
                remains.remove(self.name(file))

    def is_taken_by_another(self) -> bool:
        """Return whether another daemon has taken the directory, because the directory or its lock was removed."""
        try:
            present, own = os.stat(self.name(files.LOCK)), os.fstat(self._lock)
        except OSError:
            return self._pid_file_names_another()
        return (present.st_dev, present.st_ino) != (own.st_dev, own.st_ino)

    def release(self, *, handed_over: bool = False) -> None:
        """Remove the pid file and the FIFO, as the vendor's daemon does, and pympsd's own files; release the lock.

        ``handed_over``: leave the state, and the description of devices, for the next daemon. Change nothing if
        another daemon has taken the directory.
        """
        if not self.is_taken_by_another():
            lasting = () if handed_over else (files.STATE, files.NVML)
            for file in (files.PID, files.LOG_FIFO, files.NEW_STATE, files.NEW_NVML, *lasting):
                with contextlib.suppress(remains.NotOfADaemon):
                    remains.remove(self.name(file))
        os.close(self._lock)

    def _pid_file_names_another(self) -> bool:
        """Return whether the pid file exists and names another process."""
        try:
            fd = os.open(self.name(files.PID), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        with os.fdopen(fd, "rb", buffering=0) as file, contextlib.suppress(OSError, ValueError):
            return int(file.read(32) or b"") != os.getpid()
        return False

    @contextlib.contextmanager
    def _replace(self, file: str) -> Iterator[None]:
        """Replace a file that a dead daemon left; raise Unusable if it cannot be created."""
        try:
            remains.remove(self.name(file))
            yield
        except remains.NotOfADaemon as error:
            raise Unusable(self.requested_path, f"{error}, or choose another directory") from None
        except OSError as error:
            remedy = "make room there, or" if error.errno in NO_ROOM else "this user cannot write there:"
            reason = f"{self.name(file)}: {error.strerror}; {remedy} choose another directory"
            raise Unusable(self.requested_path, reason) from None


def _describe_holder(path: str, holders: list[Holder]) -> str:
    """Name the process that has the lock of a directory or, if this user cannot see it, the process that listens
    there.
    """
    if holders:
        return f"{os.path.join(path, files.LOCK)} is open in {' and '.join(map(str, holders))}"
    control = os.path.join(path, files.CONTROL)
    listener = find_listener(control)
    return "" if listener is None else f"{listener} listens at {control}"


def _check_listeners(requested_path: str, path: str) -> None:
    """Raise Unusable if a program other than a daemon listens at a socket that a daemon would replace.

    A state file or a keeper's socket shows that the sockets are a daemon's; then they may be replaced.
    """
    if any(os.path.lexists(os.path.join(path, name)) for name in files.OF_A_RUNNING_DAEMON):
        return
    for file in (files.CONTROL, files.CONTROL_PRIVILEGED, files.OWN_CONTROL):
        place = os.path.join(path, file)
        if (listener := find_listener(place)) is not None:
            remedy = "end it, or choose another directory"
            raise Unusable(
                requested_path, f"{listener}, which is not a daemon of this directory, listens at {place}: {remedy}"
            )


def _replace_lock(requested_path: str, file: str, holder: Holder) -> int:
    """Replace a lock that a process other than a daemon holds; return a descriptor of the new lock."""
    try:
        os.unlink(file)
        lock = os.open(file, LOCK_FLAGS | os.O_EXCL, MODES[files.LOCK])
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        reason = f"{holder}, which is not a daemon, holds {file}, and that cannot be replaced: {error.strerror}"
        raise Unusable(requested_path, f"{reason}; end the process, or choose another directory") from None
    return lock


def _set_mode(path: str) -> None:
    os.chmod(path, MODES[os.path.basename(path)])
