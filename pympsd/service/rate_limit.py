"""So many a second and no more: for what others may say as often as they like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from attrs import define, field

LINES_PER_SECOND: Final = 1000
"""Log lines a second that one user's connections, clients and commands may cause."""
LINE_BYTES: Final = 200
"""A line that is longer counts as several."""


def cost_of(texts: Sequence[str]) -> int:
    """Return as how many lines so many texts count."""
    return sum(1 + len(text) // LINE_BYTES for text in texts)


@define
class Allowance:
    """Gives up to ``per_second`` in each second of a clock that is told to it."""

    per_second: int
    _second: float = 0.0
    _taken: int = 0

    def take(self, count: int, now: float) -> int:
        """Return how many of ``count`` are allowed now."""
        if now - self._second >= 1:
            self._second, self._taken = now, 0
        allowed = min(count, self.per_second - self._taken)
        self._taken += allowed
        return allowed

    def renewed_at(self) -> float:
        """Return the time at which it is whole again."""
        return self._second + 1


@define
class UserLines:
    """The log lines that users cause by what they may do as often as they like; ``trusted`` users have no bound."""

    trusted: frozenset[int]
    _of: dict[int, Allowance] = field(factory=dict, init=False)
    _dropped: Counter[int] = field(factory=Counter, init=False)

    def take(self, uid: int, texts: Sequence[str], now: float) -> bool:
        """Whether lines of these texts may be logged on a user's account; those that may not are counted."""
        if uid in self.trusted:
            return True
        allowance = self._of.setdefault(uid, Allowance(LINES_PER_SECOND))
        cost = min(LINES_PER_SECOND, cost_of(texts))
        if allowance.take(cost, now) == cost:
            return True
        self._dropped[uid] += len(texts)
        return False

    def take_dropped(self, uid: int) -> int:
        """Return how many lines of a user were dropped since the last time this was asked."""
        return self._dropped.pop(uid, 0)
