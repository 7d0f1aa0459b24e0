"""What a machine that a file describes remembers: the compute modes it was given, in ``<file>.state`` beside it.

The description itself is never written. Servers of every user register in the folder (``registrations``), so it is as
/tmp is: anybody makes files there, and removes only his own. Modes count only as root, or the owner of the
description, wrote them; what somebody else put in their place is as if it were not there, and gives way to root's
next change. A machine in short form has no folder and remembers nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from pympsd.devices.machine import COMPUTE_MODES, BadMachine, is_file, with_attributes
from pympsd.vocabulary.device_facts import DeviceFacts

MODES: Final = "modes"
READ_BYTES: Final = 1 << 16
"""No file here is longer."""
LOCK_SECONDS: Final = 5.0
"""Who has the folder locked has it so for some microseconds."""
_RETRY_SECONDS: Final = 0.001
_FOLDER_MODE: Final = 0o1777
_REMOVALS: Final = 16
"""How often a folder that is in the way, and comes back, is moved out of it."""


@frozen
class StateFolder:
    """The folder of one machine; ``description`` is the path of its file, links followed."""

    description: str

    @property
    def path(self) -> str:
        """Where it is, or would be."""
        return f"{self.description}.state"

    def make(self) -> None:
        """Make it for everybody if it is not there; raises OSError. It changes the umask for a moment."""
        before = os.umask(0)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, _FOLDER_MODE)
        finally:
            os.umask(before)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Give a descriptor of the folder; raises OSError."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def locked(self, patience: float | None = None) -> Iterator[int]:
        """Give a descriptor of the folder while nobody else changes what is in it.

        Raises OSError, and TimeoutError after ``patience`` seconds, ``LOCK_SECONDS`` unless given: any user can keep
        the folder locked.
        """
        with self.opened() as folder:
            _lock(folder, LOCK_SECONDS if patience is None else patience)
            yield folder

    def trouble(self, error: OSError) -> str:
        """Say what is wrong with the folder, and what to do."""
        if isinstance(error, TimeoutError):
            return (
                f"{self.path}: {error.strerror}. Find that process (as root: fuser -v {self.path}, or lsof "
                f"{self.path}), end it and try again."
            )
        if isinstance(error, IsADirectoryError):
            return f"{self.path}/{MODES}: a folder is in its place and comes back. End who makes it and remove it."
        return f"{self.path}: {error.strerror}. Make the folder for everybody (mkdir -m 1777)."

    def modes(self) -> dict[str, str]:
        """Return the compute modes that were set, by UUID; raise BadMachine when they cannot be read."""
        try:
            with self.opened() as folder:
                return self._read_modes(folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise BadMachine(self.trouble(error)) from None

    def change_modes(self, changes: Mapping[str, str]) -> None:
        """Set compute modes by UUID; those of other devices stay. Raises OSError and BadMachine."""
        self.make()
        with self.locked() as folder:
            lines = [f"{uuid} {mode}\n" for uuid, mode in {**self._read_modes(folder), **changes}.items()]
            replace(folder, MODES, "".join(lines).encode())
            os.fsync(folder)

    def _read_modes(self, folder: int) -> dict[str, str]:
        trusted = (0, os.stat(self.description).st_uid)
        try:
            # Looked at before it is opened: what a stranger put there may not let itself be opened.
            found = os.stat(MODES, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in trusted:
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
                raise BadMachine(f"{self.path}/{MODES}: {line!r} is no device and compute mode; remove the file")
            modes[uuid] = mode
        return modes


def state_folder_of(machine: str) -> StateFolder | None:
    """Return the folder of a machine as PYMPSD_EMULATED_DEVICES describes it; None for one in short form."""
    return StateFolder(os.path.realpath(machine)) if is_file(machine) else None


def resolved(machine: str) -> str:
    """Return a description that means the same in any working folder."""
    return os.path.realpath(machine) if is_file(machine) else machine


def with_current_modes(devices: Sequence[DeviceFacts], machine: str) -> tuple[DeviceFacts, ...]:
    """Return a machine's devices in the compute modes they are in now; raise BadMachine."""
    folder = state_folder_of(machine)
    modes = folder.modes() if folder is not None else {}
    return tuple(
        with_attributes(device, COMPUTE_MODE=COMPUTE_MODES[modes[device.uuid]]) if device.uuid in modes else device
        for device in devices
    )


def _lock(folder: int, patience: float) -> None:
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked") from None
        time.sleep(_RETRY_SECONDS)


def read(folder: int, name: str) -> tuple[bytes, int]:
    """Return what a file in the folder holds, and its owner's uid. Raises OSError; anybody may have put it there."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(name)
        return os.read(fd, READ_BYTES), status.st_uid
    finally:
        os.close(fd)


def replace(folder: int, name: str, content: bytes) -> None:
    """Put a file, readable for everybody, into the folder at once and whole, in the place of anything.

    Raises OSError.
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
    """Free a name that a folder, which may hold something, has; it is removed if it is empty."""
    away = f"{name}.{os.urandom(8).hex()}.old"
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, away, src_dir_fd=folder, dst_dir_fd=folder)
    with contextlib.suppress(OSError):
        os.rmdir(away, dir_fd=folder)
