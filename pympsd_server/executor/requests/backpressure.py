"""Backpressure: if a client has too much unfinished work, its records wait in its own socket."""

from collections.abc import Callable
from threading import Condition
from typing import Final

from attrs import define, field

from pympsd_server.backends.interface import BackendError, Stream
from pympsd_server.executor.requests.client_context import StreamEntry

MAX_UNFINISHED: Final = 16384
"""The maximum number of unfinished operations, each of which takes about a kilobyte. (CUDA blocks after 1,024.)"""
HALF_OF_MAX: Final = MAX_UNFINISHED // 2
_GROUP: Final = 32


@define(eq=False)
class Backpressure:
    """Counts operations that have not completed.

    Operations without an answer are counted in groups, with a callback for each group.
    """

    _changed: Condition = field(factory=Condition, init=False)
    _unfinished: int = field(default=0, init=False)
    _partial: dict[int, StreamEntry] = field(factory=dict, init=False)
    _uncounted: int = field(default=0, init=False)
    """The number of operations in incomplete groups of all streams."""
    _waiting_for_half: list[Callable[[], None]] = field(factory=list, init=False)
    _closed: bool = field(default=False, init=False)

    def enter(self, stream: StreamEntry) -> None:
        """Count an operation without an answer that was put in a stream."""
        stream.uncounted += 1
        self._partial[id(stream)] = stream
        self._uncounted += 1
        if stream.uncounted == _GROUP:
            self._count(stream)
        elif self._uncounted >= MAX_UNFINISHED:
            # Many streams with a few operations each also reach the limit.
            self._count_all()

    def enter_more(self, stream: Stream, count: int) -> None:
        """Count the additional operations that one record has put in a stream."""
        self._add(count)
        try:
            stream.notify(lambda status: self._add(-count))
        except BackendError:
            self._add(-count)

    def _count_all(self) -> None:
        for entry in list(self._partial.values()):
            self._count(entry)

    def _count(self, stream: StreamEntry) -> None:
        count, stream.uncounted = stream.uncounted, 0
        del self._partial[id(stream)]
        self._uncounted -= count
        self._add(count)
        try:
            stream.backend.notify(lambda status: self._add(-count))
        except BackendError:
            self._add(-count)  # the context has faulted, and its queued work is dropped

    def enter_answered(self) -> None:
        """Count a request that is answered when it completes."""
        self._add(1)

    def leave_answered(self) -> None:
        """Count the completion of a request that `enter_answered` counted."""
        self._add(-1)

    def _add(self, count: int) -> None:
        with self._changed:
            before = self._unfinished
            self._unfinished += count
            if before >= MAX_UNFINISHED > self._unfinished:
                self._changed.notify_all()
            if not before >= HALF_OF_MAX > self._unfinished:
                return
            waiting, self._waiting_for_half = self._waiting_for_half, []
        for notify in waiting:
            notify()

    def call_when_half_is_free(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` when less than half of the limit is unfinished, which may be immediately."""
        self._count_all()
        with self._changed:
            if self._unfinished >= HALF_OF_MAX:
                self._waiting_for_half.append(notify)
                return
        notify()

    def wait_for_room(self) -> None:
        """Wait until the client may queue more work, or is dropped."""
        if self._unfinished < MAX_UNFINISHED:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._unfinished < MAX_UNFINISHED or self._closed)

    def close(self) -> None:
        """End all waits, because the client is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
