"""The streams that executable graphs have of their own: created when first used, counted, and shared by bodies.

A stream costs a backend memory and a client cannot see those that its graphs take, so they are limited for each
client (`StreamBudget`, MAX_CLIENT_STREAMS) and are created only when a node needs one (`OwnStreams.get_or_create`).
The bodies of conditional nodes that are in one slot run one after another, so all of them share the same streams
(`OwnStreams.find_inside`), however many bodies there are.

Destroying a stream lets its work run to its end. Only then may the budget count it no more for a graph with
conditional nodes, because a body may still be queued; `ExecutableGraph.destroy` takes care of that.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Context, Stream

MAX_CLIENT_STREAMS: Final = 4096
"""The most streams that all executable graphs of one client have together."""


@define(eq=False)
class StreamBudget:
    """The number of streams of one client's graphs. Used by its worker, and by the thread that ends their work."""

    _limit: int = MAX_CLIENT_STREAMS
    _lock: Lock = field(factory=Lock, init=False)
    _used: int = field(default=0, init=False)

    def take(self) -> None:
        """Count one more stream; BackendError OUT_OF_MEMORY past the limit."""
        with self._lock:
            if self._used == self._limit:
                reason = (
                    f"the branches and bodies of this process' executable graphs have {self._limit} streams, as many "
                    "as are allowed; destroy executable graphs"
                )
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
            self._used += 1

    def give(self, count: int) -> None:
        """Count fewer."""
        with self._lock:
            self._used -= count


@define(eq=False)
class OwnStreams:
    """The streams of a graph, made when first used. Bodies of conditional nodes in one slot follow each other, so
    they share theirs.
    """

    _context: Context
    _budget: StreamBudget
    _streams: list[Stream] = field(factory=list, init=False)
    _inside: dict[int, OwnStreams] = field(factory=dict, init=False)

    def get_or_create(self, index: int) -> Stream:
        """Return a stream; BackendError if the limit of streams is reached or there is no memory."""
        while len(self._streams) <= index:
            self._budget.take()
            try:
                self._streams.append(self._context.create_stream(True, 0))
            except BaseException:
                self._budget.give(1)
                raise
        return self._streams[index]

    def find_inside(self, slot: int) -> OwnStreams:
        """Return the bodies of conditional nodes in a slot."""
        return self._inside.setdefault(slot, OwnStreams(self._context, self._budget))

    def destroy(self) -> None:
        """Destroy the streams; their work runs to its end."""
        for stream in self._streams:
            stream.destroy()
        for inner in self._inside.values():
            inner.destroy()
        self.release()

    def release(self) -> None:
        """Return the streams to the budget: they are destroyed, or their context is."""
        for inner in self._inside.values():
            inner.release()
        self._budget.give(len(self._streams))
        self._streams, self._inside = [], {}
