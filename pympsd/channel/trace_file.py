"""Write a trace: a file in the JSON format of Chrome's tracing, which Perfetto reads. Several processes write it
together.

Every event is one line, appended by one write, so that a killed process leaves complete lines. Times are those of
CLOCK_MONOTONIC, which all processes of a machine share. A track is identified by the numbers of a process and a
thread, which need not exist; its names are events too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any, Final

BEGIN: Final = b"[\n"
ALLOWED: Final = "give the path of a new or empty file, or of a trace"
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


@lru_cache(1024)
def _quote(text: str) -> str:
    return json.dumps(text)


class TraceFile:
    """Appends to a trace, from any thread; owns the descriptor. After an error it stops writing.

    Several processes may write the same trace, each with a descriptor from `duplicate`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = Lock()
        """The lock that is held while the descriptor is used: after the descriptor is closed, its number may be
        another file's.
        """
        self._named: set[tuple[int, int | None]] = set()
        self.error = ""
        """The reason why writing stopped; empty if it did not."""

    @classmethod
    def make(cls, path: str) -> TraceFile:
        """Create a trace file and open it.

        Raises:
            OSError: The file exists, or cannot be created.
        """
        trace = cls(os.open(path, _FLAGS | os.O_EXCL, 0o644))
        trace._write(BEGIN)
        return trace

    @classmethod
    def open(cls, path: str) -> TraceFile:
        """Open a trace file for appending; create it if it does not exist.

        Raises:
            OSError: The file is not a trace, a link or a directory is at the path, or the file cannot be opened.
        """
        try:
            # O_NONBLOCK: opening a FIFO or a device must not wait.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno == errno.ELOOP and os.path.islink(path):
                raise OSError(errno.ELOOP, f"the path is a symbolic link; {ALLOWED}") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, f"the path is not a regular file; {ALLOWED}")
            if (begin := os.pread(fd, len(BEGIN), 0)) not in (b"", BEGIN):
                raise OSError(errno.EEXIST, f"the file is not a trace; {ALLOWED}")
            if not begin:
                # Written at offset 0, not appended, because another process may do the same at this moment.
                os.pwrite(fd, BEGIN, 0)
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def duplicate(self) -> int:
        """Return a second descriptor of the file, for another process, which closes it.

        Raises:
            OSError: No descriptor is left (EMFILE, ENFILE).
        """
        return os.dup(self._fd)

    def name(self, process: int, name: str, thread: int | None = None) -> None:
        """Name a process, or one of its threads, as the timeline shows it. A second name for it has no effect.

        Args:
            process: The PID.
            name: The name.
            thread: The thread's number; None to name the process itself.
        """
        if (process, thread) in self._named:
            return
        self._named.add((process, thread))
        kind = "process_name" if thread is None else "thread_name"
        track = {"pid": process} if thread is None else {"pid": process, "tid": thread}
        self._event({"ph": "M", "name": kind, **track, "args": {"name": name}})

    def slice(self, process: int, thread: int, name: str, began: int, ended: int, **details: Any) -> None:
        """Write an event that lasted from one time to another, in nanoseconds.

        ``began`` and ``ended`` are times of CLOCK_MONOTONIC, which all processes of a machine share; ``details``
        appear as the event's arguments.
        """
        # Formatted by hand for speed: a program writes one for each of its calls.
        self._write(
            f'{{"ph":"X","name":{_quote(name)},"pid":{process},"tid":{thread},"ts":{began / 1000},'
            f'"dur":{(ended - began) / 1000},"args":{json.dumps(details) if details else "{}"}}},\n'.encode()
        )

    def instant(self, process: int, thread: int, name: str, at: int, **details: Any) -> None:
        """Write an event that happened at a time, in nanoseconds.

        ``at`` is a time of CLOCK_MONOTONIC; ``details`` appear as the event's arguments.
        """
        self._event(
            {"ph": "i", "s": "t", "name": name, "pid": process, "tid": thread, "ts": at / 1000, "args": details}
        )

    def _event(self, event: dict[str, Any]) -> None:
        self._write(json.dumps(event, separators=(",", ":")).encode() + b",\n")

    def _write(self, line: bytes) -> None:
        with self._lock:
            if self._fd < 0:
                return
            try:
                os.write(self._fd, line)
                return
            except OSError as error:
                self.error = error.strerror or str(error)
        self.close()

    def is_at(self, path: str) -> bool:
        """Return whether a path still names this file, which may have been removed or moved."""
        with self._lock, suppress(OSError):
            return self._fd < 0 or os.path.samestat(os.stat(path), os.fstat(self._fd))
        return False

    def end(self) -> None:
        """Complete the JSON and close the file.

        Call this when all other processes have stopped writing to the file.
        """
        self._write(b'{"ph":"M","name":"trace_end","pid":0}\n]\n')
        self.close()

    def close(self) -> None:
        """Close the descriptor without completing the JSON. A second call has no effect."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
