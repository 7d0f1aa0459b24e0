"""Identities: 64-bit ids, which are given out once each.

A process is never identified by its PID alone, because PIDs are reused.
"""

from attrs import frozen

NO_USER = (1 << 32) - 1
"""To the kernel no uid."""


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
        """The uid by which privileges are given: no user's if it is a placeholder, which may be the daemon's own."""
        return NO_USER if self.foreign else self.uid


class Ids:
    """A counter of ids, which returns each one once."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def take(self) -> int:
        """Return the next id."""
        taken, self._next = self._next, self._next + 1
        return taken
