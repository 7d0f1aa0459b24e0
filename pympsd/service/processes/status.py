"""What the kernel says of a process, whoever its parent is: its state, when it started, whether it has ended."""

from __future__ import annotations

import select
from contextlib import suppress
from pathlib import Path
from typing import Final

STATE: Final = 0
SESSION: Final = 3
STARTED: Final = 19
"""Where these are in what ``stat`` returns."""


def stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the name (proc(5), from the third on); none when it is not there."""
    # The second field, the name in parentheses, may hold anything: count from its end.
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return []


def started_at(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; -1 when it is not there."""
    fields = stat(pid)
    return int(fields[STARTED]) if len(fields) > STARTED else -1


def has_ended(pidfd: int, seconds: float = 0) -> bool:
    """Whether a process has ended, or ends within so many seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
