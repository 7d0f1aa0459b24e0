"""A record that is being executed: the resources of its client, and its answer.

The client's worker makes a `Request` of each record and passes it to the operation's function. Any thread may answer
it, immediately or when the work before it is done. If nobody waits for the answer, an error is kept in the context.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from attrs import define, field, frozen

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd_server.backends.interface import BackendError, Completion, Event, Status
from pympsd_server.executor.graphs.streams import GraphBudget
from pympsd_server.executor.memory.device_memory import Shortages
from pympsd_server.executor.memory.pinned import PinnedPieces
from pympsd_server.executor.requests.answers import AnswerWriter
from pympsd_server.executor.requests.backpressure import Backpressure
from pympsd_server.executor.requests.client_context import ClientContext

_REASON_BYTES: Final = 1 << 16
_OUTPUT_BYTES: Final = 1 << 16
_Taken = TypeVar("_Taken")


@define(eq=False)
class SharedEvents:
    """The events that clients of this executor share, by secrets that only these clients have.

    An event stays here as long as a client has it. Thread-safe.
    """

    _events: WeakValueDictionary[int, Event] = field(factory=WeakValueDictionary, init=False)
    _secrets: WeakKeyDictionary[Event, int] = field(factory=WeakKeyDictionary, init=False)
    _lock: Final = field(factory=Lock, init=False)

    def add(self, event: Event) -> int:
        """Return the secret of an event, which is the same each time."""
        with self._lock:
            secret = self._secrets.get(event)
            if secret is None:
                secret = self._secrets[event] = int.from_bytes(os.urandom(16), "little")
                self._events[secret] = event
            return secret

    def find(self, secret: int) -> Event:
        """Return the event of a secret.

        Raise BackendError with INVALID_VALUE if the secret is unknown, or if the event was destroyed.
        """
        with self._lock:
            event = self._events.get(secret)
        if event is None:
            raise BackendError(
                Result.ERROR_INVALID_VALUE, "the handle is not that of an existing event of this device"
            )
        return event


def words(secret: int) -> tuple[int, int]:
    """Return a secret of 128 bits as two operands of 64 bits."""
    return secret >> 64, secret & ((1 << 64) - 1)


@frozen(eq=False)
class OperationAnswer:
    """Operands in the order of the operation's answer layout; ``fds`` are closed when they have been sent."""

    operands: tuple[float, ...] = ()
    tail: bytes = b""
    fds: tuple[int, ...] = ()
    created: Any = None
    """The object of the operation's new handle."""


@frozen(eq=False)
class ClientResources:
    """The resources that all requests of a client share."""

    answers: AnswerWriter
    backpressure: Backpressure
    staging: memoryview
    """The memory for bulk data that the client shares with the executor."""
    pinned: PinnedPieces
    graph_budget: GraphBudget
    contexts: Mapping[int, ClientContext]
    """The client's contexts by the owner's ids, which records contain."""
    shared_events: SharedEvents
    """The shared events of all clients."""
    shortages: Shortages
    client: int
    """The owner's id of this client."""


class Request:
    """A request.

    ``answered``: the operation has an answer; ``waited``: the sender waits for it (FLAG_QUIET is not set).

    Exactly one of ``succeed``, ``fail`` and ``complete`` is called, and only once, from any thread.
    """

    __slots__ = ("_context", "_opcode", "_sequence", "answered", "flags", "resources", "waited")

    def __init__(
        self, resources: ClientResources, context: ClientContext | None, record: records.Record, answered: bool
    ) -> None:
        self.resources = resources
        self._context = context
        self.flags = record.flags
        self.answered = answered
        self.waited = answered and not record.flags & records.FLAG_QUIET
        self._opcode = record.opcode
        self._sequence = record.sequence

    def part(self, record: records.Record) -> Request:
        """Return the request of a record that is a part of this one and does not have a separate answer."""
        return Request(self.resources, self._context, record, answered=False)

    @property
    def context(self) -> ClientContext:
        """The context of the record. An operation of the process does not have one."""
        assert self._context is not None
        return self._context

    def succeed(self, operands: bytes = b"", tail: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Answer success. ``operands`` are packed in the operation's answer layout; ``fds`` stay the caller's."""
        if self.answered:
            answer = records.pack_answer(self._opcode, self._sequence, Result.SUCCESS, operands, tail)
            self.resources.answers.send(answer, fds)

    def fail(self, status: Status) -> None:
        """Answer an error; if the sender does not wait, keep the error for the context's next call that waits."""
        context = self._context
        is_faulted = context is not None and context.backend.status.code is not Result.SUCCESS
        if context is not None and is_faulted:
            status = context.backend.status  # the error of a call in progress may be less precise
        if context is not None and not (self.waited or is_faulted or status.code is Result.ERROR_NOT_READY):
            context.defer(status)
        self._send_output()
        if self.answered:
            flags = records.FLAG_STICKY if is_faulted else 0
            reason = status.reason.encode(errors="replace")[:_REASON_BYTES]
            answer = records.pack_answer(self._opcode, self._sequence, status.code, b"", reason, flags)
            self.resources.answers.send(answer)

    def complete(self, status: Status) -> None:
        """Answer; called when the work before this request is done (a Completion of the port).

        Text that kernels have printed until then is sent first.
        """
        if status.code is Result.SUCCESS:
            self._send_output()
            self.succeed()
        else:
            self.fail(status)

    def _send_output(self) -> None:
        context = self._context
        if self.waited and context is not None:
            self.resources.answers.send_text(lambda: _output_of(context, self._sequence))

    def answer_when_done(self, begin: Callable[[Completion], None]) -> None:
        """Call ``begin`` with a Completion that answers.

        Until then the request counts as the client's unfinished work.
        """
        backpressure = self.resources.backpressure
        backpressure.enter_answered()

        def done(status: Status) -> None:
            backpressure.leave_answered()
            self.complete(status)

        try:
            begin(done)
        except BaseException:
            backpressure.leave_answered()
            raise

    def take_with_room(self, take: Callable[[], _Taken]) -> _Taken:
        """Call ``take``, which allocates device memory.

        If memory is short, clients above their soft limits may be ended.
        """
        return self.resources.shortages.take_with_room(self.resources.client, take)

    def staging(self, offset: int, count: int) -> memoryview:
        """Return bytes of the client's shared memory. Raise BackendError with INVALID_VALUE outside of it."""
        memory = self.resources.staging
        if offset > memory.nbytes or count > memory.nbytes - offset:
            reason = f"{count} bytes at offset {offset} of a shared memory of {memory.nbytes}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        return memory[offset : offset + count]


def _output_of(context: ClientContext, sequence: int) -> list[bytes]:
    """Take the text that a context's kernels have printed; return the text as answers with this sequence number."""
    return [
        records.pack_answer(records.OUTPUT, sequence, descriptor, b"", text[start : start + _OUTPUT_BYTES])
        for descriptor, text in enumerate(context.backend.take_output(), 1)
        for start in range(0, len(text), _OUTPUT_BYTES)
    ]
