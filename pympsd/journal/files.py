"""A log file: appended to line by line, the same inode until it is reopened."""

import contextlib
import errno
import os
import select
import stat
from collections.abc import Iterator
from typing import Final

from pympsd.process.links import check_links

MODE: Final = 0o644
FOLDER_MODE: Final = 0o755
_TRUSTED: Final = frozenset({0, os.geteuid()})
"""The users in whose folders a log may have several names."""


class LogFile:
    """Appends lines to a file, or (path None) to standard output. A line that cannot be written is dropped.

    ``dropped``: the number of lines dropped since the last report; ``reason``: why the last one was.
    """

    def __init__(
        self, path: str | None, user: int | None = None, former: int | None = None, *, late: bool = False
    ) -> None:
        """Open the file for appending, creating it if missing; raise OSError if that fails.

        ``user``: who will own the file and its folder, which is also made; ``former``: who may own them now.
        ``late``: open the file when its first line is written.
        """
        self.path, self._user = path, user
        self._is_late = late
        self._fd = -1
        self._room = select.poll()
        if path is None:
            self._fd = os.dup(1)
            self._room.register(self._fd, select.POLLOUT)
        elif not late:
            self._fd = _open(path, user, former)
        self._torn = False
        """The last line was written in part: the next one begins with a newline."""
        self.dropped = 0
        self.reason = ""

    def write(self, line: bytes) -> None:
        """Append one line in one write, so that lines of several processes never mix."""
        if not self._append(line):
            self.dropped += 1

    def report_dropped(self, line: bytes) -> None:
        """Append a line that reports the dropped ones; if it is written, reset their count."""
        if self._append(line):
            self.dropped = 0

    def _append(self, line: bytes) -> bool:
        # Standard output may be a pipe that is not read: it must not block the daemon.
        if self.path is None and not self._room.poll(0):
            self.reason = "nobody reads standard output"
            return False
        data = b"\n" + line if self._torn else line
        try:
            if self._is_late and self.path is not None:
                self._fd, self._is_late = _open(self.path, self._user), False
            written = os.write(self._fd, data)
        except OSError as error:
            self.reason = error.strerror or str(error)
            return False
        if written < len(data):
            # The disk is full: only the beginning was written.
            self._torn, self.reason = True, os.strerror(errno.ENOSPC)
            return False
        self._torn = False
        return True

    def reopen(self) -> None:
        """Open the path again, after the file was moved away; raise OSError, and keep the old file, if that fails."""
        if self.path is None or self._is_late:
            return
        fd = _open(self.path, self._user)
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        os.close(self._fd)
        self._fd = -1


def _open(path: str, user: int | None, former: int | None = None) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    if user is not None:
        return _open_of_user(path, flags | os.O_NOFOLLOW, user, former)
    check_links(os.path.dirname(path))
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, MODE)
    except FileExistsError:
        # A file of another user, a link or a device: its mode is not changed.
        fd = _open_existing(path, flags)
        with _close_on_error(fd):
            _check_hard_links(path, os.fstat(fd))
        return fd
    os.fchmod(fd, MODE)
    return fd


def _open_of_user(path: str, flags: int, user: int, former: int | None) -> int:
    """Open a file in its user's folder. The user can put anything there, so links are not followed, and a file is
    written, and given to the user, only if the folder's owner owns it or if it is made here.
    """
    with _folder_of(path) as folder:
        _check_folder(folder, path, user, former)
        fd = _open_inside(folder, path, flags)
        with _close_on_error(fd):
            for open_fd in (fd, folder):
                if os.fstat(open_fd).st_uid != user:
                    os.fchown(open_fd, user, -1)
        return fd


@contextlib.contextmanager
def _folder_of(path: str) -> Iterator[int]:
    """Yield a descriptor of a file's folder, which is made if it is missing. Raise OSError."""
    name = os.path.dirname(path)
    is_new = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, FOLDER_MODE)
        is_new = True
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if is_new:
            os.fchmod(folder, FOLDER_MODE)
        yield folder
    finally:
        os.close(folder)


def _check_folder(folder: int, path: str, user: int, former: int | None) -> None:
    """Raise OSError for another user's folder, or for the daemon's own if it has other things in it: users choose
    servers' names.
    """
    owner, own = os.fstat(folder).st_uid, os.geteuid()
    is_free = user == own
    if not is_free and owner == own:
        # A folder that contains only logs of this name, moved away ones included, may be given to a server's user.
        is_free = all(file.startswith(os.path.basename(path)) for file in os.listdir(folder))
    if owner not in (user, former) and not is_free:
        raise OSError(errno.EPERM, f"the log's folder is user {owner}'s", path)


def _open_inside(folder: int, path: str, flags: int) -> int:
    """Open or make a file in an open folder; raise OSError unless it is a regular file of the folder's owner with one
    name.
    """
    name = os.path.basename(path)
    try:
        fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, MODE, dir_fd=folder)
    except FileExistsError:
        fd = os.open(name, flags, dir_fd=folder)
        with _close_on_error(fd):
            status, owner = os.fstat(fd), os.fstat(folder).st_uid
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid != owner:
                reason = f"the log must be a regular file of user {owner} with one name"
                raise OSError(errno.EPERM, reason, path) from None
        return fd
    with _close_on_error(fd):
        os.fchmod(fd, MODE)
    return fd


@contextlib.contextmanager
def _close_on_error(fd: int) -> Iterator[None]:
    try:
        yield
    except OSError:
        os.close(fd)
        raise


def _open_existing(path: str, flags: int) -> int:
    """Open a file; raise UntrustedLink if another user's link leads to it, which may be any file of this user."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    check_links(path)
    return os.open(path, flags)


def _check_hard_links(path: str, status: os.stat_result) -> None:
    """Raise OSError for a file with several names in a folder of another user, who may have made this one."""
    owner = os.stat(os.path.dirname(path)).st_uid
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and owner not in _TRUSTED:
        reason = f"the log has {status.st_nlink} names (links) in a folder of user {owner}; one is allowed there"
        raise OSError(errno.EMLINK, reason, path)
