"""Which device of a machine a process gets a part of: by locks on files, which end with the process."""

import errno
import fcntl
import os
import stat
import struct
import tempfile
from collections.abc import Sequence
from typing import Final

from pympsd.clusters.share import BadShare
from pympsd.control import Device

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
