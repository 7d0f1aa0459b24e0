"""The fake server's log: binary records for the daemon's named pipe."""

from __future__ import annotations

import contextlib
import os
import struct
import time

from .peer import pipe_directory

SERVER, OTHER = 1, 3
_MAGIC = 0xABCDE000


def record(origin: int, text: str, now: float) -> bytes:
    """Return the record of a line at a time, in seconds since the epoch."""
    at = time.localtime(now)
    weekday = (at.tm_wday + 1) % 7  # C's: Sunday is 0
    date = (at.tm_year, at.tm_mon, at.tm_mday, weekday, at.tm_hour, at.tm_min, at.tm_sec, int(now % 1 * 1000))
    body = text.encode()
    return struct.pack("<I9iq", _MAGIC + origin, os.getpid(), *date, len(body)) + body


def write(text: str, origin: int = SERVER) -> None:
    """Write one line; it is lost, as the real server's are, without a pipe or without a reader."""
    with contextlib.suppress(OSError):
        # Opened again for each line: the next daemon may have made another pipe.
        pipe = os.open(os.path.join(pipe_directory(), "log"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, record(origin, text, time.time()))
        finally:
            os.close(pipe)
