"""Streams, modules and contexts are added and dropped in any order: the worker knows exactly those that exist."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd.wire import records
from pympsd_server.native.states import KernelRow
from tests.native.fake_driver import FakeDriver
from tests.native.rig import CONTEXT_ID, MODULE, Rig

STEPS = 3000


@pytest.mark.parametrize("spread", [1, 16, 1 << 20, 1 << 32, 1 << 40])
def test_streams_are_added_and_dropped(rig: Rig, driver: FakeDriver, spread: int) -> None:
    source = random.Random(spread)
    driver.complete_immediately(rig.default_stream)
    there = {0: rig.default_stream}
    handles = [spread * number for number in range(1, 400)]
    for step in range(STEPS):
        handle = source.choice(handles)
        if handle in there:
            del there[handle]
            rig.worker.drop_stream(CONTEXT_ID, handle)
        else:
            # A few streams of the driver are enough for many of the client's.
            driver._made = 1 + step % 32
            there[handle] = rig.add_stream(handle)
        if step % 50 == 0:
            _expect(rig, handles, set(there))


def _expect(rig: Rig, handles: list[int], there: set[int]) -> None:
    handle_of_record = {rig.pack("SYNCHRONIZE_STREAM", handle): handle for handle in handles}
    passed = {handle_of_record[taken.record] for taken in rig.run(*handle_of_record)}
    assert set(handles) - passed == there - {0}
    rig.answers(len(handle_of_record) - len(passed))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), max_size=60))
def test_modules_of_several_contexts(rig: Rig, driver: FakeDriver, moves: list[tuple[int, int]]) -> None:
    driver.reset()
    defaults = {context: driver.stream(is_default=True) for context in range(11, 14)}
    for context, default in defaults.items():
        rig.add_context(context, default)
    there = {(context, MODULE) for context in defaults}
    for module, context in moves:
        key = (10 + context, module)
        if key in there:
            there.discard(key)
            rig.worker.drop_module(*key)
        else:
            there.add(key)
            rig.worker.add_module(*key, (KernelRow * 1)((module, 0, 1, 0, 0)))
    for context in defaults:
        for module in range(1, 13):
            record = records.pack("LAUNCH", context, 1, 0, module, 0, *[1] * 6, 0, 0)
            assert (rig.run(record) == []) == ((context, module) in there)
    for context in defaults:
        rig.worker.drop_context(context, 1)
    assert [key for key in rig.worker._objects if key[0] in defaults] == []
