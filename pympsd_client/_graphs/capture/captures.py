"""The captures of this process: begun, ended, and asked about."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd.wire.records import STREAM_LEGACY
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream.interception import intercepted
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._graphs import graph as graphs
from pympsd_client._graphs import work as works
from pympsd_client._graphs.capture.sequence import GLOBAL, RELAXED, THREAD_LOCAL, Capture, StreamKey
from pympsd_client._graphs.graph import Edge, Graph, Node
from pympsd_client._objects.context import Context
from pympsd_client._objects.stream import NON_BLOCKING, streams


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
