"""Which groups of multiprocessors a context gets: its own while they last, those with the fewest users else. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field


@define
class Groups:
    """The groups of one split of a device, by number, and how many limited contexts use each. Its owner locks it."""

    count: int
    size: int
    """Multiprocessors in a group."""
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._users = [0] * self.count

    def wanted(self, multiprocessors: int) -> int:
        """Return how many groups a limit takes, rounded up; 0 where it is none."""
        groups = -(-multiprocessors // self.size)
        return groups if 0 < groups < self.count else 0

    def take(self, wanted: int, kept: Iterable[tuple[int, ...]] = ()) -> tuple[int, ...]:
        """Return the groups for a context: of the ``kept`` sets one that is no more used than the best there is."""
        fewest = sorted(range(self.count), key=lambda number: (self._users[number], number))[:wanted]
        best = tuple(sorted(fewest))
        for ready in kept:
            if len(ready) == wanted and self._crowd(ready) <= self._crowd(best):
                best = ready
                break
        for number in best:
            self._users[number] += 1
        return best

    def _crowd(self, groups: tuple[int, ...]) -> int:
        return sum(self._users[number] for number in groups)

    def give(self, groups: tuple[int, ...]) -> None:
        """A context that had these is gone."""
        for number in groups:
            self._users[number] -= 1
