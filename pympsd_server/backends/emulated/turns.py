"""Whose turn it is on the compute thread: fair shares of time, over contexts and then over a context's streams.

Every context and every stream has a ``Share``: the time it has used, multiplied by its weight. The one with the
least goes next, so a weight of 16 means one sixteenth of the time as long as others want it too, and never none:
kernels that wait for each other make progress whatever their priorities.
"""

from __future__ import annotations

from typing import Final, Protocol

from attrs import define, field

GREATEST_PRIORITY: Final = -5
LEAST_PRIORITY: Final = 0
_BELOW_NORMAL_WEIGHT: Final = 16


def weight_of_level(level: int) -> int:
    """Return a context's weight for a client priority level (0 normal, 1 below normal)."""
    return _BELOW_NORMAL_WEIGHT if level else 1


def weight_of_priority(priority: int) -> int:
    """Return a stream's weight; out-of-range priorities are clamped, each step halves the time."""
    clamped = max(GREATEST_PRIORITY, min(LEAST_PRIORITY, priority))
    return 1 << (clamped - GREATEST_PRIORITY)


@define(eq=False)
class Share:
    """How much of the compute thread somebody has used: nanoseconds times weight."""

    weight: int = 1
    used: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """The lowest goes first; on a tie the higher priority."""
        return self.used, self.weight


class Turn(Protocol):
    """What waits for the compute thread."""

    @property
    def blocked(self) -> bool:
        """Whether it cannot run now: no multiprocessor has room for it."""

    @property
    def share(self) -> Share:
        """Its stream's share."""

    @property
    def group(self) -> Group:
        """Its context's turns."""


@define(eq=False)
class Group:
    """The turns of one context."""

    share: Share
    ready: list[Turn] = field(factory=list)
    floor: int = 0
    """Where the last of its streams stood when it ran."""

    def first(self) -> Turn | None:
        """Return the turn that goes next in this context."""
        if len(self.ready) == 1:
            only = self.ready[0]
            return None if only.blocked else only
        able = [turn for turn in self.ready if not turn.blocked]
        return min(able, key=lambda turn: turn.share.rank) if able else None


class Turns:
    """All that could run now. Not locked: its owner is."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._floor = 0

    def add(self, turn: Turn) -> None:
        """Something became ready; having been away earns nobody a head start."""
        group = turn.group
        if not group.ready:
            floor = min((other.share.used for other in self._groups), default=self._floor)
            group.share.used = max(group.share.used, floor)
            self._groups.append(group)
        within = min((other.share.used for other in group.ready), default=group.floor)
        turn.share.used = max(turn.share.used, within)
        group.ready.append(turn)

    def remove(self, turn: Turn) -> None:
        """It has finished."""
        group = turn.group
        group.ready.remove(turn)
        if not group.ready:
            self._groups.remove(group)

    def drop(self, group: Group) -> None:
        """Nothing of this context runs any more."""
        group.ready.clear()
        if group in self._groups:
            self._groups.remove(group)

    def next(self) -> Turn | None:
        """Return what runs now, or None when nothing can. It stays ready until removed."""
        for group in sorted(self._groups, key=lambda each: each.share.rank):
            turn = group.first()
            if turn is not None:
                self._floor, group.floor = group.share.used, turn.share.used
                return turn
        return None

    @staticmethod
    def charge(turn: Turn, nanoseconds: int) -> None:
        """Account for time used."""
        turn.share.used += nanoseconds * turn.share.weight
        turn.group.share.used += nanoseconds * turn.group.share.weight
