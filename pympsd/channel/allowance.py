"""What a connection may cost this process: bytes from its user's budget, and time to finish what it has begun.

Theory of operation. A process that serves untrusted users keeps two kinds of bytes for a connection: those that it
has received and not dealt with yet (the beginning of a frame, a command that is being answered), and those that it
has queued because the peer does not read. A user who opens a thousand connections can have both kinds on each, so a
limit for each connection bounds nothing. Therefore

- all bytes of all connections of a user come out of one *budget* (BufferBudget), whichever socket they arrived at;
- the connection for which bytes would be kept beyond the budget is closed. No other connection is touched, because
  the process cannot know which of them the user needs;
- both kinds end by themselves: a frame that has begun must be complete, and what is queued must be read, within a
  *deadline*.

How much a user may keep is the smallest of two numbers::

    the user's share                what an administrator grants each user
    what would remain free          of the total of all users, without the reserve of trusted users

The second one makes a total fair without a list of who waits. N users who all take as much as they can end with a
share of total / (N + 1) each, and the same amount is still free for the next one, who needs a few bytes only::

    N = 1:  |#### share ####|------------------- free -------------------|= reserve =|
    N = 4:  |######|######|######|######|-------------- free ------------|= reserve =|

Trusted users (root, and the user who runs the process) have no share and may use the reserve too, so that an operator
is answered whatever others do.

The links to servers are counted, but never closed for what they cost (``lift``): a stopped server is no attack, and
its clients are refused instead while its user's budget is used up (``has_room``).

Invariants: the sum over a user's allowances is what the budget holds for that user; a closed allowance holds nothing.
Nothing here reads a clock: the channels wait, with the deadlines that an allowance states.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from attrs import define, field

from pympsd.vocabulary.shares import BUFFERS
from pympsd.wire.errors import LimitExceeded

FRAME_SECONDS: Final = 10.0
"""From the first byte of a frame, or a request of several, to its last; a hello has the same time."""
UNREAD_SECONDS: Final = 30.0
"""From the moment that a peer's socket is full to the moment that the peer has read everything."""
_MIB: Final = 1 << 20


@define
class BufferBudget:
    """The bytes that this process keeps for its peers, by user."""

    trusted: frozenset[int]
    """Users without a share, who may use the reserve."""
    share: Callable[[], int] = lambda: BUFFERS.share
    """Returns what another user may have, in bytes; it is asked each time, because an operator can change it."""
    total: int = BUFFERS.total
    """What all users together may have, in bytes."""
    for_users: int = BUFFERS.for_users(0, own=True)
    """The part of the total that is not reserved for trusted users."""
    _held: Counter[int] = field(factory=Counter, init=False)

    def held(self, uid: int) -> int:
        """Return the bytes that are kept for a user."""
        return self._held[uid]

    def obstacle(self, uid: int, count: int) -> str:
        """Return why ``count`` more bytes cannot be kept for a user, or an empty string."""
        everything = self._held.total() + count
        if uid in self.trusted:
            return "" if everything <= self.total else f"all buffers ({_amount(self.total)}) are in use"
        own, share = self._held[uid] + count, self.share()
        if own > share:
            return f"its user's share of buffers ({_amount(share)}) is used up"
        if own > self.for_users - everything:
            return f"it would leave other users less of the buffers than it takes ({_amount(own)})"
        return ""

    def change(self, uid: int, count: int) -> None:
        """Count bytes that are kept for a user from now on, or (negative) no longer."""
        self._held[uid] += count
        if not self._held[uid]:
            del self._held[uid]

    def allowance(self, uid: int) -> Allowance:
        """Return the allowance of a new connection of a user."""
        return Allowance(self, uid, FRAME_SECONDS, UNREAD_SECONDS)

    def link(self, uid: int) -> Allowance:
        """Return the allowance of the link to a user's server."""
        allowance = Allowance(self, uid)
        allowance.lift()
        return allowance


@define
class Allowance:
    """What one connection may cost. Without a budget: a trusted peer, for whom nothing is limited or counted."""

    budget: BufferBudget | None = None
    uid: int = 0
    frame_seconds: float = math.inf
    """The deadline of a frame that has begun, or of the rest of a request of several."""
    unread_seconds: float = math.inf
    """The deadline for the peer to read what is queued."""
    _is_limited: bool = field(default=True, init=False)
    _received: int = field(default=0, init=False)
    _queued: int = field(default=0, init=False)
    _kept: int = field(default=0, init=False)
    _counted: int = field(default=0, init=False)
    """What the budget holds for this connection."""

    def lift(self) -> None:
        """Count the bytes from now on, but limit neither them nor the time: the peer is a server."""
        self._is_limited = False
        self.frame_seconds = self.unread_seconds = math.inf

    def has_room(self, count: int) -> bool:
        """Return whether the budget has room for ``count`` more bytes."""
        return self.budget is None or not self.budget.obstacle(self.uid, count)

    def count_received(self, count: int) -> None:
        """State how many received bytes are kept now; raise LimitExceeded if they are too many."""
        self._received = count
        self._settle()

    def count_queued(self, count: int) -> None:
        """State how many bytes are queued for the peer now; raise LimitExceeded if they are too many."""
        self._queued = count
        self._settle()

    @contextmanager
    def keeping(self, count: int) -> Iterator[None]:
        """Count further bytes during a block; raise LimitExceeded if they are too many."""
        self._kept += count
        try:
            self._settle()
            yield
        finally:
            self._kept -= count
            self._settle(is_limited=False)

    def close(self) -> None:
        """Give everything back; what is counted later has no effect."""
        self._received = self._queued = self._kept = 0
        self._settle()
        self.budget = None

    def _settle(self, is_limited: bool = True) -> None:
        """Tell the budget what has changed; raise LimitExceeded for too much, which is not counted then."""
        change = self._received + self._queued + self._kept - self._counted
        if self.budget is None or not change:
            return
        if change > 0 and self._is_limited and is_limited and (obstacle := self.budget.obstacle(self.uid, change)):
            raise LimitExceeded(f"{change} bytes cannot be kept for it: {obstacle}")
        self.budget.change(self.uid, change)
        self._counted += change


def _amount(count: int) -> str:
    return f"{count // _MIB} MiB" if count >= _MIB else f"{count} bytes"
