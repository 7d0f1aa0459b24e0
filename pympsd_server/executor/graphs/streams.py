"""The streams and the memory that executable graphs take.

Graphs take the memory of an executor that other users' clients use, too, so it is limited for each user
(`GraphMemory`). A stream takes a backend's memory, and a client cannot see the streams of its graphs. So these
streams are limited for each client (`GraphBudget`), and created only when a node needs one
(`OwnStreams.get_or_create`).

The bodies of conditional nodes in one slot run one after another, so all of them share the same streams
(`OwnStreams.find_inside`).

Work in a destroyed stream is completed. The streams of a graph with conditional nodes must count until then, because
a body may still be queued; `ExecutableGraph.destroy` ensures that.
"""

from __future__ import annotations

from threading import RLock
from typing import Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Context, Stream

MAX_CLIENT_STREAMS: Final = 4096
"""The maximum number of streams of all executable graphs of a client together."""

MAX_USER_BYTES: Final = 1 << 30
"""The maximum estimated memory, in bytes, of all executable graphs of a user together, without their streams."""
ITEM_BYTES: Final = 1000
"""The estimated memory of an item or of a body, without the item's record, in bytes."""


@define(eq=False)
class GraphMemory:
    """Counts the memory of the graphs of all clients of a user. Thread-safe, even for finalizers."""

    _max: int = MAX_USER_BYTES
    _lock: RLock = field(factory=RLock, init=False)
    _used: int = field(default=0, init=False)

    def take(self, count: int) -> None:
        """Count ``count`` more bytes. Raise BackendError with OUT_OF_MEMORY above the limit."""
        with self._lock:
            if count > self._max - self._used:
                reason = (
                    f"the executable graphs of this process' user take {self._used >> 20} MiB, and this one "
                    f"{count} bytes, of at most {self._max >> 20} MiB; destroy executable graphs"
                )
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
            self._used += count

    def give(self, count: int) -> None:
        """Count as many bytes less."""
        with self._lock:
            self._used -= count


@define(eq=False)
class GraphBudget:
    """Counts the streams of a client's graphs, and their memory with that of the user's other clients.

    Thread-safe, even for finalizers.
    """

    memory: GraphMemory = field(factory=GraphMemory)
    _max_streams: int = MAX_CLIENT_STREAMS
    _lock: RLock = field(factory=RLock, init=False)
    _used: int = field(default=0, init=False)

    def take(self) -> None:
        """Count one more stream. Raise BackendError with OUT_OF_MEMORY above the limit."""
        with self._lock:
            if self._used == self._max_streams:
                reason = (
                    f"the branches and bodies of this process' executable graphs have {self._max_streams} streams, "
                    "as many as are allowed; destroy executable graphs"
                )
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
            self._used += 1

    def give(self, streams: int) -> None:
        """Count as many streams less."""
        with self._lock:
            self._used -= streams


@define(eq=False)
class OwnStreams:
    """The own streams of a graph, created when first used, and the memory that the graph takes.

    Bodies of conditional nodes in one slot run one after the other, so they share their streams.
    """

    _context: Context
    _budget: GraphBudget
    _nbytes: int = field(default=0, init=False)
    _streams: list[Stream] = field(factory=list, init=False)
    _inside: dict[int, OwnStreams] = field(factory=dict, init=False)

    def take_memory(self, count: int) -> None:
        """Count the memory of the graph, in bytes. Raise BackendError if the user's limit is reached."""
        self._budget.memory.take(count)
        self._nbytes += count

    def get_or_create(self, index: int) -> Stream:
        """Return a stream. Raise BackendError if the limit of streams is reached or no memory is left."""
        while len(self._streams) <= index:
            self._budget.take()
            try:
                self._streams.append(self._context.create_stream(True, 0))
            except BaseException:
                self._budget.give(1)
                raise
        return self._streams[index]

    def find_inside(self, slot: int) -> OwnStreams:
        """Return the streams of the bodies of conditional nodes in a slot."""
        return self._inside.setdefault(slot, OwnStreams(self._context, self._budget))

    def destroy(self) -> None:
        """Destroy the streams; their work is completed."""
        for stream in self._streams:
            stream.destroy()
        for inner in self._inside.values():
            inner.destroy()
        self.release()

    def release(self) -> None:
        """Stop counting the streams and the memory, because they or their context are destroyed."""
        for inner in self._inside.values():
            inner.release()
        self._budget.give(len(self._streams))
        self._budget.memory.give(self._nbytes)
        self._streams, self._inside, self._nbytes = [], {}, 0

    __del__ = release
    """A client may end while its worker makes a graph, which nobody else releases."""
