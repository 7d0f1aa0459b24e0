"""What a machine that a file describes remembers: the compute modes it was given, in ``<file>.state`` beside it.

The description itself is never written. Servers of every user register in the folder (``registrations``), so it is as
/tmp is: anybody makes files there, and removes only his own. Modes count only as root, or the owner of the
description, wrote them. A machine in short form has no folder and remembers nothing.
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
    def locked(self) -> Iterator[int]:
        """Give a descriptor of the folder while nobody else changes what is in it.

        Raises OSError, and TimeoutError after ``LOCK_SECONDS``: any user can keep the folder locked.
        """
        with self.opened() as folder:
            _lock(folder)
            yield folder

    def modes(self) -> dict[str, str]:
        """Return the compute modes that were set, by UUID; raise BadMachine when they cannot be read."""
        try:
            with self.opened() as folder:
                return self._read_modes(folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise BadMachine(f"{self.path}: {error.strerror}") from None

    def change_modes(self, changes: Mapping[str, str]) -> None:
        """Set compute modes by UUID; those of other devices stay. Raises OSError and BadMachine."""
        self.make()
        with self.locked() as folder:
            try:
                modes = self._read_modes(folder)
            except FileNotFoundError:
                modes = {}
            lines = [f"{uuid} {mode}\n" for uuid, mode in {**modes, **changes}.items()]
            replace(folder, MODES, "".join(lines).encode())
            os.fsync(folder)

    def _read_modes(self, folder: int) -> dict[str, str]:
        text, owner = read(folder, MODES)
        if owner not in (0, os.stat(self.description).st_uid):
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


def _lock(folder: int) -> None:
    give_up = time.monotonic() + LOCK_SECONDS
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
    """Put a file, readable for everybody, into the folder at once and whole. Raises OSError."""
    new = f"{name}.{os.urandom(8).hex()}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(content)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(new, dir_fd=folder)
        raise
