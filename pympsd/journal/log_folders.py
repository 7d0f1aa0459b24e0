"""The folders of named servers' logs, which are in the log directory: bounded when servers are deleted.

Users choose the names of their servers, and a server has a folder of that name in root's log directory. Without a
bound, a user who makes and deletes servers would fill that directory. Therefore the folder of a deleted server is
removed if its logs are empty. Other ones are kept for their users to read, MAX_KEPT of each user; beyond that the
oldest ones are removed with the logs in them.

Only a folder that a daemon of this pipe directory has made is ever removed; it is identified by its device and inode.
It belongs to its server's user, who can put anything into it: links are not followed, and only logs are deleted. A
folder with other things stays and counts. A user with more than MAX_KEPT such folders gets no more of them: the lines
of the user's next servers are in the log of all servers.
"""

import contextlib
import errno
import os
import stat
from typing import Final

from attrs import define, evolve, field, frozen

from pympsd.vocabulary.files import SERVER_LOG

MAX_KEPT: Final = 16
"""The maximum number of folders of a user's deleted servers that are kept."""
_MAX_LOGS: Final = 64
"""The maximum number of files in a folder of logs; a folder with more is kept without a look at all of them."""


@frozen
class MadeFolder:
    """A folder that a daemon has made for the log of a server."""

    name: str
    device: int
    inode: int
    uid: int
    """The server's user."""
    deleted: bool = False
    """True if the folder's server was deleted."""


@define
class LogFolders:
    """The folders that daemons have made in a log directory, the earliest deleted ones first."""

    path: str
    _made: dict[str, MadeFolder] = field(factory=dict, init=False)

    def list_made(self) -> tuple[MadeFolder, ...]:
        """Return the folders for the next daemon."""
        return tuple(self._made.values())

    def take(self, folders: tuple[MadeFolder, ...]) -> None:
        """Take over the folders that an earlier daemon made in this log directory, if they still exist."""
        self._made |= {
            made_folder.name: made_folder
            for made_folder in folders
            if self._identity(made_folder.name) == (made_folder.device, made_folder.inode)
        }

    def is_missing(self, name: str) -> bool:
        """Return whether the folder of a server has to be made."""
        return not os.path.lexists(os.path.join(self.path, name))

    def check_room(self, name: str, uid: int) -> None:
        """Raise OSError if a user has too many folders to get another one, for the server with this name."""
        if name not in self._made and len(self._list_kept(uid)) > MAX_KEPT:
            reason = f"folders of {MAX_KEPT} deleted servers of user {uid} there have other things than logs"
            raise OSError(errno.EDQUOT, reason, os.path.join(self.path, name))

    def note_opened(self, name: str, uid: int, is_new: bool) -> None:
        """Note that a user's server has its log in a folder, and whether the folder was made for it."""
        folder = self._made.pop(name, None)
        if is_new:
            self._made[name] = MadeFolder(name, *self._identity(name), uid)
        elif folder is not None:
            self._made[name] = evolve(folder, uid=uid, deleted=False)

    def note_deleted(self, name: str) -> None:
        """Remove the folder of a deleted server if its logs are empty, and the user's oldest ones beyond
        MAX_KEPT.
        """
        folder = self._made.pop(name, None)
        if folder is None or self._remove(folder, only_empty=True):
            return
        self._made[name] = evolve(folder, deleted=True)
        kept_folders = self._list_kept(folder.uid)
        excess = len(kept_folders) - MAX_KEPT
        for kept_folder in kept_folders:
            if excess > 0 and self._remove(kept_folder, only_empty=False):
                del self._made[kept_folder.name]
                excess -= 1

    def _list_kept(self, uid: int) -> list[MadeFolder]:
        return [folder for folder in self._made.values() if folder.deleted and folder.uid == uid]

    def _remove(self, folder: MadeFolder, *, only_empty: bool) -> bool:
        """Remove a folder unless it has other things than logs; return whether it is gone or was replaced."""
        try:
            descriptor = os.open(
                os.path.join(self.path, folder.name), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError:
            return True
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != (folder.device, folder.inode):
                return True
            names = _logs_in(descriptor, only_empty)
            if names is None:
                return False
            for name in names:
                os.unlink(name, dir_fd=descriptor)
            os.rmdir(os.path.join(self.path, folder.name))
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _identity(self, name: str) -> tuple[int, int]:
        """Return the device and inode of a folder; zeros if it does not exist."""
        with contextlib.suppress(OSError):
            status = os.lstat(os.path.join(self.path, name))
            if stat.S_ISDIR(status.st_mode):
                return status.st_dev, status.st_ino
        return 0, 0


def _logs_in(folder: int, only_empty: bool) -> list[str] | None:
    """Return the names of the logs in a folder; None if it has other things, or logs that are not empty."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_log = entry.is_file(follow_symlinks=False) and entry.name.startswith(SERVER_LOG)
            is_kept = only_empty and is_log and entry.stat(follow_symlinks=False).st_size
            if not is_log or is_kept or len(names) == _MAX_LOGS:
                return None
            names.append(entry.name)
    return names
