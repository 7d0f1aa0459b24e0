"""Executable graphs as records: uploaded, launched, destroyed; what is refused harms nothing."""

from __future__ import annotations

import struct

import pytest

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.graph_items import MAX_EDGES, MAX_ITEMS, Conditional, ConditionalKind, GraphItem, encode
from pympsd_server.executor.graphs.streams import MAX_CLIENT_STREAMS
from pympsd_server.executor.requests.backpressure import HALF_OF_MAX
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import EMPTY, STORE, RawClient

QUIET = records.FLAG_QUIET


def upload(client: RawClient, data: bytes) -> int:
    handle = client.handle()
    client.memory[: len(data)] = data
    client.good("GRAPH_PART", handle, 0, len(data))
    return handle


def make(client: RawClient, *items: GraphItem) -> int:
    handle = upload(client, encode(items))
    client.good("INSTANTIATE_GRAPH", handle)
    return handle


def store(client: RawClient, module: int, address: int, value: int) -> bytes:
    tail = struct.pack("=QI", address, value)
    return records.pack("LAUNCH", client.context, 0, 0, module, STORE, *[1] * 6, 0, len(tail), tail=tail)


def fill(client: RawClient, address: int, value: int, count: int) -> bytes:
    return records.pack("FILL", client.context, 0, 0, address, value, 4, count, 0, 1)


def stream_of(client: RawClient) -> int:
    stream = client.handle()
    client.send("CREATE_STREAM", stream, 1, 0)
    return stream


def test_the_records_of_a_graph_run_in_order_at_every_launch(client: RawClient) -> None:
    module, _ = client.load()
    address = client.allocate(64)
    graph = make(
        client,
        GraphItem(fill(client, address, 7, 16)),
        GraphItem(store(client, module, address + 4, 9), (0,)),
        GraphItem(records.pack("COPY_ON_DEVICE", client.context, 0, 0, address + 32, address, 8), (1,)),
    )
    stream = stream_of(client)
    for _ in range(3):
        client.write(address, bytes(64))
        client.send("LAUNCH_GRAPH", stream, graph)
        client.good("SYNCHRONIZE_STREAM", stream)
        assert struct.unpack("=16I", client.read(address, 64)) == (7, 9, *[7] * 7, 9, *[7] * 6)
    client.send("DESTROY_GRAPH", graph)
    client.good("SYNCHRONIZE_CONTEXT")


def test_branches_and_joins(client: RawClient) -> None:
    module, _ = client.load()
    address = client.allocate(64)
    branches = [GraphItem(store(client, module, address + 4 * at, at + 1), (0,)) for at in range(8)]
    copy = records.pack("COPY_ON_DEVICE", client.context, 0, 0, address + 32, address, 32)
    graph = make(
        client,
        GraphItem(fill(client, address, 0, 16)),
        *branches,
        GraphItem(b"", tuple(range(1, 9))),
        GraphItem(copy, (9,)),
    )
    client.send("LAUNCH_GRAPH", 0, graph)
    assert struct.unpack("=16I", client.read(address, 64)) == (*range(1, 9), *range(1, 9))


def test_a_host_function_holds_up_its_branch_only(client: RawClient) -> None:
    module, _ = client.load()
    address, stream, other = client.allocate(16), stream_of(client), stream_of(client)
    host = records.pack("HOST_FUNCTION", client.context, 0, 0, 0)
    client.send("CREATE_EVENT", event := client.handle(), 0)
    graph = make(
        client,
        GraphItem(host),
        GraphItem(store(client, module, address, 1), (0,)),
        GraphItem(store(client, module, address + 4, 2)),
        GraphItem(records.pack("RECORD_EVENT", client.context, 0, event, 0), (2,)),
    )
    begun = client.send("GRAPH_HOST_FUNCTION", stream, graph, 77, 0, flags=QUIET)
    client.send("LAUNCH_GRAPH", stream, graph)
    assert client.answer(begun).result == Result.SUCCESS
    client.good("SYNCHRONIZE_EVENT", event)
    assert struct.unpack("=2I", client.read(address, 8, other)) == (0, 2)
    assert client.call("QUERY_STREAM", stream).result == Result.ERROR_NOT_READY
    client.send("HOST_FUNCTION_DONE", 77)
    client.good("SYNCHRONIZE_STREAM", stream)
    assert struct.unpack("=2I", client.read(address, 8, other)) == (1, 2)


def test_launches_of_one_graph_in_two_streams_follow_each_other(client: RawClient) -> None:
    stream, other = stream_of(client), stream_of(client)
    graph = make(client, GraphItem(records.pack("HOST_FUNCTION", client.context, 0, 0, 0)))
    first = client.send("GRAPH_HOST_FUNCTION", stream, graph, 1, 0, flags=QUIET)
    client.send("LAUNCH_GRAPH", stream, graph)
    second = client.send("GRAPH_HOST_FUNCTION", other, graph, 2, 0, flags=QUIET)
    client.send("LAUNCH_GRAPH", other, graph)
    assert client.answer(first).result == Result.SUCCESS
    assert client.call("QUERY_STREAM", other).result == Result.ERROR_NOT_READY
    assert second not in client.arrived()
    client.send("HOST_FUNCTION_DONE", 1)
    assert client.answer(second).result == Result.SUCCESS
    client.send("HOST_FUNCTION_DONE", 2)
    client.good("SYNCHRONIZE_STREAM", other)


def test_a_graph_is_not_launched_without_its_host_functions(client: RawClient) -> None:
    graph = make(client, GraphItem(records.pack("HOST_FUNCTION", client.context, 0, 0, 0)))
    client.send("LAUNCH_GRAPH", 0, graph)
    answer = client.call("SYNCHRONIZE_CONTEXT")
    assert answer.result == Result.ERROR_INVALID_VALUE
    assert "host function 0" in answer.reason
    client.good("SYNCHRONIZE_CONTEXT")


def test_a_refused_item_ends_the_launch_and_answers_its_host_functions(client: RawClient) -> None:
    address = client.allocate(64)
    host = records.pack("HOST_FUNCTION", client.context, 0, 0, 0)
    graph = make(client, GraphItem(fill(client, address, 1, 16)), GraphItem(host, (0,)))
    client.good("FREE", address)
    waits = client.send("GRAPH_HOST_FUNCTION", 0, graph, 5, 0, flags=QUIET)
    client.send("LAUNCH_GRAPH", 0, graph)
    assert client.answer(waits).result == Result.ERROR_INVALID_VALUE
    assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_INVALID_VALUE
    client.good("SYNCHRONIZE_CONTEXT")


@pytest.mark.parametrize("name", [entry.name for entry in records.OPERATIONS])
def test_only_queued_work_can_be_an_item(client: RawClient, name: str) -> None:
    operation = records.BY_NAME[name]
    graph = encode([GraphItem(records.pack(name, client.context, 0, *[0] * len(operation.operands)))])
    handle = upload(client, graph)
    allowed = operation.completion is records.Completion.QUEUED and name not in (
        "LAUNCH_GRAPH",
        "GRAPH_HOST_FUNCTION",
    )
    result = client.call("INSTANTIATE_GRAPH", handle).result
    if not allowed:
        assert result == Result.ERROR_NOT_SUPPORTED
    elif any(operand.kind not in (None, records.Kind.STREAM) for operand in operation.operands):
        assert result == Result.ERROR_INVALID_HANDLE, "a handle of nothing"
    else:
        assert result == Result.SUCCESS


@pytest.mark.parametrize(
    "data",
    [b"12345678", encode([GraphItem(bytes(24))]), encode([GraphItem(records.HEADER.pack(0x301, 0, 32, 1, 1))])],
)
def test_data_that_is_not_a_graph_is_refused(client: RawClient, data: bytes) -> None:
    result = client.call("INSTANTIATE_GRAPH", upload(client, data)).result
    assert result in (Result.ERROR_INVALID_VALUE, Result.ERROR_NOT_SUPPORTED)
    client.good("SYNCHRONIZE_CONTEXT")


def test_wrong_handles_of_graphs_are_refused(client: RawClient) -> None:
    module, _ = client.load()
    for name, operands in (
        ("LAUNCH_GRAPH", (0, module)),
        ("DESTROY_GRAPH", (client.handle(),)),
        ("INSTANTIATE_GRAPH", (5,)),
    ):
        client.send(name, *operands)
        result = client.call("SYNCHRONIZE_CONTEXT").result
        answered = records.BY_NAME[name].answered
        assert answered or result == Result.ERROR_INVALID_HANDLE
    graph = make(client, GraphItem(b""))
    client.send("DESTROY_GRAPH", graph)
    client.send("LAUNCH_GRAPH", 0, graph)
    assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_INVALID_HANDLE


def test_what_was_launched_outlives_the_graph_and_the_module(client: RawClient) -> None:
    module, _ = client.load()
    address = client.allocate(4)
    graph = make(
        client,
        GraphItem(records.pack("HOST_FUNCTION", client.context, 0, 0, 0)),
        GraphItem(store(client, module, address, 3), (0,)),
        GraphItem(records.pack("LAUNCH", client.context, 0, 0, module, EMPTY, *[1] * 6, 0, 0)),
    )
    stream, other = stream_of(client), stream_of(client)
    begun = client.send("GRAPH_HOST_FUNCTION", stream, graph, 1, 0, flags=QUIET)
    client.send("LAUNCH_GRAPH", stream, graph)
    client.send("DESTROY_GRAPH", graph)
    assert client.answer(begun).result == Result.SUCCESS
    client.send("HOST_FUNCTION_DONE", 1)
    client.good("SYNCHRONIZE_STREAM", stream)
    assert client.read(address, 4, other) == struct.pack("=I", 3)


def test_a_kernel_whose_module_is_unloaded_is_not_launched_again(client: RawClient) -> None:
    module, _ = client.load()
    address = client.allocate(4)
    graph = make(client, GraphItem(store(client, module, address, 3)))
    client.send("LAUNCH_GRAPH", 0, graph)
    client.send("UNLOAD_MODULE", module)
    client.good("SYNCHRONIZE_CONTEXT")
    assert client.read(address, 4) == struct.pack("=I", 3)
    client.write(address, bytes(4))
    client.send("LAUNCH_GRAPH", 0, graph)
    assert client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_INVALID_HANDLE
    assert client.read(address, 4) == bytes(4)


def test_what_a_refused_launch_has_queued_counts_as_unfinished(client: RawClient) -> None:
    address, stream = client.allocate(4), stream_of(client)
    host = records.pack("HOST_FUNCTION", client.context, 0, 0, 0)
    graph = make(client, *[GraphItem(fill(client, address, 1, 1))] * HALF_OF_MAX, GraphItem(host))
    begun = client.send("HOST_FUNCTION", stream, 7, flags=QUIET)
    client.send("LAUNCH_GRAPH", stream, graph)  # refused at its end: its host function is not given
    room = client.send("ROOM", flags=QUIET)
    assert client.answer(begun).result == Result.SUCCESS
    client.call("SYNCHRONIZE_STREAM", 0)
    assert room not in client.arrived()
    client.send("HOST_FUNCTION_DONE", 7)
    assert client.answer(room).result == Result.SUCCESS


@pytest.mark.parametrize(
    "items",
    [
        [GraphItem(b"")] * (MAX_ITEMS + 1),
        [GraphItem(b""), *[GraphItem(b"", (0,) * 1024)] * (MAX_EDGES // 1024 + 1)],
        [GraphItem(b"", (), Conditional(1, ConditionalKind.SWITCH, None, ((),) * MAX_ITEMS))],
    ],
)
def test_too_large_a_graph_is_refused(client: RawClient, items: list[GraphItem]) -> None:
    graph, handle, part = encode(items), client.handle(), len(client.memory) // 4
    for start in range(0, len(graph), part):
        piece = graph[start : start + part]
        client.memory[: len(piece)] = piece
        client.good("GRAPH_PART", handle, 0, len(piece))
    answer = client.call("INSTANTIATE_GRAPH", handle)
    assert (answer.result, "at most" in answer.reason) == (Result.ERROR_NOT_SUPPORTED, True)


def conditional(*body: GraphItem, default: int | None = 1, kind: ConditionalKind = ConditionalKind.IF) -> GraphItem:
    return GraphItem(b"", (), Conditional(5, kind, default, (body,)))


def test_a_conditional_node_executes_its_body_by_the_default(client: RawClient) -> None:
    module, _ = client.load()
    for default, expected in ((1, 9), (0, 0), (None, 0)):
        address = client.allocate(4)
        graph = make(client, conditional(GraphItem(store(client, module, address, 9)), default=default))
        client.send("LAUNCH_GRAPH", 0, graph)
        assert struct.unpack("=I", client.read(address, 4)) == (expected,), default
        client.send("DESTROY_GRAPH", graph)


def test_an_endless_loop_ends_with_its_client(executor: ExecutorOwner) -> None:
    client, other = executor.attach(), executor.attach(2, 2)
    graph = make(client, conditional(kind=ConditionalKind.WHILE))
    client.send("LAUNCH_GRAPH", 0, graph)
    other.good("SYNCHRONIZE_CONTEXT")
    assert client.call("QUERY_STREAM", 0).result == Result.ERROR_NOT_READY
    client.send("DESTROY_GRAPH", graph)
    assert client.call("QUERY_STREAM", 0).result == Result.ERROR_NOT_READY
    client.stream.close()
    module, _ = other.load()
    address = other.allocate(4)
    other.post(store(other, module, address, 4))
    assert other.read(address, 4) == struct.pack("=I", 4)


def test_records_that_a_body_cannot_have_are_refused(client: RawClient) -> None:
    for name in ("HOST_FUNCTION", "RECORD_EVENT", "WAIT_EVENT", "LAUNCH_GRAPH"):
        record = records.pack(name, client.context, 0, *[0] * len(records.BY_NAME[name].operands))
        graph = encode([conditional(conditional(GraphItem(record)))])
        result = client.call("INSTANTIATE_GRAPH", upload(client, graph)).result
        assert result == Result.ERROR_NOT_SUPPORTED, name


def test_the_streams_of_a_clients_graphs_are_limited_and_given_back(client: RawClient) -> None:
    wide = encode([GraphItem(b"")] * 16)
    graphs = []
    for _ in range(MAX_CLIENT_STREAMS // 15):
        graphs.append(upload(client, wide))
        client.good("INSTANTIATE_GRAPH", graphs[-1])
    refused = client.call("INSTANTIATE_GRAPH", upload(client, wide))
    assert (refused.result, "destroy executable graphs" in refused.reason) == (Result.ERROR_OUT_OF_MEMORY, True)
    client.send("DESTROY_GRAPH", graphs.pop())
    client.good("INSTANTIATE_GRAPH", upload(client, wide))
    plain = make(client, conditional())  # the rest of the limit
    client.send("LAUNCH_GRAPH", 0, plain)
    client.good("SYNCHRONIZE_CONTEXT")
    for graph in graphs:
        client.send("DESTROY_GRAPH", graph)
    client.good("INSTANTIATE_GRAPH", upload(client, wide))


@pytest.mark.long
def test_the_graphs_of_a_users_clients_are_limited_together(executor: ExecutorOwner) -> None:
    large = encode([GraphItem(b"", (index - 1,) if index else ()) for index in range(MAX_ITEMS)])
    first, second, other = (executor.attach(client, client, user=user) for client, user in ((1, 5), (2, 5), (3, 6)))
    while first.call("INSTANTIATE_GRAPH", upload(first, large)).result == Result.SUCCESS:
        pass
    refused = second.call("INSTANTIATE_GRAPH", upload(second, large))
    assert (refused.result, "this process' user" in refused.reason) == (Result.ERROR_OUT_OF_MEMORY, True)
    other.good("INSTANTIATE_GRAPH", upload(other, large))
    executor.drop(1)
    second.good("INSTANTIATE_GRAPH", upload(second, large))
