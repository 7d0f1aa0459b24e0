"""The choice of multiprocessors for a context: unused ones while they last, then those with the fewest users."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field


@define
class Multiprocessors:
    """The multiprocessors of one device, by id, and the number of limited contexts on each. Its owner locks it."""

    count: int
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._users = [0] * self.count

    def take(self, wanted: int, among: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the ids for a context limited to ``wanted``, ascending: those with the fewest users, lowest first.

        0, or at least the number there is, means all of them; such a context counts as a user of none. ``among``:
        the ids of its partition; empty: all.
        """
        every = among or range(self.count)
        wanted = wanted if 0 < wanted < len(every) else len(every)
        if not self._is_limit(wanted):
            return tuple(every)
        fewest = sorted(every, key=lambda number: (self._users[number], number))[:wanted]
        for number in fewest:
            self._users[number] += 1
        return tuple(sorted(fewest))

    def give(self, ids: tuple[int, ...]) -> None:
        """Release the multiprocessors of a destroyed context."""
        if self._is_limit(len(ids)):
            for number in ids:
                self._users[number] -= 1

    def _is_limit(self, wanted: int) -> bool:
        return 0 < wanted < self.count
