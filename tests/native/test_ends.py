"""Contexts, streams and clients that go while something of them is under way: nothing is used after it was freed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from pympsd.wire import records
from pympsd_server.native import worker as native
from pympsd_server.native.worker import Taken
from tests.native.fake_driver import LAUNCH, WRITE_VALUE, StandIn
from tests.native.rig import SECONDS, SERIAL, Rig

STREAM, OTHER = 0x10, 0x11
BRIEF = 0.05


@pytest.fixture
def lost() -> Iterator[list[object]]:
    """What is kept for a call of the driver that does not return; let go after the test, in which it did."""
    assert native._lost == []
    yield native._lost
    native._lost.clear()


def _waiting(rig: Rig, stream: int = 0) -> bytes:
    record = rig.pack("SYNCHRONIZE_STREAM", stream)
    assert rig.run(rig.launch(stream), record) == []
    return record


def _sequence(record: bytes) -> int:
    return int(records.HEADER.unpack_from(record)[4])


def test_who_waits_in_a_context_that_is_ruined_is_pythons_to_tell(rig: Rig, driver: StandIn) -> None:
    record = _waiting(rig)
    rig.context.closed = 1
    assert rig.run() == [Taken(record, 0)]
    driver.advance(rig.default)
    assert rig.run() == []
    assert not rig.is_answered


def test_who_waits_in_a_context_that_goes_is_pythons_to_tell(rig: Rig, driver: StandIn) -> None:
    record = _waiting(rig)
    other = rig.driver.stream(is_default=True)
    rig.add_context(SERIAL + 1, other)
    rig.worker.drop_context(SERIAL, BRIEF)
    assert rig.run() == [Taken(record, 0)]
    launch = rig.launch()
    assert rig.run(launch) == [Taken(launch, 0)]
    rig.worker.drop_context(SERIAL, BRIEF)  # again: it has gone
    driver.advance(rig.default)
    assert rig.run() == []


def test_other_contexts_go_on(rig: Rig, driver: StandIn) -> None:
    other = rig.driver.stream(is_default=True)
    rig.add_context(SERIAL + 1, other)
    rig.worker.drop_context(SERIAL, BRIEF)
    record = records.pack("SYNCHRONIZE_CONTEXT", SERIAL + 1, 99)
    launch = rig.launch()
    opcode, flags, length, _, sequence = records.HEADER.unpack_from(launch)
    launch = records.HEADER.pack(opcode, flags, length, SERIAL + 1, sequence) + launch[records.HEADER_BYTES :]
    assert rig.run(launch, record) == []
    driver.advance(other)
    assert rig.run() == []
    assert rig.answers(1) == [99]


def test_what_a_dropped_context_was_made_of_is_freed(rig: Rig, lost: list[object]) -> None:
    rig.add_stream(STREAM)
    rig.worker.drop_context(SERIAL, BRIEF)
    assert rig.worker._things == {}
    assert rig.worker._states == {}
    assert lost == []


@pytest.mark.parametrize("kind", [LAUNCH, WRITE_VALUE])
def test_a_context_whose_call_the_driver_keeps_goes_within_a_bound(
    rig: Rig, driver: StandIn, lost: list[object], kind: int
) -> None:
    assert rig.run(rig.launch()) == []
    driver.hold(kind)
    rig.begin()
    record = rig.pack("SYNCHRONIZE_STREAM", 0)
    rig.put(rig.launch(), record)
    driver.wait_until_held(kind)
    began = time.monotonic()
    rig.worker.drop_context(SERIAL, BRIEF)
    assert BRIEF <= time.monotonic() - began < SECONDS
    # The driver's call returns into the context, so it and all that it points to are kept.
    assert rig.worker in lost
    assert rig.context in lost
    assert rig.context.active == 1
    driver.hold(kind, False)
    rig.pass_by()
    assert rig.context.active == 0
    driver.advance(rig.default)
    launch = rig.launch()
    rig.put(launch)
    assert rig.next() == Taken(launch, 0), "nothing new of it is executed"


def test_a_context_whose_call_returns_in_time_goes_then(rig: Rig, driver: StandIn, lost: list[object]) -> None:
    driver.hold(LAUNCH)
    rig.begin()
    rig.put(rig.launch())
    driver.wait_until_held(LAUNCH)
    dropper = threading.Thread(target=rig.worker.drop_context, args=(SERIAL, SECONDS))
    dropper.start()
    dropper.join(BRIEF)
    assert dropper.is_alive(), "it waits for the driver"
    driver.hold(LAUNCH, False)
    dropper.join(SECONDS)
    assert not dropper.is_alive()
    assert lost == []
    rig.pass_by()


def test_contexts_go_while_their_records_are_executed(rig: Rig, lost: list[object]) -> None:
    """A race on purpose; a sanitizer sees what a plain run may survive."""
    rig.begin()
    handed = 0
    for serial in range(100, 600):
        default = rig.driver.stream(is_default=True)
        rig.driver._made -= 1  # one stream for all of them
        rig.add_context(serial, default)
        record = records.pack("SYNCHRONIZE_CONTEXT", serial, serial)
        launch = rig.launch()
        opcode, flags, length, _, sequence = records.HEADER.unpack_from(launch)
        launch = records.HEADER.pack(opcode, flags, length, serial, sequence) + launch[records.HEADER_BYTES :]
        rig.put(launch, record)
        for _ in range(serial % 50 * 20):
            pass
        rig.worker.drop_context(serial, SECONDS)
        while (taken := rig.next()) is not None and taken.record != record:
            assert taken.record == launch
        assert taken is not None
        handed += 1
    assert handed == 500, "no wait was answered, and none was lost"
    assert lost == []


# --- streams


def test_a_wait_for_a_stream_that_is_destroyed_is_answered_by_its_mark(rig: Rig, driver: StandIn) -> None:
    stream = rig.add_stream(STREAM)
    record = _waiting(rig, STREAM)
    rig.worker.drop_stream(SERIAL, STREAM)
    late = rig.launch(STREAM)
    assert rig.run(late) == [Taken(late, 0)]
    settled = stream.settled
    driver.advance(stream)
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(record)]
    assert stream.settled == settled, "its state is not touched any more"


def test_a_stream_that_took_anothers_handle_is_not_the_other(rig: Rig, driver: StandIn) -> None:
    first = rig.add_stream(STREAM)
    record = _waiting(rig, STREAM)
    rig.worker.drop_stream(SERIAL, STREAM)
    second = rig.add_stream(STREAM)
    assert rig.run(rig.launch(STREAM)) == []
    driver.advance(second)
    assert rig.run() == []
    assert not rig.is_answered
    driver.advance(first)
    assert rig.run() == []
    assert rig.answers(1) == [_sequence(record)]
    assert (second.issued, second.settled) == (1, 0)


def test_streams_of_contexts_that_are_not_there(rig: Rig) -> None:
    rig.worker.drop_stream(SERIAL + 7, STREAM)
    rig.worker.drop_stream(SERIAL, STREAM)
    rig.worker.drop_module(SERIAL + 7, STREAM)
    rig.worker.drop_module(SERIAL, STREAM)
    assert rig.run(rig.launch()) == []


# --- the client


def test_a_client_that_hangs_up_ends_the_worker(rig: Rig) -> None:
    rig.begin()
    launch = rig.launch()
    rig.put(launch)
    rig.theirs.close()
    assert rig.next() is None
    assert rig.default.launched == 1, "what it had sent was executed"


def test_what_a_client_sent_just_before_it_hangs_up_is_executed(rig: Rig) -> None:
    rig.begin()
    rig.pass_by()
    while not rig.ring.asleep:
        pass
    assert rig.ring.put(rig.launch())
    rig.theirs.close()  # and this wakes the worker, no bell
    assert rig.next() is None
    assert rig.default.launched == 1


def test_a_client_that_hangs_up_while_it_waits_ends_the_worker(rig: Rig) -> None:
    _waiting(rig)
    rig.begin()
    rig.theirs.close()
    assert rig.next() is None


def test_closing_ends_a_worker_in_the_midst_of_much_work(rig: Rig, driver: StandIn) -> None:
    driver.at_once(rig.default)
    while rig.ring.put(rig.launch()):
        pass
    rig.begin()
    rig.worker.close()
    assert rig.next() is None


def test_a_full_stream_does_not_keep_a_worker(rig: Rig, driver: StandIn) -> None:
    driver.hold(LAUNCH)
    rig.begin()
    rig.put(rig.launch())
    driver.wait_until_held(LAUNCH)
    rig.worker.close()
    driver.hold(LAUNCH, False)
    assert rig.next() is None


def test_nothing_of_a_worker_stays(driver: StandIn) -> None:
    for _ in range(20):
        rig = Rig(driver)
        rig.add_stream(STREAM)
        rig.run(rig.launch())
        rig.close()
    del rig
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, native.NativeWorker)]
