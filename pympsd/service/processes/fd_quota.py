"""Limit users to quotas of the file descriptors that this process may open, so that no user can take all of them."""

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from pympsd.channel.descriptors import close_all

MINIMUM: Final = 16
"""The minimum quota in descriptors, however low the limit of open descriptors is."""
SPARE: Final = 32
"""The number of descriptors that a daemon needs in addition to those that an earlier daemon left."""
UNLIMITED: Final = 1 << 20
"""The limit to assume if RLIMIT_NOFILE sets none."""
USER_DIVISOR: Final = 32
"""The divisor of the descriptor limit that gives a user's quota of descriptors that wait for servers, and of watched
clients.
"""
QUEUED_DIVISOR: Final = 8
"""The divisor of the descriptor limit that gives all users' quota of descriptors that wait for servers."""
WATCHED_DIVISOR: Final = 16
"""The divisor of the descriptor limit that gives all users' quota of watched clients."""
ASSURED: Final = 4
"""The number of a user's descriptors that may wait for servers even if all users' quota is used up."""


def raise_fd_limit() -> None:
    """Raise the soft limit of open descriptors to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fd_limit() -> int:
    """Return the number of descriptors that this process may have open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if descriptors == resource.RLIM_INFINITY else descriptors


def fd_quota(divisor: int) -> int:
    """Return the limit of open descriptors divided by ``divisor``, at least MINIMUM."""
    return max(MINIMUM, fd_limit() // divisor)


def can_open(count: int) -> bool:
    """Return whether this process may open ``count`` more files."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(count))
    except OSError:
        return False
    finally:
        close_all(opened)
    return True


class DescriptorHolder(Protocol):
    """A server's session, which holds descriptors for its clients."""

    uid: int

    @property
    def queued_descriptors(self) -> int:
        """The number of descriptors that were sent to the server and that it has not received yet."""

    @property
    def watched_clients(self) -> int:
        """The number of clients whose processes the daemon watches by a pidfd."""


def may_queue(server: DescriptorHolder, servers: Iterable[DescriptorHolder], exempt: AbstractSet[int]) -> bool:
    """Return whether another client may be sent to a server: whether few enough descriptors wait for servers.

    Users can stop their servers, and can have several. Therefore the descriptors of all ``servers`` count: per user,
    and for all users together except the ``exempt`` ones. ASSURED descriptors of a user may always wait.
    """
    own, others = _counts(server, servers, exempt, lambda holder: holder.queued_descriptors)
    return own < ASSURED or (own < fd_quota(USER_DIVISOR) and own + others < fd_quota(QUEUED_DIVISOR))


def may_watch(server: DescriptorHolder, servers: Iterable[DescriptorHolder], exempt: AbstractSet[int]) -> bool:
    """Return whether the process of another client of a server may be watched; servers count as in `may_queue`."""
    own, others = _counts(server, servers, exempt, lambda holder: holder.watched_clients)
    return own < fd_quota(USER_DIVISOR) and own + others < fd_quota(WATCHED_DIVISOR)


def _counts(
    server: DescriptorHolder,
    servers: Iterable[DescriptorHolder],
    exempt: AbstractSet[int],
    count: Callable[[DescriptorHolder], int],
) -> tuple[int, int]:
    """Return the descriptors of a server's user, and those of all other users together (0 if the user is exempt)."""
    by_user: Counter[int] = Counter()
    for holder in servers:
        by_user[holder.uid] += count(holder)
    own = by_user.pop(server.uid, 0)
    return own, 0 if server.uid in exempt else sum(n for uid, n in by_user.items() if uid not in exempt)
