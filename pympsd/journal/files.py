"""A log file: appended to line by line, the same inode until it is reopened."""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import Final

MODE = 0o644
_TRUSTED: Final = frozenset({0, os.geteuid()})
"""The users whose links are followed."""


class LogFile:
    """Appends lines to a file, or (path None) to standard output. A line that cannot be written is dropped.

    ``dropped``: the number of lines dropped since the last report; ``reason``: why the last one was.
    """

    def __init__(self, path: str | None) -> None:
        """Open the file for appending, creating it if missing; raise OSError if that fails."""
        self._path = path
        self._fd = _open(path) if path is not None else os.dup(1)
        self._room = select.poll()
        self._room.register(self._fd, select.POLLOUT)
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
        if self._path is None and not self._room.poll(0):
            self.reason = "nobody reads standard output"
            return False
        data = b"\n" + line if self._torn else line
        try:
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
        """Open the path again, after the file was moved away; keep the old file if that fails."""
        if self._path is None:
            return
        try:
            fd = _open(self._path)
        except OSError:
            return
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        os.close(self._fd)
        self._fd = -1


def _open(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, MODE)
    except FileExistsError:
        # A file of another user, a link or a device: its mode is not changed.
        _check_link(path)
        fd = os.open(path, flags)
        try:
            _check_hard_links(path, os.fstat(fd))
        except OSError:
            os.close(fd)
            raise
        return fd
    os.fchmod(fd, MODE)
    return fd


def _check_link(path: str) -> None:
    """Raise OSError for a symbolic link that another user has made: it may lead to any file of this one's."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in _TRUSTED:
        raise OSError(errno.ELOOP, f"it is a symbolic link that user {status.st_uid} has made", path)


def _check_hard_links(path: str, status: os.stat_result) -> None:
    """Raise OSError for a file with several names in a folder of another user, who may have made this one."""
    owner = os.stat(os.path.dirname(path)).st_uid
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and owner not in _TRUSTED:
        raise OSError(errno.EMLINK, f"it has {status.st_nlink} names (links), and the folder is user {owner}'s", path)
