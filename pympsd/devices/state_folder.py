"""Read and change the state of an emulated machine: its compute modes, in the folder ``<file>.state`` next to the
machine file.

The description itself is never written. Servers of every user register in the folder (``registrations``), so it has
the permissions of /tmp: every user may create files there, and remove only their own. Modes count only if root, or
the owner of the description, wrote them. Any other file in their place is ignored, and is replaced when root changes
a mode. Machines in short form share one folder, and only root sets their modes: devices with the same UUID are the
same device. The shared folder is in /run/pympsd, which root creates, so that no other user can take its name; if
/run/pympsd does not exist, the folder is in /tmp. The state of a machine whose file is in /etc is there too, because
nothing is written to /etc.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from pympsd.devices.machine import COMPUTE_MODES, VARIABLE, BadMachine, is_file, set_attributes
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.files import machine_places

MODES: Final = "modes"
READ_BYTES: Final = 1 << 16
"""The maximum number of bytes that are read from a file in the folder."""
LOCK_SECONDS: Final = 5.0
"""The number of seconds to wait for the lock, which is usually held for some microseconds."""
_RETRY_SECONDS: Final = 0.001
DIRECTORY: Final = "PYMPSD_STATE_DIRECTORY"
"""The name of the variable for the directory that has the state folders of machines in short form, and of machines
whose file is in /etc.
"""
SYSTEM_DIRECTORY, TEMPORARY_DIRECTORY = "/run/pympsd", "/tmp"
"""The directories that are used if the variable is not set: the first one if root has created it, otherwise the
second one.
"""
CONFIGURATION: Final = "/etc/"
_FOLDER_MODE: Final = 0o1777
_REMOVALS: Final = 16
"""The number of times that a directory in place of a file is moved away before the write fails."""


@frozen
class StateFolder:
    """The folder of one machine; ``description`` is the real path of its file, empty for machines in short form."""

    description: str

    @property
    def path(self) -> str:
        """The path of the folder, whether or not it exists.

        It is next to the machine file. For a machine in short form, or one whose file is in /etc, it is in
        `directory`.
        """
        if not self.description:
            return os.path.join(directory(), "pympsd-devices.state")
        if self.description.startswith(CONFIGURATION):
            return os.path.join(directory(), f"{self.description.strip('/').replace('/', '-')}.state")
        return f"{self.description}.state"

    @property
    def modes_path(self) -> str:
        """The path of the file of compute modes, whether or not it exists."""
        return os.path.join(self.path, MODES)

    def make(self) -> None:
        """Create the folder, writable for all users, unless it exists.

        The umask of the process is 0 for a moment, so no other thread should create files at that time.

        Raises:
            OSError: It cannot be created.
        """
        if os.geteuid() == 0 and not os.environ.get(DIRECTORY):
            with contextlib.suppress(OSError):  # if it cannot be created, the other directory is used
                os.mkdir(SYSTEM_DIRECTORY)
                os.chmod(SYSTEM_DIRECTORY, 0o755)
        before = os.umask(0)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, _FOLDER_MODE)
        finally:
            os.umask(before)

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Yield a descriptor of the folder, and close it after the block. Links in its place are not followed.

        Raises:
            OSError: There is no such folder, or it cannot be opened.
        """
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def lock(self, timeout: float | None = None) -> Iterator[int]:
        """Yield a descriptor of the folder, locked.

        Raise OSError, and TimeoutError after ``timeout`` seconds (default: LOCK_SECONDS), because any user can keep
        the folder locked.
        """
        with self.open() as folder:
            _lock(folder, LOCK_SECONDS if timeout is None else timeout)
            yield folder

    def explain(self, error: OSError) -> str:
        """Return the problem with the folder and its remedy, as sentences for a message.

        Args:
            error: The error that a method of this class raised.
        """
        if isinstance(error, TimeoutError):
            return (
                f"{self.path}: {error.strerror}. Find that process (as root: fuser -v {self.path}, or lsof "
                f"{self.path}), end it and try again."
            )
        if isinstance(error, IsADirectoryError):
            remedy = "End the process that creates the folder, then remove the folder."
            return f"{self.path}/{MODES}: a folder is in the place of this file and reappears. {remedy}"
        if (owner := self._untrusted_owner()) is not None:
            reason = f"{error.strerror}: the folder is user {owner}'s, and not for everybody"
            remedy = f"Remove the folder, or set {DIRECTORY} to another one for the daemon and pympsd-smi."
            return f"{self.path}: {reason}. {remedy}"
        return f"{self.path}: {error.strerror}. Make the folder for everybody (mkdir -m 1777)."

    def modes(self) -> dict[str, str]:
        """Return the compute modes that were set, by the devices' UUIDs; empty if none was.

        A file that neither root nor the owner of the machine file has written does not count.

        Raises:
            BadMachine: The file exists, counts and cannot be read.
        """
        try:
            with self.open() as folder:
                return self._read_modes(folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            if self._untrusted_owner() is not None:
                return {}  # other contents do not count
            raise BadMachine(self.explain(error)) from None

    def _untrusted_owner(self) -> int | None:
        """Return the uid of the owner of an untrusted folder; None if the folder is trusted or missing."""
        try:
            owner = os.lstat(self.path).st_uid
            return None if owner in (os.geteuid(), *self._list_trusted()) else owner
        except OSError:
            return None

    def _list_trusted(self) -> tuple[int, ...]:
        """Return the users whose modes count; raise OSError."""
        return (0, os.stat(self.description).st_uid) if self.description else (0,)

    def change_modes(self, changes: Mapping[str, str]) -> None:
        """Set the compute modes of some devices; other devices keep theirs. The file is replaced atomically.

        Args:
            changes: The new modes by the devices' UUIDs: keys of COMPUTE_MODES.

        Raises:
            OSError: The folder cannot be written, or stayed locked (TimeoutError).
            BadMachine: The present file cannot be read.
        """
        self.make()
        with self.lock() as folder:
            lines = [f"{uuid} {mode}\n" for uuid, mode in {**self._read_modes(folder), **changes}.items()]
            replace(folder, MODES, "".join(lines).encode())
            os.fsync(folder)

    def _read_modes(self, folder: int) -> dict[str, str]:
        """Return the compute modes in the open folder; empty if no file there counts. Raise BadMachine."""
        trusted = self._list_trusted()
        try:
            # Checked before it is opened: opening a file that another user put there may fail.
            file_status = os.stat(MODES, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(file_status.st_mode) or file_status.st_uid not in trusted:
                return {}
            text, owner = read(folder, MODES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            advice = "root can make it readable for everybody (chmod 644) or remove it"
            raise BadMachine(f"{self.path}/{MODES}: {error.strerror}; {advice}") from None
        if owner not in trusted:
            return {}
        modes = {}
        for line in text.decode(errors="replace").splitlines():
            uuid, _, mode = line.partition(" ")
            if mode not in COMPUTE_MODES:
                raise BadMachine(f"{self.path}/{MODES}: {line!r} is not a device and compute mode; remove the file")
            modes[uuid] = mode
        return modes


def state_folder_of(machine: str) -> StateFolder:
    """Return the state folder of a machine, which need not exist yet.

    Args:
        machine: The short form, or the path of a machine file, which may be a link.
    """
    return StateFolder(os.path.realpath(machine) if is_file(machine) else "")


def directory() -> str:
    """Return the directory for the state of machines whose state is not next to their file.

    PYMPSD_STATE_DIRECTORY names it. Without that it is /run/pympsd if root has created it and nobody else can write
    to it, and /tmp otherwise.
    """
    if override := os.environ.get(DIRECTORY):
        return override
    try:
        system = os.lstat(SYSTEM_DIRECTORY)
    except OSError:
        return TEMPORARY_DIRECTORY
    is_roots = stat.S_ISDIR(system.st_mode) and system.st_uid == 0 and not system.st_mode & 0o022
    return SYSTEM_DIRECTORY if is_roots else TEMPORARY_DIRECTORY


def add_machine_file(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which PYMPSD_EMULATED_DEVICES names the installed machine file, unless the variable
    was set or there is no such file. The file is searched for in `pympsd.vocabulary.files.machine_places`.
    """
    places = machine_places(dict(environment))
    machine_file = environment.get(VARIABLE) or next(filter(os.path.lexists, places), "")
    return {**environment, VARIABLE: machine_file} if machine_file else dict(environment)


def resolve(machine: str) -> str:
    """Return a description that means the same in every working directory: paths become absolute.

    A short form, such as ``2xH200``, is returned as it is.
    """
    return os.path.realpath(machine) if is_file(machine) else machine


def unusable_directory(machine: str) -> str:
    """Return a warning if PYMPSD_STATE_DIRECTORY is not a directory although the machine's state belongs there.

    Args:
        machine: The short form, or the path of a machine file.

    Returns:
        One or two sentences with the effect and the remedy; an empty string if nothing is wrong.
    """
    folder = os.environ.get(DIRECTORY)
    if not folder or os.path.isdir(folder) or not state_folder_of(machine).path.startswith(os.path.join(folder, "")):
        return ""
    effect = "compute modes cannot be set, and pympsd-smi cannot see which processes use the devices"
    return f"{DIRECTORY}={folder} is not a directory: {effect}. Make it (mkdir -p {folder})"


def apply_current_modes(devices: Sequence[DeviceProperties], machine: str) -> tuple[DeviceProperties, ...]:
    """Return a machine's devices with the compute modes that pympsd-smi has set.

    Args:
        devices: The devices as the machine's description has them.
        machine: That description: the short form, or the path of a file.

    Raises:
        BadMachine: The file of compute modes cannot be read.
    """
    modes = state_folder_of(machine).modes()
    return tuple(
        set_attributes(device, COMPUTE_MODE=COMPUTE_MODES[modes[device.uuid]]) if device.uuid in modes else device
        for device in devices
    )


def _lock(folder: int, timeout: float) -> None:
    give_up = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked") from None
        time.sleep(_RETRY_SECONDS)


def read(folder: int, name: str) -> tuple[bytes, int]:
    """Return the content of a file and the uid of its owner.

    Any user may have created the file, so a link is not followed, a FIFO does not block, and READ_BYTES is the
    maximum.

    Raises:
        FileNotFoundError: There is no regular file of that name.
        OSError: It cannot be opened.
    """
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(name)
        return os.read(fd, READ_BYTES), status.st_uid
    finally:
        os.close(fd)


def replace(folder: int, name: str, content: bytes) -> None:
    """Write a file atomically, readable for all users, in place of anything that has its name.

    A directory of that name, which another user may have created, is moved away first.

    Args:
        folder: A descriptor of the folder.
        name: The file's name in it.
        content: The new content.

    Raises:
        OSError: The file cannot be written.
    """
    new = f"{name}.{os.urandom(8).hex()}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(content)
        for _ in range(_REMOVALS):
            with contextlib.suppress(IsADirectoryError):
                os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
                return
            _move_away(folder, name)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(new, dir_fd=folder)
        raise


def _move_away(folder: int, name: str) -> None:
    """Free the name of a directory: rename it, and remove it if it is empty."""
    away = f"{name}.{os.urandom(8).hex()}.old"
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, away, src_dir_fd=folder, dst_dir_fd=folder)
    with contextlib.suppress(OSError):
        os.rmdir(away, dir_fd=folder)
