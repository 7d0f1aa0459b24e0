"""Launches without the interpreter: the driver's arguments, and all launches that go to Python instead."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from pympsd.wire import records
from pympsd_server.native.states import STREAM_EVENTS, KernelRow
from pympsd_server.native.worker import DeclinedRecord
from tests.native.fake_driver import (
    CONTEXT,
    LAUNCH,
    MAX_SHARED_BYTES,
    MAX_THREADS,
    QUERY_EVENT,
    RECORD_EVENT,
    SET_CURRENT,
    FakeDriver,
)
from tests.native.rig import CONTEXT_ID, FUNCTION, KERNELS, MODULE, PARAMETER_BYTES, SECONDS, Rig, source_constant

STREAM, OTHER = 0x10, 0x11
LAUNCH_FAILED = 719
DRIVERS_QUEUE = 1024
LAUNCHES_AN_EVENT = source_constant("fast_path.c", "LAUNCHES_AN_EVENT")
MAX_FORCED_LAUNCHES = source_constant("fast_path.c", "MAX_FORCED_LAUNCHES")
BOUND = STREAM_EVENTS * LAUNCHES_AN_EVENT
FULL_TIMEOUT_SECONDS = source_constant("worker.c", "FULL_TIMEOUT") / 1000


def test_a_launch_arrives_with_all_its_arguments(rig: Rig, driver: FakeDriver) -> None:
    stream = rig.add_stream(STREAM)
    parameters = random.Random(1).randbytes(PARAMETER_BYTES)
    record = rig.pack("LAUNCH", STREAM, MODULE, 0, 7, 6, 5, 4, 3, 2, 99, PARAMETER_BYTES, tail=parameters)
    assert rig.run(record) == []
    (call,) = driver.calls(LAUNCH)
    assert (call.stream, call.what) == (stream.handle, FUNCTION)
    assert (call.grid, call.block, call.shared_bytes) == ((7, 6, 5), (4, 3, 2), 99)
    assert (call.parameters, call.flags) == (parameters, 0)
    assert (stream.issued, stream.launched, stream.last_function) == (1, 1, FUNCTION)


def test_a_kernel_without_parameters_is_given_none(rig: Rig, driver: FakeDriver) -> None:
    assert rig.run(rig.pack("LAUNCH", 0, MODULE, 1, *[1] * 6, 0, 0)) == []
    (call,) = driver.calls(LAUNCH)
    assert (call.what, call.parameters) == (FUNCTION + 1, b"")


def test_launches_arrive_in_order_and_completely(rig: Rig, driver: FakeDriver) -> None:
    streams = {handle: rig.add_stream(handle) for handle in (STREAM, OTHER)}
    for stream in streams.values():
        driver.complete_immediately(stream)
    source = random.Random(2)
    sent = [(source.choice((STREAM, OTHER)), source.randbytes(PARAMETER_BYTES)) for _ in range(5000)]
    for start in range(0, len(sent), 1000):
        assert rig.run(*(rig.launch(handle, data) for handle, data in sent[start : start + 1000])) == []
    assert [(call.stream, call.parameters) for call in driver.calls(LAUNCH)] == [
        (streams[handle].handle, data) for handle, data in sent
    ]


def test_the_context_is_made_current_once(rig: Rig, driver: FakeDriver) -> None:
    assert rig.run(rig.launch(), rig.launch()) == []
    assert [call.what for call in driver.calls(SET_CURRENT)] == [CONTEXT]


def test_without_a_current_context_everything_goes_to_python(rig: Rig, driver: FakeDriver) -> None:
    driver.refuse(SET_CURRENT, 201)
    record = rig.launch()
    assert rig.run(record) == [DeclinedRecord(record, 0)]
    driver.refuse(SET_CURRENT, 0)
    assert rig.run(rig.launch()) == []


# --- what goes to Python


def _operand(index: int, value: int, function: int = 0) -> Callable[[Rig], bytes]:
    """Return a maker of a launch with one operand changed."""

    def make(rig: Rig) -> bytes:
        parameter_bytes = KERNELS[function][1]
        operands = [0, MODULE, function, 1, 1, 1, 1, 1, 1, 0, parameter_bytes]
        operands[index] = value
        return rig.pack("LAUNCH", *operands, tail=bytes(parameter_bytes))

    return make


def _state(name: str, value: int) -> Callable[[Rig], bytes]:
    def make(rig: Rig) -> bytes:
        setattr(rig.context, name, value)
        return rig.launch()

    return make


def _cut(rig: Rig) -> bytes:
    whole = rig.launch()[:-8]
    opcode, flags, _, context, sequence = records.HEADER.unpack_from(whole)
    return records.HEADER.pack(opcode, flags, len(whole), context, sequence) + whole[records.HEADER_BYTES :]


def _too_long(rig: Rig) -> bytes:
    whole = rig.launch() + bytes(8)
    opcode, flags, _, context, sequence = records.HEADER.unpack_from(whole)
    return records.HEADER.pack(opcode, flags, len(whole), context, sequence) + whole[records.HEADER_BYTES :]


def _without_operands(rig: Rig) -> bytes:
    return records.HEADER.pack(records.BY_NAME["LAUNCH"].opcode, 0, records.HEADER_BYTES, CONTEXT_ID, 1)


def _of_another_context(rig: Rig) -> bytes:
    return records.pack("LAUNCH", CONTEXT_ID + 1, 1, 0, MODULE, 0, *[1] * 6, 0, PARAMETER_BYTES, tail=bytes(12))


REASONS: dict[str, Callable[[Rig], bytes]] = {
    "a flag": lambda rig: rig.launch(flags=records.FLAG_COOPERATIVE),
    "another context": _of_another_context,
    "an unknown stream": _operand(0, 0x99),
    "an unknown module": _operand(1, 0x99),
    "an unknown function": _operand(2, len(KERNELS)),
    "a function far beyond": _operand(2, 2**64 - 1),
    "an empty grid": _operand(3, 0),
    "a grid beyond the limit": _operand(3, 1 << 31),
    "a grid that looks small in 32 bits": _operand(3, (1 << 32) + 1),
    "a grid too high": _operand(4, 65536),
    "an empty block": _operand(6, 0),
    "a block beyond the limit": _operand(6, 1025),
    "a block too deep": _operand(8, 65),
    "more threads than the kernel takes": _operand(6, 129, function=1),
    "more dynamic shared memory than allowed": _operand(9, 4097),
    "dynamic shared memory that wraps around": _operand(9, 2**64 - 1),
    "more parameters than the record has": _operand(10, 1 << 20),
    "parameters that wrap around": _operand(10, 2**64 - 1),
    "a parameter too few": lambda rig: rig.launch(parameters=bytes(8)),
    "a parameter too many": lambda rig: rig.launch(parameters=bytes(16)),
    "too few bytes": _cut,
    "too many bytes": _too_long,
    "no operands": _without_operands,
    "a poisoned context": _state("closed", 1),
    "work that waits for the host": _state("held", 1),
    "streams that the default stream has not seen": _state("unseen", 1),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_launch_goes_to_python_because_of(rig: Rig, driver: FakeDriver, reason: str) -> None:
    record = REASONS[reason](rig)
    assert rig.run(record) == [DeclinedRecord(record, 0)]
    assert driver.calls(LAUNCH) == []
    rig.context.closed = rig.context.held = rig.context.unseen = 0
    assert rig.run(rig.launch()) == [], "and the next is not"
    assert len(driver.calls(LAUNCH)) == 1


def test_a_launch_beyond_the_devices_threads_goes_to_python(rig: Rig) -> None:
    rig.worker.add_module(CONTEXT_ID, 0x77, (KernelRow * 1)((FUNCTION, 0, 2 * MAX_THREADS, 0, 0)))
    good = rig.pack("LAUNCH", 0, 0x77, 0, 1, 1, 1, MAX_THREADS // 32, 32, 1, 0, 0)
    bad = rig.pack("LAUNCH", 0, 0x77, 0, 1, 1, 1, MAX_THREADS // 32, 33, 1, 0, 0)
    assert rig.run(good, bad) == [DeclinedRecord(bad, 0)]


def test_a_row_past_the_end_of_a_module_is_not_used(rig: Rig) -> None:
    rows = (KernelRow * 3)(*[(FUNCTION, 0, 1024, 0, 0)] * 3)
    rig.worker.add_module(CONTEXT_ID, 0x77, (KernelRow * 2).from_buffer(rows))
    some = [rig.pack("LAUNCH", 0, 0x77, function, *[1] * 6, 0, 0) for function in range(3)]
    assert rig.run(*some) == [DeclinedRecord(some[2], 0)]


def test_static_and_dynamic_shared_memory_count_together(rig: Rig) -> None:
    rows = (KernelRow * 1)((FUNCTION, 0, 1024, 1024, MAX_SHARED_BYTES))
    rig.worker.add_module(CONTEXT_ID, 0x77, rows)
    good = rig.pack("LAUNCH", 0, 0x77, 0, *[1] * 6, MAX_SHARED_BYTES - 1024, 0)
    bad = rig.pack("LAUNCH", 0, 0x77, 0, *[1] * 6, MAX_SHARED_BYTES - 1023, 0)
    assert rig.run(good, bad) == [DeclinedRecord(bad, 0)]
    rows[0].dynamic_bytes = 0
    again = rig.pack("LAUNCH", 0, 0x77, 0, *[1] * 6, 1, 0)
    assert rig.run(again) == [DeclinedRecord(again, 0)], "a change by Python counts immediately"


def test_a_launch_of_an_unloaded_module_goes_to_python(rig: Rig) -> None:
    rig.worker.drop_module(CONTEXT_ID, MODULE)
    record = rig.launch()
    assert rig.run(record) == [DeclinedRecord(record, 0)]


def test_with_a_deferred_error_calls_that_wait_go_to_python(rig: Rig, driver: FakeDriver) -> None:
    rig.context.deferred = 1
    synchronize, query = rig.pack("SYNCHRONIZE_STREAM", 0), rig.pack("QUERY_STREAM", 0)
    whole = rig.pack("SYNCHRONIZE_CONTEXT")
    waiting = [synchronize, query, whole]
    assert rig.run(rig.launch(), *waiting) == [DeclinedRecord(record, 0) for record in waiting]
    assert len(driver.calls(LAUNCH)) == 1
    assert not rig.is_answered


@pytest.mark.parametrize("name", [entry.name for entry in records.OPERATIONS])
def test_only_four_operations_are_executed_natively(rig: Rig, name: str) -> None:
    operation = records.BY_NAME[name]
    record = rig.launch() if name == "LAUNCH" else rig.pack(name, *[0] * len(operation.operands))
    native = ("LAUNCH", "SYNCHRONIZE_STREAM", "SYNCHRONIZE_CONTEXT", "QUERY_STREAM")
    assert rig.run(record) == ([] if name in native else [DeclinedRecord(record, 0)])
    assert rig.is_answered == (name in native[1:])


def test_without_native_access_everything_goes_to_python(make_rig: Any, driver: FakeDriver) -> None:
    driver.native_access = lambda: None  # type: ignore[method-assign, return-value]
    try:
        rig = make_rig()
        some = [rig.launch(), rig.pack("SYNCHRONIZE_STREAM", 0), rig.pack("QUERY_STREAM", 0)]
        assert rig.run(*some) == [DeclinedRecord(record, 0) for record in some]
    finally:
        del driver.native_access
    assert driver.count == 0


# --- order between a context's streams


def test_a_blocking_stream_waits_for_the_default_stream(rig: Rig, driver: FakeDriver) -> None:
    rig.add_stream(STREAM, blocking=True)
    rig.add_stream(OTHER, blocking=False)
    assert rig.run(rig.launch()) == []
    held_up, free = rig.launch(STREAM), rig.launch(OTHER)
    assert rig.run(held_up, free) == [DeclinedRecord(held_up, 0)]
    assert rig.run(rig.pack("SYNCHRONIZE_STREAM", 0)) == []
    driver.advance(rig.default_stream)
    assert rig.run(rig.launch(STREAM)) == [], "the default stream's work is known to be done"
    assert len(rig.answers(1)) == 1


def test_a_blocking_stream_continues_once_it_is_ordered(rig: Rig) -> None:
    stream = rig.add_stream(STREAM, blocking=True)
    assert rig.run(rig.launch()) == []
    stream.seen_of_default = rig.default_stream.issued  # as Python sets it after making the stream wait
    assert rig.run(rig.launch(STREAM), rig.launch(STREAM)) == []


def test_the_default_stream_waits_for_blocking_streams(rig: Rig) -> None:
    stream = rig.add_stream(STREAM, blocking=True)
    rig.add_stream(OTHER, blocking=False)
    assert rig.run(rig.launch(OTHER), rig.launch()) == []
    stream.seen_of_default = rig.default_stream.issued
    assert rig.run(rig.launch(STREAM), rig.launch(STREAM)) == []
    assert (stream.unseen, rig.context.unseen) == (1, 1)
    passed = [rig.launch(), rig.pack("SYNCHRONIZE_STREAM", 0), rig.pack("QUERY_STREAM", 0)]
    assert rig.run(*passed) == [DeclinedRecord(record, 0) for record in passed]


# --- refusals of the driver


def test_a_refused_launch_goes_to_python_with_its_code_and_is_not_retried(rig: Rig, driver: FakeDriver) -> None:
    driver.refuse(LAUNCH, LAUNCH_FAILED)
    record = rig.launch()
    assert rig.run(record) == [DeclinedRecord(record, LAUNCH_FAILED)]
    assert len(driver.calls(LAUNCH)) == 1
    assert rig.default_stream.issued == 0
    error = rig.worker.error_of(LAUNCH_FAILED)
    assert (error.code, error.reason) == (LAUNCH_FAILED, "the fake driver refused it")


def test_a_refused_event_goes_to_python_with_its_launch(rig: Rig, driver: FakeDriver) -> None:
    driver.refuse(RECORD_EVENT, 4)
    launches = [rig.launch() for _ in range(LAUNCHES_AN_EVENT)]
    assert rig.run(*launches) == [DeclinedRecord(launches[-1], 4)]
    assert len(driver.calls(LAUNCH)) == LAUNCHES_AN_EVENT


def test_a_refused_query_goes_to_python_with_its_launch(rig: Rig, driver: FakeDriver) -> None:
    _fill(rig)
    driver.refuse(QUERY_EVENT, 700)
    record = rig.launch()
    assert rig.run(record) == [DeclinedRecord(record, 700)]
    assert len(driver.calls(LAUNCH)) == BOUND


# --- the limit of unfinished launches


def _fill(rig: Rig, stream: int = 0) -> None:
    assert rig.run(*(rig.launch(stream) for _ in range(BOUND))) == []


def test_an_event_is_recorded_after_a_fixed_number_of_launches(rig: Rig, driver: FakeDriver) -> None:
    _fill(rig)
    assert [call.what for call in driver.calls(RECORD_EVENT)] == list(rig.default_stream.events)
    assert driver.calls(QUERY_EVENT) == [], "no query was needed"


def test_beyond_the_limit_a_launch_waits_for_room(rig: Rig, driver: FakeDriver) -> None:
    _fill(rig)
    driver.advance(rig.default_stream, LAUNCHES_AN_EVENT)
    began = time.monotonic()
    assert rig.run(rig.launch()) == []
    assert rig.default_stream.passed == 1
    assert len(driver.calls(QUERY_EVENT)) == 1
    assert rig.run(*(rig.launch() for _ in range(LAUNCHES_AN_EVENT - 1))) == []
    assert rig.default_stream.recorded == STREAM_EVENTS + 1, "the first event is used again"
    # Now there is no room again, so the launch is forced in the end.
    assert rig.run(rig.launch()) == []
    assert len(driver.calls(QUERY_EVENT)) > 1
    assert time.monotonic() - began >= FULL_TIMEOUT_SECONDS
    assert len(driver.calls(LAUNCH)) == BOUND + LAUNCHES_AN_EVENT + 1


def test_forced_launches_need_no_further_events(rig: Rig, driver: FakeDriver) -> None:
    _fill(rig)
    forced = 5
    began = time.monotonic()
    assert rig.run(*(rig.launch() for _ in range(forced))) == []
    assert time.monotonic() - began >= forced * FULL_TIMEOUT_SECONDS, "each is forced"
    assert rig.default_stream.recorded == STREAM_EVENTS
    driver.advance(rig.default_stream)
    assert rig.run(*(rig.launch() for _ in range(LAUNCHES_AN_EVENT))) == []
    assert rig.default_stream.recorded > STREAM_EVENTS


def test_forcing_stops_before_the_drivers_queue_is_full(rig: Rig, driver: FakeDriver) -> None:
    assert BOUND + MAX_FORCED_LAUNCHES < DRIVERS_QUEUE
    _fill(rig)
    rig.default_stream.since_event = MAX_FORCED_LAUNCHES - 1
    assert rig.run(rig.launch()) == [], "the last one"
    rig.start()
    began, before = time.monotonic(), len(driver.calls(LAUNCH))
    rig.put(rig.launch())
    while time.monotonic() - began < 3 * FULL_TIMEOUT_SECONDS or driver.count < before + 10:
        assert time.monotonic() - began < SECONDS
    assert len(driver.calls(LAUNCH)) == before
    driver.advance(rig.default_stream)
    rig.drain()
    assert len(driver.calls(LAUNCH)) == before + 1


def test_while_one_stream_is_full_waits_for_others_are_answered(rig: Rig, driver: FakeDriver) -> None:
    stream_state = rig.add_stream(OTHER)
    _fill(rig)
    synchronize = rig.pack("SYNCHRONIZE_STREAM", OTHER)
    assert rig.run(rig.launch(OTHER), synchronize) == []
    driver.hold(LAUNCH)  # a forced launch does not return
    driver.complete_at_query(stream_state)
    rig.start()
    rig.put(rig.launch())
    assert rig.answers(1) == [struct.unpack_from("=Q", synchronize, 16)[0]]
    driver.wait_until_held(LAUNCH)
    assert len(driver.calls(QUERY_EVENT)) > 2
    driver.hold(LAUNCH, False)
    rig.drain()


def test_a_launch_that_waits_in_a_context_that_ends_goes_to_python(rig: Rig, driver: FakeDriver) -> None:
    _fill(rig)
    driver.hold(QUERY_EVENT)
    rig.start()
    record = rig.launch()
    rig.put(record)
    driver.wait_until_held(QUERY_EVENT)
    rig.context.closed = 1
    driver.hold(QUERY_EVENT, False)
    assert rig.next() == DeclinedRecord(record, 0)
    assert len(driver.calls(LAUNCH)) == BOUND
