"""``--replace``: the daemon that runs hands its servers over and ends; the one that asks takes its place."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Final

from pympsd.service.pipe_directory import AlreadyRunning, PipeDirectory
from pympsd.vocabulary import files

HAND_OVER: Final = signal.SIGUSR2
"""A daemon that gets it ends at once and leaves its servers to the next one."""
SECONDS: Final = 10.0
"""So long it has to end."""


LOCK_SECONDS: Final = 5.0
"""So long its lock may be held after its end."""


class CannotReplace(Exception):
    """The daemon that runs cannot be replaced; the message says why and what to do."""


def replace(given: str) -> PipeDirectory:
    """Have the daemon of a pipe directory hand over, and claim the directory; without one just claim it.

    Raise CannotReplace, and what PipeDirectory.claim raises.
    """
    try:
        return PipeDirectory.claim(given)
    except AlreadyRunning:
        _have_it_hand_over(os.path.abspath(given))
    give_up = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return PipeDirectory.claim(given)
        except AlreadyRunning:
            if time.monotonic() > give_up:
                raise CannotReplace("another daemon was quicker to take its place: see pympsd ps") from None
        # Whoever started the one before may not have ended, and shares its lock.
        time.sleep(0.02)


def _have_it_hand_over(folder: str) -> None:
    pid = _pid_in(folder)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        raise CannotReplace(f"the pid file of {folder} names process {pid}, which is not there") from None
    try:
        _tell(folder, pid, pidfd)
        if not _ended(pidfd, SECONDS):
            raise CannotReplace(
                f"the daemon that runs, process {pid}, did not hand over within {SECONDS:.0f} s; kill -9 {pid} and "
                "start another: its servers and their clients go on"
            )
    finally:
        os.close(pidfd)


def _tell(folder: str, pid: int, pidfd: int) -> None:
    """Tell the daemon to hand over; one that has ended meanwhile needs not be told."""
    try:
        _check(folder, pid)
        signal.pidfd_send_signal(pidfd, HAND_OVER)
    except (OSError, CannotReplace) as error:
        if _ended(pidfd, 0):
            return
        if isinstance(error, CannotReplace):
            raise
        raise CannotReplace(f"the daemon that runs, process {pid}, cannot be told: {error.strerror}") from None


def _ended(pidfd: int, seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _pid_in(folder: str) -> int:
    path = os.path.join(folder, files.PID)
    try:
        with open(path, "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        raise CannotReplace(f"a daemon runs, but {path} does not say which: end it with pympsd quit") from None


def _check(folder: str, pid: int) -> None:
    """The process has to be the daemon: it holds the directory's lock, and it is this user's own."""
    uid = os.stat(f"/proc/{pid}").st_uid
    if uid != os.geteuid():
        raise CannotReplace(
            f"the daemon that runs, process {pid}, is user {uid}'s: only that user's own can take its servers over"
        )
    lock = os.stat(os.path.join(folder, files.LOCK))
    opened = f"/proc/{pid}/fd"
    if not any(_is(os.path.join(opened, fd), lock) for fd in os.listdir(opened)):
        raise CannotReplace(f"process {pid}, which the pid file of {folder} names, is not the daemon that runs")


def _is(path: str, lock: os.stat_result) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (lock.st_dev, lock.st_ino)
