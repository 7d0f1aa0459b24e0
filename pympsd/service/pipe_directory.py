"""The pipe directory: its lock, pid file, sockets and fifo, with the modes of the reference; stale files cleared."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat

from attrs import define, field

from pympsd.vocabulary import files

DIRECTORY_MODE = 0o755
MODES = {files.CONTROL: 0o666, files.LOCK: 0o666, files.CONTROL_PRIVILEGED: 0o755, files.LOG_FIFO: 0o777}
PID_MODE = 0o666
BACKLOG = 4096
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""A link in its place is not followed: its owner would have root's daemon open another file to everyone."""


class Unusable(Exception):
    """The directory cannot hold a daemon; the message says why and what to do."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(reason)
        self.directory = directory


class AlreadyRunning(Exception):
    """Another daemon holds the lock of the directory."""


@define
class PipeDirectory:
    """A claimed pipe directory: the lock is held until the process ends."""

    given: str
    """As the environment named it: logs and answers show it like that."""
    path: str
    _lock: int
    _fds: list[int] = field(factory=list, init=False)

    @classmethod
    def claim(cls, given: str) -> PipeDirectory:
        """Make the directory when only it is missing, and take its lock; raise Unusable or AlreadyRunning."""
        path = os.path.abspath(given)
        longest = os.path.join(path, files.CONTROL_PRIVILEGED)
        if len(os.fsencode(longest)) > files.SOCKET_PATH_LIMIT:
            room = files.SOCKET_PATH_LIMIT - len(files.CONTROL_PRIVILEGED) - 1
            raise Unusable(given, f"{given} is too long for a socket: choose a path of at most {room} bytes")
        try:
            if not os.path.isdir(path):
                os.mkdir(path, DIRECTORY_MODE)
            lock = os.open(os.path.join(path, files.LOCK), LOCK_FLAGS, MODES[files.LOCK])
        except OSError as error:
            raise Unusable(
                given, f"{given}: {error.strerror}; choose a directory that can be made or written"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise AlreadyRunning(given) from None
        # A lock left by another user's daemon cannot be changed; it could be opened, so it serves.
        with contextlib.suppress(PermissionError):
            os.fchmod(lock, MODES[files.LOCK])
        return cls(given, path, lock)

    def name(self, file: str) -> str:
        """Return the full path of one of the directory's files."""
        return os.path.join(self.path, file)

    def listen(self, file: str) -> socket.socket:
        """Bind a listening socket, in place of one a dead daemon left."""
        self._remove(file)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.name(file))
        _set_mode(self.name(file))
        listener.listen(BACKLOG)
        return listener

    def open_fifo(self) -> int:
        """Make the log fifo and open it, for reading and writing, so that it never ends."""
        self._remove(files.LOG_FIFO)
        os.mkfifo(self.name(files.LOG_FIFO))
        _set_mode(self.name(files.LOG_FIFO))
        return os.open(self.name(files.LOG_FIFO), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def write_pid(self, pid: int) -> None:
        """Write the pid file: decimal, without a newline."""
        self._remove(files.PID)
        fd = os.open(self.name(files.PID), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PID_MODE)
        os.fchmod(fd, PID_MODE)
        os.write(fd, str(pid).encode())
        os.close(fd)

    def leave(self) -> None:
        """Remove the pid file and the fifo, as the vendor's daemon does; the others stay. Give the lock back."""
        for file in (files.PID, files.LOG_FIFO):
            self._remove(file)
        os.close(self._lock)

    def _remove(self, file: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(self.name(file)).st_mode):
                raise Unusable(self.given, f"{self.name(file)} is a directory: remove it")
            os.unlink(self.name(file))


def _set_mode(path: str) -> None:
    os.chmod(path, MODES[os.path.basename(path)])
