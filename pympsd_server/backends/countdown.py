"""A counter that several threads count down, for work that is done when all its parts are."""

from collections.abc import Callable
from threading import Lock

from attrs import define, field


@define(eq=False)
class Countdown:
    """Calls ``act`` when ``count_down`` was called ``remaining`` times. Safe to use from several threads."""

    _remaining: int
    _act: Callable[[], None]
    _lock: Lock = field(factory=Lock, init=False)

    def count_down(self) -> None:
        """Count down; the last call calls back."""
        with self._lock:
            self._remaining -= 1
            is_last = not self._remaining
        if is_last:
            self._act()
