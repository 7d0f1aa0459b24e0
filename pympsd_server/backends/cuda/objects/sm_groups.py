"""Choose the groups of multiprocessors for a context: unused ones, else those with the fewest users. Sans-I/O."""

from collections.abc import Iterable, Sequence

from attrs import define, field


@define
class SmGroups:
    """The numbered groups of one split of a device, and the number of contexts that use each. The owner locks it."""

    count: int
    size: int
    """Multiprocessors in a group."""
    _users: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._users = [0] * self.count

    def count_groups(self, multiprocessors: int) -> int:
        """Return the number of groups for a limit, rounded up; 0 if it does not limit a context."""
        groups = -(-multiprocessors // self.size)
        return groups if 0 < groups < self.count else 0

    def take(
        self, count: int, kept: Iterable[tuple[int, ...]] = (), among: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """Return the groups for a context: a ``kept`` set if it is used no more than the least used groups.

        ``among``: the groups that it may have; None: any.
        """
        every = range(self.count) if among is None else among
        fewest = sorted(every, key=lambda number: (self._users[number], number))[:count]
        best = tuple(sorted(fewest))
        for ready in kept:
            if len(ready) == count and set(ready) <= set(every) and self._use_of(ready) <= self._use_of(best):
                best = ready
                break
        for number in best:
            self._users[number] += 1
        return best

    def _use_of(self, groups: tuple[int, ...]) -> int:
        return sum(self._users[number] for number in groups)

    def give(self, groups: tuple[int, ...]) -> None:
        """Take back the groups of a context that has ended."""
        for number in groups:
            self._users[number] -= 1


def part_of(chunks: Sequence[int], multiprocessors: int, size: int, remainder: int) -> tuple[int, tuple[int, ...]]:
    """Return how many chunks of a static partition hold this many multiprocessors, and those among which they are.

    A part of it has whole chunks of ``size`` only: the one numbered ``remainder`` has another number. All of them for
    more than these have, and for 0: no limit.
    """
    whole = tuple(chunk for chunk in chunks if chunk != remainder)
    count = -(-multiprocessors // size)
    return (count, whole) if 0 < count <= len(whole) else (len(chunks), tuple(chunks))
