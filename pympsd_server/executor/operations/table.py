"""The operations of the command stream: a function for each row of the wire's table, and its execution.

A function gets its request and the operands. Handles are replaced by their objects, a stream's by the backend's
stream. The function

- returns an Answer, or None for an empty one, if the operation completes immediately;
- queues work in its stream, if it is asynchronous; the work is then counted for backpressure;
- gets a Completion as the last argument, if its caller waits for queued work; calling it sends the answer.

A BackendError is answered, or kept for the context's next call that waits.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from pympsd.channel.descriptors import close_all
from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.records import Completion, Kind, Use
from pympsd_server.backends.interface import BackendError, Stream
from pympsd_server.executor.graphs.executable import Act
from pympsd_server.executor.operations import execution, graph, memory
from pympsd_server.executor.requests.client_context import ClientContext, StreamEntry
from pympsd_server.executor.requests.request import OperationAnswer, Request

Execute = Callable[..., Any]
_EMPTY: Final = OperationAnswer()


def _prepare(request: Request, record: records.Record) -> Act:
    """Return a function that queues a record's work. Raise BackendError unless the operation only queues work."""
    row = ROWS.get(record.opcode)
    if row is None:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, f"unknown opcode {record.opcode}")
    return row.prepare(request, record.body)


_CALLS_OF_THE_PORT: Final[Mapping[str, Execute]] = {
    "destroy_event": lambda request, event: None,
    "record_event": lambda request, event, stream: stream.record(event),
    "synchronize_event": lambda request, event, done: event.notify(done),
    "destroy_stream": lambda request, stream: stream.destroy(),
    "synchronize_stream": lambda request, stream, done: stream.notify(done),
    "synchronize_context": lambda request, done: request.context.backend.notify(done),
    "wait_event": lambda request, stream, event: stream.wait(event),
    "unload_module": lambda request, module: module.unload(),
    "release_memory": lambda request, memory: memory.release(),
    "map_memory": lambda request, memory, address: request.context.backend.mapped.map(memory, address),
    "unmap_memory": lambda request, address, count: request.context.backend.mapped.unmap(address, count),
    "unmap_peer": lambda request, address: request.context.backend.mapped.unmap_peer(address),
    "free": lambda request, address, done: request.context.backend.free(address, done),
    "memory_info": lambda request: OperationAnswer(request.context.backend.memory_info()),
    "destroy_graph": lambda request, graph: graph.destroy(),
}
"""The operations that are one call of the port. (A destroyed event is only removed from its table.)"""
_FUNCTIONS: Final[Mapping[str, Execute]] = {
    **_CALLS_OF_THE_PORT,
    **{
        name: function
        for chapter in (memory, execution, graph)
        for name, function in vars(chapter).items()
        if getattr(function, "__module__", "") == chapter.__name__
    },
    "instantiate_graph": graph.instantiation(_prepare),
}
"""The function of each operation, by the operation's name in lower case."""


class ExecutedOperation:
    """One operation: reads its body, resolves its handles, and executes it."""

    def __init__(self, operation: records.Operation, execute: Execute) -> None:
        self.scope: Final = operation.scope
        self.answered: Final = operation.answered
        self._name: Final = operation.name
        self._completion: Final = operation.completion
        self._tail: Final = operation.tail
        self._unpack: Final = operation.operand_layout.unpack_from
        self._size: Final = operation.operand_layout.size
        self._pack: Final = operation.answer_layout.pack
        self._execute: Final = execute
        self._handles: Final = tuple(
            (index, operand.kind, operand.use)
            for index, operand in enumerate(operation.operands)
            if operand.kind is not None
        )
        self._created: Final = next(((index, kind) for index, kind, use in self._handles if use is Use.CREATED), None)
        self.run: Final[Callable[[Request, bytes], None]] = {
            Completion.IMMEDIATE: self._run_immediately,
            Completion.QUEUED: self._run_queued,
            Completion.COMPLETE: self._run_waiting,
        }[operation.completion]
        """A function that executes a record's body.

        It answers the record, or arranges a later answer; it raises BackendError.
        """

    def prepare(self, request: Request, body: bytes) -> Act:
        """Return a function that queues the work in any stream, with all other handles resolved. Raise BackendError.

        After one of its modules was unloaded, the work is refused.
        """
        streams = [index for index, kind, _ in self._handles if kind is Kind.STREAM]
        launches_graphs = any(kind is Kind.GRAPH for _, kind, _ in self._handles)
        if self._completion is not Completion.QUEUED or self.answered or launches_graphs or len(streams) != 1:
            raise BackendError(Result.ERROR_NOT_SUPPORTED, f"{self._name} cannot be a node of a graph")
        arguments = self._read(body)
        loaded = [arguments[index] for index, kind, _ in self._handles if kind is Kind.MODULE]
        self._resolve(request.context, arguments)
        execute, (place,) = self._execute, streams
        before, after = tuple(arguments[:place]), tuple(arguments[place + 1 :])
        modules = request.context.table(Kind.MODULE)

        def act(stream: Stream) -> None:
            for handle in loaded:
                _ = modules[handle]  # raises INVALID_HANDLE if the module was unloaded, and its code is gone
            execute(request, *before, stream, *after)

        return act

    def _run_immediately(self, request: Request, body: bytes) -> None:
        arguments = self._read(body)
        created = arguments[self._created[0]] if self._created is not None else 0
        if self._handles:
            self._resolve(request.context, arguments)
        answer = self._execute(request, *arguments) or _EMPTY
        if self._created is not None:
            kind = self._created[1]
            entry = StreamEntry(answer.created) if kind is Kind.STREAM else answer.created
            request.context.table(kind).add(created, entry)
        try:
            request.succeed(self._pack(*answer.operands), answer.tail, answer.fds)
        finally:
            close_all(answer.fds)

    def _run_queued(self, request: Request, body: bytes) -> None:
        arguments = self._read(body)
        entry = self._resolve(request.context, arguments)
        self._execute(request, *arguments)
        if entry is not None:
            request.resources.backpressure.enter(entry)

    def _run_waiting(self, request: Request, body: bytes) -> None:
        arguments = self._read(body)
        if self._handles:
            self._resolve(request.context, arguments)
        request.answer_when_done(partial(self._execute, request, *arguments))

    def _read(self, body: bytes) -> list[Any]:
        """Return the operands, followed by the tail if the operation has one."""
        size = self._size
        if len(body) == size and not self._tail:
            return list(self._unpack(body))
        if len(body) < size or not self._tail:
            reason = f"{self._name} with a body of {len(body)} bytes, its operands have {size}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        operands = self._unpack(body)
        expected_bytes, actual = operands[-1], len(body) - size
        if records.pad(expected_bytes) != actual:
            reason = f"{self._name} states {expected_bytes} bytes of {self._tail} and brings {actual}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        return [*operands, body[size : size + expected_bytes]]

    def _resolve(self, context: ClientContext, arguments: list[Any]) -> StreamEntry | None:
        """Replace handles by their objects, and check new handles, which have none yet. Return the stream's entry."""
        entry = None
        for index, kind, use in self._handles:
            handle = arguments[index]
            if use is Use.NAMED:
                if kind is Kind.STREAM:
                    entry = context.stream(handle)
                    arguments[index] = entry.backend
                else:
                    arguments[index] = context.table(kind)[handle]
            elif use is Use.DESTROYED:
                resource = context.table(kind).take(handle)
                arguments[index] = resource.backend if kind is Kind.STREAM else resource
            else:
                context.table(kind).check_new(handle)
        return entry


ROWS: Final = {
    operation.opcode: ExecutedOperation(operation, _FUNCTIONS[operation.name.lower()])
    for operation in records.OPERATIONS
}
"""The rows by opcode. A row of the wire's table without a function here is an error at import."""
