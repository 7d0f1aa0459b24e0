"""Events of a client: each marks the position in a stream where it was last recorded."""

from collections.abc import Hashable

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import cu
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.submission.issue_queue import IssueQueue
from pympsd_server.backends.cuda.submission.stream_markers import StreamMarker
from pympsd_server.backends.cuda.submission.submission_order import Step
from pympsd_server.backends.interface import BackendError, Completion, Event, Status


@define(eq=False)
class Recording:
    """One recording of an event. The recording has a marker after it was issued."""

    stream: Hashable
    marker: StreamMarker | None = field(default=None, init=False)
    step: Step | None = field(default=None, init=False)

    @property
    def passed(self) -> bool:
        """Whether the work before the recording is done."""
        return self.marker is not None and self.marker.passed


@define(eq=False)
class CudaEvent:
    """A position in a stream. ``recording`` is the last recording; None before the first one."""

    queue: IssueQueue
    _services: DeviceServices
    timing: bool
    recording: Recording | None = field(default=None, init=False)

    @property
    def done(self) -> bool:
        """Whether the work before the event is done."""
        return self.recording is None or self.recording.passed

    def notify(self, done: Completion) -> None:
        """Call ``done`` when the work before the event is done."""
        recording = self.recording
        if recording is None or recording.step is None:
            done(self.queue.status)
            return

        def watch(complete: Completion) -> None:
            if recording.marker is None or recording.marker.passed:
                complete(Status())
            else:
                self._services.watcher.add(recording.stream, recording.marker, lambda: complete(Status()))

        self.queue.put_completing(None, done, watch, after=(recording.step,), alone=True)

    def milliseconds_since(self, start: Event) -> float:
        """Return the time between two recorded events, in milliseconds."""
        if not isinstance(start, CudaEvent) or start.queue is not self.queue:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the start event is of another context")
        first, last = start.recording, self.recording
        if first is None or last is None or not (start.timing and self.timing):
            raise BackendError(Result.ERROR_INVALID_HANDLE, "an event was not recorded, or is without timing")
        if first.marker is None or last.marker is None or not (first.passed and last.passed):
            raise BackendError(Result.ERROR_NOT_READY, "an event is not done yet")
        call = self._services.driver.call
        return float(call(cu.cuEventElapsedTime, first.marker.event, last.marker.event))
