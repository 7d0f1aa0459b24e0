"""Copies through a buffer that is returned when they are done: a slot, or scratch memory."""

from collections.abc import Callable
from typing import Any, Protocol

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.objects.client_space import ClientSpace
from pympsd_server.backends.cuda.objects.device_services import DeviceServices
from pympsd_server.backends.cuda.submission.completions import PendingCompletion
from pympsd_server.backends.cuda.submission.issue_queue import IssueQueue, QueuedStream
from pympsd_server.backends.interface import Completion, Status


class CopyStream(QueuedStream, Protocol):
    """A stream, as its copies use it."""

    queue: IssueQueue
    space: ClientSpace
    services: DeviceServices
    handle: Any
    """The CUstream."""

    def __hash__(self) -> int:
        """Streams are keys."""

    def put(self, work: Callable[[], None], *, what: str) -> None:
        """Issue work to the driver, now or once what holds it has passed; BackendError on a faulted context.

        ``what`` it is in a timeline.
        """

    def notify(self, done: Completion) -> None:
        """Call back when all work queued before the call is done."""


@define(eq=False)
class BufferedCopy:
    """A copy whose buffer is released once: when the device is done with it, or when it will never be issued.

    A copy that a host function holds is never issued if its context ends before; only its completion is called then.
    """

    _stream: CopyStream
    _work: Callable[[], None]
    """Issues the copy."""
    _release: Callable[[], None]
    _finish: Callable[[], None] = lambda: None
    """Called when the copy is done, unless the context has ended."""
    _unissued: list[bool] = field(factory=lambda: [True], init=False)
    """Taking the element out is atomic: it decides whether the copy is issued or its buffer released unused."""

    def put(self, done: Completion) -> None:
        """Put it in its stream; ``done`` is called when it is over."""
        completions = self._stream.queue.completions

        def over(status: Status) -> None:
            if status.code is not Result.SUCCESS:
                self._drop()
            done(status)

        complete = completions.add(over)
        try:
            self._stream.put(lambda: self._issue(complete), what="copy")
        except BaseException:
            self._drop()
            if completions.take(complete):  # else the context's end has called it
                raise

    def _issue(self, complete: PendingCompletion) -> None:
        if not self._is_first():
            return
        try:
            self._work()
            self._stream.watch(self._stream.marker(), lambda: self._finish_copy(complete))
        except BaseException:
            # Some of it may be running, and no marker shows when it is done.
            self._stream.services.cleanup.add(self._stream.is_completed, self._release)
            raise

    def _finish_copy(self, complete: PendingCompletion) -> None:
        try:
            # After the context's end the bytes are not needed, and the client's memory may be another's.
            if self._stream.queue.status.code is Result.SUCCESS:
                self._finish()
        finally:
            try:
                self._release()
            finally:
                complete(Status())

    def _drop(self) -> None:
        # By the cleanup thread: a context may end in the midst of a call that holds the locks which releasing takes.
        if self._is_first():
            self._stream.services.cleanup.add(lambda: True, self._release)

    def _is_first(self) -> bool:
        try:
            self._unissued.pop()
        except IndexError:
            return False
        return True
