"""Events of a client: each stands for a point of the stream that it was last recorded in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import cu
from pympsd_server.backends.interface import BackendError, Completion, Event, Outcome

if TYPE_CHECKING:
    from pympsd_server.backends.cuda.objects.context import CudaContext
    from pympsd_server.backends.cuda.objects.stream import CudaStream
    from pympsd_server.backends.cuda.submission.stream_markers import Point
    from pympsd_server.backends.cuda.submission.submission_order import Step


class Mark:
    """What an event recorded once: a point, as soon as it is issued."""

    def __init__(self, stream: CudaStream) -> None:
        self.stream = stream
        self.point: Point | None = None
        self.step: Step | None = None

    @property
    def passed(self) -> bool:
        """Whether the work before it is done."""
        return self.point is not None and self.point.passed


class CudaEvent:
    """A point in a stream; ``mark`` is what it last recorded."""

    def __init__(self, context: CudaContext, timing: bool) -> None:
        self.context = context
        self.timing = timing
        self.mark: Mark | None = None

    @property
    def done(self) -> bool:
        """Whether its point is passed."""
        return self.mark is None or self.mark.passed

    def notify(self, done: Completion) -> None:
        """Call back when its point is passed."""
        mark = self.mark
        if mark is None or mark.step is None:
            done(self.context.outcome)
            return

        def watch(tell: Completion) -> None:
            if mark.point is None or mark.point.passed:
                tell(Outcome())
            else:
                mark.stream.watch(mark.point, lambda: tell(Outcome()))

        self.context.put_told(None, done, watch, after=(mark.step,), alone=True)

    def milliseconds_since(self, start: Event) -> float:
        """Time between two recorded events, in milliseconds."""
        if not isinstance(start, CudaEvent) or start.context is not self.context:
            raise BackendError(Result.ERROR_INVALID_HANDLE, "the start event is of another context")
        first, last = start.mark, self.mark
        if first is None or last is None or not (start.timing and self.timing):
            raise BackendError(Result.ERROR_INVALID_HANDLE, "an event was not recorded, or is without timing")
        if first.point is None or last.point is None or not (first.passed and last.passed):
            raise BackendError(Result.ERROR_NOT_READY, "an event is not done yet")
        call = self.context.device.driver.call
        return float(call(cu.cuEventElapsedTime, first.point.event, last.point.event))
