"""An executable graph in its context: its records, prepared, and their order in streams of the backend.

Items are put in lanes: the first is the stream that the graph is launched in, each other one a stream of the graph's
own. An item goes on in the lane of the last item it depends on; dependencies between lanes are events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Context, Event, Outcome, Stream

LANE_LIMIT: Final = 16
"""More branches than this share lanes, which orders them."""

Act = Callable[[Stream], None]
"""Puts one item's work in a stream."""


class HostRequest(Protocol):
    """A host function of one launch, to be answered when it is due."""

    def fail(self, outcome: Outcome) -> None:
        """Answer that it will not run."""


@frozen(eq=False)
class Step:
    """One item: ``act`` queues its work; None: it only joins others; an int: the number of a host function."""

    act: Act | int | None
    dependencies: tuple[int, ...] = ()


@frozen
class Place:
    """Where an item goes: its lane, the items of other lanes it waits for, and whether others wait for it."""

    lane: int
    waits_for: tuple[int, ...]
    begins_lane: bool
    """Whether it must wait for the launch itself: it is the first of its lane, and after nothing."""
    is_awaited: bool


def places(dependencies: Sequence[Sequence[int]], limit: int = LANE_LIMIT) -> list[Place]:
    """Return the places of items, given what each depends on (indices of earlier ones)."""
    lanes: list[int] = []
    tails: list[int] = []
    """The last item of each lane so far."""
    waits: list[tuple[int, ...]] = []
    begins = []
    for index, after in enumerate(dependencies):
        lane = next((lanes[each] for each in sorted(after, reverse=True) if tails[lanes[each]] == each), -1)
        if lane < 0:
            lane = len(tails) if len(tails) < limit else index % limit
        if lane == len(tails):
            tails.append(index)
        tails[lane] = index
        begins.append(lane > 0 and lane not in lanes and not after)
        latest: dict[int, int] = {}
        for each in after:
            latest[lanes[each]] = max(each, latest.get(lanes[each], -1))
        waits.append(tuple(each for other, each in latest.items() if other != lane))
        lanes.append(lane)
    awaited = {each for some in waits for each in some} | set(tails[1:])
    return [Place(lanes[at], waits[at], begins[at], at in awaited) for at in range(len(lanes))]


@define(eq=False)
class ExecutableGraph:
    """Made by ``make``; launched by the client's worker alone."""

    _steps: Sequence[Step]
    _places: Sequence[Place]
    _context: Context
    _lanes: list[Stream] = field(factory=list, init=False)
    """Streams of the lanes after the first."""
    _events: dict[int, Event] = field(factory=dict, init=False)
    """Of the items that other lanes, or the end of the launch, wait for."""
    _begun: Event | None = field(default=None, init=False)
    _done: Event | None = field(default=None, init=False)
    _last_stream: Stream | None = field(default=None, init=False)
    host_functions: dict[int, HostRequest] = field(factory=dict, init=False)
    """Those of the coming launch, by number."""

    @classmethod
    def make(cls, context: Context, steps: Sequence[Step]) -> ExecutableGraph:
        """Return the executable graph of steps; BackendError if the device has no room for its streams."""
        made = cls(steps, places([step.dependencies for step in steps]), context)
        try:
            made._done = context.create_event(False)
            made._begun = context.create_event(False)
            for place in made._places:
                while len(made._lanes) < place.lane:
                    made._lanes.append(context.create_stream(True, 0))
            for index, place in enumerate(made._places):
                if place.is_awaited:
                    made._events[index] = context.create_event(False)
        except BaseException:
            made.destroy()
            raise
        return made

    @property
    def size(self) -> int:
        """The number of its items."""
        return len(self._steps)

    def launch(self, stream: Stream, run_host_function: Callable[[HostRequest, Stream], None]) -> None:
        """Queue its work; BackendError for the first item that is refused, after which none is queued."""
        requests, self.host_functions = self.host_functions, {}
        try:
            self._queue(stream, requests, run_host_function)
        except BackendError as error:
            for request in requests.values():
                request.fail(Outcome(error.code, error.reason))
            raise

    def _queue(
        self,
        stream: Stream,
        requests: dict[int, HostRequest],
        run_host_function: Callable[[HostRequest, Stream], None],
    ) -> None:
        assert self._begun is not None
        assert self._done is not None
        if self._last_stream is not None and self._last_stream is not stream:
            stream.wait(self._done)  # launches of one executable graph follow each other
        self._last_stream = stream
        if self._lanes:
            stream.record(self._begun)
        ends: dict[int, int] = {}
        try:
            for index, (step, place) in enumerate(zip(self._steps, self._places, strict=True)):
                lane = self._lanes[place.lane - 1] if place.lane else stream
                if place.begins_lane:
                    lane.wait(self._begun)
                for each in place.waits_for:
                    lane.wait(self._events[each])
                if isinstance(step.act, int):
                    request = requests.pop(step.act, None)
                    if request is None:
                        reason = f"host function {step.act} of the graph was not given for this launch"
                        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
                    run_host_function(request, lane)
                elif step.act is not None:
                    step.act(lane)
                if place.is_awaited:
                    lane.record(self._events[index])
                if place.lane:
                    ends[place.lane] = index
        finally:
            # Also after a refusal: what was queued is awaited by the stream's later work.
            for index in ends.values():
                if self._places[index].is_awaited:
                    stream.wait(self._events[index])
            stream.record(self._done)

    def destroy(self) -> None:
        """Destroy its streams; what was launched runs to its end."""
        for lane in self._lanes:
            lane.destroy()
        for request in self.host_functions.values():
            request.fail(Outcome(Result.ERROR_INVALID_HANDLE, "the executable graph was destroyed"))
        self.forget()

    def forget(self) -> None:
        """Let go of its records, and with them of its client: its context, which has its streams, is destroyed."""
        self._steps = ()
        self.host_functions = {}
