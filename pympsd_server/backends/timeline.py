"""Who is told when a device works."""

from __future__ import annotations

from typing import Protocol


class Timeline(Protocol):
    """Is told when a device works, for whom; times are nanoseconds of CLOCK_MONOTONIC. Called from any thread."""

    def ran(self, context: int, name: str, began: int, ended: int) -> None:
        """The device worked for a context: a slice of a kernel, a copy or a fill."""

    def finished(self, context: int, stream: int, name: str, submitted: int, began: int, ended: int) -> None:
        """Work in a stream is finished, or was stopped; the stream is numbered in its context, 0: the default."""


class TellsTimeline(Protocol):
    """A device that can tell when it works, or says that it cannot."""

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Tell a timeline of all work from now on, or none; BackendError NOT_SUPPORTED if it cannot be timed."""
