"""An executable graph in its context: its prepared records, and their order in streams of the backend.

**The problem.** A client launches the same graph many times. Nodes that do not depend on each other may run at the
same time. All nodes must run after earlier work of the stream in which the graph is launched, and before later work
of that stream. A backend has streams and events, but no graphs.

**The idea.** When a graph is instantiated, each node's record is read once and becomes an *act*: a function that
queues the work in a stream. Nodes get *slots* (`assign_slots`): slot 0 is the stream of the launch, each other slot
is one of the graph's own streams (`streams`). A node continues in the slot of the last node on which it depends;
other dependencies become waits for events. A launch is then one pass over the acts:

    record `begun` in the launch's stream          (only if there are other slots)
    for each node: wait for `begun` or for events, call its act, record an event if others wait for it
    wait in the launch's stream for the end of every other slot, record `done`

Example: B and C depend on A, and D on both. A, B and D are in slot 0, C is in slot 1; C waits for A's event, D for
C's.

**Invariants.** Launches of one executable graph run one after the other (`done`), as CUDA requires. If an item is
refused, later items are not queued, but the stream still waits for the queued ones. Handles of modules are checked
again at each launch, because a module may have been unloaded. The graph's streams and memory are counted
(`streams`), and its streams are destroyed with the graph when their work is done.

Each host function is answered separately; the client sends the requests, with the functions' numbers, before the
launch. Bodies of conditional nodes are executable graphs too, which `conditional` queues when the condition's value
is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.graph_items import ConditionalKind
from pympsd_server.backends.interface import BackendError, Condition, Context, Event, Status, Stream
from pympsd_server.executor.graphs.conditional import Choice
from pympsd_server.executor.graphs.streams import ITEM_BYTES, GraphBudget, OwnStreams

MAX_SLOTS: Final = 16
"""The maximum number of slots; more branches than this share slots and run one after the other."""


@frozen
class SlotAssignment:
    """An item's slot, the items of other slots for which it waits, and whether other items wait for it."""

    slot: int
    waits_for: tuple[int, ...]
    begins_slot: bool
    """Whether the item must wait for the launch itself, as the first item of its slot without dependencies."""
    is_waited_for: bool


def assign_slots(dependencies: Sequence[Sequence[int]], limit: int = MAX_SLOTS) -> list[SlotAssignment]:
    """Return the slots of items.

    ``dependencies``: for each item, the indices of the earlier items on which it depends.
    """
    slots: list[int] = []
    tails: list[int] = []
    """The last item of each slot."""
    waits: list[tuple[int, ...]] = []
    begins = []
    for index, after in enumerate(dependencies):
        slot = next(
            (slots[earlier] for earlier in sorted(after, reverse=True) if tails[slots[earlier]] == earlier), -1
        )
        if slot < 0:
            slot = len(tails) if len(tails) < limit else index % limit
        if slot == len(tails):
            tails.append(index)
        tails[slot] = index
        begins.append(slot > 0 and slot not in slots and not after)
        latest: dict[int, int] = {}
        for earlier in after:
            latest[slots[earlier]] = max(earlier, latest.get(slots[earlier], -1))
        waits.append(tuple(earlier for latest_slot, earlier in latest.items() if latest_slot != slot))
        slots.append(slot)
    waited_for = {earlier for some in waits for earlier in some} | set(tails[1:])
    return [SlotAssignment(slots[at], waits[at], begins[at], at in waited_for) for at in range(len(slots))]


Act = Callable[[Stream], None]
"""A function that puts one item's work in a stream."""


class HostRequest(Protocol):
    """The request for a host function of one launch, which is answered when the function is due."""

    def fail(self, status: Status) -> None:
        """Answer that the function will not run."""


RunHostFunction = Callable[[HostRequest, Stream], None]


@frozen(eq=False)
class ConditionalStep:
    """A conditional node. A launch sets its condition to ``default`` at the start, unless that is None."""

    handle: int
    kind: ConditionalKind
    default: int | None
    bodies: Sequence[Sequence[GraphStep]]


@frozen(eq=False)
class GraphStep:
    """One item of an executable graph.

    ``act`` queues the item's work, or is a host function's number or a conditional node; None if it only joins items.
    """

    act: Act | int | ConditionalStep | None
    dependencies: tuple[int, ...] = ()


@define(eq=False)
class ExecutableGraph:
    """An executable graph, which ``make`` creates.

    Only the client's worker launches it, or a conditional node as a body.
    """

    _acts: Sequence[Act | int | Choice | None]
    _assignments: Sequence[SlotAssignment]
    _context: Context
    _own: OwnStreams
    _stream: Stream | None
    """The stream of a body; None if the graph runs in the stream of each launch."""
    _defaults: list[tuple[Condition, int]] = field(factory=list, init=False)
    """The values of conditions at the start of a launch, including conditions in bodies."""
    _slot_streams: list[Stream] = field(factory=list, init=False)
    """The streams of all slots except the first."""
    _events: dict[int, Event] = field(factory=dict, init=False)
    """The events of items for which other slots, or the end of the launch, wait."""
    _begun: Event | None = field(default=None, init=False)
    _done: Event | None = field(default=None, init=False)
    _last_stream: Stream | None = field(default=None, init=False)
    host_functions: dict[int, HostRequest] = field(factory=dict, init=False)
    """The host functions of the next launch, by number."""

    @classmethod
    def make(
        cls, context: Context, steps: Sequence[GraphStep], budget: GraphBudget, record_bytes: int = 0
    ) -> ExecutableGraph:
        """Return the executable graph of steps, whose records have ``record_bytes`` bytes together.

        Raise BackendError if the client has too many graphs, or the device has no memory for their streams.
        """
        own = OwnStreams(context, budget)
        try:
            own.take_memory(record_bytes)
            return cls._build(context, steps, own, None)
        except BaseException:
            own.destroy()
            raise

    @classmethod
    def _build(
        cls, context: Context, steps: Sequence[GraphStep], own: OwnStreams, stream: Stream | None
    ) -> ExecutableGraph:
        """Return the graph, not launched yet.

        ``stream``: a body's stream, which is the first of the streams in ``own``.
        """
        own.take_memory((1 + len(steps)) * ITEM_BYTES)
        assignments = assign_slots([step.dependencies for step in steps])
        graph = cls([], assignments, context, own, stream)
        graph._done = context.create_event(False)
        graph._begun = context.create_event(False)
        first = 0 if stream is None else 1
        count = max((assigned.slot for assigned in assignments), default=0)
        graph._slot_streams = [own.get_or_create(first + index) for index in range(count)]
        graph._events = {
            index: context.create_event(False) for index, assigned in enumerate(assignments) if assigned.is_waited_for
        }
        graph._acts = [graph._act_of(step.act, assigned) for step, assigned in zip(steps, assignments, strict=True)]
        return graph

    def _act_of(self, act: Act | int | ConditionalStep | None, assigned: SlotAssignment) -> Act | int | Choice | None:
        if not isinstance(act, ConditionalStep):
            return act
        condition = self._context.condition(act.handle)
        if act.default is not None:
            self._defaults.append((condition, act.default))
        own = self._own.find_inside(assigned.slot)
        stream = own.get_or_create(0)
        bodies = [self._build(self._context, steps, own, stream) for steps in act.bodies]
        for body in bodies:
            self._defaults += body._defaults
        return Choice(self._context, condition, act.kind, bodies, stream)

    @property
    def size(self) -> int:
        """The number of items of the graph."""
        return len(self._acts)

    def launch(self, stream: Stream, run_host_function: RunHostFunction) -> None:
        """Queue the graph's work. Raise BackendError for the first refused item, after which no item is queued."""
        requests, self.host_functions = self.host_functions, {}
        try:
            if self._last_stream is not None and self._last_stream is not stream:
                assert self._done is not None
                stream.wait(self._done)  # launches of one executable graph run one after the other
            self._last_stream = stream
            if self._defaults:
                self._context.call(stream, self._assign())
            for _ in self._queue_items(stream, requests, run_host_function):
                pass
        except BackendError as error:
            for request in requests.values():
                request.fail(Status(error.code, error.reason))
            raise

    def pieces(self, stream: Stream) -> Iterator[None]:
        """Queue a body's work, one item per step of the iterator. Raise BackendError as ``launch`` does."""
        return self._queue_items(stream, {}, _no_host_function)

    def _assign(self) -> Iterator[None]:
        for condition, value in self._defaults:
            condition.value = value
        yield

    def _queue_items(
        self, stream: Stream, requests: dict[int, HostRequest], run_host_function: RunHostFunction
    ) -> Iterator[None]:
        """Put the items of a launch in their streams, and yield after each item."""
        assert self._begun is not None
        assert self._done is not None
        if self._slot_streams:
            stream.record(self._begun)
        ends: dict[int, int] = {}
        try:
            for index, (act, assigned) in enumerate(zip(self._acts, self._assignments, strict=True)):
                slot = self._slot_streams[assigned.slot - 1] if assigned.slot else stream
                if assigned.begins_slot:
                    slot.wait(self._begun)
                for earlier in assigned.waits_for:
                    slot.wait(self._events[earlier])
                if isinstance(act, int):
                    request = requests.pop(act, None)
                    if request is None:
                        reason = f"host function {act} of the graph was not passed for this launch"
                        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
                    run_host_function(request, slot)
                elif isinstance(act, Choice):
                    act.queue(slot)
                elif act is not None:
                    act(slot)
                if assigned.is_waited_for:
                    slot.record(self._events[index])
                if assigned.slot:
                    ends[assigned.slot] = index
                yield
        except Exception:  # not GeneratorExit, with which it is dropped after its context has ended
            self._join(stream, self._done, ends)
            raise
        self._join(stream, self._done, ends)

    def _join(self, stream: Stream, done: Event, ends: dict[int, int]) -> None:
        """Let the stream's later work wait for the queued items, even after a refusal."""
        for index in ends.values():
            if self._assignments[index].is_waited_for:
                stream.wait(self._events[index])
        stream.record(done)

    def destroy(self) -> None:
        """Destroy the graph's streams; work that was launched is completed."""
        for request in self.host_functions.values():
            request.fail(Status(Result.ERROR_INVALID_HANDLE, "the executable graph was destroyed"))
        self.host_functions = {}
        if any(isinstance(act, Choice) for act in self._acts) and self._done is not None:
            self._done.notify(lambda status: self._release())  # bodies may be queued until then
        else:
            self._release()

    def _release(self) -> None:
        self._own.destroy()
        self.release()

    def release(self) -> None:
        """Drop the graph's records and streams, because the streams' context is destroyed."""
        self._acts = self._assignments = ()
        self._defaults = []
        self.host_functions = {}
        self._own.release()


def _no_host_function(request: HostRequest, stream: Stream) -> None:
    raise BackendError(Result.ERROR_NOT_SUPPORTED, "the body of a conditional node has no host functions")
