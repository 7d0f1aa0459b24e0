"""A log file: opened once, appended to line by line, the same inode for the daemon's life."""

from __future__ import annotations

import errno
import os
import select

MODE = 0o644


class LogFile:
    """Appends lines to a file, or (path None) to standard output. A line that cannot be written is dropped.

    ``dropped`` and ``reason``: how many have been since somebody was told, and why the last one.
    """

    def __init__(self, path: str | None) -> None:
        """Open the file for appending, making it when missing; raise OSError when that cannot be."""
        self._path = path
        self._fd = _open(path) if path is not None else os.dup(1)
        self._room = select.poll()
        self._room.register(self._fd, select.POLLOUT)
        self._torn = False
        """The last line was written in part: the next one begins on a line of its own."""
        self.dropped = 0
        self.reason = ""

    def write(self, line: bytes) -> None:
        """Append one line in one write, so that lines of several processes never mix."""
        if not self._append(line):
            self.dropped += 1

    def report_dropped(self, line: bytes) -> None:
        """Append a line that says how many were dropped; when it can be written they are counted no more."""
        if self._append(line):
            self.dropped = 0

    def _append(self, line: bytes) -> bool:
        # Standard output may be a pipe that nobody reads: it must not hold the daemon up.
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
            # The disk is full: it took the beginning only.
            self._torn, self.reason = True, os.strerror(errno.ENOSPC)
            return False
        self._torn = False
        return True

    def reopen(self) -> None:
        """Let go of a file that was moved away and open the path anew; keep the old one when that fails."""
        if self._path is None:
            return
        try:
            fd = _open(self._path)
        except OSError:
            return
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Close it; later lines are dropped."""
        os.close(self._fd)
        self._fd = -1


def _open(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, MODE)
    except FileExistsError:
        # Somebody's file, a link or a device: it is written to as it is.
        return os.open(path, flags)
    os.fchmod(fd, MODE)
    return fd
