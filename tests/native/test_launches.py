"""Launches outside the interpreter: what the driver is given, and everything that is Python's affair instead."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from pympsd.wire import records
from pympsd_server.native.states import STREAM_EVENTS, KernelRow
from pympsd_server.native.worker import Taken
from tests.native.fake_driver import (
    CONTEXT,
    LAUNCH,
    QUERY_EVENT,
    RECORD_EVENT,
    SET_CURRENT,
    SHARED_LIMIT,
    THREADS_LIMIT,
    StandIn,
)
from tests.native.rig import FUNCTION, KERNELS, MODULE, PARAMETER_BYTES, SECONDS, SERIAL, Rig, source_constant

STREAM, OTHER = 0x10, 0x11
LAUNCH_FAILED = 719
DRIVERS_QUEUE = 1024
LAUNCHES_AN_EVENT = source_constant("fast_path.c", "LAUNCHES_AN_EVENT")
LAUNCHES_BY_FORCE = source_constant("fast_path.c", "LAUNCHES_BY_FORCE")
BOUND = STREAM_EVENTS * LAUNCHES_AN_EVENT
FULL_PATIENCE_SECONDS = source_constant("worker.c", "FULL_PATIENCE") / 1000


def test_a_launch_arrives_with_every_figure(rig: Rig, driver: StandIn) -> None:
    stream = rig.add_stream(STREAM)
    parameters = random.Random(1).randbytes(PARAMETER_BYTES)
    record = rig.pack("LAUNCH", STREAM, MODULE, 0, 7, 6, 5, 4, 3, 2, 99, PARAMETER_BYTES, tail=parameters)
    assert rig.run(record) == []
    (call,) = driver.calls(LAUNCH)
    assert (call.stream, call.what) == (stream.handle, FUNCTION)
    assert (call.grid, call.block, call.shared_bytes) == ((7, 6, 5), (4, 3, 2), 99)
    assert (call.parameters, call.flags) == (parameters, 0)
    assert (stream.issued, stream.launched, stream.last_function) == (1, 1, FUNCTION)


def test_a_kernel_without_parameters_is_given_none(rig: Rig, driver: StandIn) -> None:
    assert rig.run(rig.pack("LAUNCH", 0, MODULE, 1, *[1] * 6, 0, 0)) == []
    (call,) = driver.calls(LAUNCH)
    assert (call.what, call.parameters) == (FUNCTION + 1, b"")


def test_launches_arrive_in_order_and_nothing_else_does(rig: Rig, driver: StandIn) -> None:
    streams = {handle: rig.add_stream(handle) for handle in (STREAM, OTHER)}
    for stream in streams.values():
        driver.at_once(stream)
    source = random.Random(2)
    sent = [(source.choice((STREAM, OTHER)), source.randbytes(PARAMETER_BYTES)) for _ in range(5000)]
    for start in range(0, len(sent), 1000):
        assert rig.run(*(rig.launch(handle, data) for handle, data in sent[start : start + 1000])) == []
    assert [(call.stream, call.parameters) for call in driver.calls(LAUNCH)] == [
        (streams[handle].handle, data) for handle, data in sent
    ]


def test_the_context_is_made_current_once(rig: Rig, driver: StandIn) -> None:
    assert rig.run(rig.launch(), rig.launch()) == []
    assert [call.what for call in driver.calls(SET_CURRENT)] == [CONTEXT]


def test_without_a_context_everything_is_pythons(rig: Rig, driver: StandIn) -> None:
    driver.refuse(SET_CURRENT, 201)
    record = rig.launch()
    assert rig.run(record) == [Taken(record, 0)]
    driver.refuse(SET_CURRENT, 0)
    assert rig.run(rig.launch()) == []


# --- what is Python's


def _figures(place: int, value: int, function: int = 0) -> Callable[[Rig], bytes]:
    """A launch with one operand changed."""

    def make(rig: Rig) -> bytes:
        parameter_bytes = KERNELS[function][1]
        operands = [0, MODULE, function, 1, 1, 1, 1, 1, 1, 0, parameter_bytes]
        operands[place] = value
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
    return records.HEADER.pack(records.BY_NAME["LAUNCH"].opcode, 0, records.HEADER_BYTES, SERIAL, 1)


def _of_another_context(rig: Rig) -> bytes:
    return records.pack("LAUNCH", SERIAL + 1, 1, 0, MODULE, 0, *[1] * 6, 0, PARAMETER_BYTES, tail=bytes(12))


REASONS: dict[str, Callable[[Rig], bytes]] = {
    "a flag": lambda rig: rig.launch(flags=records.FLAG_COOPERATIVE),
    "another context": _of_another_context,
    "an unknown stream": _figures(0, 0x99),
    "an unknown module": _figures(1, 0x99),
    "a function that the module has not": _figures(2, len(KERNELS)),
    "a function far beyond": _figures(2, 2**64 - 1),
    "an empty grid": _figures(3, 0),
    "a grid beyond the limit": _figures(3, 1 << 31),
    "a grid that looks small in 32 bits": _figures(3, (1 << 32) + 1),
    "a grid too high": _figures(4, 65536),
    "an empty block": _figures(6, 0),
    "a block beyond the limit": _figures(6, 1025),
    "a block too deep": _figures(8, 65),
    "more threads than the kernel takes": _figures(6, 129, function=1),
    "more dynamic shared memory than was allowed": _figures(9, 4097),
    "dynamic shared memory that wraps around": _figures(9, 2**64 - 1),
    "more parameters than are there": _figures(10, 1 << 20),
    "parameters that wrap around": _figures(10, 2**64 - 1),
    "a parameter too few": lambda rig: rig.launch(parameters=bytes(8)),
    "a parameter too many": lambda rig: rig.launch(parameters=bytes(16)),
    "too few bytes": _cut,
    "too many bytes": _too_long,
    "no operands": _without_operands,
    "a ruined context": _state("closed", 1),
    "work that is held for the host": _state("held", 1),
    "streams that the default stream has not seen": _state("unseen", 1),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_launch_is_pythons_because_of(rig: Rig, driver: StandIn, reason: str) -> None:
    record = REASONS[reason](rig)
    assert rig.run(record) == [Taken(record, 0)]
    assert driver.calls(LAUNCH) == []
    rig.context.closed = rig.context.held = rig.context.unseen = 0
    assert rig.run(rig.launch()) == [], "and the next is not"
    assert len(driver.calls(LAUNCH)) == 1


def test_more_threads_than_the_device_takes_are_pythons(rig: Rig) -> None:
    rig.worker.add_module(SERIAL, 0x77, (KernelRow * 1)((FUNCTION, 0, 2 * THREADS_LIMIT, 0, 0)))
    good = rig.pack("LAUNCH", 0, 0x77, 0, 1, 1, 1, THREADS_LIMIT // 32, 32, 1, 0, 0)
    bad = rig.pack("LAUNCH", 0, 0x77, 0, 1, 1, 1, THREADS_LIMIT // 32, 33, 1, 0, 0)
    assert rig.run(good, bad) == [Taken(bad, 0)]


def test_a_row_behind_a_modules_last_is_not_its(rig: Rig) -> None:
    rows = (KernelRow * 3)(*[(FUNCTION, 0, 1024, 0, 0)] * 3)
    rig.worker.add_module(SERIAL, 0x77, (KernelRow * 2).from_buffer(rows))
    some = [rig.pack("LAUNCH", 0, 0x77, function, *[1] * 6, 0, 0) for function in range(3)]
    assert rig.run(*some) == [Taken(some[2], 0)]


def test_static_and_dynamic_shared_memory_count_together(rig: Rig) -> None:
    rows = (KernelRow * 1)((FUNCTION, 0, 1024, 1024, SHARED_LIMIT))
    rig.worker.add_module(SERIAL, 0x77, rows)
    good = rig.pack("LAUNCH", 0, 0x77, 0, *[1] * 6, SHARED_LIMIT - 1024, 0)
    bad = rig.pack("LAUNCH", 0, 0x77, 0, *[1] * 6, SHARED_LIMIT - 1023, 0)
    assert rig.run(good, bad) == [Taken(bad, 0)]
    rows[0].dynamic_bytes = 0
    again = rig.pack("LAUNCH", 0, 0x77, 0, *[1] * 6, 1, 0)
    assert rig.run(again) == [Taken(again, 0)], "what Python changes counts at once"


def test_a_module_that_was_unloaded_is_pythons(rig: Rig) -> None:
    rig.worker.drop_module(SERIAL, MODULE)
    record = rig.launch()
    assert rig.run(record) == [Taken(record, 0)]


def test_an_error_that_waits_is_for_calls_that_wait(rig: Rig, driver: StandIn) -> None:
    rig.context.deferred = 1
    synchronize, query = rig.pack("SYNCHRONIZE_STREAM", 0), rig.pack("QUERY_STREAM", 0)
    whole = rig.pack("SYNCHRONIZE_CONTEXT")
    waiting = [synchronize, query, whole]
    assert rig.run(rig.launch(), *waiting) == [Taken(each, 0) for each in waiting]
    assert len(driver.calls(LAUNCH)) == 1
    assert not rig.is_answered


@pytest.mark.parametrize("name", [each.name for each in records.OPERATIONS])
def test_only_four_operations_are_executed_outside(rig: Rig, name: str) -> None:
    operation = records.BY_NAME[name]
    record = rig.launch() if name == "LAUNCH" else rig.pack(name, *[0] * len(operation.operands))
    outside = ("LAUNCH", "SYNCHRONIZE_STREAM", "SYNCHRONIZE_CONTEXT", "QUERY_STREAM")
    assert rig.run(record) == ([] if name in outside else [Taken(record, 0)])
    assert rig.is_answered == (name in outside[1:])


def test_a_device_without_a_lane_leaves_everything_to_python(make_rig: Any, driver: StandIn) -> None:
    driver.native_calls = lambda: None  # type: ignore[method-assign, return-value]
    try:
        rig = make_rig()
        some = [rig.launch(), rig.pack("SYNCHRONIZE_STREAM", 0), rig.pack("QUERY_STREAM", 0)]
        assert rig.run(*some) == [Taken(each, 0) for each in some]
    finally:
        del driver.native_calls
    assert driver.count == 0


# --- order between a context's streams


def test_a_blocking_stream_waits_for_the_default_stream(rig: Rig, driver: StandIn) -> None:
    rig.add_stream(STREAM, blocking=True)
    rig.add_stream(OTHER, blocking=False)
    assert rig.run(rig.launch()) == []
    held_up, free = rig.launch(STREAM), rig.launch(OTHER)
    assert rig.run(held_up, free) == [Taken(held_up, 0)]
    assert rig.run(rig.pack("SYNCHRONIZE_STREAM", 0)) == []
    driver.advance(rig.default)
    assert rig.run(rig.launch(STREAM)) == [], "the default stream's work is known to be done"
    assert len(rig.answers(1)) == 1


def test_once_joined_a_blocking_stream_goes_on(rig: Rig) -> None:
    stream = rig.add_stream(STREAM, blocking=True)
    assert rig.run(rig.launch()) == []
    stream.seen_of_default = rig.default.issued  # as Python leaves it, having made it wait
    assert rig.run(rig.launch(STREAM), rig.launch(STREAM)) == []


def test_the_default_stream_waits_for_blocking_streams(rig: Rig) -> None:
    stream = rig.add_stream(STREAM, blocking=True)
    rig.add_stream(OTHER, blocking=False)
    assert rig.run(rig.launch(OTHER), rig.launch()) == []
    stream.seen_of_default = rig.default.issued
    assert rig.run(rig.launch(STREAM), rig.launch(STREAM)) == []
    assert (stream.unseen, rig.context.unseen) == (1, 1)
    passed = [rig.launch(), rig.pack("SYNCHRONIZE_STREAM", 0), rig.pack("QUERY_STREAM", 0)]
    assert rig.run(*passed) == [Taken(each, 0) for each in passed]


# --- what the driver refuses


def test_what_the_driver_refuses_comes_with_its_code_and_is_not_tried_again(rig: Rig, driver: StandIn) -> None:
    driver.refuse(LAUNCH, LAUNCH_FAILED)
    record = rig.launch()
    assert rig.run(record) == [Taken(record, LAUNCH_FAILED)]
    assert len(driver.calls(LAUNCH)) == 1
    assert rig.default.issued == 0
    error = rig.worker.refused(LAUNCH_FAILED)
    assert (error.code, error.reason) == (LAUNCH_FAILED, "the stand-in refused it")


def test_an_event_that_is_refused_comes_with_its_launch(rig: Rig, driver: StandIn) -> None:
    driver.refuse(RECORD_EVENT, 4)
    launches = [rig.launch() for _ in range(LAUNCHES_AN_EVENT)]
    assert rig.run(*launches) == [Taken(launches[-1], 4)]
    assert len(driver.calls(LAUNCH)) == LAUNCHES_AN_EVENT


def test_a_stream_that_cannot_be_asked_is_pythons_to_tell(rig: Rig, driver: StandIn) -> None:
    _fill(rig)
    driver.refuse(QUERY_EVENT, 700)
    record = rig.launch()
    assert rig.run(record) == [Taken(record, 700)]
    assert len(driver.calls(LAUNCH)) == BOUND


# --- the bound of unfinished launches


def _fill(rig: Rig, stream: int = 0) -> None:
    assert rig.run(*(rig.launch(stream) for _ in range(BOUND))) == []


def test_an_event_is_recorded_after_so_many_launches(rig: Rig, driver: StandIn) -> None:
    _fill(rig)
    assert [call.what for call in driver.calls(RECORD_EVENT)] == list(rig.default.events)
    assert driver.calls(QUERY_EVENT) == [], "nobody has asked"


def test_past_the_bound_a_launch_waits_for_room(rig: Rig, driver: StandIn) -> None:
    _fill(rig)
    driver.advance(rig.default, LAUNCHES_AN_EVENT)
    began = time.monotonic()
    assert rig.run(rig.launch()) == []
    assert rig.default.passed == 1
    assert len(driver.calls(QUERY_EVENT)) == 1
    assert rig.run(*(rig.launch() for _ in range(LAUNCHES_AN_EVENT - 1))) == []
    assert rig.default.recorded == STREAM_EVENTS + 1, "the first event is used again"
    # Now there is no room again, and without any the launch is forced in the end.
    assert rig.run(rig.launch()) == []
    assert len(driver.calls(QUERY_EVENT)) > 1
    assert time.monotonic() - began >= FULL_PATIENCE_SECONDS
    assert len(driver.calls(LAUNCH)) == BOUND + LAUNCHES_AN_EVENT + 1


def test_forced_launches_need_no_more_events_than_there_are(rig: Rig, driver: StandIn) -> None:
    _fill(rig)
    forced = 5
    began = time.monotonic()
    assert rig.run(*(rig.launch() for _ in range(forced))) == []
    assert time.monotonic() - began >= forced * FULL_PATIENCE_SECONDS, "each is forced"
    assert rig.default.recorded == STREAM_EVENTS
    driver.advance(rig.default)
    assert rig.run(*(rig.launch() for _ in range(LAUNCHES_AN_EVENT))) == []
    assert rig.default.recorded > STREAM_EVENTS


def test_force_ends_before_the_drivers_own_queue_is_full(rig: Rig, driver: StandIn) -> None:
    assert BOUND + LAUNCHES_BY_FORCE < DRIVERS_QUEUE
    _fill(rig)
    rig.default.since_event = LAUNCHES_BY_FORCE - 1
    assert rig.run(rig.launch()) == [], "the last one"
    rig.begin()
    began, before = time.monotonic(), len(driver.calls(LAUNCH))
    rig.put(rig.launch())
    while time.monotonic() - began < 3 * FULL_PATIENCE_SECONDS or driver.count < before + 10:
        assert time.monotonic() - began < SECONDS
    assert len(driver.calls(LAUNCH)) == before
    driver.advance(rig.default)
    rig.pass_by()
    assert len(driver.calls(LAUNCH)) == before + 1


def test_while_one_stream_is_full_the_waits_of_others_are_answered(rig: Rig, driver: StandIn) -> None:
    other = rig.add_stream(OTHER)
    _fill(rig)
    synchronize = rig.pack("SYNCHRONIZE_STREAM", OTHER)
    assert rig.run(rig.launch(OTHER), synchronize) == []
    driver.hold(LAUNCH)  # a launch that is forced does not return
    driver.complete_at_query(other)
    rig.begin()
    rig.put(rig.launch())
    assert rig.answers(1) == [struct.unpack_from("=Q", synchronize, 16)[0]]
    driver.wait_until_held(LAUNCH)
    assert len(driver.calls(QUERY_EVENT)) > 2
    driver.hold(LAUNCH, False)
    rig.pass_by()


def test_a_full_stream_whose_context_ends_is_pythons(rig: Rig, driver: StandIn) -> None:
    _fill(rig)
    driver.hold(QUERY_EVENT)
    rig.begin()
    record = rig.launch()
    rig.put(record)
    driver.wait_until_held(QUERY_EVENT)
    rig.context.closed = 1
    driver.hold(QUERY_EVENT, False)
    assert rig.next() == Taken(record, 0)
    assert len(driver.calls(LAUNCH)) == BOUND
