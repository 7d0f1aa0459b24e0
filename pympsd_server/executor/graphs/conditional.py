"""A conditional node: it holds its slot while bodies are executed in a separate stream, by the condition's value."""

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.graph_items import ConditionalKind
from pympsd_server.backends.interface import BackendError, Condition, Context, PendingHostFunction, Status, Stream


class Body(Protocol):
    """An executable graph that is a body of a conditional node."""

    def pieces(self, stream: Stream) -> Iterator[None]:
        """Queue the body's work, one item per step of the iterator. Raise BackendError."""


@define(eq=False)
class _Hold:
    """The wait of a stream. It may be ended before `set` has given it the object with which a wait is ended."""

    _lock: Lock = field(factory=Lock, init=False)
    _pending: PendingHostFunction | None = field(default=None, init=False)
    _is_over: bool = field(default=False, init=False)

    def set(self, pending: PendingHostFunction) -> None:
        """Note the pending work of the stream, and finish that work if the wait is over."""
        with self._lock:
            self._pending = pending
            is_over = self._is_over
        if is_over:
            pending.finish()

    def end(self) -> None:
        """Resume the stream."""
        with self._lock:
            self._is_over = True
            pending = self._pending
        if pending is not None:
            pending.finish()


@frozen(eq=False)
class Choice:
    """A conditional node of a graph; ``stream`` is the stream of its bodies."""

    context: Context
    condition: Condition
    kind: ConditionalKind
    bodies: Sequence[Body]
    stream: Stream

    def queue(self, slot: Stream) -> None:
        """Let the slot wait until the bodies have been executed. Raise BackendError if the context has faulted."""
        hold = _Hold()

        def begin(status: Status) -> None:
            if status.code is Result.SUCCESS:  # otherwise the context is lost, and nothing waits
                self._continue(hold)

        hold.set(slot.launch_host_function(begin))

    def _continue(self, hold: _Hold) -> None:
        """Queue the choice of the next body in the bodies' stream.

        So the choice is scheduled like other work, even in a loop whose body is empty.
        """
        try:
            self.context.call(self.stream, self._choose(hold))
        except BackendError:  # the context is lost
            hold.end()

    def _choose(self, hold: _Hold) -> Iterator[None]:
        value = self.condition.value
        if self.kind is not ConditionalKind.SWITCH:
            value = 0 if value else 1
        body = self.bodies[value] if value < len(self.bodies) else None
        if body is not None:
            try:
                yield from body.pieces(self.stream)
            except BackendError as error:  # too late to refuse the launch, so the context is lost
                reason = f"the body of a conditional node: {error.reason}"
                raise BackendError(Result.ERROR_LAUNCH_FAILED, reason) from None
            if self.kind is ConditionalKind.WHILE:
                self._continue(hold)
                return
        self.stream.notify(lambda status: hold.end())
