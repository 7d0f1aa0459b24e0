"""Waits without the interpreter: answered once, when the stream has written its marker and not before."""

from __future__ import annotations

import random

import pytest

from pympsd.wire import records
from pympsd_server.native.states import StreamState
from pympsd_server.native.worker import DeclinedRecord
from tests.native.fake_driver import WRITE_VALUE, FakeDriver
from tests.native.rig import CONTEXT_ID, Rig, source_constant

STREAMS = tuple(range(0x10, 0x18))
MAX_PENDING = source_constant("worker.c", "MAX_PENDING")
REFUSED = 1


def _sequence(record: bytes) -> int:
    return int(records.HEADER.unpack_from(record)[4])


def _synchronize(rig: Rig, handle: int = 0) -> bytes:
    return rig.pack("SYNCHRONIZE_STREAM", handle)


def test_an_idle_stream_is_answered_immediately_and_without_the_driver(rig: Rig, driver: FakeDriver) -> None:
    record = _synchronize(rig)
    assert rig.run(record) == []
    assert rig.answers(1) == [_sequence(record)]
    assert driver.calls(WRITE_VALUE) == []


def test_a_wait_is_answered_when_the_marker_is_written_and_not_before(rig: Rig, driver: FakeDriver) -> None:
    rig.start()
    record = _synchronize(rig)
    rig.put(rig.launch(), rig.launch(), record)
    rig.drain()
    (mark,) = driver.calls(WRITE_VALUE)
    assert (mark.stream, mark.what, mark.value, mark.flags) == (
        rig.default_stream.handle,
        rig.default_stream.word,
        1,
        0,
    )
    driver.advance(rig.default_stream, 2)
    rig.drain()
    assert not rig.is_answered, "two launches are done, the marker is not written"
    driver.advance(rig.default_stream, 1)
    assert rig.answers(1) == [_sequence(record)]
    rig.drain()
    assert not rig.is_answered, "it is answered once"
    assert rig.default_stream.completed == rig.default_stream.issued == 2


def test_work_known_to_be_done_needs_no_second_marker(rig: Rig, driver: FakeDriver) -> None:
    first, second, third = (_synchronize(rig) for _ in range(3))
    assert rig.run(rig.launch(), first, second) == []
    driver.advance(rig.default_stream)
    assert rig.run(third) == []
    assert sorted(rig.answers(3)) == [_sequence(record) for record in (first, second, third)]
    assert len(driver.calls(WRITE_VALUE)) == 1


def test_a_second_wait_after_more_work_waits_for_that_too(rig: Rig, driver: FakeDriver) -> None:
    first, second = _synchronize(rig), _synchronize(rig)
    assert rig.run(rig.launch(), first, rig.launch(), second) == []
    assert [call.value for call in driver.calls(WRITE_VALUE)] == [1, 2]
    driver.advance(rig.default_stream, 3)  # all but the second marker
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(first)]
    assert not rig.is_answered
    driver.advance(rig.default_stream, 1)
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(second)]


def test_markers_count_correctly_when_their_value_wraps(rig: Rig, driver: FakeDriver) -> None:
    rig.default_stream.marked = 2**32 - 1
    driver.complete_immediately(rig.default_stream)
    sent = [_synchronize(rig) for _ in range(3)]
    for record in sent:
        assert rig.run(rig.launch(), record) == []
    assert rig.run() == []
    assert rig.answers(3) == [_sequence(record) for record in sent]
    assert [call.value for call in driver.calls(WRITE_VALUE)] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_streams_are_answered_in_the_order_in_which_they_end(rig: Rig, driver: FakeDriver, seed: int) -> None:
    source = random.Random(seed)
    waits = {}
    for handle in STREAMS:
        stream, record = rig.add_stream(handle), _synchronize(rig, handle)
        assert rig.run(rig.launch(handle), record) == []
        waits[handle] = stream, record
    order = source.sample(STREAMS, len(STREAMS))
    for handle in order:
        assert not rig.is_answered
        driver.advance(waits[handle][0])
        assert rig.run() == []
        assert rig.answers(1) == [_sequence(waits[handle][1])]


def test_a_refused_marker_goes_to_python_with_its_code(rig: Rig, driver: FakeDriver) -> None:
    driver.refuse(WRITE_VALUE, REFUSED)
    record = _synchronize(rig)
    assert rig.run(rig.launch(), record) == [DeclinedRecord(record, REFUSED)]
    assert rig.default_stream.marked == rig.default_stream.marked_issued == 0
    driver.refuse(WRITE_VALUE, 0)
    driver.complete_immediately(rig.default_stream)
    again = _synchronize(rig)
    assert rig.run(again) == []
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(again)]


def test_waits_beyond_the_limit_go_to_python(rig: Rig, driver: FakeDriver) -> None:
    assert rig.run(rig.launch()) == []
    some = [_synchronize(rig) for _ in range(MAX_PENDING + 2)]
    assert rig.run(*some) == [DeclinedRecord(record, 0) for record in some[MAX_PENDING:]]
    driver.advance(rig.default_stream)
    # These are more answers than the socket takes unread: the rest goes to Python.
    declined = [_sequence(taken.record) for taken in rig.run()]
    answered = rig.answers(MAX_PENDING - len(declined))
    assert declined
    assert answered
    assert sorted(answered + declined) == [_sequence(record) for record in some[:MAX_PENDING]]


# --- queries


def test_a_query_of_a_stream_that_is_done_is_answered(rig: Rig, driver: FakeDriver) -> None:
    idle, busy, marked = (rig.pack("QUERY_STREAM", 0) for _ in range(3))
    assert rig.run(idle) == []
    assert rig.answers(1) == [_sequence(idle)]
    # If the stream is not known to be done, Python has to ask the driver.
    assert rig.run(rig.launch(), busy) == [DeclinedRecord(busy, 0)]
    assert rig.run(_synchronize(rig)) == []
    driver.advance(rig.default_stream)
    assert rig.run(marked) == []
    assert len(rig.answers(2)) == 2


# --- a whole context


def test_an_idle_context_is_answered_immediately(rig: Rig, driver: FakeDriver) -> None:
    rig.add_stream(STREAMS[0])
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(record) == []
    assert rig.answers(1) == [_sequence(record)]
    assert driver.count == 1, "only the context was made current"


@pytest.mark.parametrize("busy", [0, STREAMS[1]])
def test_a_context_with_one_busy_stream_waits_for_it(rig: Rig, driver: FakeDriver, busy: int) -> None:
    streams = {0: rig.default_stream, **{handle: rig.add_stream(handle) for handle in STREAMS[:3]}}
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(rig.launch(busy), record) == []
    assert not rig.is_answered
    driver.advance(streams[busy])
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(record)]


def test_a_context_with_two_busy_streams_goes_to_python(rig: Rig, driver: FakeDriver) -> None:
    for handle in STREAMS[:2]:
        rig.add_stream(handle)
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(*map(rig.launch, STREAMS[:2]), record) == [DeclinedRecord(record, 0)]
    assert driver.calls(WRITE_VALUE) == []


def test_a_context_with_an_unfinished_destroyed_stream_goes_to_python(rig: Rig) -> None:
    rig.context.leaving = 1
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(record) == [DeclinedRecord(record, 0)]
    rig.context.leaving = 0
    assert rig.run(rig.pack("SYNCHRONIZE_CONTEXT")) == []


@pytest.mark.parametrize("name", ["SYNCHRONIZE_CONTEXT", "SYNCHRONIZE_STREAM", "QUERY_STREAM"])
def test_a_record_that_is_too_long_goes_to_python(rig: Rig, name: str) -> None:
    operands = [0] * len(records.BY_NAME[name].operands)
    record = rig.pack(name, *operands, tail=bytes(8))
    assert rig.run(record) == [DeclinedRecord(record, 0)]


@pytest.mark.parametrize("name", ["SYNCHRONIZE_STREAM", "QUERY_STREAM"])
def test_a_record_without_its_stream_goes_to_python(rig: Rig, name: str) -> None:
    opcode = records.BY_NAME[name].opcode
    record = records.HEADER.pack(opcode, 0, records.HEADER_BYTES, CONTEXT_ID, 1)
    assert rig.run(record) == [DeclinedRecord(record, 0)]


# --- before a long operation of Python


@pytest.mark.parametrize("name", ["LOAD_MODULE", "UNLOAD_MODULE", "CREATE_STREAM"])
def test_before_a_long_operation_python_gets_the_pending_waits(rig: Rig, driver: FakeDriver, name: str) -> None:
    streams: list[StreamState] = [rig.add_stream(handle) for handle in STREAMS[:3]]
    waits = [_synchronize(rig, handle) for handle in STREAMS[:3]]
    assert rig.run(*map(rig.launch, STREAMS[:3]), *waits) == []
    long = rig.pack(name, *[0] * len(records.BY_NAME[name].operands))
    items = rig.run(long)
    assert sorted(taken.record for taken in items[:-1]) == sorted(waits)
    assert items[-1] == DeclinedRecord(long, 0), "the long operation comes last"
    for stream in streams:
        driver.advance(stream)
    assert rig.run() == []
    assert not rig.is_answered, "Python answers them now"
