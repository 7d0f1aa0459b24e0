"""A log file: opened once, appended to line by line, the same inode for the daemon's life."""

from __future__ import annotations

import os
import select

MODE = 0o644


class LogFile:
    """Appends lines to a file, or (path None) to standard output. A line that cannot be written is dropped."""

    def __init__(self, path: str | None) -> None:
        """Open the file for appending, making it when missing; raise OSError when that cannot be."""
        self._path = path
        self._fd = _open(path) if path is not None else os.dup(1)
        self._room = select.poll()
        self._room.register(self._fd, select.POLLOUT)
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Append one line in one write, so that lines of several processes never mix."""
        # Standard output may be a pipe that nobody reads: it must not hold the daemon up.
        if self._path is None and not self._room.poll(0):
            self.dropped += 1
            return
        try:
            os.write(self._fd, line)
        except OSError:
            self.dropped += 1

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
