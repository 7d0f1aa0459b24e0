"""Submission order: when work is issued to the driver, immediately or after a host function. Sans-I/O.

**The problem.** A client's host function runs in the client, and the work after it in its stream must wait for it.
The obvious way, a stream that waits on the device, would occupy one of the few hardware queues for as long as the
client likes, and so stop other clients' work that happens to share the queue.

**The idea.** The driver orders the work that is issued to it, so nothing has to be ordered here until a host function
comes. Work that comes after an unfinished host function is *held*: it is kept as a `Step` and not issued at all.
Steps form a graph: each counts the steps before it that have not passed (`waiting`) and lists those after it
(`successors`). In the usual case there are no steps, and `submit` issues the work immediately.

    stream s:   copy   host function H   kernel K1      stream t:   wait for an event of s, kernel K2
                 |          |                |                                  |
              issued    held step  <--- waits for H      <--- its step waits for K1's step, because the event is
                                                              recorded after K1

When H is finished, `release` lets it pass, issues K1 and then K2, in this order.

**Rules.** A step comes after the last unpassed step of its stream, of the default stream if the stream is blocking,
and of all blocking streams if it is the default stream; and after the steps that it names (events). Work that is
refused by the driver when it is released late cannot be refused to the caller any more, so it faults the context.

**Invariant.** A stream is in `_tails` exactly as long as its last step has not passed; then the stream is ordered by
the driver alone, and a native worker may issue its work (`IssueQueue` sets `held` in the context's state).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import define, field

from pympsd_server.backends.interface import BackendError


class OrderedStream(Protocol):
    """The part of a stream that order depends on."""

    @property
    def blocking(self) -> bool:
        """Whether this stream and the default stream wait for each other; true for the default stream itself."""


@define(eq=False)
class Step:
    """Work that is issued once the steps before it have passed; a ``held`` one passes when it is released."""

    stream: OrderedStream | None
    issue: Callable[[], None]
    held: bool = False
    waiting: int = field(default=0, init=False)
    passed: bool = field(default=False, init=False)
    successors: list[Step] = field(factory=list, init=False)


class SubmissionOrder:
    """The steps of one context that have not passed. Its owner locks it."""

    def __init__(self, refused_late: Callable[[BackendError], None]) -> None:
        self.default: OrderedStream | None = None
        self._tails: dict[OrderedStream, Step] = {}
        self._refuse_late = refused_late

    @property
    def holds(self) -> bool:
        """Whether any step has not passed."""
        return bool(self._tails)

    def find_predecessors(self, stream: OrderedStream | None) -> list[Step]:
        """Return the last steps that new work in a stream (None means all streams) comes after."""
        tails = self._tails
        if stream is None:
            return list(tails.values())
        if stream is self.default:
            return [step for stream_key, step in tails.items() if stream_key.blocking]
        streams = (stream, self.default) if stream.blocking else (stream,)
        return [tails[stream_key] for stream_key in streams if stream_key in tails]

    def submit(self, step: Step, after: Iterable[Step] = (), alone: bool = False) -> None:
        """Issue a step, now or when the steps before it have passed; raise BackendError only if it is refused now.

        It comes after the work before it in its stream, unless it is ``alone``, and after the steps in ``after``.
        """
        before = [] if alone else self.find_predecessors(step.stream)
        unpassed = {id(earlier): earlier for earlier in (*before, *after) if not earlier.passed}
        if not unpassed:
            step.issue()
            if step.held:
                self._put_last(step)
            else:
                step.passed = True
            return
        step.waiting = len(unpassed)
        for earlier in unpassed.values():
            earlier.successors.append(step)
        self._put_last(step)

    def _put_last(self, step: Step) -> None:
        if step.stream is not None:
            self._tails[step.stream] = step

    def release(self, step: Step) -> None:
        """Let a held step pass and issue the steps that may follow; a second call has no effect."""
        ready = deque(self._let_pass(step))
        while ready:
            following = ready.popleft()
            try:
                following.issue()
            except BackendError as error:
                self._refuse_late(error)
                return
            if not following.held:
                ready.extend(self._let_pass(following))

    def _let_pass(self, step: Step) -> list[Step]:
        if step.passed:
            return []
        step.passed = True
        if step.stream is not None and self._tails.get(step.stream) is step:
            del self._tails[step.stream]
        free = []
        for successor in step.successors:
            successor.waiting -= 1
            if not successor.waiting:
                free.append(successor)
        step.successors = []
        return free

    def drop(self) -> None:
        """Drop all steps; they are never issued."""
        self._tails.clear()
