"""The operations of the command stream: a function for every row of the wire's table, and its execution.

A function takes its request and the operands, a handle resolved to its object (a stream to the backend's). It

- returns an Answer, or None for an empty one, if the operation completes at once;
- queues work in its stream, if it is asynchronous: the work is then counted for backpressure;
- takes a Completion as the last argument, if it is awaited: calling it sends the answer.

BackendError is answered, or kept for the context's next waiting call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, cast

from pympsd.channel.descriptors import close_all
from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.records import Completion, Kind, Use
from pympsd_server.backends.interface import BackendError, Stream
from pympsd_server.executor.client_context import ClientContext, StreamEntry
from pympsd_server.executor.operations import event, execution, memory, module, stream
from pympsd_server.executor.operations.answer import Answer
from pympsd_server.executor.request import Request

Execute = Callable[..., Any]
_EMPTY: Final = Answer()
_FUNCTIONS: Final[Mapping[str, Execute]] = {
    **memory.FUNCTIONS,
    **module.FUNCTIONS,
    **execution.FUNCTIONS,
    **stream.FUNCTIONS,
    **event.FUNCTIONS,
}


class Row:
    """One operation: reads its body, resolves its handles, and executes it."""

    def __init__(self, operation: records.Operation, execute: Execute) -> None:
        self.scope: Final = operation.scope
        self.answered: Final = operation.answered
        self._operation: Final = operation
        self._layout: Final = operation.operand_layout
        self._answer_layout: Final = operation.answer_layout
        self._execute: Final = execute
        self._handles: Final = tuple(
            (index, operand.kind, operand.use)
            for index, operand in enumerate(operation.operands)
            if operand.kind is not None
        )
        self._created: Final = next(((index, kind) for index, kind, use in self._handles if use is Use.CREATED), None)

    def run(self, request: Request, body: bytes) -> None:
        """Execute a record's body and answer it now or later; BackendError."""
        operands, tail = self._read(body)
        arguments: list[Any] = list(operands)
        entry = self._resolve(request.context, arguments) if self._handles else None
        if self._operation.tail:
            arguments.append(tail)
        match self._operation.completion:
            case Completion.QUEUED:
                self._execute(request, *arguments)
                if entry is not None:
                    request.resources.backpressure.enter(entry)
            case Completion.AWAITED:
                request.answer_when_done(partial(self._execute, request, *arguments))
            case Completion.AT_ONCE:
                self._finish(request, operands, self._execute(request, *arguments) or _EMPTY)

    def _read(self, body: bytes) -> tuple[tuple[int, ...], bytes]:
        size = self._layout.size
        if len(body) < size or (len(body) > size and not self._operation.tail):
            reason = f"{self._operation.name} with a body of {len(body)} bytes, its operands have {size}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        operands, tail = self._layout.unpack_from(body), body[size:]
        if self._operation.tail:
            stated = operands[-1]
            if records.padded(stated) != len(tail):
                reason = (
                    f"{self._operation.name} states {stated} bytes of {self._operation.tail} and brings {len(tail)}"
                )
                raise BackendError(Result.ERROR_INVALID_VALUE, reason)
            tail = tail[:stated]
        return operands, tail

    def _resolve(self, context: ClientContext, arguments: list[Any]) -> StreamEntry | None:
        """Replace handles by their objects, except new ones, which are checked; return the stream's entry."""
        entry = None
        for index, kind, use in self._handles:
            handle = arguments[index]
            if use in (Use.CREATED, Use.ANNOUNCED):
                context.table(kind).check_new(handle)
            elif use is Use.DESTROYED:
                taken = context.table(kind).take(handle)
                arguments[index] = taken.backend if kind is Kind.STREAM else taken
            elif kind is Kind.STREAM:
                entry = context.stream(handle)
                arguments[index] = entry.backend
            else:
                arguments[index] = context.table(kind)[handle]
        return entry

    def _finish(self, request: Request, operands: tuple[int, ...], answer: Answer) -> None:
        if self._created is not None:
            index, kind = self._created
            created = StreamEntry(cast("Stream", answer.created)) if kind is Kind.STREAM else answer.created
            request.context.table(kind).mint(operands[index], created)
        try:
            if self.answered:
                request.succeed(self._answer_layout.pack(*answer.operands), answer.tail, answer.fds)
        finally:
            close_all(answer.fds)


ROWS: Final = {operation.opcode: Row(operation, _FUNCTIONS[operation.name]) for operation in records.OPERATIONS}
"""By opcode. A row of the wire's table without a function here is an error at import."""
