"""A conditional node: holds its slot while bodies are executed in a stream of their own, by a condition's value."""

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.graph_items import ConditionalKind
from pympsd_server.backends.interface import BackendError, Condition, Context, PendingHostFunction, Status, Stream


class Body(Protocol):
    """An executable graph that a conditional node has."""

    def pieces(self, stream: Stream) -> Iterator[None]:
        """Queue the node's work, an item with each piece; BackendError."""


@define(eq=False)
class _Hold:
    """A stream's wait: it may end before the stream's answer to it is known."""

    _lock: Lock = field(factory=Lock, init=False)
    _pending: PendingHostFunction | None = field(default=None, init=False)
    _is_over: bool = field(default=False, init=False)

    def set(self, pending: PendingHostFunction) -> None:
        """Note the work to finish."""
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
    """A conditional node in its graph; ``stream`` is the bodies'."""

    context: Context
    condition: Condition
    kind: ConditionalKind
    bodies: Sequence[Body]
    stream: Stream

    def queue(self, slot: Stream) -> None:
        """Make the slot wait until the bodies have been executed; BackendError."""
        hold = _Hold()

        def begin(status: Status) -> None:
            if status.code is Result.SUCCESS:  # else the context is lost, and the wait with it
                self._continue(hold)

        hold.set(slot.launch_host_function(begin))

    def _continue(self, hold: _Hold) -> None:
        """Choose the next body, by a call in their stream: a loop without work takes its turns as work does."""
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
            except BackendError as error:  # too late for the launch: the context is lost, as by a kernel's fault
                reason = f"the body of a conditional node: {error.reason}"
                raise BackendError(Result.ERROR_LAUNCH_FAILED, reason) from None
            if self.kind is ConditionalKind.WHILE:
                self._continue(hold)
                return
        self.stream.notify(lambda status: hold.end())
