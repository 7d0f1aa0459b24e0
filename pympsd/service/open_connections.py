"""How many connections each user has open, over all sockets of the daemon, and whether there is room for another."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from attrs import define, field

from pympsd.service.fd_quota import UNLIMITED
from pympsd.vocabulary.shares import CONNECTIONS, Shares

DRIVERS_WEIGHT: Final = 3
"""What a connection of libcuda counts as: it takes up to five descriptors, others up to two."""


def shares_of_process() -> Shares:
    """Return the shares that nobody has set, with the limit of descriptors of this process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Shares(descriptors=UNLIMITED if descriptors == resource.RLIM_INFINITY else descriptors)


@define
class OpenConnections:
    """The open connections, by user; ``trusted`` users have no share."""

    trusted: frozenset[int]
    shares: Callable[[], Shares] = shares_of_process
    """Returns the shares that are in force."""
    _open: Counter[int] = field(factory=Counter, init=False)

    def obstacle(self, uid: int, weight: int) -> str:
        """Return why a user may not open another connection, or an empty string."""
        shares, own, everything = self.shares(), self._open[uid] + weight, self._open.total() + weight
        if uid in self.trusted:
            total = shares.total(CONNECTIONS)
            return "" if everything <= total else f"all users together have {total} connections, which is the most"
        if own > shares.share(CONNECTIONS):
            return f"user {uid} has {self._open[uid]} connections open, which is the share of a user"
        # As for buffers (channel.allowance): however many users take all they can, the next one finds some free.
        if own > shares.for_users(CONNECTIONS) - everything:
            return f"user {uid} has {self._open[uid]} connections open, and other users would have fewer left"
        return ""

    @contextmanager
    def counted(self, uid: int, weight: int) -> Iterator[None]:
        """Count a connection during a block."""
        self._open[uid] += weight
        try:
            yield
        finally:
            self._open[uid] -= weight
            if not self._open[uid]:
                del self._open[uid]
