"""Counters of what a device did, and the batches it began, for tests and operators."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from threading import Lock

from pympsd.wire.executor_messages import BATCH_TRACE_LIMIT, KERNEL_NAME_LIMIT, BatchTrace


class Trace(Mapping[str, int]):
    """Named counters and the latest batches; reading never waits."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._lock = Lock()
        self._batches: deque[tuple[int, int, str, int, int, int]] = deque(maxlen=BATCH_TRACE_LIMIT)

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + count

    def raise_to(self, name: str, value: int) -> None:
        """Keep the highest value seen."""
        with self._lock:
            self._counters[name] = max(value, self._counters.get(name, 0))

    def put(self, name: str, value: int) -> None:
        """Set a gauge."""
        with self._lock:
            self._counters[name] = value

    def add_batch(self, context: int, kernel: str, first_block: int, blocks: int, priority: int) -> None:
        """Count a batch that begins and keep it among the latest."""
        with self._lock:
            number = self._counters["batches"] = self._counters.get("batches", 0) + 1
            self._batches.append((number, context, kernel, first_block, blocks, priority))

    @property
    def batches(self) -> tuple[BatchTrace, ...]:
        """The latest batches, oldest first."""
        with self._lock:
            kept = tuple(self._batches)
        return tuple(
            BatchTrace(number, context, kernel[:KERNEL_NAME_LIMIT], first_block, blocks, priority)
            for number, context, kernel, first_block, blocks, priority in kept
        )

    def __getitem__(self, name: str) -> int:
        return self._counters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._counters))

    def __len__(self) -> int:
        return len(self._counters)
