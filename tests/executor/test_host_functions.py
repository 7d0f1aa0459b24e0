"""Host functions as records: announced in stream order; released by token, poisoning or the end of the client."""

from __future__ import annotations

import struct

import pytest

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.executor_messages import Attach, ContextFaulted, ExecutorDone, Terminate
from pympsd_server.executor.requests.backpressure import HALF_OF_MAX, MAX_UNFINISHED
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import EMPTY, STORE, TRAPPED, RawClient

QUIET = records.FLAG_QUIET


def make_stream(client: RawClient, blocking: bool = False) -> int:
    stream = client.handle()
    client.send("CREATE_STREAM", stream, 0 if blocking else 1, 0)
    return stream


def post(client: RawClient, stream: int, token: int) -> int:
    return client.send("HOST_FUNCTION", stream, token, flags=QUIET)


def wait_for_begun(client: RawClient, stream: int, token: int) -> None:
    """Post a function and wait until the stream has come to it."""
    assert client.answer(post(client, stream, token)).result == Result.SUCCESS


def pending(client: RawClient, stream: int) -> bool:
    return client.call("QUERY_STREAM", stream).result == Result.ERROR_NOT_READY


def test_work_after_a_function_waits_until_it_is_done(client: RawClient) -> None:
    stream, other = make_stream(client), make_stream(client)
    module, _ = client.load()
    address = client.allocate(4)
    wait_for_begun(client, stream, 1)
    client.launch(module, STORE, struct.pack("=QI", address, 9), stream)
    waits = client.send("SYNCHRONIZE_STREAM", stream)
    assert client.read(address, 4, other) == bytes(4)
    assert pending(client, stream)
    assert waits not in client.arrived()
    client.send("HOST_FUNCTION_DONE", 1)
    assert client.answer(waits).result == Result.SUCCESS
    assert client.read(address, 4, other) == struct.pack("=I", 9)


def test_functions_of_a_stream_are_announced_one_by_one(client: RawClient) -> None:
    stream = make_stream(client)
    posted = [post(client, stream, token) for token in range(5)]
    for token, sequence in enumerate(posted):
        assert client.answer(sequence).result == Result.SUCCESS
        assert pending(client, stream)
        assert not client.arrived() & set(posted)
        client.send("HOST_FUNCTION_DONE", token)
    client.good("SYNCHRONIZE_STREAM", stream)


def test_events_and_the_default_stream_wait_too(client: RawClient) -> None:
    stream, event = make_stream(client, blocking=True), client.handle()
    client.send("CREATE_EVENT", event, 0)
    wait_for_begun(client, stream, 1)
    client.send("RECORD_EVENT", event, stream)
    assert client.call("QUERY_EVENT", event).result == Result.ERROR_NOT_READY
    assert pending(client, 0)
    everything = client.send("SYNCHRONIZE_CONTEXT")
    assert pending(client, stream)
    assert everything not in client.arrived()
    client.send("HOST_FUNCTION_DONE", 1)
    assert client.answer(everything).result == Result.SUCCESS
    client.good("QUERY_EVENT", event)


def test_a_pending_function_delays_no_other_client(executor: ExecutorOwner) -> None:
    client, neighbour = executor.attach(client=1, context=1), executor.attach(client=2, context=2)
    stream, other = make_stream(client), make_stream(client)
    wait_for_begun(client, stream, 1)
    wait_for_begun(client, other, 2)
    client.send("HOST_FUNCTION_DONE", 2)
    client.good("SYNCHRONIZE_STREAM", other)
    wait_for_begun(neighbour, 0, 1)
    neighbour.send("HOST_FUNCTION_DONE", 1)
    neighbour.good("SYNCHRONIZE_CONTEXT")
    assert pending(client, stream)


def test_a_token_that_is_not_pending_is_the_senders_error(client: RawClient) -> None:
    wait_for_begun(client, 0, 1)
    for token in (0, 2, 2**64 - 1):
        client.send("HOST_FUNCTION_DONE", token)
        answer = client.call("QUERY_STREAM", 0)
        assert (answer.result, answer.flags) == (Result.ERROR_INVALID_HANDLE, 0)
        assert f"host function {token} is not pending" in answer.reason
    assert pending(client, 0)
    for expected in (Result.SUCCESS, Result.ERROR_INVALID_HANDLE):
        client.send("HOST_FUNCTION_DONE", 1)
        assert client.call("SYNCHRONIZE_CONTEXT").result == expected


def test_a_function_cannot_be_done_before_its_stream_comes_to_it(client: RawClient) -> None:
    stream = make_stream(client)
    wait_for_begun(client, stream, 1)
    second = post(client, stream, 2)
    client.send("HOST_FUNCTION_DONE", 2)
    assert client.call("SYNCHRONIZE_STREAM", stream).result == Result.ERROR_INVALID_VALUE
    client.send("HOST_FUNCTION_DONE", 1)
    assert client.answer(second).result == Result.SUCCESS
    client.send("HOST_FUNCTION_DONE", 2)
    client.good("SYNCHRONIZE_STREAM", stream)


def test_a_token_is_pending_once(client: RawClient) -> None:
    stream = make_stream(client)
    wait_for_begun(client, stream, 5)
    twice = client.answer(post(client, stream, 5))
    assert (twice.result, twice.flags) == (Result.ERROR_INVALID_VALUE, 0)
    assert client.call("MEMORY_INFO").result == Result.ERROR_INVALID_VALUE
    client.send("HOST_FUNCTION_DONE", 5)
    client.good("SYNCHRONIZE_STREAM", stream)
    wait_for_begun(client, stream, 5)


def test_the_token_of_another_client_releases_no_host_function(executor: ExecutorOwner) -> None:
    client, other_client = executor.attach(client=1, context=1), executor.attach(client=2, context=3)
    executor.ask(Attach, **executor.request(1, 2, False))
    wait_for_begun(client, 0, 1)
    other_client.send("HOST_FUNCTION_DONE", 1)
    assert other_client.call("SYNCHRONIZE_CONTEXT").result == Result.ERROR_INVALID_HANDLE
    other_client.send("HOST_FUNCTION_DONE", 1, context=1)  # a context that is not its own
    client.send("HOST_FUNCTION_DONE", 1, context=2)  # another context of the same client
    assert client.call("SYNCHRONIZE_CONTEXT", context=2).result == Result.ERROR_INVALID_HANDLE
    other_client.good("SYNCHRONIZE_CONTEXT")
    assert pending(client, 0)


def test_a_function_for_an_unknown_stream_is_refused(client: RawClient) -> None:
    refused = client.answer(post(client, client.handle(), 1))
    assert refused.result == Result.ERROR_INVALID_HANDLE
    assert client.call("MEMORY_INFO").result == Result.ERROR_INVALID_HANDLE
    client.good("SYNCHRONIZE_CONTEXT")


def test_a_fault_notifies_those_that_have_not_begun(client: RawClient) -> None:
    stream, other = make_stream(client), make_stream(client)
    module, _ = client.load()
    wait_for_begun(client, stream, 1)
    second = post(client, stream, 2)
    client.launch(module, TRAPPED, stream=other)
    answer = client.answer(second)
    assert (answer.result, answer.flags) == (Result.ERROR_LAUNCH_FAILED, records.FLAG_STICKY)
    client.send("HOST_FUNCTION_DONE", 1)
    late = client.answer(post(client, stream, 3))
    assert (late.result, late.flags) == (Result.ERROR_LAUNCH_FAILED, records.FLAG_STICKY)


def test_terminating_and_detaching_do_not_wait_for_functions(executor: ExecutorOwner) -> None:
    client = executor.attach(client=1, context=1)
    executor.ask(Attach, **executor.request(1, 2, False))
    waiting = {}
    for context in (1, 2):
        assert client.answer(client.send("HOST_FUNCTION", 0, 1, context=context)).result == Result.SUCCESS
        waiting[context] = client.send("HOST_FUNCTION", 0, 2, context=context, flags=QUIET)
        assert client.call("QUERY_STREAM", 0, context=context).result == Result.ERROR_NOT_READY
    executor.send(Terminate(100, 1))
    messages = [executor.receive()[0] for _ in range(2)]
    assert {type(message) for message in messages} == {ContextFaulted, ExecutorDone}
    assert client.answer(waiting[1]).result == Result.ERROR_MPS_CLIENT_TERMINATED
    assert isinstance(executor.detach(2), ExecutorDone)
    assert client.answer(waiting[2]).result == Result.ERROR_CONTEXT_IS_DESTROYED
    client.send("HOST_FUNCTION_DONE", 1, context=2)
    assert isinstance(executor.detach(1), ExecutorDone)


def test_a_client_that_never_answers_is_dropped_immediately(executor: ExecutorOwner) -> None:
    client, neighbour = executor.attach(client=1, context=1), executor.attach(client=2, context=2)
    module, _ = client.load()
    theirs, _ = neighbour.load()
    stream = make_stream(client)
    wait_for_begun(client, stream, 1)
    for _ in range(100):
        client.launch(module, EMPTY, stream=stream)
        neighbour.launch(theirs, EMPTY)
    assert pending(client, stream)
    neighbour.good("SYNCHRONIZE_CONTEXT")
    assert isinstance(executor.drop(1), ExecutorDone)
    with pytest.raises((EOFError, BrokenPipeError, ConnectionResetError)):  # the last: a bell that was never read
        client.call("QUERY_STREAM", stream)
    neighbour.good("SYNCHRONIZE_CONTEXT")


def test_room_is_reported_when_half_of_the_limit_is_free(client: RawClient) -> None:
    stream, address = make_stream(client), client.allocate(64)
    client.good("ROOM")
    wait_for_begun(client, stream, 1)
    for _ in range(HALF_OF_MAX):
        client.send("FILL", stream, address, 0, 1, 1, 0, 1)
    room = client.send("ROOM")
    assert pending(client, stream)
    assert room not in client.arrived()
    client.send("HOST_FUNCTION_DONE", 1)
    assert client.answer(room).result == Result.SUCCESS
    client.good("SYNCHRONIZE_STREAM", stream)


def test_a_client_that_asks_for_no_room_delays_only_itself(executor: ExecutorOwner) -> None:
    client, neighbour = executor.attach(client=1, context=1), executor.attach(client=2, context=2)
    stream, address = make_stream(client), client.allocate(64)
    wait_for_begun(client, stream, 1)
    for _ in range(MAX_UNFINISHED):
        client.send("FILL", stream, address, 0, 1, 1, 0, 1)
    unread = client.send("QUERY_STREAM", stream)
    wait_for_begun(neighbour, 0, 1)
    neighbour.send("HOST_FUNCTION_DONE", 1)
    neighbour.good("SYNCHRONIZE_CONTEXT")
    assert isinstance(executor.drop(1), ExecutorDone)
    with pytest.raises((EOFError, ConnectionResetError)):
        client.answer(unread)
