"""Operations on executable graphs."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from attrs import frozen

from pympsd.errors import RemoteError
from pympsd.vocabulary.results import Result
from pympsd.wire import graph_items, records
from pympsd.wire.graph_items import GraphItem
from pympsd_server.backends.interface import BackendError, Stream
from pympsd_server.executor.graphs.executable import Act, ConditionalStep, ExecutableGraph, GraphStep
from pympsd_server.executor.operations.execution import host_function
from pympsd_server.executor.requests.request import OperationAnswer, Request

_HOST_FUNCTION: Final = records.BY_NAME["HOST_FUNCTION"]
_NOT_IN_BODIES: Final = {
    records.BY_NAME[name].opcode: name for name in ("HOST_FUNCTION", "RECORD_EVENT", "WAIT_EVENT")
}


class Prepare(Protocol):
    """Resolves the handles of a queued operation's record once, for many executions."""

    def __call__(self, request: Request, record: records.Record) -> Act:
        """Return a function that queues the record's work. Raise BackendError for a record that cannot be an item."""


def instantiation(prepare: Prepare) -> Callable[[Request, int], OperationAnswer]:
    """Return the function of INSTANTIATE_GRAPH, which prepares items with ``prepare``."""

    def instantiate(request: Request, handle: int) -> OperationAnswer:
        try:
            data = request.context.images.take(handle)
            items = graph_items.decode(data)
        except graph_items.TooLarge as error:
            raise BackendError(Result.ERROR_NOT_SUPPORTED, f"the graph is too large: {error}") from None
        except RemoteError as error:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"not an executable graph: {error}") from None
        steps = _steps(request, items, prepare)
        context, budget = request.context.backend, request.resources.graph_budget
        return OperationAnswer(created=ExecutableGraph.make(context, steps, budget, len(data)))

    return instantiate


def _steps(request: Request, items: Sequence[GraphItem], prepare: Prepare, in_body: bool = False) -> list[GraphStep]:
    steps = []
    for item in items:
        node = item.conditional
        if node is None:
            act: Act | int | ConditionalStep | None = _act(request, item.record, prepare, in_body)
        else:
            bodies = [_steps(request, body, prepare, in_body=True) for body in node.bodies]
            act = ConditionalStep(node.handle, node.kind, node.default, bodies)
        steps.append(GraphStep(act, item.dependencies))
    return steps


def _act(request: Request, data: bytes, prepare: Prepare, in_body: bool) -> Act | int | None:
    if not data:
        return None
    opcode, flags, length, _, sequence = records.HEADER.unpack_from(data)
    if length != len(data):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"a record of {length} bytes in an item of {len(data)}")
    if in_body and opcode in _NOT_IN_BODIES:
        reason = f"{_NOT_IN_BODIES[opcode]} cannot be in the body of a conditional node"
        raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)
    if opcode == _HOST_FUNCTION.opcode:
        if len(data) != _HOST_FUNCTION.layout.size:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"a host function's record of {len(data)} bytes")
        return int(_HOST_FUNCTION.layout.unpack(data)[-1])
    record = records.Record(opcode, flags, 0, sequence, data[records.HEADER_BYTES :])
    return prepare(request.part(record), record)


@frozen(eq=False)
class _HostRequest:
    """A host function of the next launch (a HostRequest)."""

    request: Request
    token: int

    def fail(self, status: Any) -> None:
        self.request.fail(status)


def _run_host_function(host_request: Any, stream: Stream) -> None:
    host_function(host_request.request, stream, host_request.token)


def graph_part(request: Request, graph: int, offset: int, count: int) -> None:
    """Append ``count`` staged bytes to the description of a graph that is instantiated later."""
    request.context.images.append(graph, request.staging(offset, count))


def launch_graph(request: Request, stream: Stream, graph: ExecutableGraph) -> None:
    """Queue an executable graph; each of its items counts as unfinished work."""
    try:
        graph.launch(stream, _run_host_function)
    finally:  # if an item was refused, the items before it still count
        if graph.size > 1:
            request.resources.backpressure.enter_more(stream, graph.size - 1)


def graph_host_function(request: Request, stream: Stream, graph: ExecutableGraph, token: int, number: int) -> None:
    """Announce the host function ``number`` of the graph's next launch; each one is announced once."""
    if number in graph.host_functions or number >= graph.size:
        reason = f"host function {number} was passed already, or the graph of {graph.size} nodes does not have it"
        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
    graph.host_functions[number] = _HostRequest(request, token)
