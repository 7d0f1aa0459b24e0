"""Functions of a client that a stream waits for."""

from __future__ import annotations

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.submission.issue_queue import IssueQueue
from pympsd_server.backends.cuda.submission.submission_order import Step
from pympsd_server.backends.interface import BackendError, Completion, Outcome


class PendingFunction:
    """A stream's wait for a function of the client; ``step`` is the step that holds later work."""

    def __init__(self, queue: IssueQueue) -> None:
        self._queue = queue
        self._begun = False
        self.step: Step | None = None

    def begin_with(self, begin: Completion) -> Completion:
        """Return a completion that notes that the function has begun, then calls ``begin``."""

        def begun(outcome: Outcome) -> None:
            self._begun = True
            begin(outcome)

        return begun

    def finish(self) -> None:
        """Resume the stream; no effect a second time. BackendError INVALID_VALUE before it has begun."""
        queue = self._queue
        with queue.lock:
            if queue.outcome.code is not Result.SUCCESS:  # read under the lock: after the end nothing is issued
                return
            if not self._begun or self.step is None:
                raise BackendError(Result.ERROR_INVALID_VALUE, "the host function has not begun")
            queue.release_step(self.step)
