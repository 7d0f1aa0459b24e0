"""Claim a pipe directory: a free one, one of a killed daemon or, with ``--replace``, one of a running daemon.

A running daemon that receives HAND_OVER ends and leaves its servers to the next one. A directory of a server or of a
namespace belongs to the daemon above, which has a socket there: a daemon that started there would take that socket,
and the clients would be without the namespace's limits.
"""

import os
import signal
import time
from typing import Final

from pympsd.errors import StartError
from pympsd.service.files.lock_holders import Holder, read_listener_credentials
from pympsd.service.files.pipe_directory import AlreadyRunning, PipeDirectory
from pympsd.service.processes.status import STATE, has_ended, is_stopped, stat
from pympsd.takeover.state_file import directories_left
from pympsd.vocabulary import files

HAND_OVER: Final = signal.SIGUSR2
"""The signal after which a daemon ends immediately and leaves its servers to the next one."""
HAND_OVER_SECONDS: Final = 10.0
"""The seconds in which the running daemon has to end."""
LOCK_SECONDS: Final = 5.0
"""The seconds for which a daemon may hold the lock after its end, or at its start before it has written its PID."""
DEAD_SECONDS: Final = 1.0
"""The seconds for which a server that a killed daemon was just starting may hold that daemon's lock."""
PAUSE_SECONDS: Final = 0.02
_REMEDY: Final = "commands reach it there; choose another CUDA_MPS_PIPE_DIRECTORY for another daemon"


class CannotReplace(StartError):
    """The running daemon cannot be replaced; the message explains why and what to do."""


class NoDaemonPid(CannotReplace):
    """The pid file does not name a process, which happens briefly when a daemon starts or ends."""


def claim(requested_path: str) -> PipeDirectory:
    """Claim a pipe directory that no daemon holds; raise the errors of PipeDirectory.claim."""
    _check_owner(requested_path)
    give_up = time.monotonic() + DEAD_SECONDS
    while True:
        try:
            return PipeDirectory.claim(requested_path)
        except AlreadyRunning:
            if time.monotonic() > give_up or not _is_left_behind(os.path.abspath(requested_path)):
                raise
        time.sleep(PAUSE_SECONDS)


def replace(requested_path: str) -> PipeDirectory:
    """Replace the daemon of a pipe directory, if there is one: it hands over, and the directory is claimed.

    Raise CannotReplace, or an error of PipeDirectory.claim.
    """
    _check_owner(requested_path)
    if (claimed := _claim_or_free(requested_path)) is not None:
        return claimed
    give_up = time.monotonic() + LOCK_SECONDS
    # The parent of the previous daemon may still run, and shares its lock.
    while (claimed := _claim(requested_path)) is None:
        if time.monotonic() > give_up:
            raise CannotReplace("another daemon was quicker to take its place: see pympsd ps")
        time.sleep(PAUSE_SECONDS)
    return claimed


def _check_owner(requested_path: str) -> None:
    """Raise AlreadyRunning if the directory belongs to a server or a namespace of another daemon."""
    if owner := daemon_above(requested_path):
        raise AlreadyRunning(owner)


def _claim_or_free(requested_path: str) -> PipeDirectory | None:
    """Claim the directory; or make its daemon end, and return None: the daemon releases the lock later."""
    give_up = time.monotonic() + LOCK_SECONDS
    while (claimed := _claim(requested_path)) is None:
        try:
            _hand_over(os.path.abspath(requested_path))
            break
        except NoDaemonPid:
            if time.monotonic() > give_up:
                raise
        time.sleep(PAUSE_SECONDS)
    return claimed


def _claim(requested_path: str) -> PipeDirectory | None:
    try:
        return PipeDirectory.claim(requested_path)
    except AlreadyRunning:
        return None


def _is_left_behind(folder: str) -> bool:
    """Return whether the process named in the pid file has ended without removing the file."""
    try:
        fields = stat(_pid_in(folder))
    except NoDaemonPid:
        return False
    return not fields or fields[STATE] in (b"Z", b"X")


def _hand_over(folder: str) -> None:
    """Make the running daemon end and hand over; raise NoDaemonPid, or CannotReplace if it does not end in time."""
    pid = _pid_in(folder)
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        raise NoDaemonPid(f"the pid file of {folder} names process {pid}, which does not exist") from None
    try:
        _send_hand_over(folder, pid, pidfd)
        if not has_ended(pidfd, HAND_OVER_SECONDS):
            raise CannotReplace(
                f"the daemon that runs, process {pid}, did not hand over within {HAND_OVER_SECONDS:.0f} s and "
                f"will end when it continues; kill -9 {pid} and start another: its servers and their clients continue"
            )
    finally:
        os.close(pidfd)


def _send_hand_over(folder: str, pid: int, pidfd: int) -> None:
    """Signal the daemon to hand over, unless it has ended in the meantime."""
    try:
        _check(folder, pid)
        signal.pidfd_send_signal(pidfd, HAND_OVER)
    except (OSError, CannotReplace) as error:
        if has_ended(pidfd):
            return
        if isinstance(error, CannotReplace):
            raise
        raise CannotReplace(f"the daemon that runs, process {pid}, cannot be signalled: {error.strerror}") from None


def _pid_in(folder: str) -> int:
    path = os.path.join(folder, files.PID)
    try:
        with open(path, "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        raise NoDaemonPid(f"a daemon runs, but {path} does not contain its PID: end it with pympsd quit") from None


def _check(folder: str, pid: int) -> None:
    """Check that the process is the daemon: this user's, not stopped, and holding the directory's lock."""
    uid = os.stat(f"/proc/{pid}").st_uid
    if uid != os.geteuid():
        raise CannotReplace(
            f"the daemon that runs, process {pid}, is user {uid}'s: only that user's own can take its servers over"
        )
    lock = os.stat(os.path.join(folder, files.LOCK))
    opened = f"/proc/{pid}/fd"
    if not any(_is_same_file(os.path.join(opened, fd), lock) for fd in os.listdir(opened)):
        raise CannotReplace(f"process {pid}, which the pid file of {folder} names, is not the daemon that runs")
    if is_stopped(pid):
        # It would act on the signal when it is continued, with no daemon to replace it.
        raise CannotReplace(
            f"the daemon that runs, process {pid}, is stopped: continue it (kill -CONT {pid}), or kill -9 {pid} and "
            "start another: its servers and their clients continue"
        )


def _is_same_file(path: str, lock: os.stat_result) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (lock.st_dev, lock.st_ino)


def daemon_above(folder: str) -> str:
    """Describe the daemon's server or namespace that a directory belongs to; return "" if it belongs to none.

    A daemon that was killed counts while its state or its keeper is there: the next one takes over its namespaces.
    """
    folder = os.path.realpath(folder)
    server, namespace = os.path.split(folder)
    # The outer one first: it listens in the directory of the server, too.
    above = [(os.path.dirname(server), (os.path.basename(server), namespace)), (server, (namespace,))]
    for top, names in above:
        if names in directories_left(top):
            return _describe(folder, top, names)
    # The state of another user's daemon cannot be read, and from a container the daemon's directory is not seen.
    if any(os.path.lexists(os.path.join(folder, name)) for name in (files.LOCK, *files.OF_A_RUNNING_DAEMON)):
        return ""  # a daemon's own: connecting to that daemon would add a line to its log
    control = os.path.join(folder, files.CONTROL)
    listener = read_listener_credentials(control)
    if listener is None:
        return ""
    for top, names in above:
        if read_listener_credentials(os.path.join(top, files.CONTROL)) == listener:
            return _describe(folder, top, names)
    return f"{Holder(*listener[:2])} listens at {control}: {_REMEDY}"


def _describe(folder: str, top: str, names: tuple[str, ...]) -> str:
    namespace = f"namespace '{names[1]}' of " if names[1:] else ""
    return f"{folder} is the directory of {namespace}server '{names[0]}' of the daemon at {top}: {_REMEDY}"
