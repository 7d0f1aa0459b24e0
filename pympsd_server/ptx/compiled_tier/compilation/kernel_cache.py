"""Store compiled kernels on disk, so that the next executor of the same user need not compile them.

The problem: LLVM takes 100 ms for a kernel of 200 operations, and most programs run more than once. But the files are
executed, so no other user may have written them. And a program must never fail because of the cache.

The idea: each user has a folder, with a file for each kernel and shape of its blocks, whose name is a key:

    ~/.cache/pympsd/kernels/KEY        "pympsd kernel 1\\n", SHA-256 of the key and the rest, the rest

The key is a digest of everything on which the code depends (machine_code.py), so two programs with the same kernel
share a file. A file is written under a temporary name and then renamed. If all files together exceed MAX_BYTES, the
least recently used ones are removed.

The folder is trusted. So it must not be a symbolic link, it must belong to the user as whom this process runs, and
other users must have no access to it (mode 0700). The same is true of its files. An executor runs as its server's
user, so the folder belongs to that user and not to the user who started the daemon: only servers of the daemon's own
user get its `$XDG_CACHE_HOME`, home directories come from the password database, and in a directory that
PYMPSD_KERNEL_CACHE names each user has a folder.

A file's contents are checked. A file that is damaged, truncated or copied from another key has a wrong digest. It is
ignored, and replaced when the kernel has been compiled.

Without a folder, on a full disk or in a read-only home, kernels are compiled each time. The executor reports the
reason once on its standard error.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from secrets import token_hex
from typing import Final

from pympsd.vocabulary.variables import KERNEL_CACHE, read

MAX_BYTES: Final = 256 << 20
"""The maximum total size of a user's files, in bytes; a kernel of 200 operations takes 30 KB."""
MAX_FILE_BYTES: Final = 32 << 20
_MAGIC: Final = b"pympsd kernel 1\n"
_DIGEST_BYTES: Final = 32
_TEMPORARY: Final = ".new"
_ABANDONED_SECONDS: Final = 600.0
"""The age at which a temporary file's writer has certainly ended, in seconds."""


class _Unusable(OSError):
    """The folder cannot be used; the message is the reason."""


def load(key: str) -> bytes | None:
    """Return the content that this user stored under a key, or None if it does not exist or cannot be trusted."""
    with suppress(OSError), _open_folder(creates=False) as folder:
        descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _is_own(status) or status.st_size > MAX_FILE_BYTES:
                return None
            data = file.read(MAX_FILE_BYTES)
        content = data[len(_MAGIC) + _DIGEST_BYTES :]
        if data[: len(_MAGIC) + _DIGEST_BYTES] != _head(key, content):
            return None
        with suppress(OSError):  # because the file system may be read-only
            os.utime(key, dir_fd=folder, follow_symlinks=False)
        return content
    return None


def store(key: str, content: bytes) -> None:
    """Store content under a key, in place of any other content. If that is impossible, report the reason once."""
    if len(content) + len(_MAGIC) + _DIGEST_BYTES > MAX_FILE_BYTES:
        return
    try:
        with _open_folder(creates=True) as folder:
            _write(folder, key, _head(key, content) + content)
            _trim(folder)
    except OSError as error:
        if read(os.environ, KERNEL_CACHE) != "off":
            reason = str(error) if isinstance(error, _Unusable) else f"{_path()}: {error.strerror}"
            report(f"compiled kernels are not kept for later runs: {reason}; {KERNEL_CACHE} names another directory")


def _head(key: str, content: bytes) -> bytes:
    return _MAGIC + sha256(key.encode() + content).digest()


def _write(folder: int, key: str, data: bytes) -> None:
    temporary = f"{key}.{token_hex(8)}{_TEMPORARY}"  # other threads and processes may store the same kernel now
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.rename(temporary, key, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _trim(folder: int) -> None:
    """Remove abandoned temporary files, and the least recently used others until MAX_BYTES are left."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime, entry.name, status.st_size))
    total, abandoned_before = sum(size for *_, size in files), time.time() - _ABANDONED_SECONDS
    for used, name, size in sorted(files):
        if used < abandoned_before if name.endswith(_TEMPORARY) else total > MAX_BYTES:
            with suppress(FileNotFoundError):  # another executor may have removed it
                os.unlink(name, dir_fd=folder)
            total -= size


@contextmanager
def _open_folder(*, creates: bool) -> Iterator[int]:
    """Open this user's folder. Raises _Unusable or another OSError if it cannot be opened or trusted."""
    path = _path()
    if creates:
        _make(path)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:  # also for a symbolic link to a directory
        raise _Unusable(f"{path} is not a directory") from None
    try:
        status = os.fstat(folder)
        if not _is_own(status):
            mode = stat.S_IMODE(status.st_mode)
            reason = f"belongs to user {status.st_uid} and has mode {mode:o}"
            raise _Unusable(f"{path} {reason}; it has to belong to user {os.geteuid()} and have mode 700")
        yield folder
    finally:
        os.close(folder)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _make(path: str) -> None:
    """Create a folder and its missing parents, all with mode 0700, as the XDG specification requires."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make(above)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _path() -> str:
    """Return the path of this user's folder. Raises _Unusable if the user has none or the cache is switched off."""
    setting = read(os.environ, KERNEL_CACHE)
    if setting == "off":
        raise _Unusable("the cache is switched off")
    if setting:
        return f"{setting}/{os.geteuid()}"
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        try:
            home = f"{pwd.getpwuid(os.geteuid()).pw_dir}/.cache"
        except KeyError:
            raise _Unusable(f"user {os.geteuid()} has no home directory") from None
    return f"{home}/pympsd/kernels"


@cache
def report(text: str) -> None:
    """Write a line to standard error, which the daemon logs, but each text only once."""
    print(f"pympsd executor: {text}", file=sys.stderr, flush=True)
