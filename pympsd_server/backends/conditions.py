"""The part of the port for conditional nodes of graphs: values that kernels set, and calls in stream order.

BackendError NOT_SUPPORTED from all without the capability ``evaluates_conditions``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class Condition(Protocol):
    """What kernels set by cudaGraphSetConditional."""

    value: int


class EvaluatesConditions(Protocol):
    """What a context does for conditional nodes."""

    def condition(self, handle: int) -> Condition:
        """Return the condition that kernels name by a handle: the same for all graphs while one holds it."""

    def call(self, stream: Any, pieces: Iterator[None]) -> None:
        """Take the pieces one by one, on the device's time, when its stream comes to them; later work waits.

        They may put work in streams. A BackendError of theirs is a fault of the context, which is lost.
        """
