"""Limit the bytes that a connection may take, from its user's budget, and the time for its frames and reads.

Theory of operation. A process that serves untrusted users keeps two kinds of bytes for a connection: those that it
has received and not handled yet (the beginning of a frame, a command that is being answered), and those that it has
queued because the peer does not read. A user who opens a thousand connections can have both kinds on each, so a limit
for each connection does not help. Therefore

- all bytes of all connections of a user come out of one *budget* (BufferBudget), whichever socket they arrived at;
- the connection for which bytes would be kept beyond the budget is closed. No other connection is touched, because
  the process cannot know which of them the user needs;
- neither kind lasts: a frame that has begun must be complete, and what is queued must be read, within a
  *deadline*.

A budget calls its ``problem`` to decide how much a user may have; in the daemon that is the check of all shares
(pympsd.state_machine.shares). ``keep`` counts everything else that a session stores, such as the hello of a waiting
client. An example, with a share of 4 MiB::

    connection   received   queued   kept     in the user's budget
    1            1 MiB      -        -        1 MiB
    2            -          2 MiB    -        3 MiB
    3            1.5 MiB: does not fit, so connection 3 is closed; 1 and 2 stay

The links to servers are counted, but never closed for their cost (``lift``): a stopped server is not an attack.
Instead the clients that would be queued for it are refused (``has_room``).

Invariants: the sum over a user's allowances equals the budget's amount for that user; a closed allowance holds
nothing. Nothing here reads a clock: the channels wait, with the deadlines that an allowance states.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from attrs import define, field

from pympsd.errors import LimitExceeded

FRAME_SECONDS: Final = 10.0
"""The time from the first byte of a frame, or of a request of several frames, to its last.

A hello has the same time.
"""
UNREAD_SECONDS: Final = 30.0
"""The time from when a peer's socket is full until the peer has read everything."""


@define
class BufferBudget:
    """Counts, by user, the bytes that this process keeps for its peers: received from them, or not yet read by them.

    An `Allowance` counts one connection in the budget. A connection that would exceed its user's share is closed.
    """

    problem: Callable[[int, int], str]
    """The function of (uid, count) that returns why a user may not have ``count`` more bytes, or an empty text."""
    held: Counter[int] = field(factory=Counter)
    """The number of bytes that are kept for each user, without users who have none."""

    def change(self, uid: int, count: int) -> None:
        """Add to the bytes that are kept for a user; ``count`` is negative for bytes that are released."""
        self.held[uid] += count
        if not self.held[uid]:
            del self.held[uid]

    def allowance(self, uid: int) -> Allowance:
        """Return the allowance of a new connection of a user, with both time limits."""
        return Allowance(self, uid, FRAME_SECONDS, UNREAD_SECONDS)

    def link(self, uid: int) -> Allowance:
        """Return the allowance of the link to a user's server, whose bytes are counted but not limited."""
        allowance = Allowance(self, uid)
        allowance.lift()
        return allowance


@define
class Allowance:
    """The bytes and the time that one connection may take.

    Without a budget the peer is trusted: nothing is counted or limited.
    """

    budget: BufferBudget | None = None
    uid: int = 0
    frame_seconds: float = math.inf
    """The time in seconds for a frame that has begun, or for the rest of a request of several frames."""
    unread_seconds: float = math.inf
    """The time in seconds in which the peer must read the queued bytes."""
    _is_limited: bool = field(default=True, init=False)
    _received: int = field(default=0, init=False)
    _queued: int = field(default=0, init=False)
    _kept: int = field(default=0, init=False)
    _counted: int = field(default=0, init=False)
    """The number of bytes that the budget counts for this connection."""

    def lift(self) -> None:
        """Count bytes but limit neither bytes nor time from now on, because the peer is a server."""
        self._is_limited = False
        self.frame_seconds = self.unread_seconds = math.inf

    def has_room(self, count: int) -> bool:
        """Return whether the user may have ``count`` more bytes now, without counting them."""
        return self.budget is None or not self.budget.problem(self.uid, count)

    def count_received(self, count: int) -> None:
        """Set the number of received bytes that are kept for the peer.

        Raises:
            LimitExceeded: The number grew, and the user may not have that many.
        """
        grows, self._received = count > self._received, count
        self._report_change(is_limited=grows)

    def count_queued(self, count: int) -> None:
        """Set the number of bytes that are queued for the peer.

        Raises:
            LimitExceeded: The number grew, and the user may not have that many.
        """
        grows, self._queued = count > self._queued, count
        self._report_change(is_limited=grows)

    @contextmanager
    def keep(self, count: int) -> Iterator[None]:
        """Count further bytes as long as the block runs.

        Raises:
            LimitExceeded: The user may not have that many.
        """
        self._kept += count
        try:
            self._report_change()
            yield
        finally:
            self._kept -= count
            self._report_change(is_limited=False)

    def close(self) -> None:
        """Release all counted bytes. Later counts have no effect."""
        self._received = self._queued = self._kept = 0
        self._report_change()
        self.budget = None

    def _report_change(self, is_limited: bool = True) -> None:
        """Report the change to the budget. Raise LimitExceeded, and do not count the bytes, if they are too many."""
        change = self._received + self._queued + self._kept - self._counted
        if self.budget is None or not change:
            return
        if change > 0 and self._is_limited and is_limited and (problem := self.budget.problem(self.uid, change)):
            raise LimitExceeded(problem)
        self.budget.change(self.uid, change)
        self._counted += change
