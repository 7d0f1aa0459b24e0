"""The state file, which the next daemon needs if this one is killed. Mode 0600, replaced atomically.

It names the processes that are the daemon's servers, so it is believed only if it is the daemon's own: a regular file
of its user, not readable or writable by others, written since the machine was started.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from attrs import define, evolve, field, frozen

from pympsd.errors import FileError
from pympsd.journal.log_folders import MadeFolder
from pympsd.service.files import remains
from pympsd.service.processes.status import has_ended, start_time_of
from pympsd.takeover.state.protocol_2 import list_lost
from pympsd.takeover.state.records import PersistentState, check
from pympsd.vocabulary import files
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import ALL_DEVICES

FORMAT: Final = 2
"""The format in which the file is written. Format 1, of pympsd before 27 November 2026, is read too."""
MODE: Final = 0o600
MAX_BYTES: Final = 4 << 20
"""The maximum size of the file in bytes; the largest configuration file takes 1.4 MiB of it."""
MAX_DEVICES: Final = 256
"""The number of devices that no machine exceeds: limits of higher ordinals are refused, even if the devices are
not known."""
DYING_SECONDS: Final = 1.0
"""The seconds that a killed daemon may take to end after it has released its lock."""


class StateRefused(FileError, ValueError):
    """The state file cannot be used; the message explains why."""


class StillRuns(StateRefused):
    """The daemon that wrote the file runs, though its lock was removed."""


@frozen
class SavedState:
    """The contents of the file."""

    format: int
    boot: str
    """The kernel's boot_id: PIDs and start times of another boot mean nothing."""
    pid_namespace: int
    devices: tuple[str, ...]
    """For each device a text that must not change while a server keeps running; empty if the devices were not
    known."""
    started: dict[int, int]
    """The start time of each server's process by PID, in clock ticks since boot (proc(5), stat, field 22)."""
    remembered: PersistentState
    writer: tuple[int, int] = (0, 0)
    """The PID and the start time of the daemon that wrote the file."""
    backend: str = ""
    trace: str = ""
    """The path of the trace that the daemon writes; empty if it writes none."""
    log_folders: tuple[MadeFolder, ...] = ()
    """The folders that the daemon, or the one before it, has made for the logs of servers."""


def device_keys(devices: Sequence[DeviceProperties]) -> tuple[str, ...]:
    """Return a text for each device that distinguishes it from others, in order."""
    return tuple(
        f"{device.uuid} {device.name} {device.multiprocessors} SMs {device.memory_bytes} bytes" for device in devices
    )


def read(folder: str) -> SavedState | None:
    """Return the state that a daemon left in a pipe directory; None without a file. Raise StateRefused."""
    data = _read_own(folder)
    return None if data is None else _check(data)


def _read_own(folder: str) -> bytes | None:
    """Return the contents of the file, which is this user's own; None if there is no file. Raise StateRefused."""
    path = os.path.join(folder, files.STATE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateRefused(error.strerror) from None
    try:
        _check_owner(os.fstat(fd))
        return os.read(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)


def list_lost_in_protocol_2(folder: str, own: Limits) -> list[str]:
    """Describe the parts of the saved state that a daemon of protocol 2 with these defaults could not use."""
    if (saved := _read_left(folder)) is None:
        return []
    running = tuple(
        server for server in saved.remembered.servers if start_time_of(server.pid) == saved.started.get(server.pid)
    )
    return list(list_lost(evolve(saved.remembered, servers=running), own))


def partitions_left(folder: str) -> list[str]:
    """Return the SM partitions that the previous daemon itself had (in protocol 2), as ``<UUID>/<id>``."""
    saved = _read_left(folder)
    if saved is None:
        return []
    uuids = [device.partition(" ")[0] for device in saved.devices]
    return [f"{uuids[partition.device]}/{partition.name}" for partition in saved.remembered.partitions]


def directories_left(folder: str) -> set[tuple[str, ...]]:
    """Return, by name, the directories of servers and namespaces that this user's daemon has below a pipe directory,
    or left there for the next daemon.
    """
    saved = _read_left(folder)
    directories: set[tuple[str, ...]] = set()
    for server in saved.remembered.named_servers if saved is not None else ():
        directories |= {(server.name,), *((server.name, namespace.name) for namespace in server.namespaces)}
    return directories


def trace_left(folder: str) -> str:
    """Return the path of the trace that a daemon writes, or wrote when it ended; empty if it wrote none."""
    saved = _read_left(folder)
    return saved.trace if saved is not None else ""


def log_folders_left(folder: str) -> tuple[MadeFolder, ...]:
    """Return the folders that the previous daemon made for the logs of servers."""
    saved = _read_left(folder)
    return saved.log_folders if saved is not None else ()


def _read_left(folder: str) -> SavedState | None:
    """Return the state that a daemon of this user has left in a folder since the machine started, or None."""
    try:
        saved = _decode(_read_own(folder) or b"")
    except (StateRefused, ValueError, RecursionError):
        return None
    return saved if saved.boot == _boot() else None


def is_writer_running(folder: str) -> bool:
    """Return whether the daemon that wrote the file still runs, so that its keeper's entries are in use."""
    try:
        read(folder)
    except StillRuns:
        return True
    except StateRefused:
        pass
    return False


def _check_owner(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise StateRefused("the file is not a regular file")
    if status.st_uid != os.geteuid():
        raise StateRefused(f"the file belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & 0o077 or status.st_nlink != 1:
        raise StateRefused("users other than the owner may have changed the file")


def _check(data: bytes) -> SavedState:
    if len(data) > MAX_BYTES:
        raise StateRefused(f"the file is longer than {MAX_BYTES} bytes")
    try:
        saved = _decode(data)
    except (ValueError, RecursionError) as error:
        raise StateRefused(f"the file is damaged: {error}") from None
    if saved.format != FORMAT:
        raise StateRefused(f"the file has format {saved.format}, not {FORMAT}")
    if (saved.boot, saved.pid_namespace) != (_boot(), _pid_namespace()):
        raise StateRefused("the file was written before this machine, or this container, was started")
    if _is_running(*saved.writer):
        raise StillRuns(f"the daemon that wrote it, process {saved.writer[0]}, still runs: its lock was removed")
    return saved


def _decode(data: bytes) -> SavedState:
    """Return the contents; raise ValueError (msgspec's own errors are ValueErrors) or RecursionError."""
    contents = msgspec.json.decode(data)
    if isinstance(contents, dict) and contents.get("format") == 1:
        _upgrade(contents)
    saved = msgspec.convert(contents, SavedState, str_keys=True)
    check(saved.remembered, len(saved.devices) or MAX_DEVICES)
    return saved


_FORMAT_1_LIMITS: Final = ("thread_percentage", "pinned_memory", "client_priority", "total_memory", "sm_partition")


def _upgrade(contents: Any) -> None:
    """Convert contents of format 1 to format 2, which has limits in objects of their own.

    Format 1 has the limits of a namespace and the maxima of a server as numbers among their other values. Its rules
    have one percentage for all devices. Contents that a daemon did not write are left to the check that follows.
    """
    try:
        remembered = contents["remembered"]
        for server in remembered.get("named_servers", ()):
            maxima = {name: server.pop(f"max_{name}", None) for name in ("thread_percentage", "pinned_memory")}
            server["maximum"] = _limits_of_numbers(maxima)
            for namespace in server["namespaces"]:
                numbers = {name: namespace.pop(name, None) for name in _FORMAT_1_LIMITS}
                namespace["limits"] = _limits_of_numbers(numbers)
        for rule in remembered.get("rules") or ():
            if (percentage := rule["limits"].get("thread_percentage")) is not None:
                rule["limits"]["thread_percentage"] = {str(ALL_DEVICES): percentage}
    except (AttributeError, KeyError, TypeError):
        raise ValueError("the contents do not have the format that the file states") from None
    contents["format"] = FORMAT


def _limits_of_numbers(numbers: dict[str, Any]) -> dict[str, Any]:
    """Convert limits from numbers (format 1) to objects."""
    percentage, priority = numbers.get("thread_percentage"), numbers.get("client_priority")
    limits = {
        "thread_percentage": None if percentage is None else {str(ALL_DEVICES): {"value": percentage}},
        "client_priority": None if priority is None else {"level": priority},
        "sm_partition": numbers.get("sm_partition"),
    }
    for name in ("pinned_memory", "total_memory"):
        memory = numbers.get(name)
        limits[name] = None if memory is None else {index: {"value": count} for index, count in memory.items()}
    return limits


def _is_running(pid: int, started: int) -> bool:
    """Return whether the daemon that wrote the file, which still owns its servers, is running."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return False
    try:
        return pid != os.getpid() and start_time_of(pid) == started and not has_ended(pidfd, DYING_SECONDS)
    finally:
        os.close(pidfd)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


@define
class StateFile:
    """Keeps the file of the running daemon up to date.

    It exists even if there is nothing to save: it shows clients that their daemon has not quit.
    """

    folder: str
    devices: Callable[[], tuple[str, ...]]
    """A function that returns the known devices, because the driver's server may report them later."""
    log: Any
    is_taken_by_another: Callable[[], bool] = lambda: False
    """A function that returns whether another daemon has taken the folder."""
    backend: str = ""
    trace: Callable[[], str] = lambda: ""
    """A function that returns the path of the trace that the daemon writes; empty if it writes none."""
    log_folders: Callable[[], tuple[MadeFolder, ...]] = tuple
    """A function that returns the folders made for the logs of servers."""
    _written: tuple[PersistentState, str, tuple[MadeFolder, ...]] | None = None
    _started: dict[int, int] = field(factory=dict)
    _failed: bool = False

    @property
    def must_be_written(self) -> bool:
        """Whether the file was removed, or the last attempt to write it failed."""
        return self._failed or not os.path.lexists(self._path(files.STATE))

    def save(self, remembered: PersistentState) -> None:
        """Replace the file if its content has changed or it was removed; log a failure once.

        Called at every event except for queries, and then too if the file `must_be_written`: a failure is retried.
        """
        current = remembered, self.trace(), self.log_folders()
        if current == self._written and not self.must_be_written:
            return
        try:
            self._replace(remembered)
        except OSError as error:
            if not self._failed:
                reason = str(error) if isinstance(error, remains.NotOfADaemon) else error.strerror
                self.log.error("state_not_written", reason=reason)
            self._failed = True
            return
        self._written, self._failed = current, False

    def _replace(self, remembered: PersistentState) -> None:
        """Write the state to a new file, and rename it; if OSError is raised, the old file stays."""
        if self.is_taken_by_another():
            raise FileExistsError(errno.EEXIST, "another daemon has taken the pipe directory")
        self._started = {
            server.pid: self._started.get(server.pid) or start_time_of(server.pid) for server in remembered.servers
        }
        writer = os.getpid(), start_time_of(os.getpid())
        saved = SavedState(
            FORMAT,
            _boot(),
            _pid_namespace(),
            self.devices(),
            self._started,
            remembered,
            writer,
            self.backend,
            self.trace(),
            self.log_folders(),
        )
        remains.check(self._path(files.STATE))
        data, new_state = msgspec.json.encode(saved), self._path(files.NEW_STATE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        remains.remove(new_state)
        try:
            with os.fdopen(os.open(new_state, flags, MODE), "wb") as file:
                file.write(data)
            os.rename(new_state, self._path(files.STATE))
        except OSError:
            remains.remove(new_state)
            raise

    def _path(self, file: str) -> str:
        return os.path.join(self.folder, file)
