"""An executable graph in its context: its records, prepared, and their order in streams of the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.graph_items import ConditionalKind
from pympsd_server.backends.interface import BackendError, Condition, Context, Event, Outcome, Stream
from pympsd_server.executor.graphs.conditional import Choice
from pympsd_server.executor.graphs.stream_slots import LaneAssignment, assign_lanes
from pympsd_server.executor.graphs.streams import OwnStreams, StreamBudget

Act = Callable[[Stream], None]
"""Puts one item's work in a stream."""


class HostRequest(Protocol):
    """A host function of one launch, to be answered when it is due."""

    def fail(self, outcome: Outcome) -> None:
        """Answer that it will not run."""


RunHostFunction = Callable[[HostRequest, Stream], None]


@frozen(eq=False)
class ConditionalStep:
    """A conditional node; ``default`` is the value of its condition when a launch begins, None: what it was."""

    handle: int
    kind: ConditionalKind
    default: int | None
    bodies: Sequence[Sequence[Step]]


@frozen(eq=False)
class Step:
    """One item; ``act`` queues its work, or is a host function's number, or bodies; None: it only joins others."""

    act: Act | int | ConditionalStep | None
    dependencies: tuple[int, ...] = ()


@define(eq=False)
class ExecutableGraph:
    """Made by ``make``; launched by the client's worker alone, or as the body of a conditional node."""

    _acts: Sequence[Act | int | Choice | None]
    _assignments: Sequence[LaneAssignment]
    _context: Context
    _own: OwnStreams
    _stream: Stream | None
    """A body's stream; None: that of each launch."""
    _defaults: list[tuple[Condition, int]] = field(factory=list, init=False)
    """What conditions are set to when a launch begins, those of bodies too."""
    _lanes: list[Stream] = field(factory=list, init=False)
    """Streams of the lanes after the first."""
    _events: dict[int, Event] = field(factory=dict, init=False)
    """The events of the items that other lanes, or the end of the launch, wait for."""
    _begun: Event | None = field(default=None, init=False)
    _done: Event | None = field(default=None, init=False)
    _last_stream: Stream | None = field(default=None, init=False)
    host_functions: dict[int, HostRequest] = field(factory=dict, init=False)
    """Those of the coming launch, by number."""

    @classmethod
    def make(cls, context: Context, steps: Sequence[Step], budget: StreamBudget) -> ExecutableGraph:
        """Return the executable graph of steps; BackendError if the device has no room for its streams."""
        own = OwnStreams(context, budget)
        try:
            return cls._made(context, steps, own, None)
        except BaseException:
            own.destroy()
            raise

    @classmethod
    def _made(
        cls, context: Context, steps: Sequence[Step], own: OwnStreams, stream: Stream | None
    ) -> ExecutableGraph:
        """``stream``: a body's, which is the first of its own."""
        assignments = assign_lanes([step.dependencies for step in steps])
        made = cls([], assignments, context, own, stream)
        made._done = context.create_event(False)
        made._begun = context.create_event(False)
        first = 0 if stream is None else 1
        count = max((assigned.lane for assigned in assignments), default=0)
        made._lanes = [own.at(first + index) for index in range(count)]
        made._events = {index: context.create_event(False) for index, one in enumerate(assignments) if one.is_awaited}
        made._acts = [made._act_of(step.act, assigned) for step, assigned in zip(steps, assignments, strict=True)]
        return made

    def _act_of(self, act: Act | int | ConditionalStep | None, assigned: LaneAssignment) -> Act | int | Choice | None:
        if not isinstance(act, ConditionalStep):
            return act
        condition = self._context.condition(act.handle)
        if act.default is not None:
            self._defaults.append((condition, act.default))
        own = self._own.inside(assigned.lane)
        stream = own.at(0)
        bodies = [self._made(self._context, steps, own, stream) for steps in act.bodies]
        for body in bodies:
            self._defaults += body._defaults
        return Choice(self._context, condition, act.kind, bodies, stream)

    @property
    def size(self) -> int:
        """The number of its items."""
        return len(self._acts)

    def launch(self, stream: Stream, run_host_function: RunHostFunction) -> None:
        """Queue its work; BackendError for the first item that is refused, after which none is queued."""
        requests, self.host_functions = self.host_functions, {}
        try:
            if self._last_stream is not None and self._last_stream is not stream:
                assert self._done is not None
                stream.wait(self._done)  # launches of one executable graph follow each other
            self._last_stream = stream
            if self._defaults:
                self._context.call(stream, self._assign())
            for _ in self._queued(stream, requests, run_host_function):
                pass
        except BackendError as error:
            for request in requests.values():
                request.fail(Outcome(error.code, error.reason))
            raise

    def pieces(self, stream: Stream) -> Iterator[None]:
        """Queue a body's work, an item with each piece; BackendError as for ``launch``."""
        return self._queued(stream, {}, _no_host_function)

    def _assign(self) -> Iterator[None]:
        for condition, value in self._defaults:
            condition.value = value
        yield

    def _queued(
        self, stream: Stream, requests: dict[int, HostRequest], run_host_function: RunHostFunction
    ) -> Iterator[None]:
        assert self._begun is not None
        assert self._done is not None
        if self._lanes:
            stream.record(self._begun)
        ends: dict[int, int] = {}
        try:
            for index, (act, assigned) in enumerate(zip(self._acts, self._assignments, strict=True)):
                lane = self._lanes[assigned.lane - 1] if assigned.lane else stream
                if assigned.begins_lane:
                    lane.wait(self._begun)
                for each in assigned.waits_for:
                    lane.wait(self._events[each])
                if isinstance(act, int):
                    request = requests.pop(act, None)
                    if request is None:
                        reason = f"host function {act} of the graph was not given for this launch"
                        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
                    run_host_function(request, lane)
                elif isinstance(act, Choice):
                    act.queue(lane)
                elif act is not None:
                    act(lane)
                if assigned.is_awaited:
                    lane.record(self._events[index])
                if assigned.lane:
                    ends[assigned.lane] = index
                yield
        except Exception:  # not where it is only dropped, its context having ended
            self._join(stream, self._done, ends)
            raise
        self._join(stream, self._done, ends)

    def _join(self, stream: Stream, done: Event, ends: dict[int, int]) -> None:
        """Have the stream's later work wait for what was queued, after a refusal too."""
        for index in ends.values():
            if self._assignments[index].is_awaited:
                stream.wait(self._events[index])
        stream.record(done)

    def destroy(self) -> None:
        """Destroy its streams; what was launched runs to its end."""
        for request in self.host_functions.values():
            request.fail(Outcome(Result.ERROR_INVALID_HANDLE, "the executable graph was destroyed"))
        self.host_functions = {}
        if any(isinstance(act, Choice) for act in self._acts) and self._done is not None:
            self._done.notify(lambda outcome: self._release())  # until then bodies may be queued
        else:
            self._release()

    def _release(self) -> None:
        self._own.destroy()
        self.release()

    def release(self) -> None:
        """Drop its records, and with them its client: its context, which has its streams, is destroyed."""
        self._acts = self._assignments = ()
        self._defaults = []
        self.host_functions = {}
        self._own.release()


def _no_host_function(request: HostRequest, stream: Stream) -> None:
    raise BackendError(Result.ERROR_NOT_SUPPORTED, "the body of a conditional node has no host functions")
