"""Contexts, streams and clients that end while the worker uses them: nothing is used after it was freed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd_server.backends.interface import BackendError
from pympsd_server.native import worker as native
from pympsd_server.native.worker import DeclinedRecord
from tests.native.fake_driver import LAUNCH, WRITE_VALUE, FakeDriver
from tests.native.rig import CONTEXT_ID, SECONDS, Rig

STREAM, OTHER = 0x10, 0x11
BRIEF = 0.05


@pytest.fixture
def leaked() -> Iterator[list[object]]:
    """Yield what is kept for driver calls that do not return; release it after the test, in which they did."""
    assert native._leaked == []
    yield native._leaked
    native._leaked.clear()


def _waiting(rig: Rig, stream: int = 0) -> bytes:
    record = rig.pack("SYNCHRONIZE_STREAM", stream)
    assert rig.run(rig.launch(stream), record) == []
    return record


def _sequence(record: bytes) -> int:
    return int(records.HEADER.unpack_from(record)[4])


def test_a_wait_in_a_faulted_context_goes_to_python(rig: Rig, driver: FakeDriver) -> None:
    record = _waiting(rig)
    rig.context.closed = 1
    assert rig.run() == [DeclinedRecord(record, 0)]
    driver.advance(rig.default_stream)
    assert rig.run() == []
    assert not rig.is_answered


def test_a_wait_in_a_context_that_is_dropped_goes_to_python(rig: Rig, driver: FakeDriver) -> None:
    record = _waiting(rig)
    other = rig.driver.stream(is_default=True)
    rig.add_context(CONTEXT_ID + 1, other)
    rig.worker.drop_context(CONTEXT_ID, BRIEF)
    assert rig.run() == [DeclinedRecord(record, 0)]
    launch = rig.launch()
    assert rig.run(launch) == [DeclinedRecord(launch, 0)]
    rig.worker.drop_context(CONTEXT_ID, BRIEF)  # again, which has no effect
    driver.advance(rig.default_stream)
    assert rig.run() == []


def test_other_contexts_continue(rig: Rig, driver: FakeDriver) -> None:
    other = rig.driver.stream(is_default=True)
    rig.add_context(CONTEXT_ID + 1, other)
    rig.worker.drop_context(CONTEXT_ID, BRIEF)
    record = records.pack("SYNCHRONIZE_CONTEXT", CONTEXT_ID + 1, 99)
    launch = rig.launch()
    opcode, flags, length, _, sequence = records.HEADER.unpack_from(launch)
    launch = records.HEADER.pack(opcode, flags, length, CONTEXT_ID + 1, sequence) + launch[records.HEADER_BYTES :]
    assert rig.run(launch, record) == []
    driver.advance(other)
    assert rig.run() == []
    assert rig.answers(1) == [99]


def test_the_objects_of_a_dropped_context_are_freed(rig: Rig, leaked: list[object]) -> None:
    rig.add_stream(STREAM)
    rig.worker.drop_context(CONTEXT_ID, BRIEF)
    assert rig.worker._objects == {}
    assert rig.worker._states == {}
    assert leaked == []


def test_a_dropped_context_takes_no_more_objects(rig: Rig) -> None:
    rig.worker.drop_context(CONTEXT_ID, BRIEF)
    with pytest.raises(BackendError) as caught:
        rig.add_stream(STREAM)
    assert caught.value.code == Result.ERROR_CONTEXT_IS_DESTROYED
    assert rig.worker._objects == {}


@pytest.mark.parametrize("kind", [LAUNCH, WRITE_VALUE])
def test_dropping_a_context_during_a_driver_call_is_bounded(
    rig: Rig, driver: FakeDriver, leaked: list[object], kind: int
) -> None:
    assert rig.run(rig.launch()) == []
    driver.hold(kind)
    rig.start()
    record = rig.pack("SYNCHRONIZE_STREAM", 0)
    rig.put(rig.launch(), record)
    driver.wait_until_held(kind)
    began = time.monotonic()
    rig.worker.drop_context(CONTEXT_ID, BRIEF)
    assert BRIEF <= time.monotonic() - began < SECONDS
    # The driver's call still uses the context, so it and everything that it points to are kept.
    assert rig.worker in leaked
    assert rig.context in leaked
    assert rig.context.active == 1
    driver.hold(kind, False)
    rig.drain()
    assert rig.context.active == 0
    driver.advance(rig.default_stream)
    launch = rig.launch()
    rig.put(launch)
    assert rig.next() == DeclinedRecord(launch, 0), "no new record of it is executed"


def test_dropping_a_context_waits_for_a_driver_call(rig: Rig, driver: FakeDriver, leaked: list[object]) -> None:
    driver.hold(LAUNCH)
    rig.start()
    rig.put(rig.launch())
    driver.wait_until_held(LAUNCH)
    dropper = threading.Thread(target=rig.worker.drop_context, args=(CONTEXT_ID, SECONDS))
    dropper.start()
    dropper.join(BRIEF)
    assert dropper.is_alive(), "it waits for the driver"
    driver.hold(LAUNCH, False)
    dropper.join(SECONDS)
    assert not dropper.is_alive()
    assert leaked == []
    rig.drain()


def test_contexts_are_dropped_while_their_records_are_executed(rig: Rig, leaked: list[object]) -> None:
    """A deliberate race; a sanitizer finds what a plain run may survive."""
    rig.start()
    declined = 0
    for context in range(100, 600):
        default = rig.driver.stream(is_default=True)
        rig.driver._made -= 1  # one stream for all of them
        rig.add_context(context, default)
        record = records.pack("SYNCHRONIZE_CONTEXT", context, context)
        launch = rig.launch()
        opcode, flags, length, _, sequence = records.HEADER.unpack_from(launch)
        launch = records.HEADER.pack(opcode, flags, length, context, sequence) + launch[records.HEADER_BYTES :]
        rig.put(launch, record)
        for _ in range(context % 50 * 20):
            pass
        rig.worker.drop_context(context, SECONDS)
        while (taken := rig.next()) is not None and taken.record != record:
            assert taken.record == launch
        assert taken is not None
        declined += 1
    assert declined == 500, "no wait was answered, and none was lost"
    assert leaked == []


# --- streams


def test_a_wait_for_a_destroyed_stream_is_answered_by_its_marker(rig: Rig, driver: FakeDriver) -> None:
    stream = rig.add_stream(STREAM)
    record = _waiting(rig, STREAM)
    rig.worker.drop_stream(CONTEXT_ID, STREAM)
    late = rig.launch(STREAM)
    assert rig.run(late) == [DeclinedRecord(late, 0)]
    completed = stream.completed
    driver.advance(stream)
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(record)]
    assert stream.completed == completed, "its state is no longer touched"


def test_a_stream_that_reuses_a_handle_is_another_stream(rig: Rig, driver: FakeDriver) -> None:
    first = rig.add_stream(STREAM)
    record = _waiting(rig, STREAM)
    rig.worker.drop_stream(CONTEXT_ID, STREAM)
    second = rig.add_stream(STREAM)
    assert rig.run(rig.launch(STREAM)) == []
    driver.advance(second)
    assert rig.run() == []
    assert not rig.is_answered
    driver.advance(first)
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(record)]
    assert (second.issued, second.completed) == (1, 0)


def test_dropping_unknown_streams_and_modules_has_no_effect(rig: Rig) -> None:
    rig.worker.drop_stream(CONTEXT_ID + 7, STREAM)
    rig.worker.drop_stream(CONTEXT_ID, STREAM)
    rig.worker.drop_module(CONTEXT_ID + 7, STREAM)
    rig.worker.drop_module(CONTEXT_ID, STREAM)
    assert rig.run(rig.launch()) == []


# --- the client


def test_a_client_that_hangs_up_ends_the_worker(rig: Rig) -> None:
    rig.start()
    launch = rig.launch()
    rig.put(launch)
    rig.client_end.close()
    assert rig.next() is None
    assert rig.default_stream.launched == 1, "what it had sent was executed"


def test_records_sent_just_before_a_hang_up_are_executed(rig: Rig) -> None:
    rig.start()
    rig.drain()
    while not rig.ring.asleep:
        pass
    assert rig.ring.put(rig.launch())
    rig.client_end.close()  # this wakes the worker, not a bell
    assert rig.next() is None
    assert rig.default_stream.launched == 1


def test_a_client_that_hangs_up_while_it_waits_ends_the_worker(rig: Rig) -> None:
    _waiting(rig)
    rig.start()
    rig.client_end.close()
    assert rig.next() is None


def test_closing_ends_a_worker_that_has_more_records(rig: Rig, driver: FakeDriver) -> None:
    driver.complete_immediately(rig.default_stream)
    while rig.ring.put(rig.launch()):
        pass
    rig.start()
    rig.worker.close()
    assert rig.next() is None


def test_closing_ends_a_worker_after_a_driver_call(rig: Rig, driver: FakeDriver) -> None:
    driver.hold(LAUNCH)
    rig.start()
    rig.put(rig.launch())
    driver.wait_until_held(LAUNCH)
    rig.worker.close()
    driver.hold(LAUNCH, False)
    assert rig.next() is None


@pytest.mark.long
def test_a_closed_worker_is_freed(driver: FakeDriver) -> None:
    for _ in range(20):
        rig = Rig(driver)
        rig.add_stream(STREAM)
        rig.run(rig.launch())
        rig.close()
    del rig
    gc.collect()
    assert not [candidate for candidate in gc.get_objects() if isinstance(candidate, native.NativeWorker)]
