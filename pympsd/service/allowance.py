"""So many a second and no more: for what others may say as often as they like."""

from __future__ import annotations

from attrs import define


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
