"""The processes of a session (setsid(2)): what a server leaves that was not this daemon's child."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pympsd.service.processes.status import SESSION, STARTED, stat


def kill_session(leader: int, uid: int, started: int) -> list[int]:
    """Kill what a session's leader, which has ended, left of its user's; return the PIDs.

    ``started``: the leader's start time. While a member lives no other session gets its number; without members the
    number may be in use again, by a leader that started at another time.
    """
    killed = []
    for pid in _members(leader, uid, started):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Once more, now that it is held: the number may have become another process's.
            if _is_member(pid, leader, uid) and not _is_taken(leader, started):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed.append(pid)
        except OSError:
            continue
        finally:
            os.close(pidfd)
    return killed


def _members(leader: int, uid: int, started: int) -> Iterator[int]:
    if _is_taken(leader, started):
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != leader and _is_member(int(name), leader, uid):
            yield int(name)


def _is_member(pid: int, leader: int, uid: int) -> bool:
    fields = stat(pid)
    return len(fields) > STARTED and int(fields[SESSION]) == leader and _uid(pid) == uid


def _is_taken(leader: int, started: int) -> bool:
    """Whether a later process has the number of a session's leader."""
    fields = stat(leader)
    return len(fields) > STARTED and int(fields[STARTED]) != started


def _uid(pid: int) -> int:
    """Return a process's real uid, -1 when it is gone; the owner of its folder is root if it cannot be dumped."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return -1
