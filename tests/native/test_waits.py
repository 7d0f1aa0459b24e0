"""Waiting outside the interpreter: answered when the stream has written its mark, not before, and once."""

from __future__ import annotations

import random

import pytest

from pympsd.wire import records
from pympsd_server.native.states import StreamState
from pympsd_server.native.worker import Taken
from tests.native.fake_driver import WRITE_VALUE, StandIn
from tests.native.rig import SERIAL, Rig, source_constant

STREAMS = tuple(range(0x10, 0x18))
PENDING_LIMIT = source_constant("worker.c", "PENDING_LIMIT")
REFUSED = 1


def _sequence(record: bytes) -> int:
    return int(records.HEADER.unpack_from(record)[4])


def _synchronize(rig: Rig, handle: int = 0) -> bytes:
    return rig.pack("SYNCHRONIZE_STREAM", handle)


def test_an_idle_stream_is_answered_at_once_and_without_the_driver(rig: Rig, driver: StandIn) -> None:
    record = _synchronize(rig)
    assert rig.run(record) == []
    assert rig.answers(1) == [_sequence(record)]
    assert driver.calls(WRITE_VALUE) == []


def test_a_wait_is_answered_when_the_mark_is_written_and_not_before(rig: Rig, driver: StandIn) -> None:
    rig.begin()
    record = _synchronize(rig)
    rig.put(rig.launch(), rig.launch(), record)
    rig.pass_by()
    (mark,) = driver.calls(WRITE_VALUE)
    assert (mark.stream, mark.what, mark.value, mark.flags) == (rig.default.handle, rig.default.word, 1, 0)
    driver.advance(rig.default, 2)
    rig.pass_by()
    assert not rig.is_answered, "two launches are done, the mark is not written"
    driver.advance(rig.default, 1)
    assert rig.answers(1) == [_sequence(record)]
    rig.pass_by()
    assert not rig.is_answered, "it is answered once"
    assert rig.default.settled == rig.default.issued == 2


def test_what_is_known_to_be_done_needs_no_second_mark(rig: Rig, driver: StandIn) -> None:
    first, second, third = (_synchronize(rig) for _ in range(3))
    assert rig.run(rig.launch(), first, second) == []
    driver.advance(rig.default)
    assert rig.run(third) == []
    assert sorted(rig.answers(3)) == [_sequence(each) for each in (first, second, third)]
    assert len(driver.calls(WRITE_VALUE)) == 1


def test_a_second_wait_after_more_work_waits_for_that_too(rig: Rig, driver: StandIn) -> None:
    first, second = _synchronize(rig), _synchronize(rig)
    assert rig.run(rig.launch(), first, rig.launch(), second) == []
    assert [call.value for call in driver.calls(WRITE_VALUE)] == [1, 2]
    driver.advance(rig.default, 3)  # all but the second mark
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(first)]
    assert not rig.is_answered
    driver.advance(rig.default, 1)
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(second)]


def test_a_mark_that_was_passed_long_ago_counts_although_the_count_wraps(rig: Rig, driver: StandIn) -> None:
    rig.default.marked = 2**32 - 1
    driver.at_once(rig.default)
    sent = [_synchronize(rig) for _ in range(3)]
    for record in sent:
        assert rig.run(rig.launch(), record) == []
    assert rig.run() == []
    assert rig.answers(3) == [_sequence(record) for record in sent]
    assert [call.value for call in driver.calls(WRITE_VALUE)] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_streams_are_answered_in_the_order_in_which_they_end(rig: Rig, driver: StandIn, seed: int) -> None:
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


def test_a_mark_that_is_refused_comes_with_its_code(rig: Rig, driver: StandIn) -> None:
    driver.refuse(WRITE_VALUE, REFUSED)
    record = _synchronize(rig)
    assert rig.run(rig.launch(), record) == [Taken(record, REFUSED)]
    assert rig.default.marked == rig.default.marked_issued == 0
    driver.refuse(WRITE_VALUE, 0)
    driver.at_once(rig.default)
    again = _synchronize(rig)
    assert rig.run(again) == []
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(again)]


def test_more_waits_than_there_is_room_for_are_pythons(rig: Rig, driver: StandIn) -> None:
    assert rig.run(rig.launch()) == []
    some = [_synchronize(rig) for _ in range(PENDING_LIMIT + 2)]
    assert rig.run(*some) == [Taken(each, 0) for each in some[PENDING_LIMIT:]]
    driver.advance(rig.default)
    # All at once are more answers than the socket takes unread: what is over then is Python's to answer.
    handed = [_sequence(taken.record) for taken in rig.run()]
    answered = rig.answers(PENDING_LIMIT - len(handed))
    assert handed
    assert answered
    assert sorted(answered + handed) == [_sequence(each) for each in some[:PENDING_LIMIT]]


# --- asking


def test_a_question_about_a_stream_that_is_done_is_answered(rig: Rig, driver: StandIn) -> None:
    idle, busy, marked = (rig.pack("QUERY_STREAM", 0) for _ in range(3))
    assert rig.run(idle) == []
    assert rig.answers(1) == [_sequence(idle)]
    # What is not known to be done Python has to ask the driver about.
    assert rig.run(rig.launch(), busy) == [Taken(busy, 0)]
    assert rig.run(_synchronize(rig)) == []
    driver.advance(rig.default)
    assert rig.run(marked) == []
    assert len(rig.answers(2)) == 2


# --- a whole context


def test_an_idle_context_is_answered_at_once(rig: Rig, driver: StandIn) -> None:
    rig.add_stream(STREAMS[0])
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(record) == []
    assert rig.answers(1) == [_sequence(record)]
    assert driver.count == 1, "it was made current, and that is all"


@pytest.mark.parametrize("busy", [0, STREAMS[1]])
def test_a_context_with_one_busy_stream_waits_for_that(rig: Rig, driver: StandIn, busy: int) -> None:
    streams = {0: rig.default, **{handle: rig.add_stream(handle) for handle in STREAMS[:3]}}
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(rig.launch(busy), record) == []
    assert not rig.is_answered
    driver.advance(streams[busy])
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(record)]


def test_a_context_with_two_busy_streams_is_pythons(rig: Rig, driver: StandIn) -> None:
    for handle in STREAMS[:2]:
        rig.add_stream(handle)
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(*map(rig.launch, STREAMS[:2]), record) == [Taken(record, 0)]
    assert driver.calls(WRITE_VALUE) == []


def test_a_context_with_a_stream_that_is_leaving_is_pythons(rig: Rig) -> None:
    rig.context.leaving = 1
    record = rig.pack("SYNCHRONIZE_CONTEXT")
    assert rig.run(record) == [Taken(record, 0)]
    rig.context.leaving = 0
    assert rig.run(rig.pack("SYNCHRONIZE_CONTEXT")) == []


@pytest.mark.parametrize("name", ["SYNCHRONIZE_CONTEXT", "SYNCHRONIZE_STREAM", "QUERY_STREAM"])
def test_a_record_with_bytes_too_many_is_pythons(rig: Rig, name: str) -> None:
    operands = [0] * len(records.BY_NAME[name].operands)
    record = rig.pack(name, *operands, tail=bytes(8))
    assert rig.run(record) == [Taken(record, 0)]


@pytest.mark.parametrize("name", ["SYNCHRONIZE_STREAM", "QUERY_STREAM"])
def test_a_record_without_its_stream_is_pythons(rig: Rig, name: str) -> None:
    opcode = records.BY_NAME[name].opcode
    record = records.HEADER.pack(opcode, 0, records.HEADER_BYTES, SERIAL, 1)
    assert rig.run(record) == [Taken(record, 0)]


# --- what has to be Python's before it does something long


@pytest.mark.parametrize("name", ["LOAD_MODULE", "UNLOAD_MODULE", "CREATE_STREAM"])
def test_before_something_long_python_is_given_what_waits(rig: Rig, driver: StandIn, name: str) -> None:
    streams: list[StreamState] = [rig.add_stream(handle) for handle in STREAMS[:3]]
    waits = [_synchronize(rig, handle) for handle in STREAMS[:3]]
    assert rig.run(*map(rig.launch, STREAMS[:3]), *waits) == []
    long = rig.pack(name, *[0] * len(records.BY_NAME[name].operands))
    found = rig.run(long)
    assert sorted(taken.record for taken in found[:-1]) == sorted(waits)
    assert found[-1] == Taken(long, 0), "and that comes last"
    for stream in streams:
        driver.advance(stream)
    assert rig.run() == []
    assert not rig.is_answered, "they are Python's to answer now"
