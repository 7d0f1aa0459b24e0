"""Which launches a plan is for, which are Python's, and when a plan is remembered and forgotten."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pympsd_client._arguments.bindings import CUfunction, CUstream
from tests.client.launch_cache_rig import OTHERS, SECONDS, SIMPLE, TYPES, VALUES, Number, plan, rig
from tests.client.ring_area import DONE, FUNCTION, SIZES, SLOW, STREAM, Kernel, Rig, extension

__all__ = ["plan", "rig"]

SLOTS = 1024
"""As in launches.c."""


@pytest.mark.parametrize("other", OTHERS)
def test_another_launch_is_pythons(plan: Rig, other: str) -> None:
    plan.expect_miss(SIMPLE, VALUES, **OTHERS[other])
    plan.expect_hit(SIMPLE, VALUES)


@pytest.mark.parametrize("place", range(7))
def test_another_size_is_pythons(plan: Rig, place: int) -> None:
    size = SIZES[place]
    for other in (size + 1, size + (1 << 32), size - (1 << 32), -1, 1 << 64, float(size), None, "1", np.uint32(size)):
        plan.expect_miss(SIMPLE, VALUES, sizes=(*SIZES[:place], other, *SIZES[place + 1 :]))
    plan.expect_hit(SIMPLE, VALUES)


def test_the_same_launch_in_other_objects_is_quick(plan: Rig) -> None:
    plan.expect_hit(SIMPLE, VALUES, f=CUfunction(FUNCTION), hStream=CUstream(STREAM))
    plan.expect_hit(SIMPLE, VALUES, f=Number(FUNCTION), hStream=Number(STREAM))
    plan.expect_hit(SIMPLE, VALUES, extra=None, kernelParams=((*VALUES[:1], *VALUES[1:]), (*SIMPLE.types[:1], None)))


def test_no_stream_is_the_default_stream(rig: Rig) -> None:
    assert rig.add_plan(SIMPLE, VALUES, stream=0)
    for stream in (None, CUstream(0)):
        assert rig.launch(SIMPLE, VALUES, hStream=stream) is DONE
        assert rig.area.take() == SIMPLE.record(VALUES, rig.numbers[-1], 0)


@pytest.mark.parametrize("count", [*range(11), 12, 30])
def test_a_wrong_number_of_arguments_is_pythons(plan: Rig, count: int) -> None:
    plan.expect_miss_of((*plan.arguments(SIMPLE, VALUES), *range(20))[:count])


def test_keywords_are_pythons(plan: Rig) -> None:
    arguments = plan.arguments(SIMPLE, VALUES)
    plan.expect_miss_of(arguments[:10], extra=arguments[10])
    plan.expect_miss_of(arguments, another=VALUES)
    plan.expect_miss_of((), f=FUNCTION, hStream=0, kernelParams=())


def test_what_python_raises_is_raised(rig: Rig) -> None:
    def fail(*arguments: Any) -> Any:
        raise LookupError(len(arguments))

    launcher = rig.native.Launcher(fail, DONE, rig.threads)
    with pytest.raises(LookupError, match="11"):
        launcher.cuLaunchKernel(*rig.arguments(SIMPLE, VALUES))


def test_a_launch_needs_its_context_on_top_of_the_threads_stack(plan: Rig) -> None:
    ours = plan.context
    stacks: list[Any] = [[], [object()], [ours, object()], (ours,), None, {0: ours}, SimpleNamespace()]
    for stack in stacks:
        plan.threads.stack = stack
        plan.expect_miss(SIMPLE, VALUES)
    del plan.threads.stack
    plan.expect_miss(SIMPLE, VALUES)
    plan.threads.stack = [object(), ours]
    plan.expect_hit(SIMPLE, VALUES)


def test_each_thread_has_its_own_current_context() -> None:
    class Mine(threading.local):
        def __init__(self) -> None:
            self.stack: list[Any] = []

    own = Mine()
    rig = Rig(extension(), own)
    assert rig.add_plan(SIMPLE, VALUES)
    own.stack.append(rig.context)
    rig.expect_hit(SIMPLE, VALUES)

    def elsewhere() -> None:
        rig.expect_miss(SIMPLE, VALUES)
        own.stack.append(rig.context)
        rig.expect_hit(SIMPLE, VALUES)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(elsewhere).result(SECONDS)
    rig.expect_hit(SIMPLE, VALUES)


def test_forgotten_plans_are_no_more(plan: Rig) -> None:
    epoch = plan.launcher.epoch
    plan.expect_hit(SIMPLE, VALUES)
    plan.launcher.invalidate()
    assert plan.launcher.epoch == epoch + 1
    plan.expect_miss(SIMPLE, VALUES)
    assert not plan.add_plan(SIMPLE, VALUES, epoch=epoch)
    assert not plan.add_plan(SIMPLE, VALUES, epoch=epoch + 2)
    plan.expect_miss(SIMPLE, VALUES)
    assert plan.add_plan(SIMPLE, VALUES)
    plan.expect_hit(SIMPLE, VALUES)
    plan.launcher.invalidate()
    assert plan.add_plan(SIMPLE, VALUES)
    plan.launcher.invalidate()
    plan.expect_miss(SIMPLE, VALUES)


def test_a_newer_plan_takes_the_place_of_an_older(plan: Rig) -> None:
    record = SIMPLE.record(VALUES, 0)
    changed = record[:8] + b"\xff" * 8 + record[16:]
    assert plan.add_plan(SIMPLE, VALUES, record=changed)
    assert plan.launch(SIMPLE, VALUES) is DONE
    assert plan.area.take()[8:16] == b"\xff" * 8


def test_a_plan_is_wanted_at_the_second_sight(rig: Rig) -> None:
    wants: list[bool] = []

    def see(**changes: Any) -> None:
        rig.launch(SIMPLE, VALUES, **changes)
        wants.append(rig.launcher.wants_plan)

    assert rig.launcher.wants_plan is False
    see()
    see()
    see()
    see(f=FUNCTION + 1)
    assert wants == [False, True, True, False]
    rig.launcher.invalidate()
    see()
    see()
    see(extra=5)
    assert rig.add_plan(SIMPLE, VALUES)
    see()
    rig.threads.stack.clear()
    see()
    assert wants[4:] == [False, True, False, False, False]


def test_more_plans_than_there_are_places_stay_right(rig: Rig) -> None:
    source = random.Random(20260101)
    plans = []
    for number in range(4 * SLOTS):
        sizes = tuple(source.randrange(1, 5) for _ in SIZES)
        function, stream = source.randrange(1, 200), source.randrange(100)
        record = bytearray(SIMPLE.record(VALUES, 0))
        record[8:16] = number.to_bytes(8, "little")  # which plan it was
        assert rig.add_plan(SIMPLE, VALUES, function=function, stream=stream, sizes=sizes, record=bytes(record))
        plans.append(((function, stream, sizes), number))
    newest = dict(plans)
    assert len(newest) > 3 * SLOTS
    quick = 0
    for key in source.sample(sorted(newest), len(newest)):
        function, stream, sizes = key
        answer = rig.launch(SIMPLE, VALUES, f=function, hStream=stream, sizes=sizes)
        if answer is DONE:
            quick += 1
            assert int.from_bytes(rig.area.take()[8:16], "little") == newest[key]
        else:
            assert rig.area.take() == b""
    assert SLOTS // 2 < quick <= SLOTS


def _with_size(at: int) -> Callable[[int], dict[str, Any]]:
    return lambda number: {"sizes": (*SIZES[:at], number, *SIZES[at + 1 :])}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "kernel": lambda number: {"f": number},
    "kernel's high half": lambda number: {"f": FUNCTION ^ number << 32},
    "stream": lambda number: {"hStream": number},
    "stream's high half": lambda number: {"hStream": STREAM ^ number << 32},
    **{f"size {at}": _with_size(at) for at in range(7)},
}


@pytest.mark.parametrize("part", PARTS)
def test_launches_are_told_apart_where_plans_share_a_place(plan: Rig, part: str) -> None:
    for number in random.Random(20260102).sample(range(1000, 1 << 31), 12 * SLOTS):  # a dozen or so share it
        assert plan.launch(SIMPLE, VALUES, **PARTS[part](number)) is SLOW
    plan.expect_hit(SIMPLE, VALUES)


def test_types_are_told_apart_where_plans_share_a_place(rig: Rig) -> None:
    source, kernel, values = random.Random(20260102), Kernel((ctypes.c_ulong,) * 4), (1,) * 4
    assert rig.add_plan(kernel, values)
    for types in {tuple(source.choices(TYPES, k=4)) for _ in range(12 * SLOTS)} - {kernel.types}:
        assert rig.launch(kernel, values, kernelParams=(values, types)) is SLOW
    rig.expect_hit(kernel, values)
