"""Create and open the directory of a server or a namespace. An existing directory is used again, because containers
may have mounted it.

The directory belongs to the server's user, who can put anything there. So links are not followed, and files are
changed through descriptors, not by name.
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from typing import Final

from pympsd.errors import FileError
from pympsd.service.files import remains
from pympsd.service.files.pipe_directory import BACKLOG, DIRECTORY_MODE
from pympsd.vocabulary import files

FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Foreign(FileError, OSError):
    """A file or directory belongs to another user, or is not a directory; the message contains the reason."""


@contextlib.contextmanager
def open_directory(top: str, server: str, namespace: str, uid: int) -> Iterator[int]:
    """Create the missing parts of a directory, and yield a descriptor of the directory. Raise OSError."""
    with contextlib.ExitStack() as stack:
        fd = _close_at_end(stack, os.open(top, FLAGS & ~os.O_NOFOLLOW))
        path = top
        for name in filter(None, (server, namespace)):
            path = os.path.join(path, name)
            fd = _close_at_end(stack, _enter(fd, name, path, uid))
        yield fd


@contextlib.contextmanager
def open_existing(top: str, server: str) -> Iterator[int]:
    """Yield a descriptor of a server's directory, or (``server`` empty) of the daemon's. Raise OSError."""
    with contextlib.ExitStack() as stack:
        fd = _close_at_end(stack, os.open(top, FLAGS & ~os.O_NOFOLLOW))
        yield _close_at_end(stack, os.open(server, FLAGS, dir_fd=fd)) if server else fd


@contextlib.contextmanager
def open_subdirectory(folder: int, name: str) -> Iterator[int]:
    """Yield a descriptor of a server's or a namespace's directory inside an open directory. Raise OSError."""
    with contextlib.ExitStack() as stack:
        fd = _close_at_end(stack, os.open(name, FLAGS, dir_fd=folder))
        _check_no_daemon(fd, name)
        yield fd


def listen(folder: int, kind: socket.SocketKind) -> socket.socket:
    """Return a socket that listens as ``control`` in a directory, and replaces an earlier one. Raise OSError."""
    remove(folder, files.CONTROL)
    with contextlib.ExitStack() as on_error:
        listener = on_error.enter_context(socket.socket(socket.AF_UNIX, kind))
        with _umask(0o111):  # mode 0666 from the start: later the name could be another file's
            listener.bind(f"/proc/self/fd/{folder}/{files.CONTROL}")
        listener.listen(BACKLOG)
        on_error.pop_all()
        return listener


def open_fifo(folder: int) -> int:
    """Return a descriptor of the log FIFO of a directory; an existing FIFO is used again. Raise OSError."""
    try:
        with _umask(0):
            os.mkfifo(files.LOG_FIFO, 0o777, dir_fd=folder)
    except FileExistsError:
        _check_remains(folder, files.LOG_FIFO)
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(files.LOG_FIFO, flags, dir_fd=folder)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise Foreign("its log is not a FIFO")


def remove(folder: int, file: str) -> None:
    """Remove a file of a directory if a daemon made it. Raise OSError, or Foreign for a file of another kind."""
    _check_remains(folder, file)
    remains.remove(file, folder)


def _check_remains(folder: int, file: str) -> None:
    try:
        remains.check(file, folder)
    except remains.NotOfADaemon as error:
        raise Foreign(f"{os.readlink(f'/proc/self/fd/{folder}')}/{file} {error.strerror}") from None


def _enter(parent: int, name: str, path: str, uid: int) -> int:
    """Return a descriptor of a directory; create the directory if it is missing."""
    is_new = True
    try:
        os.mkdir(name, DIRECTORY_MODE, dir_fd=parent)
    except FileExistsError:
        is_new = False
    try:
        fd = os.open(name, FLAGS, dir_fd=parent)
    except NotADirectoryError:
        raise Foreign(f"{path} is not a directory: remove it") from None
    try:
        owner = os.fstat(fd).st_uid
        # Users choose the names of servers, so an existing directory is not given to a server's user.
        if owner != uid and not is_new:
            raise Foreign(f"{path} belongs to user {owner}: remove it")
        _check_no_daemon(fd, path)
        if owner != uid:
            _give(fd, uid)
    except OSError:
        os.close(fd)
        raise
    return fd


def _give(folder: int, uid: int) -> None:
    """Give a directory to a user. Raise OSError, which names the call, if the kernel denies that."""
    try:
        os.fchown(folder, uid, -1)
    except OSError as error:
        reason = f"chown to user {uid} is denied ({error.strerror})"
        if error.errno == errno.EINVAL:
            reason = f"{reason}: that user does not exist in the daemon's user namespace (/proc/self/uid_map)"
        raise OSError(error.errno, reason) from None


def _check_no_daemon(folder: int, path: str) -> None:
    """Raise Foreign if a directory is the pipe directory of a running or a killed daemon."""
    for file in files.OF_A_RUNNING_DAEMON:
        with contextlib.suppress(FileNotFoundError):
            os.stat(file, dir_fd=folder, follow_symlinks=False)
            raise Foreign(f"{path} has {file}, of a daemon of its own there: quit that, or remove the file")


def _close_at_end(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
