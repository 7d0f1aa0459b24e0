"""When the device did each piece of work, for a timeline: CUevents around it, compared with an event of known time.

The driver returns the time between events in single-precision milliseconds, so the event of known time, called the
reference, must not be old.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.submission.stream_markers import EventPool, StreamMarker
from pympsd_server.backends.device_interface import Timeline
from pympsd_server.backends.interface import BackendError

_AGE_NS: Final = 1_000_000_000
"""The age in nanoseconds at which the reference is replaced."""
_FIRST_NS: Final = 1_000_000_000
_NEXT_NS: Final = 200_000
"""The longest wait in nanoseconds for the device to reach a later reference; _FIRST_NS: the first."""


class TimedStream(Protocol):
    """A stream whose work is timed."""

    context: int
    """The id of the stream's context."""
    number: int
    """The number of the stream in the context; 0 for the default stream."""

    def marker(self, timing: bool = False) -> StreamMarker:
        """Record a marker after the work issued before the call."""

    def watch(self, marker: StreamMarker, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the device has reached a marker."""


@frozen
class _Known:
    """A marker, and the time at which the device reached it, in nanoseconds of CLOCK_MONOTONIC."""

    marker: StreamMarker
    at: int


@define(eq=False)
class WorkTimes:
    """The times of a device's work, while they are reported to a timeline. Started and stopped by one thread."""

    _driver: Driver
    _events: EventPool
    timeline: Timeline | None = field(default=None, init=False)
    _stream: Any = field(default=None, init=False)
    _reference: _Known | None = field(default=None, init=False)

    def start(self, timeline: Timeline) -> None:
        """Report all work from now on to a timeline; raise BackendError NOT_READY if the device is stuck."""
        if self._stream is None:
            self._stream = self._driver.call(cu.cuStreamCreate, int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._renew(_FIRST_NS)
        if self._reference is None:
            raise BackendError(Result.ERROR_NOT_READY, "the GPU did not reach an event in an empty stream within 1 s")
        self.timeline = timeline

    def stop(self) -> None:
        """Stop reporting to the timeline."""
        self.timeline = self._reference = None

    def enclose(self, stream: TimedStream, what: str, submitted: int, work: Callable[[], None]) -> None:
        """Issue work; when the device has done it, report to the timeline when it began and ended."""
        if (timeline := self.timeline) is None:
            work()
            return
        began = stream.marker(timing=True)
        work()
        ended = stream.marker(timing=True)
        report = partial(timeline.note_finished, stream.context, stream.number, what)
        stream.watch(ended, lambda: self._report(timeline, report, submitted, began, ended))

    def _report(
        self, timeline: Timeline, report: Callable[[int, int, int], None], submitted: int, *markers: StreamMarker
    ) -> None:
        if self.timeline is not timeline or (reference := self._reference) is None:
            return
        if time.perf_counter_ns() - reference.at > _AGE_NS:
            self._renew(_NEXT_NS)
        began, ended = (reference.at + self._measure_ns(reference.marker, marker) for marker in markers)
        report(min(submitted or began, began), began, ended)

    def _measure_ns(self, start: StreamMarker, end: StreamMarker) -> int:
        milliseconds: float = self._driver.call(cu.cuEventElapsedTime, start.event, end.event)
        return round(milliseconds * 1e6)

    def _renew(self, timeout_ns: int) -> None:
        """Replace the reference, if the device reaches the new event in time."""
        before = time.perf_counter_ns()
        marker = StreamMarker(self._driver, self._events, self._stream, timing=True)
        while not marker.passed:
            if time.perf_counter_ns() - before > timeout_ns:
                return
        self._reference = _Known(marker, (before + time.perf_counter_ns()) // 2)
