"""Read the kernel's record of any process: its state, its start time, and whether the process has ended."""

import os
import select
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

STATE: Final = 0
PARENT: Final = 1
SESSION: Final = 3
STARTED: Final = 19
"""The indices of a process's fields in the result of ``stat``."""


def stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat (proc(5)) from the third on; none if the process does not exist.

    The command, which may contain spaces and parentheses, is skipped, so the fields can be split at spaces.
    """
    return stat_of(str(pid))


def stat_of(folder: str) -> list[bytes]:
    """Return the fields of ``stat`` in a folder of /proc: a process's or a thread's."""
    # The second field, the name in parentheses, may contain any characters, so split after its end.
    with suppress(OSError):
        return Path(f"/proc/{folder}/stat").read_bytes().rpartition(b")")[2].split()
    return []


def status_numbers(status: bytes, name: bytes) -> tuple[int, ...]:
    """Return the numbers of a field of /proc/PID/status (proc(5)); none if the field does not exist."""
    # Search at the start of a line only, because the process's name, which comes first, may contain the word.
    return tuple(map(int, status.partition(b"\n" + name + b":")[2].partition(b"\n")[0].split()))


def start_time_of(pid: int) -> int:
    """Return a process's start time in clock ticks since boot; -1 if it does not exist.

    PID and start time together identify a process until the machine restarts, even if its PID is used again.
    """
    fields = stat(pid)
    return int(fields[STARTED]) if len(fields) > STARTED else -1


def has_ended(pidfd: int, seconds: float = 0) -> bool:
    """Return whether a process has ended or ends within ``seconds``; with 0, do not wait.

    The process need not be a child, and is not reaped.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


async def process_end(pidfd: int) -> None:
    """Wait until a process has ended. Raise OSError if the system cannot watch more descriptors (epoll(7)).

    A wait may also return for another file that had the same descriptor number: while the keeper has a copy of a
    descriptor that was closed here, epoll continues to watch it under that number.
    """
    while not has_ended(pidfd):
        await trio.lowlevel.wait_readable(pidfd)


def is_child(pid: int) -> bool:
    """Return whether a process is a child of this one."""
    fields = stat(pid)
    return len(fields) > PARENT and int(fields[PARENT]) == os.getpid()


def is_asleep(pid: int) -> bool:
    """Return whether all threads of a process sleep: none runs, is ready, waits for a disk or is stopped. False if
    unknown.
    """
    try:
        threads = [stat_of(f"{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return False
    return bool(threads) and all(fields[:1] == [b"S"] for fields in threads)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or a debugger.

    Its state in /proc/PID/stat is then T or t (proc(5)).
    """
    fields = stat(pid)
    return bool(fields) and fields[STATE] in (b"T", b"t")
