"""How much unfinished work one client may have queued: past it, its records wait in its own socket."""

from __future__ import annotations

from threading import Condition
from typing import Final

from pympsd_server.backends.interface import Outcome
from pympsd_server.executor.client_context import StreamEntry

LIMIT: Final = 16384
"""Operations; a launch costs the executor about a kilobyte until it has run. (CUDA blocks a launch after 1,024.)"""
_GROUP: Final = 32


class WorkLimit:
    """Counts operations that have not completed. Unanswered ones are counted in groups, one callback for each."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._unfinished = 0
        self._closed = False

    def enter(self, stream: StreamEntry) -> None:
        """An unanswered operation was put in a stream."""
        stream.uncounted += 1
        if stream.uncounted == _GROUP:
            stream.uncounted = 0
            self._add(_GROUP)
            stream.backend.notify(self._group_done)

    def enter_answered(self) -> None:
        """A call waits for its completion."""
        self._add(1)

    def leave_answered(self) -> None:
        """That call completed."""
        self._add(-1)

    def _group_done(self, outcome: Outcome) -> None:
        self._add(-_GROUP)

    def _add(self, count: int) -> None:
        with self._changed:
            before = self._unfinished
            self._unfinished += count
            if before >= LIMIT > self._unfinished:
                self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait until the client may queue more; at most until the client is dropped."""
        if self._unfinished < LIMIT:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._unfinished < LIMIT or self._closed)

    def close(self) -> None:
        """The client is dropped: wait no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
