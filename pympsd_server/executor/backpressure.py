"""How much unfinished work one client may have queued: past it, its records wait in its own socket."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Final

from pympsd_server.backends.interface import BackendError
from pympsd_server.executor.client_context import StreamEntry

LIMIT: Final = 16384
"""Operations; a launch costs the executor about a kilobyte until it has run. (CUDA blocks a launch after 1,024.)"""
HALF: Final = LIMIT // 2
_GROUP: Final = 32


class WorkLimit:
    """Counts operations that have not completed. Unanswered ones are counted in groups, one callback for each."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._unfinished = 0
        self._loose: dict[int, StreamEntry] = {}
        self._loose_operations = 0
        """Operations in groups that are not full, over all streams."""
        self._wanting_half: list[Callable[[], None]] = []
        self._closed = False

    def enter(self, stream: StreamEntry) -> None:
        """An unanswered operation was put in a stream."""
        stream.uncounted += 1
        self._loose[id(stream)] = stream
        self._loose_operations += 1
        if stream.uncounted == _GROUP:
            self._count(stream)
        elif self._loose_operations >= LIMIT:
            # A few in each of very many streams: they count too.
            self._count_all()

    def _count_all(self) -> None:
        for each in list(self._loose.values()):
            self._count(each)

    def _count(self, stream: StreamEntry) -> None:
        count, stream.uncounted = stream.uncounted, 0
        del self._loose[id(stream)]
        self._loose_operations -= count
        self._add(count)
        try:
            stream.backend.notify(lambda outcome: self._add(-count))
        except BackendError:
            self._add(-count)  # the context is ruined: what it had queued is dropped

    def enter_answered(self) -> None:
        """A call waits for its completion."""
        self._add(1)

    def leave_answered(self) -> None:
        """That call completed."""
        self._add(-1)

    def _add(self, count: int) -> None:
        with self._changed:
            before = self._unfinished
            self._unfinished += count
            if before >= LIMIT > self._unfinished:
                self._changed.notify_all()
            if not before >= HALF > self._unfinished:
                return
            wanting, self._wanting_half = self._wanting_half, []
        for tell in wanting:
            tell()

    def when_half_is_free(self, tell: Callable[[], None]) -> None:
        """Call back once less than half of what the client may queue is unfinished (at once when it is so)."""
        self._count_all()
        with self._changed:
            if self._unfinished >= HALF:
                self._wanting_half.append(tell)
                return
        tell()

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
