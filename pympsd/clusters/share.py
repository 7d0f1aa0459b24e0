"""A share of a GPU: the part of it that a process may use, as environment variables of an MPS client.

The share is the process's own, so a process that dies gives it back: the server frees what it had.

`lock_part` chooses the device that a process gets a part of, by locks on files, which end with the process.
"""

import errno
import fcntl
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from pympsd.control import Device, RunningDaemon
from pympsd.errors import InputError

MIB: Final = 1 << 20
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class BadShare(InputError):
    """An impossible share; the message explains why, and what is allowed."""


@frozen
class Share:
    """A part of one device, or several whole ones. ``devices``: their UUIDs; ``memory_bytes``: of each."""

    devices: tuple[str, ...]
    fraction: float
    memory_bytes: int = 0

    def variables(self) -> dict[str, str]:
        """Return the variables of a client with this share: of several or whole devices no limits are set."""
        variables = {VISIBLE: ",".join(self.devices)}
        if self.fraction < 1:
            (device,) = self.devices
            limit = int(self.fraction * self.memory_bytes) // MIB
            variables[PERCENTAGE] = f"{100 * self.fraction:.2f}"
            variables[MEMORY] = f"{device}={limit}M"
        return variables


def share_of(devices: Sequence[Device], requested: float) -> Share:
    """Return a share of devices: a fraction of the one there is, or as many whole ones as are requested."""
    count = len(devices)
    if 0.01 <= requested < 1 and count == 1:
        return Share((devices[0].uuid,), requested, devices[0].memory_bytes)
    if requested >= 1 and requested == count:
        return Share(tuple(device.uuid for device in devices), 1.0)
    raise BadShare(f"{requested:g} of {count} GPUs: a share is 0.01 to 1 of one GPU, or a whole number of GPUs")


_taken: dict[str, str] = {}
"""The variables of the share that this process has."""


def take(share: Share, environment: Any = os.environ, modules: Mapping[str, Any] = sys.modules) -> None:
    """Set this process's variables; raise BadShare if it has another share, or has begun to use a GPU without one."""
    variables = share.variables()
    if _taken == variables:
        return
    if _taken:
        had, requested = _render(_taken), _render(variables)
        raise BadShare(
            f"this process has {had} already, and cannot get {requested}: a share is for the life of a process, so "
            "give each its own (Ray: max_calls=1)"
        )
    if library := _that_runs(modules):
        raise BadShare(f"{library} has begun to use a GPU before this process got its share; start it later")
    for name in (PERCENTAGE, MEMORY):
        environment.pop(name, None)
    environment.update(variables)
    _taken.update(variables)


def daemon_devices() -> tuple[Device, ...]:
    """Return the devices of this machine's daemon; CannotAsk without one."""
    return RunningDaemon().devices()


def _render(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _that_runs(modules: Mapping[str, Any]) -> str:
    """Return the name of a library of this process that uses a GPU, as far as that is known."""
    client = modules.get("pympsd_client._objects.process")
    if client is not None and client.process.connection is not None:
        return "pympsd_client"
    torch = modules.get("torch")
    return "torch" if torch is not None and torch.cuda.is_initialized() else ""


_FLOCK: Final = "@hhqqi4x"
"""struct flock of 64-bit Linux (fcntl(2)): type, whence, start, length, PID."""
THOUSANDTHS: Final = 1000
"""The bytes of a device's file; a process locks one for each thousandth of the device that it has."""


def folder() -> str:
    """Return the folder of the lock files. Each user has one: processes of other users are not counted."""
    return os.path.join(tempfile.gettempdir(), f"pympsd-shares-{os.geteuid()}")


def lock_part(devices: Sequence[Device], part: float, where: str = "") -> Device:
    """Lock a part of the first device with enough left, until this process has ended; return the device.

    ``part``: above 0, at most 1. Raise BadShare if no device has enough left.
    """
    count = round(part * THOUSANDTHS)
    if not 0 < count <= THOUSANDTHS:
        raise BadShare(f"a share of {part:g}: it is 0.01 to 1 of a GPU")
    where = where or folder()
    os.makedirs(where, mode=0o700, exist_ok=True)
    entry = os.lstat(where)
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.geteuid() or entry.st_mode & 0o022:
        raise BadShare(f"{where} has to be a folder that only this user can write to: remove it, or set TMPDIR")
    for device in devices:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(os.path.join(where, device.uuid), flags, 0o600)
        if any(_is_locked(file, start, count) for start in range(THOUSANDTHS - count + 1)):
            return device  # the descriptor stays open: closing it would end the lock
        os.close(file)
    raise BadShare(f"none of {len(devices)} GPUs has {part:g} left; fewer workers, or smaller shares, fit")


def _is_locked(file: int, start: int, count: int) -> bool:
    # Of the open file (F_OFD_SETLK), not of the process: that would have none left when it closes the file once.
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True
