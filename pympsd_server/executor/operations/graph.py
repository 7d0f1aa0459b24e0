"""Operations on executable graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire import graph_items, records
from pympsd.wire.errors import RemoteError
from pympsd_server.backends.interface import BackendError, Stream
from pympsd_server.executor.graph import Act, ExecutableGraph, Step
from pympsd_server.executor.operations.answer import Answer
from pympsd_server.executor.operations.execution import host_function
from pympsd_server.executor.request import Request

_HOST_FUNCTION: Final = records.BY_NAME["HOST_FUNCTION"]


class Prepare(Protocol):
    """Resolves the handles of a queued operation's record, once for many executions."""

    def __call__(self, request: Request, record: records.Record) -> Act:
        """Return what queues its work in a stream; BackendError for a record that cannot be an item."""


def instantiation(prepare: Prepare) -> Callable[[Request, int], Answer]:
    """Return the function of INSTANTIATE_GRAPH."""

    def instantiate(request: Request, handle: int) -> Answer:
        try:
            items = graph_items.decode(request.context.images.take(handle))
        except graph_items.TooLarge as error:
            raise BackendError(Result.ERROR_NOT_SUPPORTED, f"the graph is too large: {error}") from None
        except RemoteError as error:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"no executable graph: {error}") from None
        steps = [Step(_act(request, item.record, prepare), item.dependencies) for item in items]
        return Answer(created=ExecutableGraph.make(request.context.backend, steps))

    return instantiate


def _act(request: Request, data: bytes, prepare: Prepare) -> Act | int | None:
    if not data:
        return None
    opcode, flags, length, _, sequence = records.HEADER.unpack_from(data)
    if length != len(data):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"a record of {length} bytes in an item of {len(data)}")
    if opcode == _HOST_FUNCTION.opcode:
        return _number(data)
    record = records.Record(opcode, flags, 0, sequence, data[records.HEADER_BYTES :])
    return prepare(request.part(record), record)


def _number(data: bytes) -> int:
    if len(data) != _HOST_FUNCTION.layout.size:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"a host function's record of {len(data)} bytes")
    return int(_HOST_FUNCTION.layout.unpack(data)[-1])


@frozen(eq=False)
class _HostRequest:
    """A host function of the coming launch (a HostRequest)."""

    request: Request
    token: int

    def fail(self, outcome: Any) -> None:
        self.request.fail(outcome)


def _run_host_function(given: Any, stream: Stream) -> None:
    host_function(given.request, stream, given.token)


def _part(request: Request, graph: int, offset: int, count: int) -> None:
    request.context.images.append(graph, request.staging(offset, count))


def _launch(request: Request, stream: Stream, graph: ExecutableGraph) -> None:
    try:
        graph.launch(stream, _run_host_function)
    finally:  # what was queued before an item was refused counts too
        if graph.size > 1:
            request.resources.backpressure.enter_more(stream, graph.size - 1)


def _host_function(request: Request, stream: Stream, graph: ExecutableGraph, token: int, number: int) -> None:
    if number in graph.host_functions or number >= graph.size:
        reason = f"host function {number} is given already, or the graph of {graph.size} nodes has none such"
        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
    graph.host_functions[number] = _HostRequest(request, token)


def _destroy(request: Request, graph: ExecutableGraph) -> None:
    graph.destroy()


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "GRAPH_PART": _part,
    "LAUNCH_GRAPH": _launch,
    "GRAPH_HOST_FUNCTION": _host_function,
    "DESTROY_GRAPH": _destroy,
}
