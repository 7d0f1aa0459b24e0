"""What the kernel says of a process, whoever its parent is: when it started, and whether it has ended."""

from __future__ import annotations

import select
from pathlib import Path


def started_at(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; -1 when it is not there."""
    try:
        # The second field, the name in parentheses, may hold blanks: count from its end.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return -1


def has_ended(pidfd: int, seconds: float = 0) -> bool:
    """Whether a process has ended, or ends within so many seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
