"""The processes of a previous daemon's servers, watched and killed by pidfd, and of their sessions (setsid(2))."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import trio
from attrs import define, field

from pympsd.service.processes.status import SESSION, STARTED, has_ended, process_end, stat


def kill_session(leader: int, uid: int, started: int) -> list[int]:
    """Kill the remaining processes of a user in a session whose leader has ended; return their PIDs.

    ``started``: the leader's start time. While a member lives no other session gets its ID; without members the ID
    may be in use again, by a leader with another start time.
    """
    killed = []
    for pid in _members(leader, uid, started):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Checked again with the pidfd open: the PID may have become another process's.
            if _is_member(pid, leader, uid) and not _is_reused(leader, started):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed.append(pid)
        except OSError:
            continue
        finally:
            os.close(pidfd)
    return killed


def _members(leader: int, uid: int, started: int) -> Iterator[int]:
    if _is_reused(leader, started):
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != leader and _is_member(int(name), leader, uid):
            yield int(name)


def _is_member(pid: int, leader: int, uid: int) -> bool:
    fields = stat(pid)
    return len(fields) > STARTED and int(fields[SESSION]) == leader and _uid(pid) == uid


def _is_reused(leader: int, started: int) -> bool:
    """Return whether a later process has the PID of a session's leader."""
    fields = stat(leader)
    return len(fields) > STARTED and int(fields[STARTED]) != started


def _uid(pid: int) -> int:
    """Return a process's real uid; -1 if it is gone. (/proc/PID belongs to root if the process is not dumpable.)"""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return -1


@define
class KnownProcess:
    """A process that is not a child of this one; owns its pidfd."""

    pidfd: int
    gone: trio.Event = field(factory=trio.Event, init=False)

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self.gone.is_set() or has_ended(self.pidfd)

    async def watch(self) -> None:
        """Wait for the end of the process, set ``gone``, and close the pidfd."""
        try:
            await process_end(self.pidfd)
        finally:
            self.gone.set()
            os.close(self.pidfd)
