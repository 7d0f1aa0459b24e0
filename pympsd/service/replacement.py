"""Taking the place of another daemon: of one that was killed, or, with ``--replace``, of one that runs.

The latter hands its servers over and ends.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from pympsd.service.files.pipe_directory import AlreadyRunning, PipeDirectory
from pympsd.service.processes.status import STATE, has_ended, stat
from pympsd.vocabulary import files

HAND_OVER: Final = signal.SIGUSR2
"""A daemon that gets it ends at once and leaves its servers to the next one."""
SECONDS: Final = 10.0
"""So long it has to end."""
LOCK_SECONDS: Final = 5.0
"""So long its lock may be held after its end, and so long one that begins may hold it before it says its PID."""
DEAD_SECONDS: Final = 1.0
"""So long the lock of a daemon that was killed may be held: by the server that it was just starting."""
PAUSE_SECONDS: Final = 0.02


class CannotReplace(Exception):
    """The daemon that runs cannot be replaced; the message says why and what to do."""


class NoDaemonPid(CannotReplace):
    """The pid file does not name a process: as it is for a moment when a daemon begins or ends."""


def claim(given: str) -> PipeDirectory:
    """Claim a pipe directory that no daemon has; raise what PipeDirectory.claim raises."""
    give_up = time.monotonic() + DEAD_SECONDS
    while (claimed := _claimed(given)) is None:
        if time.monotonic() > give_up or not _was_killed(os.path.abspath(given)):
            raise AlreadyRunning(given)
        time.sleep(PAUSE_SECONDS)
    return claimed


def replace(given: str) -> PipeDirectory:
    """Have the daemon of a pipe directory hand over, and claim the directory; without one just claim it.

    Raise CannotReplace, and what PipeDirectory.claim raises.
    """
    if (claimed := _claimed_or_freed(given)) is not None:
        return claimed
    give_up = time.monotonic() + LOCK_SECONDS
    # Whoever started the one before may not have ended, and shares its lock.
    while (claimed := _claimed(given)) is None:
        if time.monotonic() > give_up:
            raise CannotReplace("another daemon was quicker to take its place: see pympsd ps")
        time.sleep(PAUSE_SECONDS)
    return claimed


def _claimed_or_freed(given: str) -> PipeDirectory | None:
    """Claim the directory, or have its daemon end, which takes its own time to give the lock back."""
    give_up = time.monotonic() + LOCK_SECONDS
    while (claimed := _claimed(given)) is None:
        try:
            _request_handover(os.path.abspath(given))
            break
        except NoDaemonPid:
            if time.monotonic() > give_up:
                raise
        time.sleep(PAUSE_SECONDS)
    return claimed


def _claimed(given: str) -> PipeDirectory | None:
    try:
        return PipeDirectory.claim(given)
    except AlreadyRunning:
        return None


def _was_killed(folder: str) -> bool:
    """Whether the process that the pid file names has ended; it removes the file when it ends in order."""
    try:
        fields = stat(_pid_in(folder))
    except NoDaemonPid:
        return False
    return not fields or fields[STATE] in (b"Z", b"X")


def _request_handover(folder: str) -> None:
    pid = _pid_in(folder)
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        raise NoDaemonPid(f"the pid file of {folder} names process {pid}, which is not there") from None
    try:
        _tell(folder, pid, pidfd)
        if not has_ended(pidfd, SECONDS):
            raise CannotReplace(
                f"the daemon that runs, process {pid}, did not hand over within {SECONDS:.0f} s and will end when "
                f"it goes on; kill -9 {pid} and start another: its servers and their clients go on"
            )
    finally:
        os.close(pidfd)


def _tell(folder: str, pid: int, pidfd: int) -> None:
    """Tell the daemon to hand over; one that has ended meanwhile needs not be told."""
    try:
        _check(folder, pid)
        signal.pidfd_send_signal(pidfd, HAND_OVER)
    except (OSError, CannotReplace) as error:
        if has_ended(pidfd):
            return
        if isinstance(error, CannotReplace):
            raise
        raise CannotReplace(f"the daemon that runs, process {pid}, cannot be told: {error.strerror}") from None


def _pid_in(folder: str) -> int:
    path = os.path.join(folder, files.PID)
    try:
        with open(path, "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        raise NoDaemonPid(f"a daemon runs, but {path} does not say which: end it with pympsd quit") from None


def _check(folder: str, pid: int) -> None:
    """The process has to be the daemon: it holds the directory's lock, it is this user's own, and it can be told."""
    uid = os.stat(f"/proc/{pid}").st_uid
    if uid != os.geteuid():
        raise CannotReplace(
            f"the daemon that runs, process {pid}, is user {uid}'s: only that user's own can take its servers over"
        )
    lock = os.stat(os.path.join(folder, files.LOCK))
    opened = f"/proc/{pid}/fd"
    if not any(_is(os.path.join(opened, fd), lock) for fd in os.listdir(opened)):
        raise CannotReplace(f"process {pid}, which the pid file of {folder} names, is not the daemon that runs")
    if _is_stopped(pid):
        # What it is told now it would do whenever it goes on, with nobody to take its place.
        raise CannotReplace(
            f"the daemon that runs, process {pid}, is stopped: continue it (kill -CONT {pid}), or kill -9 {pid} and "
            "start another: its servers and their clients go on"
        )


def _is_stopped(pid: int) -> bool:
    fields = stat(pid)
    return bool(fields) and fields[STATE] in (b"T", b"t")


def _is(path: str, lock: os.stat_result) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (lock.st_dev, lock.st_ino)
