"""Whatever one client sends, the executor lives and its other clients' results are right."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.executor_messages import DropClient, ExecutorDone
from tests.executor.executor_owner import ExecutorOwner
from tests.executor.raw_client import ENDLESS, STORE, RawClient
from tests.executor.workers import WORKERS, able

EDGES = (0, 1, 2, 15, 16, 4096, 1 << 24, 1 << 32, (7 << 40) + 16, (7 << 40) + 17, 2**63, 2**64 - 1, 2**64 - 8)


class Pair:
    """A bad client next to a good one, whose work is checked after every attack.

    No attrs class: hypothesis would print all that is inside.
    """

    def __init__(self, executor: ExecutorOwner) -> None:
        self.executor = executor
        self.good = executor.attach(client=1000, context=1000)
        self.module, _ = self.good.load()
        self.address = self.good.allocate(64)

    @contextmanager
    def bad_client(self) -> Iterator[RawClient]:
        """Another client, dropped at the end; an attack may have faulted its context, but no other."""
        client = self.executor.attach(client=1, context=1)
        try:
            yield client
        finally:
            client.close()
            self.executor.send(DropClient(9999, 1))
            while not isinstance(message := self.executor.receive()[0], ExecutorDone):
                assert message.context == 1

    def check(self, value: int) -> None:
        """The good client's kernels and copies give what they should."""
        self.good.launch(self.module, STORE, struct.pack("=QI", self.address, value & 0xFFFFFFFF))
        assert self.good.read(self.address, 4) == struct.pack("=I", value & 0xFFFFFFFF)
        assert self.executor.alive


@pytest.fixture(scope="module", params=WORKERS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """One executor with each kind of workers for all attacks of this module, which come by the socket."""
    executor = ExecutorOwner.start(env={**os.environ, "PYMPSD_WORKER": able(request.param)}).ready()
    try:
        yield Pair(executor)
    finally:
        executor.close()


@pytest.fixture(scope="module", autouse=True)
def _before_the_leak_check(pair: Pair) -> None:
    """The shared executor is there before the first test counts descriptors."""


NAMES = tuple(records.BY_NAME)
numbers = st.one_of(
    st.sampled_from(EDGES), st.integers(0, 2**64 - 1), st.integers(0x6000_0000_0000, 0x6000_0100_0000)
)


@st.composite
def mutate(draw: st.DrawFn) -> bytes:
    """A record of the table with operands, opcode, flags, length or context changed."""
    operation = records.BY_NAME[draw(st.sampled_from(NAMES))]
    operands = b"".join(struct.pack("=Q", draw(numbers)) for _ in operation.operands)
    tail = draw(st.binary(max_size=24)) if operation.tail or draw(st.booleans()) else b""
    body = operands + tail.ljust(records.pad(len(tail)), b"\0")
    body = body[: draw(st.sampled_from((len(body), len(body), len(body), max(0, len(body) - 8), len(body) // 2)))]
    opcode = draw(st.sampled_from((operation.opcode,) * 8 + (0, 24, 0x7FFF, operation.opcode | records.ANSWER)))
    flags = draw(st.sampled_from((0, 0, 1, 0xFFFF)))
    context = draw(st.sampled_from((1, 1, 1, 1, 0, 1000, 2**64 - 1)))
    sequence = draw(numbers) | 1 << 62  # none that the test itself waits for
    return records.HEADER.pack(opcode, flags, records.HEADER_BYTES + len(body), context, sequence) + body


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attack=st.lists(mutate(), min_size=1, max_size=20), value=st.integers(0, 2**32 - 1))
def test_mutated_records_harm_no_other_client(pair: Pair, attack: list[bytes], value: int) -> None:
    with pair.bad_client() as bad:
        bad.allocate(4096)
        bad.stream.sendall(b"".join(attack))
        pair.check(value)
        # The bad client's stream still works: every record had a proper length.
        last = bad.send("MEMORY_INFO", context=4)
        assert bad.answer(last).result == Result.ERROR_INVALID_CONTEXT


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(min_size=1, max_size=200), value=st.integers(0, 2**32 - 2))
def test_garbage_harms_no_other_client(pair: Pair, garbage: bytes, value: int) -> None:
    with pair.bad_client() as bad:
        bad.stream.sendall(garbage)
        pair.check(value)
    pair.check(value + 1)


@pytest.mark.parametrize("length", [0, 8, 23, records.MAX_RECORD + 1, 2**32 - 1])
def test_a_broken_length_ends_that_stream_only(pair: Pair, length: int) -> None:
    with pair.bad_client() as bad:
        bad.stream.sendall(records.HEADER.pack(1, 0, length, 1, 1))
        assert bad.stream.recv(1) == b""
        pair.check(length)


def test_a_stream_that_ends_in_the_middle_of_a_record(pair: Pair) -> None:
    with pair.bad_client() as bad:
        bad.stream.sendall(records.pack("LAUNCH", 1, 1, *(0,) * 11)[:50])
        bad.stream.close()
        pair.check(1)


def test_records_cut_into_single_bytes_are_whole_records(pair: Pair) -> None:
    with pair.bad_client() as client:
        for byte in records.pack("MEMORY_INFO", 1, 77):
            client.stream.sendall(bytes((byte,)))
        assert client.answer(77).result == 0


def test_an_unknown_opcode_is_answered_by_name(pair: Pair) -> None:
    with pair.bad_client() as client:
        client.stream.sendall(records.HEADER.pack(99, 0, records.HEADER_BYTES, 1, 5))
        answer = client.answer(5)
        assert answer.result == Result.ERROR_NOT_SUPPORTED
        assert "99" in answer.reason
        client.good("MEMORY_INFO")


@pytest.mark.parametrize("name", NAMES)
def test_every_record_of_a_wrong_length_is_an_invalid_value(pair: Pair, name: str) -> None:
    operation = records.BY_NAME[name]
    size = len(operation.operands) * 8 + 8
    with pair.bad_client() as client:
        head = records.HEADER.pack(operation.opcode, 0, records.HEADER_BYTES + size, 1, 5)
        client.stream.sendall(head + os.urandom(size))
        answer = client.answer(5) if operation.answered else client.call("SYNCHRONIZE_CONTEXT")
        assert answer.result == Result.ERROR_INVALID_VALUE
        assert not operation.answered or name in answer.reason


def _send_for_ever(client: RawClient, records_: bytes) -> None:
    while True:
        client.stream.sendall(records_)


def test_a_client_that_reads_no_answers_is_cut_off_and_delays_no_other(pair: Pair) -> None:
    question = records.pack("ALLOCATE", 1, 1, 2**64 - 1) * 500  # answers are longer than questions
    with pair.bad_client() as deaf:
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            _send_for_ever(deaf, question)
        pair.check(3)


def test_a_client_that_reads_late_gets_every_answer(pair: Pair) -> None:
    numbers = range(1, 10_001)
    with pair.bad_client() as late:
        late.stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        late.stream.sendall(b"".join(records.pack("MEMORY_INFO", 1, number) for number in numbers))
        pair.check(4)
        assert [late.answer(number).result for number in numbers] == [0] * len(numbers)


@pytest.mark.long
def test_work_without_end_waits_in_the_clients_own_socket(pair: Pair) -> None:
    with pair.bad_client() as greedy:
        module, _ = greedy.load()
        greedy.launch(module, ENDLESS)
        launch = records.pack("LAUNCH", 1, 1, 0, module, 0, 1, 1, 1, 1, 1, 1, 0, 0)
        greedy.stream.settimeout(1.0)
        with pytest.raises(TimeoutError):
            _send_for_ever(greedy, launch * 1000)
        pair.check(5)
    pair.check(6)
