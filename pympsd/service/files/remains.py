"""Recognise the files that daemons leave behind, by kind and content, before they are replaced or removed.

A pipe directory may be any folder, so a file that has one of the daemon's names may be somebody's own. A file is
replaced or removed only if it is of the kind that a daemon makes under that name:

    control, control_privileged, pympsd.control, pympsd.keeper    a socket
    log                                                           a FIFO
    nvidia-cuda-mps-control.pid                                   a regular file with a PID in it
    control_lock, pympsd.named-servers                            an empty regular file with one name
    pympsd.state, pympsd.state.new                                a regular file that begins as a saved state does
    pympsd.nvml, pympsd.nvml.new                                  a regular file that begins as a list of devices

An empty file also counts as a PID file or a state file, because a full disk or a power failure leaves such files. All
other files, links included, stay and are reported with their paths (``NotOfADaemon``).
"""

import errno
import os
import stat
from collections.abc import Callable
from typing import Final

from pympsd.errors import FileError
from pympsd.vocabulary import files

STATE_BEGINS: Final = (b'{"backend":', b'{"boot":')
"""The first bytes of a saved state (``state_file.SavedState``, whose keys are sorted), and of an early version's."""
NVML_BEGINS: Final = b"pympsd-nvml "
"""The first bytes of a description of devices, in every version (`pympsd.devices.nvml_text`)."""
_PID_BYTES: Final = 20
_SOCKETS: Final = (files.CONTROL, files.CONTROL_PRIVILEGED, files.OWN_CONTROL, files.KEEPER)
_KINDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


class NotOfADaemon(FileError, FileExistsError):
    """A file that no daemon made has the name of a daemon's file; ``strerror`` states what the file is,
    and a remedy.
    """

    def __init__(self, kind: str, expected: str, path: str) -> None:
        super().__init__(errno.EEXIST, f"is {kind}, not a daemon's {expected}: move it away", path)

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


def check(path: str, folder: int | None = None) -> None:
    """Raise NotOfADaemon if a file of this name exists that no daemon made.

    Raise another OSError if it cannot be read.

    ``path`` is relative to ``folder``, a descriptor of an open directory, if that is given. Its last part is the
    name.
    """
    try:
        mode = os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    name = os.path.basename(path)
    expected, kind, check_content = _expect(name)
    if stat.S_IFMT(mode) != kind:
        raise NotOfADaemon(_KINDS.get(stat.S_IFMT(mode), "a file"), expected, path)
    if check_content is not None and not _has_content(path, folder, check_content):
        raise NotOfADaemon("a file with other contents", expected, path)


def remove(path: str, folder: int | None = None) -> None:
    """Remove a file that a daemon made, if it exists. Raise OSError, or the errors of ``check``."""
    check(path, folder)
    try:
        os.unlink(path, dir_fd=folder)
    except FileNotFoundError:
        return


def _expect(name: str) -> tuple[str, int, Callable[[bytes], bool] | None]:
    """Return the kind of file that a daemon has under a name: its description, its type, and a test of its first
    bytes.
    """
    if name in _SOCKETS:
        return "socket", stat.S_IFSOCK, None
    if name == files.LOG_FIFO:
        return "FIFO", stat.S_IFIFO, None
    if name == files.PID:
        return "PID file", stat.S_IFREG, _is_pid
    if name in (files.LOCK, files.NAMED_SERVERS):
        return "lock file" if name == files.LOCK else "empty file", stat.S_IFREG, lambda data: not data
    if name in (files.NVML, files.NEW_NVML):
        return "list of devices", stat.S_IFREG, _is_nvml_text
    return "state file", stat.S_IFREG, _is_state


def _is_pid(data: bytes) -> bool:
    return not data or (len(data) < _PID_BYTES and data.strip().isdigit())


def _is_nvml_text(data: bytes) -> bool:
    return data.startswith(NVML_BEGINS[: len(data)])


def _is_state(data: bytes) -> bool:
    return any(data.startswith(begin[: len(data)]) for begin in STATE_BEGINS)


def _has_content(path: str, folder: int | None, is_expected: Callable[[bytes], bool]) -> bool:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, dir_fd=folder)
    except FileNotFoundError:  # removed in the meantime
        return True
    try:
        status = os.fstat(fd)
        return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1 and is_expected(os.read(fd, _PID_BYTES))
    finally:
        os.close(fd)
