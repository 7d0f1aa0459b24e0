"""The share of a GPU that a process may use, as environment variables of an MPS client.

The share is the process's own, so a process that dies gives it back: the server frees its memory.

`lock_part` chooses the device for a process, with locks on files, which end with the process.
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
    """Raised for a share that does not exist or cannot be given.

    The message explains why, and what is allowed.
    """


@frozen
class Share:
    """A part of one device, or several whole devices.

    ``devices`` has their UUIDs, ``fraction`` is the part (1.0 for whole devices), ``memory_bytes`` the memory of
    each.
    """

    devices: tuple[str, ...]
    fraction: float
    memory_bytes: int = 0

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a client that has this share.

        Whole devices have no limits, only CUDA_VISIBLE_DEVICES.

        >>> Share(("GPU-1",), 0.25, 8 << 30).variables()["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
        'GPU-1=2048M'
        """
        variables = {VISIBLE: ",".join(self.devices)}
        if self.fraction < 1:
            (device,) = self.devices
            limit = int(self.fraction * self.memory_bytes) // MIB
            variables[PERCENTAGE] = f"{100 * self.fraction:.2f}"
            variables[MEMORY] = f"{device}={limit}M"
        return variables


def share_of(devices: Sequence[Device], requested: float) -> Share:
    """Return a share of devices.

    Args:
        devices: The devices that were assigned.
        requested: A part of the only device, from 0.01 to below 1; or the number of the devices, to get all of them.

    Raises:
        BadShare: The number fits neither.
    """
    count = len(devices)
    if 0.01 <= requested < 1 and count == 1:
        return Share((devices[0].uuid,), requested, devices[0].memory_bytes)
    if requested >= 1 and requested == count:
        return Share(tuple(device.uuid for device in devices), 1.0)
    raise BadShare(f"{requested:g} of {count} GPUs: a share must be 0.01 to 1 of one GPU, or a whole number of GPUs")


_taken: dict[str, str] = {}
"""The variables of the share that this process has."""


def take(share: Share, environment: Any = os.environ, modules: Mapping[str, Any] = sys.modules) -> None:
    """Give this process a share, by setting its variables; taking the same share again has no effect.

    Args:
        share: The share.
        environment: Where the variables are set.
        modules: The loaded modules, one of which may already use a GPU.

    Raises:
        BadShare: The process has another share, or has begun to use a GPU without one.
    """
    variables = share.variables()
    if _taken == variables:
        return
    if _taken:
        had, requested = _render(_taken), _render(variables)
        raise BadShare(
            f"this process has {had} already, and cannot get {requested}: a share is for the life of a process, so "
            "give each its own (Ray: max_calls=1)"
        )
    if library := _find_gpu_library(modules):
        raise BadShare(f"{library} has begun to use a GPU before this process got its share; start it later")
    for name in (PERCENTAGE, MEMORY):
        environment.pop(name, None)
    environment.update(variables)
    _taken.update(variables)


def daemon_devices() -> tuple[Device, ...]:
    """Return the devices of this machine's daemon.

    Raises:
        CannotAsk: No daemon runs, or it does not answer.
    """
    return RunningDaemon().devices()


def _render(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _find_gpu_library(modules: Mapping[str, Any]) -> str:
    """Return the name of a loaded library that is known to use a GPU."""
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
    """Return the folder of the lock files.

    Each user has a folder, so the shares of other users' processes are not counted.
    """
    return os.path.join(tempfile.gettempdir(), f"pympsd-shares-{os.geteuid()}")


def lock_part(devices: Sequence[Device], part: float, where: str = "") -> Device:
    """Lock a part of the first device that has enough left, until this process ends; return the device.

    Args:
        devices: The devices, in the order in which they are tried.
        part: The part of a device, 0.001 to 1.
        where: The folder of the lock files; empty: `folder`.

    Raises:
        BadShare: No device has enough left, the part is not allowed, or other users can write to the folder.
    """
    count = round(part * THOUSANDTHS)
    if not 0 < count <= THOUSANDTHS:
        raise BadShare(f"a share of {part:g}: it must be 0.01 to 1 of a GPU")
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
    # A lock of the open file (F_OFD_SETLK), because a lock of the process ends when the process closes the file
    # anywhere.
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True
