"""Refuse symbolic links through which another user decides which file a daemon opens.

A link is trusted if root or this user owns it, and if no other user can replace it. For that, its folder must also
belong to root or this user, and must be sticky or writable only by its owner.
"""

import errno
import os
import stat
from typing import Final

from pympsd.errors import FileError

MAX_LINKS: Final = 40
"""The maximum number of links to follow, the same as the kernel's (path_resolution(7))."""


class UntrustedLink(FileError, OSError):
    """A part of a path, ``filename``, is a link that another user made or can replace; ``strerror`` states which."""

    def __init__(self, link: str, origin: str) -> None:
        reason = f"a symbolic link to {os.readlink(link)} that {origin}; give the path of the target instead"
        super().__init__(errno.ELOOP, reason, link)


def check_links(path: str) -> None:
    """Raise UntrustedLink if a part of a path is a symbolic link that is not trusted.

    Links are followed, and ``..`` is resolved, as the kernel does when it opens the path. A missing part is not an
    error.
    """
    remaining = _reversed_parts(os.path.join(os.getcwd(), path))
    place, followed = "/", 0
    while remaining:
        part = remaining.pop()
        if part == "..":
            place = os.path.dirname(place)
            continue
        here = os.path.join(place, part)
        try:
            status = os.lstat(here)
        except OSError:
            return
        if not stat.S_ISLNK(status.st_mode):
            place = here
            continue
        followed += 1
        if followed > MAX_LINKS:
            return  # opening it fails
        _check_owner(here, status, os.lstat(place))
        target = os.readlink(here)
        if target.startswith("/"):
            place = "/"
        remaining += _reversed_parts(target)


def _reversed_parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _check_owner(link: str, status: os.stat_result, folder: os.stat_result) -> None:
    trusted = (0, os.geteuid())
    if status.st_uid not in trusted:
        raise UntrustedLink(link, f"user {status.st_uid} made")
    if folder.st_uid not in trusted:
        raise UntrustedLink(link, f"user {folder.st_uid} can replace")
    if _is_open_to_others(folder) and not folder.st_mode & stat.S_ISVTX:
        raise UntrustedLink(link, "other users can replace")


def _is_open_to_others(folder: os.stat_result) -> bool:
    """Return whether other users than its owner can write to a folder. A user's private group counts as that user."""
    is_private = folder.st_gid == os.getegid() == os.geteuid()
    return bool(folder.st_mode & (stat.S_IWOTH if is_private else stat.S_IWOTH | stat.S_IWGRP))
