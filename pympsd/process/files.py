"""Write a file completely or not at all; find out whether another user can reach a file."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def unreachable_folder(path: str, uid: int, gids: frozenset[int]) -> str | None:
    """Return the first folder on the path to a file that a user may not search; None if there is none.

    Symbolic links are followed."""
    if uid == 0:
        return None
    for folder in _folders(Path(os.path.abspath(path))):
        if not _may_search(os.stat(folder), uid, gids):
            return str(folder)
    return None


def _folders(path: Path, depth: int = 0) -> Iterator[Path]:
    for folder in reversed(path.parents):
        if folder.is_symlink() and depth < 40:
            yield from _folders(_target(folder), depth + 1)
            yield _target(folder)
        else:
            yield folder
    if path.is_symlink() and depth < 40:
        yield from _folders(_target(path), depth + 1)


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / os.readlink(link)))


def _may_search(status: os.stat_result, uid: int, gids: frozenset[int]) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid in gids:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def write_whole(path: str, content: bytes, mode: int | None = None) -> None:
    """Write a file and replace an existing one; if that fails, the old file is unchanged. Raise OSError.

    ``mode``: the file's permissions; by default those of the existing file, or those that the umask allows. An
    existing link is replaced, not followed.
    """
    new = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{secrets.token_hex(4)}.new")
    try:
        with open(new, "xb") as file:
            file.write(content)
        with suppress(FileNotFoundError):
            os.chmod(new, os.lstat(path).st_mode & 0o777 if mode is None else mode)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise
