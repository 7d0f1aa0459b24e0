"""One capture sequence: the graph that it adds to, its streams, and whether they are joined.

The captures of this process: begun, ended, and asked about.

Stream capture: work of capturing streams becomes nodes of a graph instead of being sent.

While any stream captures, every record passes through this before it is sent (`interception`): one of a capturing
stream is taken, one that would break a capture is refused, and the capture with it, all others are left. Sources:
CUDA driver API, Stream Management; CUDA Programming Guide, Stream Capture.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd.wire.records import BY_OPCODE, FLAG_QUIET, HEADER, STREAM_LEGACY, Completion, Kind, Operation, Use
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.graph_structs import Elements
from pympsd_client._command_stream.interception import HostFunction, intercepted
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import parameters
from pympsd_client._graphs import work as works
from pympsd_client._graphs.graph import Edge, Graph, Node
from pympsd_client._graphs.items import work_of_record
from pympsd_client._graphs.work import CopyWork, HostWork, RecordWork, WaitWork
from pympsd_client._objects.context import Context, when_closed
from pympsd_client._objects.event import events
from pympsd_client._objects.pools.pool import PoolKind
from pympsd_client._objects.stream import NON_BLOCKING, streams

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
"""CUstreamCaptureMode."""
NONE, ACTIVE, INVALIDATED = range(3)
"""CUstreamCaptureStatus."""
_next_id: Final = count(1).__next__

StreamKey = tuple[Context, int]
"""A stream: its context, and how records name it."""


@define(eq=False)
class Capture:
    """A capture sequence: begun in ``origin``, joined by other streams through events."""

    graph: Graph
    origin: StreamKey
    mode: int
    thread: int
    is_into_existing: bool
    id: int = field(factory=_next_id, init=False)
    reason: str = field(default="", init=False)
    """Why it was invalidated; empty while it is active."""
    next: dict[StreamKey, dict[Node, Edge]] = field(factory=dict, init=False)
    """Its streams, and what the next node of each depends on."""
    added: dict[Node, None] = field(factory=dict, init=False)
    """The nodes that were captured and must lead back to the origin."""
    arrays: dict[StreamKey, tuple[Elements, Elements]] = field(factory=dict, init=False)
    """What cuStreamGetCaptureInfo points to."""

    @property
    def status(self) -> int:
        """Its CUstreamCaptureStatus."""
        return INVALIDATED if self.reason else ACTIVE

    def add(self, stream: StreamKey, work: Any) -> Node:
        """Add a node to a stream of it."""
        after = {node: edge for node, edge in self.next[stream].items() if node.handle in self.graph.nodes}
        node = self.graph.add(work, after)
        self.next[stream] = {node: Edge()}
        self.added[node] = None
        return node

    def unjoined(self) -> bool:
        """Whether a captured node does not lead to the origin's latest work."""
        waiting = list(self.next[self.origin])
        joined = set(waiting)
        while waiting:
            for node in waiting.pop().dependencies:
                if node not in joined:
                    joined.add(node)
                    waiting.append(node)
        left = {node for node in self.added if node.handle in self.graph.nodes} - joined
        return any(not (left & set(node.dependents)) for node in left)


class Captures(ABC):
    """The captures of this process (an Interceptor). Safe for threads."""

    def __init__(self) -> None:
        self._lock: Final = threading.RLock()
        self._of: Final[dict[StreamKey, Capture]] = {}
        """The capture of each capturing stream."""
        self._events: Final[dict[int, tuple[Capture, dict[Node, Edge]]]] = {}
        """Events that stand for captured work: the capture, and what they stand for."""
        self._modes: Final = Modes()

    # --- begin and end

    def begin(self, place: StreamKey, mode: int, graph: Graph | None, after: dict[Node, Edge]) -> None:
        """Begin a capture in a stream, into a graph if one is given; raise CudaError."""
        if place[1] == STREAM_LEGACY:
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "the legacy default stream cannot capture; use a stream that was created",
            )
        if mode not in (GLOBAL, THREAD_LOCAL, RELAXED):
            raise invalid_value(f"the capture mode is GLOBAL (0), THREAD_LOCAL (1) or RELAXED (2), not {mode}")
        with self._lock:
            if place in self._of:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "the stream captures already; end that capture first")
            if graph is not None and graph.is_captured_into:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "another capture into the graph has not ended")
            made = Capture(graph or graphs.new(), place, mode, threading.get_ident(), graph is not None)
            made.graph.is_captured_into = True
            made.next[place] = after
            self._of[place] = made
            self._intercept()
            invalidate()  # launches in C would bypass the capture

    def end(self, place: StreamKey) -> Graph:
        """End the capture that began in a stream and return its graph; raise CudaError, after which it has ended."""
        with self._lock:
            found = self._of.get(place)
            if found is None:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "the stream does not capture")
            if found.origin != place:
                found.reason = found.reason or "it was ended in a stream in which it did not begin"
                raise CudaError(
                    Result.ERROR_STREAM_CAPTURE_UNMATCHED,
                    "the capture did not begin in this stream; end it where it began",
                )
            if found.mode != RELAXED and found.thread != threading.get_ident():
                raise CudaError(
                    Result.ERROR_STREAM_CAPTURE_WRONG_THREAD,
                    "the capture began in another thread; end it there, or begin it with the mode RELAXED",
                )
            is_unjoined = not found.reason and found.unjoined()
            if not found.reason and not is_unjoined:
                self._drop(found)
                return found.graph
            self._abandon(found)
        if is_unjoined:
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_UNJOINED,
                "work of another stream was captured and not joined to the stream of the capture again: record an "
                "event after it, and wait for that",
            )
        raise invalidated(found)

    def _drop(self, capture: Capture) -> None:
        capture.graph.is_captured_into = False
        for place in capture.next:
            self._of.pop(place, None)
        for event, (its_capture, _) in tuple(self._events.items()):
            if its_capture is capture:
                del self._events[event]
        if not self._of:
            intercepted.by = None

    def end_in(self, context: Context) -> None:
        """End the captures in a context that closes."""
        with self._lock:
            for capture in {each for place, each in self._of.items() if place[0] is context}:
                self._abandon(capture)

    def _abandon(self, capture: Capture) -> None:
        self._drop(capture)
        if not capture.is_into_existing:
            works.destroy(capture.graph)

    @abstractmethod
    def _intercept(self) -> None:
        """See records from now on."""

    def streams_in(self, context: Context) -> list[StreamKey]:
        """Return the capturing streams of a context."""
        return [place for place in self._of if place[0] is context]

    # --- queries

    def of(self, place: StreamKey) -> Capture | None:
        """Return the capture of a stream; IMPLICIT for the legacy stream while one that it waits for captures."""
        with self._lock:
            if place[1] == STREAM_LEGACY and any(waits_for_legacy(each) for each in self.streams_in(place[0])):
                raise CudaError(
                    Result.ERROR_STREAM_CAPTURE_IMPLICIT,
                    "a stream that the legacy default stream waits for is capturing",
                )
            return self._of.get(place)

    def active(self, place: StreamKey) -> Capture | None:
        """Return the capture of a stream, None if it does not capture; INVALIDATED if it was."""
        found = self._of.get(place)
        if found is not None and found.reason:
            raise invalidated(found)
        return found

    def exchange_mode(self, mode: int) -> int:
        """Set the calling thread's mode and return the one before; INVALID_VALUE."""
        if mode not in (GLOBAL, THREAD_LOCAL, RELAXED):
            raise invalid_value(f"the capture mode is GLOBAL (0), THREAD_LOCAL (1) or RELAXED (2), not {mode}")
        before, self._modes.current = self._modes.current, mode
        return before

    def change_dependencies(self, place: StreamKey, given: dict[Node, Edge], replaces: bool) -> None:
        """Add to, or replace, what the next node of a stream depends on; ILLEGAL_STATE if it does not capture."""
        with self._lock:
            found = self.active(place)
            if found is None:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "the stream does not capture")
            if any(node.graph is not found.graph for node in given):
                raise invalid_value("a node is not of the graph that is captured into")
            if replaces:
                for node in found.next[place].keys() - given.keys():
                    found.added.pop(node, None)
            found.next[place] = given if replaces else {**found.next[place], **given}

    def add(self, place: StreamKey, make: Callable[[], Any]) -> bool:
        """Add a node to a stream; return False if it does not capture."""
        with self._lock:
            found = self.active(place)
            if found is not None:
                found.add(place, make())
            return found is not None


class Modes(threading.local):
    current = GLOBAL
    """The mode of each thread."""


def waits_for_legacy(place: StreamKey) -> bool:
    stream = streams.get(place[1])
    return stream is not None and not stream.flags & NON_BLOCKING


def invalidated(capture: Capture) -> CudaError:
    return CudaError(Result.ERROR_STREAM_CAPTURE_INVALIDATED, f"the capture is invalid: {capture.reason}")


_UNSAFE: Final = frozenset(
    {
        *("ALLOCATE", "FREE", "ALLOCATE_PINNED", "SYNCHRONIZE_STREAM", "QUERY_STREAM"),
        *("SYNCHRONIZE_EVENT", "QUERY_EVENT", "ELAPSED_TIME"),
    }
)
"""Operations that may need work which is being captured to have been done."""
_OF_CONTEXT: Final = "SYNCHRONIZE_CONTEXT"


class CapturingInterceptor(Captures):
    """Takes work of capturing streams (an Interceptor), and refuses what breaks a capture."""

    def _intercept(self) -> None:
        intercepted.by = self

    def takes_copy(self, context: Context, stream: int, make: Callable[[], Any]) -> bool:
        """Take a copy with pageable host memory."""
        return self.add((context, stream), lambda: CopyWork(make(), context))

    def takes_external_event(self, context: Context, stream: int, event: int, is_wait: bool) -> bool:
        """Take the recording of, or wait for, an external event."""
        kind = WaitWork if is_wait else RecordWork
        return self.add((context, stream), lambda: kind(parameters.known_event(event)))

    def takes_allocation(self, context: Context, stream: int, size: int, kind: PoolKind) -> int:
        """Take an allocation of stream-ordered memory: it is the graph's."""
        with self._lock:
            found = self.active((context, stream))
            if found is None or size == 0:
                return 0
            if not kind.is_shared and kind.location.id != context.device.number:
                raise CudaError(
                    Result.ERROR_NOT_SUPPORTED,
                    f"the pool is of device {kind.location.id}, the stream that captures of {context.device.number}",
                )
            with self.lifted():
                work = parameters.allocation_work(size, context, kind)
            found.add((context, stream), work)
            return work.allocation.handle

    def takes_free(self, context: Context, stream: int, address: int) -> bool:
        """Take the freeing of memory of a graph; INVALID_VALUE for any other in a capturing stream."""
        with self._lock:
            found = self.active((context, stream))
            if found is not None:
                found.add((context, stream), parameters.free_work(found.graph, address))
            return found is not None

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let this thread make its own calls, whatever is captured."""
        before, self._modes.current = self._modes.current, RELAXED
        try:
            yield
        finally:
            self._modes.current = before

    def takes_host_function(self, context: Context, stream: int, work: HostFunction | None) -> bool:
        """Take a host function; UNSUPPORTED for a callback."""
        if work is None:
            with self._lock:
                found = self.active((context, stream))
                if found is not None:
                    raise _refused(found, "cuStreamAddCallback")
            return False
        return self.add((context, stream), lambda: HostWork(*work, context))

    def takes_record(self, record: bytes) -> bool:
        """Take a record of a capturing stream; raise CudaError for one that conflicts with a capture."""
        opcode, flags, _, serial, _ = HEADER.unpack_from(record)
        operation = BY_OPCODE[opcode]
        operands = operation.layout.unpack_from(record)[5:]
        stream, event = (_handle(operation, operands, kind) for kind in (Kind.STREAM, Kind.EVENT))
        with self._lock:
            context = next((each for each, _ in self._of if each.serial == serial), None)
            if context is None:
                return self._leave(operation, flags)
            if operation.name == _OF_CONTEXT:
                raise self._broken(self.streams_in(context), "waiting for a context in which a stream captures")
            place = None if stream is None else (context, stream)
            is_ending = operation.name == "DESTROY_STREAM"
            found = None if place is None else self._of.get(place) if is_ending else self.active(place)
            if event is not None:
                return self._event(operation, flags, place, event, found)
            if place is None:
                return self._leave(operation, flags)
            if is_ending:
                if found is not None and place == found.origin:
                    self._abandon(found)
                elif found is not None:
                    del self._of[place], found.next[place]
                return False
            if found is None:
                self.of_legacy(place, operation)
                return self._leave(operation, flags)
            if operation.completion is not Completion.QUEUED or operation.answered:
                raise _refused(found, operation.name)
            found.add(place, work_of_record(operation.name, record, context))
            return True

    def of_legacy(self, place: StreamKey, operation: Operation) -> None:
        """Refuse work in the legacy stream that would wait for a capturing stream; that capture is invalid then."""
        if place[1] != STREAM_LEGACY:
            return
        waiting = [self._of[each] for each in self.streams_in(place[0]) if waits_for_legacy(each)]
        if waiting:
            for capture in waiting:
                capture.reason = capture.reason or f"{operation.name} was called in the legacy default stream"
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_IMPLICIT,
                "the legacy default stream would wait for a stream that captures; use another stream, or capture in "
                "one that was created with CU_STREAM_NON_BLOCKING",
            )

    def _event(self, operation: Operation, flags: int, place: StreamKey | None, event: int, found: Any) -> bool:
        if operation.name == "RECORD_EVENT" and place is not None:
            if found is None:
                self._events.pop(event, None)
                return False
            self._events[event] = found, dict(found.next[place])
            return True
        if operation.name == "WAIT_EVENT" and place is not None:
            return self._wait(place, event, found)
        if operation.name == "DESTROY_EVENT":
            self._events.pop(event, None)
            return False
        if event in self._events:
            capture, _ = self._events[event]
            capture.reason = capture.reason or f"{operation.name} was called for a captured event"
            raise CudaError(
                Result.ERROR_CAPTURED_EVENT,
                "the event was last recorded in a stream that captures: it is no work yet",
            )
        return self._leave(operation, flags)

    def _wait(self, place: StreamKey, event: int, found: Capture | None) -> bool:
        captured = self._events.get(event)
        if captured is None:
            known = events.get(event)
            if found is None or known is None or not known.recorded:
                return found is not None  # an event that was never recorded delays nothing
            found.reason = "a stream of it waited for an event that was recorded before, outside of it"
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_ISOLATION,
                "a capturing stream cannot wait for work that is not captured; record the event in the capture, or "
                "wait with CU_EVENT_WAIT_EXTERNAL",
            )
        capture, after = captured
        if capture.reason:
            raise invalidated(capture)
        if found is not None and found is not capture:
            for each in (found, capture):
                each.reason = "it was to be merged with another capture"
            raise CudaError(Result.ERROR_STREAM_CAPTURE_MERGE, "the stream and the event are of different captures")
        if place[1] == STREAM_LEGACY:
            capture.reason = "the legacy default stream was to join it"
            raise CudaError(Result.ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy default stream cannot join a capture")
        self._of[place] = capture
        capture.next[place] = {**capture.next.get(place, {}), **after}
        return True

    def _leave(self, operation: Operation, flags: int) -> bool:
        """Leave a record that concerns no capturing stream, unless a capture prohibits it to this thread.

        One whose answer is not waited for is no call of its own: memory that is freed in stream order.
        """
        if operation.name not in _UNSAFE or self._modes.current == RELAXED or flags & FLAG_QUIET:
            return False
        me, mode = threading.get_ident(), self._modes.current
        prohibiting = [
            each
            for each in set(self._of.values())
            if (each.mode != RELAXED if each.thread == me else each.mode == mode == GLOBAL)
        ]
        if not prohibiting:
            return False
        what = f"{operation.name} may depend on captured work"
        for capture in prohibiting:
            capture.reason = capture.reason or what
        raise CudaError(
            Result.ERROR_STREAM_CAPTURE_UNSUPPORTED,
            f"{what}, while a stream captures in the mode GLOBAL, or one of this thread in THREAD_LOCAL: call it "
            "before or after, or set the thread's mode to RELAXED (cuThreadExchangeStreamCaptureMode)",
        )

    def _broken(self, places: list[StreamKey], what: str) -> CudaError:
        for place in places:
            self._of[place].reason = self._of[place].reason or what
        return CudaError(Result.ERROR_STREAM_CAPTURE_UNSUPPORTED, f"{what}; end the capture first")


def _handle(operation: Operation, operands: tuple[int, ...], kind: Kind) -> int | None:
    for operand, value in zip(operation.operands, operands, strict=True):
        if operand.kind is kind and operand.use is not Use.CREATED:
            return value
    return None


def _refused(capture: Capture, what: str) -> CudaError:
    capture.reason = capture.reason or f"{what} was called in one of its streams"
    return CudaError(Result.ERROR_STREAM_CAPTURE_UNSUPPORTED, f"{what} is not possible in a stream that captures")


captures: Final = CapturingInterceptor()
when_closed.append(captures.end_in)
