"""Identities: 64-bit ids, which are given out once each, and the names of servers and namespaces.

A process is never identified by its PID alone, because PIDs are reused. Servers and namespaces are directories below
the pipe directory.
"""

import re
from typing import Final

from attrs import frozen

from pympsd.vocabulary import files

NO_USER = (1 << 32) - 1
"""The value that the kernel never uses as a uid."""


@frozen
class Peer:
    """The process at the other end of a socket, as the kernel reported it on connect; pid 0: not visible here.

    ``foreign``: the user belongs to another user namespace, and the uid is a placeholder.
    """

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    foreign: bool = False

    @property
    def operator(self) -> int:
        """The uid that decides the privileges; NO_USER for a placeholder, which may equal the daemon's own uid."""
        return NO_USER if self.foreign else self.uid


class Ids:
    """A counter of ids, which returns each one once."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def take(self) -> int:
        """Return the next id."""
        number, self._next = self._next, self._next + 1
        return number


DEFAULT: Final = "default"
"""The namespace that every server has."""
RESERVED: Final = frozenset({files.CONTROL, files.LOG_FIFO, "help"})
RESERVED_OF_SERVERS: Final = RESERVED | {files.LOCK, files.CONTROL_PRIVILEGED}
_NAME: Final = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)
_NAME_OF_USER: Final = re.compile("uid_(0|[1-9][0-9]{0,9})", re.ASCII)


def server_of_user(uid: int) -> str:
    """Return the name of a user's own server, which serves the user's clients that name no server.

    >>> server_of_user(1000)
    'uid_1000'
    """
    return f"uid_{uid}"


def user_of_server(name: str) -> int | None:
    """Return the user whose own server has this name (`server_of_user`); None for all other names.

    >>> user_of_server("uid_1000"), user_of_server("uid_01000"), user_of_server("a")
    (1000, None, None)
    """
    match = _NAME_OF_USER.fullmatch(name)
    return int(match[1]) if match and int(match[1]) < NO_USER else None


def name_problem(name: str, of_server: bool = False) -> str:
    """Return why a server or a namespace cannot have a name; nothing if it can."""
    if not _NAME.fullmatch(name):
        return f"Bad name '{name}': 1 to 64 lowercase letters, digits and underscores."
    if name in (RESERVED_OF_SERVERS if of_server else RESERVED):
        return f"The name '{name}' is taken by a socket of the pipe directory."
    return ""


def socket_problem(pipe_directory: str, server: str, namespace: str, *, for_libcuda: bool) -> str:
    """Return why a namespace's socket cannot be made; nothing if it can. ``for_libcuda``: libcuda connects to it."""
    path = f"{pipe_directory}/{server}/{namespace}/{files.CONTROL}"
    size = len(path.encode("utf-8", "surrogateescape"))
    most = files.MAX_LIBCUDA_SOCKET_PATH if for_libcuda else files.MAX_SOCKET_PATH
    if size <= most:
        return ""
    return (
        f"The socket path {path} is {size} bytes long; at most {most} are possible: choose a shorter "
        "name or CUDA_MPS_PIPE_DIRECTORY."
    )
