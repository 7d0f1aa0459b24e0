"""Stream capture: work of capturing streams becomes nodes of a graph instead of being sent.

**The problem.** Every function of the API may be called in a capturing stream, or may break a capture in another
stream. If each function had to check this, some would forget it.

**The idea.** All work passes through one place, `transport.post`. While any stream captures, an interceptor sees
each record there (`Interceptor`) and decides by the table of operations:

    record of a capturing stream         -> taken: a node is added, nothing is sent
    record that would break a capture    -> refused with a CUDA error; the capture is invalid from now on
    any other record                     -> left: it is sent

Work whose data is not in a record (copies with pageable memory, pool allocations, host functions) is offered to the
interceptor by the function that does it (`take_copy`, `take_allocation`, ...).

**How order becomes edges.** ``Capture.next`` has, for each stream, the nodes that its next node depends on. A new
node depends on them and replaces them. Recording an event stores the stream's nodes with the event. A stream that
waits for the event adds them to its own nodes, and joins the capture if it did not capture before. The streams may be
of several contexts and devices:

    stream 1    A ---- record e ---- B ------------- wait f ---- D      D depends on B and C
    stream 2             wait e ---- C ---- record f                    B and C depend on A

**Invariants**

- The streams of a capture are exactly the keys of its ``next``; ``_captures`` finds the capture of a stream.
- At the end a path must lead from each captured node to the origin's latest work, or the error is UNJOINED.
- An invalid capture (``reason`` is set) does not take work, but has to be ended in the stream in which it began.
- A capture begins with `launch_cache.invalidate`, because launches in C would bypass it.
- In the modes GLOBAL and THREAD_LOCAL, calls that may depend on captured work (_UNSAFE) are refused in the threads
  that the mode names.

Sources: CUDA driver API, Stream Management; CUDA Programming Guide, Stream Capture.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd.wire.records import BY_OPCODE, FLAG_QUIET, HEADER, STREAM_LEGACY, Completion, Kind, Operation, Use
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.graph_structs import Elements
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._command_stream.transport import HostFunction, intercepted
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import parameters
from pympsd_client._graphs import work as works
from pympsd_client._graphs.graph import PROGRAMMATIC, Edge, Graph, Node
from pympsd_client._graphs.items import work_of_record
from pympsd_client._graphs.work import CopyWork, HostWork, KernelWork, RecordWork, WaitWork
from pympsd_client._objects.context import Context, when_closed
from pympsd_client._objects.event import events
from pympsd_client._objects.pools.pool import PoolKind
from pympsd_client._objects.stream import NON_BLOCKING, streams

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
"""The values of CUstreamCaptureMode."""
NONE, ACTIVE, INVALIDATED = range(3)
"""The values of CUstreamCaptureStatus."""
_next_id: Final = count(1).__next__

StreamKey = tuple[Context, int]
"""A stream: its context, and its name in records."""


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
    """The reason why the capture is invalid; empty if it is valid."""
    next: dict[StreamKey, dict[Node, Edge]] = field(factory=dict, init=False)
    """The streams of the capture, each with the nodes that its next node depends on."""
    added: dict[Node, None] = field(factory=dict, init=False)
    """The captured nodes, from each of which a path must lead to the origin's latest work."""
    arrays: dict[StreamKey, tuple[Elements, Elements]] = field(factory=dict, init=False)
    """The arrays to which cuStreamGetCaptureInfo returns pointers."""

    @property
    def status(self) -> int:
        """The capture's CUstreamCaptureStatus."""
        return INVALIDATED if self.reason else ACTIVE

    def add(self, stream: StreamKey, work: Any) -> Node:
        """Add a node to one of the streams, after the nodes that the stream's next node depends on."""
        after = {node: edge for node, edge in self.next[stream].items() if node.handle in self.graph.nodes}
        node = self.graph.add(work, after)
        self.next[stream] = {node: Edge()}
        self.added[node] = None
        return node

    def has_unjoined_work(self) -> bool:
        """Return whether no path leads from a captured node to the origin's latest work."""
        waiting = list(self.next[self.origin])
        joined = set(waiting)
        while waiting:
            for node in waiting.pop().dependencies:
                if node not in joined:
                    joined.add(node)
                    waiting.append(node)
        unjoined = {node for node in self.added if node.handle in self.graph.nodes} - joined
        return any(not (unjoined & set(node.dependents)) for node in unjoined)


_UNSAFE: Final = frozenset(
    {
        *("ALLOCATE", "FREE", "ALLOCATE_PINNED", "SYNCHRONIZE_STREAM", "QUERY_STREAM"),
        *("SYNCHRONIZE_EVENT", "QUERY_EVENT", "ELAPSED_TIME"),
    }
)
"""Operations that may wait for captured work, which never runs."""
_OF_CONTEXT: Final = "SYNCHRONIZE_CONTEXT"


class Modes(threading.local):
    """The capture mode of each thread (cuThreadExchangeStreamCaptureMode)."""

    current = GLOBAL


def _check_mode(mode: int) -> None:
    if mode not in (GLOBAL, THREAD_LOCAL, RELAXED):
        raise invalid_value(f"the capture mode must be GLOBAL (0), THREAD_LOCAL (1) or RELAXED (2), not {mode}")


def waits_for_legacy(place: StreamKey) -> bool:
    """Return whether a stream and the legacy default stream wait for each other's work."""
    stream = streams.get(place[1])
    return stream is not None and not stream.flags & NON_BLOCKING


def invalidation_error(capture: Capture) -> CudaError:
    """Return the error for every use of an invalid capture, with the reason why it is invalid."""
    return CudaError(Result.ERROR_STREAM_CAPTURE_INVALIDATED, f"the capture is invalid: {capture.reason}")


class Captures:
    """The captures of this process, which record the work of capturing streams (an Interceptor). Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.RLock()
        self._captures: Final[dict[StreamKey, Capture]] = {}
        """The capture of each capturing stream."""
        self._events: Final[dict[int, tuple[Capture, dict[Node, Edge]]]] = {}
        """For each captured event: its capture, and the nodes on which a stream that waits for it then depends."""
        self._modes: Final = Modes()

    # --- begin and end

    def begin(self, place: StreamKey, mode: int, graph: Graph | None, after: dict[Node, Edge]) -> None:
        """Begin a capture in a stream, into a new graph or a given one.

        ``mode`` is a CUstreamCaptureMode; ``after``: the nodes of the graph that the first captured node depends on.
        Raise STREAM_CAPTURE_UNSUPPORTED for the legacy stream, ILLEGAL_STATE if the stream or the graph is in a
        capture already, INVALID_VALUE for an unknown mode.
        """
        if place[1] == STREAM_LEGACY:
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "the legacy default stream cannot capture; use a stream that was created",
            )
        _check_mode(mode)
        with self._lock:
            if place in self._captures:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "the stream captures already; end that capture first")
            if graph is not None and graph.is_captured_into:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "another capture into the graph has not ended")
            capture = Capture(graph or graphs.new(), place, mode, threading.get_ident(), graph is not None)
            capture.graph.is_captured_into = True
            capture.next[place] = after
            self._captures[place] = capture
            intercepted.by = self
            invalidate()  # launches in C would bypass the capture

    def end(self, place: StreamKey) -> Graph:
        """End the capture that began in a stream, and return its graph.

        Raise CudaError:

        - ILLEGAL_STATE if the stream does not capture;
        - STREAM_CAPTURE_UNMATCHED in a stream that has joined; the capture becomes invalid, but does not end;
        - STREAM_CAPTURE_WRONG_THREAD in another thread; the capture continues;
        - STREAM_CAPTURE_UNJOINED and STREAM_CAPTURE_INVALIDATED; the capture has ended without a graph.
        """
        with self._lock:
            capture = self._captures.get(place)
            if capture is None:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "the stream does not capture")
            if capture.origin != place:
                capture.reason = capture.reason or "it was ended in a stream in which it did not begin"
                raise CudaError(
                    Result.ERROR_STREAM_CAPTURE_UNMATCHED,
                    "the capture did not begin in this stream; end it in the stream in which it began",
                )
            if capture.mode != RELAXED and capture.thread != threading.get_ident():
                raise CudaError(
                    Result.ERROR_STREAM_CAPTURE_WRONG_THREAD,
                    "the capture began in another thread; end it there, or begin it with the mode RELAXED",
                )
            is_unjoined = not capture.reason and capture.has_unjoined_work()
            if not capture.reason and not is_unjoined:
                self._drop(capture)
                return capture.graph
            self._abandon(capture)
        if is_unjoined:
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_UNJOINED,
                "captured work of another stream was not joined to the stream in which the capture began: record an "
                "event after the work, and wait for the event there",
            )
        raise invalidation_error(capture)

    def _drop(self, capture: Capture) -> None:
        capture.graph.is_captured_into = False
        for place in capture.next:
            self._captures.pop(place, None)
        for event, (its_capture, _) in tuple(self._events.items()):
            if its_capture is capture:
                del self._events[event]
        if not self._captures:
            intercepted.by = None

    def end_in(self, context: Context) -> None:
        """End the captures in a closing context."""
        with self._lock:
            for capture in {capture for place, capture in self._captures.items() if place[0] is context}:
                self._abandon(capture)

    def _abandon(self, capture: Capture) -> None:
        self._drop(capture)
        if not capture.is_into_existing:
            works.destroy(capture.graph)

    def streams_in(self, context: Context) -> list[StreamKey]:
        """Return the capturing streams of a context."""
        return [place for place in self._captures if place[0] is context]

    # --- queries

    def find(self, place: StreamKey) -> Capture | None:
        """Return the capture of a stream; None if it does not capture.

        Raise IMPLICIT for the legacy stream while a stream that it waits for captures.
        """
        with self._lock:
            if place[1] == STREAM_LEGACY and any(waits_for_legacy(stream) for stream in self.streams_in(place[0])):
                raise CudaError(
                    Result.ERROR_STREAM_CAPTURE_IMPLICIT,
                    "a stream that the legacy default stream waits for is capturing",
                )
            return self._captures.get(place)

    def find_valid(self, place: StreamKey) -> Capture | None:
        """Return the capture of a stream, or None; raise INVALIDATED if the stream is in an invalid capture."""
        capture = self._captures.get(place)
        if capture is not None and capture.reason:
            raise invalidation_error(capture)
        return capture

    def exchange_mode(self, mode: int) -> int:
        """Set the calling thread's mode and return its previous mode; raise INVALID_VALUE for an unknown mode."""
        _check_mode(mode)
        before, self._modes.current = self._modes.current, mode
        return before

    def change_dependencies(self, place: StreamKey, read: Callable[[], dict[Node, Edge]], replaces: bool) -> None:
        """Add nodes to those that the next node of a stream depends on, or with ``replaces`` replace them.

        ``read`` returns the nodes. It is called if the stream captures, because that is checked before any argument.
        Raise ILLEGAL_STATE if the stream does not capture, INVALID_VALUE for a node of another graph.
        """
        with self._lock:
            capture = self.find_valid(place)
            if capture is None:
                raise CudaError(Result.ERROR_ILLEGAL_STATE, "the stream does not capture")
            dependencies = read()
            if any(node.graph is not capture.graph for node in dependencies):
                raise invalid_value("a node belongs to a graph other than the one into which the stream captures")
            if replaces:
                for node in capture.next[place].keys() - dependencies.keys():
                    capture.added.pop(node, None)
            capture.next[place] = dependencies if replaces else {**capture.next[place], **dependencies}

    def add(self, place: StreamKey, make: Callable[[], Any]) -> bool:
        """Add a node, whose work ``make`` returns, to a stream; return False if the stream does not capture."""
        with self._lock:
            capture = self.find_valid(place)
            if capture is not None:
                capture.add(place, make())
            return capture is not None

    # --- the interceptor

    def take_copy(self, context: Context, stream: int, make: Callable[[], Any]) -> bool:
        """Take a copy with pageable host memory."""
        return self.add((context, stream), lambda: CopyWork(make(), context))

    def make_programmatic(self, context: Context, stream: int) -> None:
        """Make the edges from kernels to the kernel that was just captured programmatic, as an H100 does."""
        with self._lock:
            capture = self._captures.get((context, stream))
            for node in () if capture is None else tuple(capture.next[context, stream]):
                for kernel in [before for before in node.dependencies if isinstance(before.work, KernelWork)]:
                    node.dependencies[kernel] = kernel.dependents[node] = Edge(1, 0, PROGRAMMATIC)

    def take_external_event(self, context: Context, stream: int, event: int, is_wait: bool) -> bool:
        """Take the recording of an external event, or the wait for one."""
        kind = WaitWork if is_wait else RecordWork
        return self.add((context, stream), lambda: kind(parameters.require_event(event)))

    def take_allocation(self, context: Context, stream: int, size: int, kind: PoolKind) -> int:
        """Take an allocation of stream-ordered memory, which becomes the graph's."""
        with self._lock:
            capture = self.find_valid((context, stream))
            if capture is None or size == 0:
                return 0
            if not kind.is_shared and kind.location.id != context.device.number:
                raise not_supported(
                    f"the pool is of device {kind.location.id}, the capturing stream of {context.device.number}"
                )
            with self.lift():
                work = parameters.allocation_work(size, context, kind)
            capture.add((context, stream), work)
            return work.allocation.handle

    def take_free(self, context: Context, stream: int, address: int) -> bool:
        """Capture a call that frees memory of the graph.

        Return False if the stream is not capturing. Raise INVALID_VALUE if it is, for memory that is not the graph's.
        """
        with self._lock:
            capture = self.find_valid((context, stream))
            if capture is not None:
                capture.add((context, stream), parameters.free_work(capture.graph, address))
            return capture is not None

    @contextmanager
    def lift(self) -> Iterator[None]:
        """Allow this thread all calls during the block, as in the mode RELAXED."""
        before, self._modes.current = self._modes.current, RELAXED
        try:
            yield
        finally:
            self._modes.current = before

    def refuse(self, context: Context, stream: int, call: str) -> None:
        """Raise STREAM_CAPTURE_UNSUPPORTED if the stream captures, whose capture becomes invalid.

        On a GPU the error of cuStreamAddCallback is the same in an invalid capture.
        """
        with self._lock:
            capture = self._captures.get((context, stream))
            if capture is not None:
                raise _refusal(capture, call)

    def is_capturing(self, context: Context, stream: int) -> bool:
        """Return whether the stream captures; raise INVALIDATED if it is in an invalid capture."""
        return self.find_valid((context, stream)) is not None

    def take_wait(self, context: Context, stream: int, event: int) -> bool:
        """Take a stream's wait for an event of another context if the stream captures or the event is captured.

        The stream joins the event's capture. Raise CudaError for a wait that would break a capture.
        """
        with self._lock:
            return self._take_wait((context, stream), event, self.find_valid((context, stream)))

    def take_host_function(self, context: Context, stream: int, work: HostFunction) -> bool:
        """Take a host function."""
        return self.add((context, stream), lambda: HostWork(*work, context))

    def take_record(self, record: bytes) -> bool:
        """Take a record of a capturing stream and return True; return False if the record must be sent.

        Raise CudaError for a record that conflicts with a capture, which becomes invalid.
        """
        opcode, flags, _, context_id, _ = HEADER.unpack_from(record)
        operation = BY_OPCODE[opcode]
        operands = operation.layout.unpack_from(record)[5:]
        stream, event = (_handle(operation, operands, kind) for kind in (Kind.STREAM, Kind.EVENT))
        with self._lock:
            context = next((key for key, _ in self._captures if key.id == context_id), None)
            if context is None:
                return self._leave(operation, flags)
            if operation.name == _OF_CONTEXT:
                raise self._break(self.streams_in(context), "waiting for a context in which a stream captures")
            place = None if stream is None else (context, stream)
            is_ending = operation.name == "DESTROY_STREAM"
            capture = None if place is None else self._captures.get(place)
            is_refused = operation.completion is not Completion.QUEUED or operation.answered
            if event is None and not is_ending and capture is not None and is_refused:
                raise _refusal(capture, operation.name)  # also in an invalid capture, as on a GPU
            if capture is not None and capture.reason and not is_ending:
                raise invalidation_error(capture)
            if event is not None:
                return self._take_event(operation, flags, place, event, capture)
            if place is None:
                return self._leave(operation, flags)
            if is_ending:
                if capture is not None and place == capture.origin:
                    self._abandon(capture)
                elif capture is not None:
                    del self._captures[place], capture.next[place]
                return False
            if capture is None:
                self.refuse_in_legacy(place, operation)
                return self._leave(operation, flags)
            capture.add(place, work_of_record(operation.name, record, context))
            return True

    def refuse_in_legacy(self, place: StreamKey, operation: Operation) -> None:
        """Refuse work in the legacy stream that would wait for a capturing stream, whose capture becomes invalid."""
        if place[1] != STREAM_LEGACY:
            return
        waiting = [self._captures[key] for key in self.streams_in(place[0]) if waits_for_legacy(key)]
        if waiting:
            for capture in waiting:
                capture.reason = capture.reason or f"{operation.name} was called in the legacy default stream"
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_IMPLICIT,
                "the legacy default stream would wait for a stream that captures; use another stream, or capture in "
                "one that was created with CU_STREAM_NON_BLOCKING",
            )

    def _take_event(
        self, operation: Operation, flags: int, place: StreamKey | None, event: int, capture: Any
    ) -> bool:
        """Take an operation on an event and return True; return False if it must be sent. Raise CudaError."""
        if operation.name == "RECORD_EVENT" and place is not None:
            if capture is None:
                self._events.pop(event, None)
                return False
            self._events[event] = capture, dict(capture.next[place])
            return True
        if operation.name == "WAIT_EVENT" and place is not None:
            return self._take_wait(place, event, capture)
        if operation.name == "DESTROY_EVENT":
            self._events.pop(event, None)
            return False
        if event in self._events:
            recorded_by, _ = self._events[event]
            recorded_by.reason = recorded_by.reason or f"{operation.name} was called for a captured event"
            raise CudaError(
                Result.ERROR_CAPTURED_EVENT,
                "the event was last recorded in a stream that captures: it does not stand for work yet",
            )
        return self._leave(operation, flags)

    def _take_wait(self, place: StreamKey, event: int, waiting_capture: Capture | None) -> bool:
        """Take a wait if the stream captures or the event is captured; return whether it was taken.

        The stream joins the event's capture. Raise CudaError for a wait that would break a capture, which becomes
        invalid.
        """
        captured = self._events.get(event)
        if captured is None:
            event_object = events.get(event)
            if waiting_capture is None or event_object is None or not event_object.recorded:
                return waiting_capture is not None  # waiting for an event that was never recorded has no effect
            waiting_capture.reason = "one of its streams waited for an event that was recorded outside of the capture"
            raise CudaError(
                Result.ERROR_STREAM_CAPTURE_ISOLATION,
                "a capturing stream cannot wait for work that is not captured; record the event in the capture, or "
                "wait with CU_EVENT_WAIT_EXTERNAL",
            )
        capture, after = captured
        if capture.reason:
            raise invalidation_error(capture)
        if waiting_capture is not None and waiting_capture is not capture:
            for broken in (waiting_capture, capture):
                broken.reason = "a call would have merged it with another capture"
            raise CudaError(Result.ERROR_STREAM_CAPTURE_MERGE, "the stream and the event are of different captures")
        if place[1] == STREAM_LEGACY:
            capture.reason = "a call would have added the legacy default stream to it"
            raise CudaError(Result.ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy default stream cannot join a capture")
        self._captures[place] = capture
        capture.next[place] = {**capture.next.get(place, {}), **after}
        return True

    def _leave(self, operation: Operation, flags: int) -> bool:
        """Return False: the record must be sent. Raise CudaError if a capture prohibits the call in this thread.

        A quiet record, such as one that frees memory in stream order, is not a call of the program and is sent.
        """
        if operation.name not in _UNSAFE or self._modes.current == RELAXED or flags & FLAG_QUIET:
            return False
        me, mode = threading.get_ident(), self._modes.current
        prohibiting = [
            capture
            for capture in set(self._captures.values())
            if (capture.mode != RELAXED if capture.thread == me else capture.mode == mode == GLOBAL)
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

    def _break(self, places: list[StreamKey], what: str) -> CudaError:
        for place in places:
            self._captures[place].reason = self._captures[place].reason or what
        return CudaError(Result.ERROR_STREAM_CAPTURE_UNSUPPORTED, f"{what}; end the capture first")


def _handle(operation: Operation, operands: tuple[int, ...], kind: Kind) -> int | None:
    for operand, value in zip(operation.operands, operands, strict=True):
        if operand.kind is kind and operand.use is not Use.CREATED:
            return value
    return None


def _refusal(capture: Capture, what: str) -> CudaError:
    capture.reason = capture.reason or f"{what} was called in one of its streams"
    return CudaError(Result.ERROR_STREAM_CAPTURE_UNSUPPORTED, f"{what} is not possible in a stream that captures")


captures: Final = Captures()
when_closed.append(captures.end_in)
