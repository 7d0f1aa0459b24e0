"""Counters of what a device did, and the batches it began, for tests and operators."""

from __future__ import annotations

from collections import deque

from pympsd.wire.executor_messages import BATCH_TRACE_LIMIT, KERNEL_NAME_LIMIT, BatchTrace
from pympsd_server.backends.budget import Counters


class Trace(Counters):
    """Named counters and the latest batches."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: deque[tuple[int, int, str, int, int, int]] = deque(maxlen=BATCH_TRACE_LIMIT)

    def raise_to(self, name: str, value: int) -> None:
        """Keep the highest value seen."""
        with self._lock:
            self._counters[name] = max(value, self._counters.get(name, 0))

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
