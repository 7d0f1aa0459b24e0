"""The interface by which a device reports when it works."""

from __future__ import annotations

from typing import Protocol


class Timeline(Protocol):
    """Notified of each device's work and its context; times are in ns of CLOCK_MONOTONIC. Called from any thread."""

    def ran(self, context: int, name: str, began: int, ended: int) -> None:
        """The device worked for a context: a slice of a kernel, a copy or a fill."""

    def finished(self, context: int, stream: int, name: str, submitted: int, began: int, ended: int) -> None:
        """Work in a stream is finished, or was stopped; the stream is numbered in its context, 0: the default."""


class SupportsTimeline(Protocol):
    """A device that can report when it works, or refuses to."""

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Report all work from now on to a timeline, or none; BackendError NOT_SUPPORTED if it cannot be timed."""
