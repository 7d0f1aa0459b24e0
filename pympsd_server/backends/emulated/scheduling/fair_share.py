"""Whose turn it is on the compute thread: by priority level, then fair shares over contexts, then over streams.

A context below normal runs while nothing normal can, and besides gets one turn for every 16 of the normal level,
and for 16 times the time of its last one: little, but something, and never ahead of a normal one that is as new.
Within a level every context has a ``TimeShare``, the time it has used, and so has every stream in its context, there
multiplied by a weight. The one with the least goes next, so a weight of 16 means one sixteenth of the time as long
as others want it too, and never none: kernels that wait for each other make progress whatever their priorities.
"""

from __future__ import annotations

from typing import Final, Protocol

from attrs import define, field

GREATEST_PRIORITY: Final = -5
LEAST_PRIORITY: Final = 0
TURNS_OF_NORMAL: Final = 16
"""How much the normal level has for one turn below normal, in turns and in time, when both always want to run."""


def weight_of_priority(priority: int) -> int:
    """Return a stream's weight; out-of-range priorities are clamped, each step halves the time."""
    clamped = max(GREATEST_PRIORITY, min(LEAST_PRIORITY, priority))
    return 1 << (clamped - GREATEST_PRIORITY)


@define(eq=False)
class TimeShare:
    """How much of the compute thread somebody has used: nanoseconds times weight."""

    weight: int = 1
    used: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """The lowest goes first; on a tie the higher priority."""
        return self.used, self.weight


class Runnable(Protocol):
    """What waits for the compute thread."""

    @property
    def blocked(self) -> bool:
        """Whether it cannot run now: no multiprocessor has room for it."""

    @property
    def time_share(self) -> TimeShare:
        """Its stream's time_share."""

    @property
    def group(self) -> Group:
        """Its context's turns."""


@define(eq=False)
class Group:
    """The turns of one context. ``level`` is its client's priority: 0 normal, anything else below."""

    level: int = 0
    time_share: TimeShare = field(factory=TimeShare)
    ready: list[Runnable] = field(factory=list)
    floor: int = 0
    """Where the last of its streams stood when it ran."""

    def first(self) -> Runnable | None:
        """Return the turn that goes next in this context."""
        if len(self.ready) == 1:
            only = self.ready[0]
            return None if only.blocked else only
        able = [turn for turn in self.ready if not turn.blocked]
        return min(able, key=lambda turn: turn.time_share.rank) if able else None


@define(eq=False)
class _Level:
    """The contexts of one priority level that have something to run."""

    groups: list[Group] = field(factory=list)
    _floor: int = 0

    def enter(self, group: Group) -> None:
        """A context has something to run again; having been away earns nobody a head start."""
        floor = min((other.time_share.used for other in self.groups), default=self._floor)
        group.time_share.used = max(group.time_share.used, floor)
        self.groups.append(group)

    def next(self) -> Runnable | None:
        """Return what runs next at this level."""
        for group in sorted(self.groups, key=lambda each: each.time_share.rank):
            turn = group.first()
            if turn is not None:
                self._floor, group.floor = group.time_share.used, turn.time_share.used
                return turn
        return None


class FairShare:
    """All that could run now. Not locked: its owner is."""

    def __init__(self) -> None:
        self._normal = _Level()
        self._below = _Level()
        self._turns_due = 0
        """FairShare that the normal level has before one below it may go first, and nanoseconds likewise."""
        self._time_due = 0
        self._overtaking = False
        """Whether the turn last given out went before a normal one that could have run."""

    def add(self, turn: Runnable) -> None:
        """Something became ready."""
        group = turn.group
        if not group.ready:
            level = self._level(group)
            if level is self._below and not level.groups:
                self._turns_due = TURNS_OF_NORMAL
            level.enter(group)
        within = min((other.time_share.used for other in group.ready), default=group.floor)
        turn.time_share.used = max(turn.time_share.used, within)
        group.ready.append(turn)

    def _level(self, group: Group) -> _Level:
        return self._below if group.level else self._normal

    def remove(self, turn: Runnable) -> None:
        """It has finished."""
        group = turn.group
        group.ready.remove(turn)
        if not group.ready:
            self._level(group).groups.remove(group)

    def drop(self, group: Group) -> None:
        """Nothing of this context runs any more."""
        group.ready.clear()
        level = self._level(group)
        if group in level.groups:
            level.groups.remove(group)

    def next(self) -> Runnable | None:
        """Return what runs now, or None when nothing can. It stays ready until removed."""
        self._overtaking = False
        normal = self._normal.next()
        if not self._below.groups or (normal is not None and not self._is_due):
            return normal
        below = self._below.next()
        if below is None:
            return normal
        self._overtaking = normal is not None
        return below

    @property
    def _is_due(self) -> bool:
        return self._turns_due <= 0 and self._time_due <= 0

    def charge(self, turn: Runnable, nanoseconds: int) -> None:
        """Account for the time that the turn last given out has used."""
        turn.time_share.used += nanoseconds * turn.time_share.weight
        group = turn.group
        group.time_share.used += nanoseconds
        if group.level == 0:
            self._turns_due = max(0, self._turns_due - 1)
            self._time_due = max(0, self._time_due - nanoseconds)
            return
        self._turns_due = TURNS_OF_NORMAL
        if self._overtaking:
            self._time_due = TURNS_OF_NORMAL * nanoseconds
