"""Counters of a device, for tests and operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock


class Counters(Mapping[str, int]):
    """Named counters; reading never waits."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._lock = Lock()

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + count

    def put(self, name: str, value: int) -> None:
        """Set a gauge."""
        with self._lock:
            self._counters[name] = value

    def __getitem__(self, name: str) -> int:
        return self._counters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._counters))

    def __len__(self) -> int:
        return len(self._counters)
