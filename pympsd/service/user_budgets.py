"""What each user may take from the daemon: memory for connections, processor time, and lines of the log.

Any user can connect, send commands and start clients, as often as it likes. A user that exceeds one of its budgets
has its connection closed (memory), waits (processor time), or causes no more lines (log); other users are not
affected. Root and the daemon's user have no budgets of time and lines.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import trio
from attrs import Factory, define, field

from pympsd.channel.allowance import BufferBudget
from pympsd.errors import LimitExceeded
from pympsd.service.pacing import Pacing
from pympsd.service.rate_limit import RateLimit, cost_of
from pympsd.state_machine import shares
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.shares import BUFFERS

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

LINES_PER_SECOND: Final = 1000
"""The number of log lines per second that one user's connections, clients and commands may cause."""


@define
class UserBudgets:
    """The budgets of all users."""

    state: Daemon
    log: FilteringBoundLogger
    _trusted: frozenset[int] = field(
        default=Factory(lambda self: frozenset({0, self.state.options.uid}), takes_self=True), init=False
    )
    buffers: BufferBudget = field(
        default=Factory(
            lambda self: BufferBudget(
                lambda uid, count: shares.problem(self.state, uid, {BUFFERS: count}),
                self.state.usage.taken[BUFFERS.name],
            ),
            takes_self=True,
        ),
        init=False,
    )
    """The bytes that are kept in memory for all connections."""
    pacing: Pacing = field(default=Factory(lambda self: Pacing(self._trusted), takes_self=True), init=False)
    """The pacing of users whose connections and commands take too much of this process's time."""
    _lines: dict[int, RateLimit] = field(factory=dict, init=False)
    _dropped: Counter[int] = field(factory=Counter, init=False)
    """The number of each user's lines that were dropped since the last one that was logged."""

    def may_log(self, uid: int, *texts: str) -> bool:
        """Return whether a user may cause a log line, or one for each text; either all lines are granted or none.

        First log how many of the user's lines were dropped.
        """
        if uid in self._trusted:
            return True
        texts = texts or ("",)
        limit = self._lines.setdefault(uid, RateLimit(LINES_PER_SECOND))
        cost = min(LINES_PER_SECOND, cost_of(texts))
        if limit.take(cost, trio.current_time()) < cost:
            self._dropped[uid] += len(texts)
            return False
        if dropped := self._dropped.pop(uid, 0):
            self.log.info("user_lines_dropped", count=dropped, uid=uid)
        return True

    def log_refused(self, peer: Peer, reason: str) -> None:
        """Log that a client is refused."""
        if self.may_log(peer.uid, reason):
            self.log.info("client_refused", pid=peer.pid, uid=peer.uid, reason=reason)

    def log_closed(self, uid: int, error: LimitExceeded) -> None:
        """Log that a connection is closed because it exceeds a limit."""
        if self.may_log(uid, str(error)):
            self.log.warning("connection_closed", uid=uid, reason=str(error))

    def log_refused_operator(self, peer: Peer) -> None:
        """Log that an operator is refused at a socket for clients only."""
        if self.may_log(peer.uid):
            self.log.info("operator_refused", pid=peer.pid, uid=peer.uid)
