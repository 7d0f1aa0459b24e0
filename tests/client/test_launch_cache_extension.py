"""The extension's Launcher and Writer: which launches hit a plan, what they put into the ring, invalid arguments."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pympsd.wire.ring_layout import ASLEEP, HEAD, RING_BYTES, TAIL
from pympsd_client._arguments.bindings import CUfunction, CUstream
from pympsd_client._command_stream.kernel_parameters import LAUNCH_BYTES
from tests.client.launcher_rig import (
    DONE,
    FUNCTION,
    OTHERS,
    RUNG,
    SECONDS,
    SIMPLE,
    SIZES,
    SLOW,
    STREAM,
    TYPES,
    VALUES,
    Kernel,
    Number,
    Rig,
    extension,
    plan,
    rig,
    run_python,
)

__all__ = ["plan", "rig"]

SLOTS = 1024
"""As in launches.c."""


@pytest.mark.parametrize("other", OTHERS)
def test_another_launch_takes_the_slow_path(plan: Rig, other: str) -> None:
    plan.expect_miss(SIMPLE, VALUES, **OTHERS[other])
    plan.expect_hit(SIMPLE, VALUES)


@pytest.mark.parametrize("place", range(7))
def test_another_size_takes_the_slow_path(plan: Rig, place: int) -> None:
    size = SIZES[place]
    for other in (size + 1, size + (1 << 32), size - (1 << 32), -1, 1 << 64, float(size), None, "1", np.uint32(size)):
        plan.expect_miss(SIMPLE, VALUES, sizes=(*SIZES[:place], other, *SIZES[place + 1 :]))
    plan.expect_hit(SIMPLE, VALUES)


def test_the_same_launch_in_other_objects_is_a_hit(plan: Rig) -> None:
    plan.expect_hit(SIMPLE, VALUES, f=CUfunction(FUNCTION), hStream=CUstream(STREAM))
    plan.expect_hit(SIMPLE, VALUES, f=Number(FUNCTION), hStream=Number(STREAM))
    plan.expect_hit(SIMPLE, VALUES, extra=None, kernelParams=((*VALUES[:1], *VALUES[1:]), (*SIMPLE.types[:1], None)))


def test_no_stream_is_the_default_stream(rig: Rig) -> None:
    assert rig.add_plan(SIMPLE, VALUES, stream=0)
    for stream in (None, CUstream(0)):
        assert rig.launch(SIMPLE, VALUES, hStream=stream) is DONE
        assert rig.area.take() == SIMPLE.record(VALUES, rig.numbers[-1], 0)


@pytest.mark.parametrize("count", [*range(11), 12, 30])
def test_a_wrong_number_of_arguments_takes_the_slow_path(plan: Rig, count: int) -> None:
    plan.expect_miss_of((*plan.arguments(SIMPLE, VALUES), *range(20))[:count])


def test_keywords_take_the_slow_path(plan: Rig) -> None:
    arguments = plan.arguments(SIMPLE, VALUES)
    plan.expect_miss_of(arguments[:10], extra=arguments[10])
    plan.expect_miss_of(arguments, another=VALUES)
    plan.expect_miss_of((), f=FUNCTION, hStream=0, kernelParams=())


def test_an_error_of_the_slow_path_is_raised(rig: Rig) -> None:
    def fail(*arguments: Any) -> Any:
        raise LookupError(len(arguments))

    launcher = rig.native.Launcher(fail, DONE, rig.threads)
    with pytest.raises(LookupError, match="11"):
        launcher.cuLaunchKernel(*rig.arguments(SIMPLE, VALUES))


def test_a_launch_needs_its_context_on_top_of_the_threads_stack(plan: Rig) -> None:
    context = plan.context
    stacks: list[Any] = [[], [object()], [context, object()], (context,), None, {0: context}, SimpleNamespace()]
    for stack in stacks:
        plan.threads.stack = stack
        plan.expect_miss(SIMPLE, VALUES)
    del plan.threads.stack
    plan.expect_miss(SIMPLE, VALUES)
    plan.threads.stack = [object(), context]
    plan.expect_hit(SIMPLE, VALUES)


def test_each_thread_has_its_own_current_context() -> None:
    class Thread(threading.local):
        def __init__(self) -> None:
            self.stack: list[Any] = []

    own = Thread()
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


def test_invalidated_plans_are_gone(plan: Rig) -> None:
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


def test_a_plan_is_needed_at_the_second_miss(rig: Rig) -> None:
    wants: list[bool] = []

    def see(**changes: Any) -> None:
        rig.launch(SIMPLE, VALUES, **changes)
        wants.append(rig.launcher.needs_plan)

    assert rig.launcher.needs_plan is False
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


def test_more_plans_than_slots_stay_right(rig: Rig) -> None:
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
    hits = 0
    for key in source.sample(sorted(newest), len(newest)):
        function, stream, sizes = key
        answer = rig.launch(SIMPLE, VALUES, f=function, hStream=stream, sizes=sizes)
        if answer is DONE:
            hits += 1
            assert int.from_bytes(rig.area.take()[8:16], "little") == newest[key]
        else:
            assert rig.area.take() == b""
    assert SLOTS // 2 < hits <= SLOTS


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
def test_launches_that_share_a_slot_are_distinguished(plan: Rig, part: str) -> None:
    for number in random.Random(20260102).sample(range(1000, 1 << 31), 12 * SLOTS):  # a dozen or so share its slot
        assert plan.launch(SIMPLE, VALUES, **PARTS[part](number)) is SLOW
    plan.expect_hit(SIMPLE, VALUES)


def test_types_that_share_a_slot_are_distinguished(rig: Rig) -> None:
    source, kernel, values = random.Random(20260102), Kernel((ctypes.c_ulong,) * 4), (1,) * 4
    assert rig.add_plan(kernel, values)
    for types in {tuple(source.choices(TYPES, k=4)) for _ in range(12 * SLOTS)} - {kernel.types}:
        assert rig.launch(kernel, values, kernelParams=(values, types)) is SLOW
    rig.expect_hit(kernel, values)


# --- what a call of Python code may change

ACTS: dict[str, Callable[[Rig], object]] = {
    "invalidate": lambda rig: rig.launcher.invalidate(),
    "another plan": lambda rig: rig.add_plan(SIMPLE, VALUES),
    "invalidate and add": lambda rig: (rig.launcher.invalidate(), rig.add_plan(SIMPLE, VALUES)),
    "another context": lambda rig: rig.threads.stack.append(object()),
    "no stack": lambda rig: rig.threads.__dict__.clear(),
}


@pytest.mark.parametrize("act", ACTS)
def test_converting_a_value_may_change_everything(plan: Rig, act: str) -> None:
    plan.expect_miss(SIMPLE, (1, Number(2, lambda: ACTS[act](plan))))


@pytest.mark.parametrize("act", ["invalidate", "another context"])
@pytest.mark.parametrize("place", ["f", "hStream"])
def test_converting_a_handle_may_change_everything(plan: Rig, act: str, place: str) -> None:
    number = Number({"f": FUNCTION, "hStream": STREAM}[place], lambda: ACTS[act](plan))
    plan.expect_miss(SIMPLE, VALUES, **{place: number})


@pytest.mark.parametrize("act", ["invalidate", "another plan", "invalidate and add"])
def test_a_sequence_number_may_change_everything(rig: Rig, act: str) -> None:
    def sequence() -> int:
        ACTS[act](rig)
        return 5

    assert rig.add_plan(SIMPLE, VALUES, sequence=sequence)
    rig.expect_miss(SIMPLE, VALUES)


@pytest.mark.parametrize("act", ["invalidate", "another plan", "invalidate and add"])
def test_looking_for_the_context_may_change_everything(act: str) -> None:
    class Threads:
        def __init__(self) -> None:
            self.rig: Rig | None = None

        @property
        def stack(self) -> list[Any]:
            assert self.rig is not None
            ACTS[act](self.rig)
            return [self.rig.context]

    threads = Threads()
    threads.rig = rig = Rig(extension(), threads)
    assert rig.add_plan(SIMPLE, VALUES)
    rig.expect_miss(SIMPLE, VALUES)
    threads.rig = None


def test_a_launch_within_a_launch(plan: Rig) -> None:
    inner = Number(2, lambda: plan.launch(SIMPLE, (8, 9)))
    assert plan.launch(SIMPLE, (1, inner)) is DONE
    first, second = plan.numbers[-2:]
    assert plan.area.take() == SIMPLE.record((8, 9), first) + SIMPLE.record((1, 2), second)
    assert plan.slow_calls == []


@pytest.mark.parametrize("place", ["f", "hStream", "value"])
def test_an_object_whose_int_fails_leaves_no_error(plan: Rig, place: str) -> None:
    def fail() -> None:
        raise ValueError("no int")

    number = Number(STREAM, fail)
    if place == "value":
        plan.expect_miss(SIMPLE, (1, number))
    else:
        plan.expect_miss(SIMPLE, VALUES, **{place: number})
    plan.expect_hit(SIMPLE, VALUES)


@pytest.mark.parametrize("place", ["f", "hStream", "value"])
def test_ctrl_c_during_a_conversion_is_not_lost(plan: Rig, place: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    number, before = Number(STREAM, interrupt), plan.area.everything()
    changes = {"kernelParams": ((1, number), SIMPLE.types)} if place == "value" else {place: number}
    with pytest.raises(KeyboardInterrupt):
        plan.launch(SIMPLE, VALUES, **changes)
    assert plan.area.everything() == before
    assert plan.slow_calls == []
    plan.expect_hit(SIMPLE, VALUES)


@pytest.mark.parametrize("number", [-1, 1 << 64, "1", None])
def test_an_invalid_sequence_number_leaves_no_error(rig: Rig, number: Any) -> None:
    assert rig.add_plan(SIMPLE, VALUES, sequence=lambda: number)
    rig.expect_miss(SIMPLE, VALUES)


def test_no_sequence_number_leaves_no_error(rig: Rig) -> None:
    assert rig.add_plan(SIMPLE, VALUES, sequence=iter(()).__next__)
    rig.expect_miss(SIMPLE, VALUES)


# --- references


def _many_launches(rig: Rig, kernel: Kernel, values: tuple[Any, ...], **changes: Any) -> None:
    for _ in range(5):
        assert rig.add_plan(kernel, (1, 2), **changes)
    assert rig.add_plan(kernel, (1, 2), stream=STREAM + 1, **changes)
    for _ in range(1000):
        assert rig.launch(kernel, values) in (DONE, SLOW)  # now and then Python looks for a fault
        rig.area.take()
    for other in OTHERS.values():
        rig.launch(kernel, values, **other)
    rig.launch(kernel, (-1, 2))
    rig.slow_calls.clear()


@pytest.mark.parametrize("end", [lambda rig: rig.launcher.invalidate(), Rig.renew], ids=["invalidated", "gone"])
def test_no_reference_is_left(rig: Rig, end: Callable[[Rig], None]) -> None:
    number, value = 1 << 50, 1 << 51

    def sequence() -> int:
        return number

    kernel, values = Kernel((ctypes.c_uint, None)), (123456, Number(value))
    kept_open = (
        sequence, kernel.types, rig.context, number, value, values, *values, rig.bell, rig.area.writer,
        rig.area.memory, rig.threads, rig.threads.stack, DONE, SLOW, FUNCTION, STREAM,
    )  # fmt: skip
    gc.collect()  # garbage of earlier tests may refer to some of them
    before = [sys.getrefcount(item) for item in kept_open]
    _many_launches(rig, kernel, values, sequence=sequence)
    assert [sys.getrefcount(item) > was for item, was in zip(kept_open[:3], before, strict=False)] == [True] * 3
    end(rig)
    assert [sys.getrefcount(item) for item in kept_open] == before


# --- invalid arguments


@pytest.mark.parametrize("arguments", [(), (len,), (len, DONE), (len, DONE, None, None)])
def test_a_launcher_takes_three_arguments(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        extension().Launcher(*arguments)


def test_a_launcher_is_made_once(plan: Rig) -> None:
    with pytest.raises(TypeError, match="once"):
        plan.launcher.__init__(len, DONE, None)
    plan.expect_hit(SIMPLE, VALUES)
    plan.expect_miss(SIMPLE, VALUES, f=1)


@pytest.mark.parametrize(
    "arguments",
    [(), (None,), (None, 0, 0, 0, 0, 0), (None, "0", 0, 0, 0, 0, 0), (None, *[0] * 7), (None, 0.5, *[0] * 5)],
)
def test_a_writer_takes_numbers(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        extension().Writer(*arguments)


@pytest.mark.parametrize("record", ["record", bytearray(8), 8, None])
def test_records_are_bytes(rig: Rig, record: Any) -> None:
    before = rig.area.everything()
    with pytest.raises(TypeError):
        rig.area.writer.put(record)
    assert rig.area.everything() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": None},
        {"sizes": SIZES[:6]},
        {"sizes": (*SIZES, 1)},
        {"sizes": 1},
        {"types": list(SIMPLE.types)},
        {"writer": "no writer"},
        {"writer": None},
        {"record": "record"},
        {"places": list(SIMPLE.places)},
        {"places": (("24", "I"),)},
        {"places": ((24,),)},
        {"places": ((24, "II"),)},
    ],
    ids=str,
)
def test_a_plan_with_arguments_of_wrong_types_is_refused(rig: Rig, changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        rig.add_plan(SIMPLE, VALUES, **changes)
    rig.expect_miss(SIMPLE, VALUES)


BEYOND: dict[str, dict[str, Any]] = {
    "a record without room for a number": {"record": bytes(23)},
    "an empty record": {"record": b""},
    "a long record": {"record": bytes(1 << 16)},
    "a number's place": {"sequence_at": 1 << 20},
    "a number's place that wraps": {"sequence_at": (1 << 32) - 8},
    "a value's place": {"places": ((len(SIMPLE.record(VALUES, 0)), "B"),)},
    "a value's place that wraps": {"places": ((24, "I"), ((1 << 32) - 8, "Q"))},
}


@pytest.mark.parametrize("beyond", BEYOND)
def test_a_plan_with_places_beyond_its_record_is_refused(rig: Rig, beyond: str) -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        rig.add_plan(SIMPLE, VALUES, **BEYOND[beyond])
    rig.expect_miss(SIMPLE, VALUES)


def test_a_ring_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        extension().Writer(None, 0, 0, 0, 0, 0, 0)


UNINITIALISED = {
    "launch": "Launcher.__new__(Launcher).cuLaunchKernel()",
    "launch of eleven": "Launcher.__new__(Launcher).cuLaunchKernel(*[0] * 9, ((), ()), 0)",
    "put": "Writer.__new__(Writer).put(bytes(8))",
    "add_plan": "Launcher(0, 0, 0).add_plan(0, 1, 1, (1,) * 7, (), 0, 0, 0, Writer.__new__(Writer), bytes(8), 0, ())",
    "invalidate": "Launcher.__new__(Launcher).invalidate(); raise TypeError",
}


@pytest.mark.parametrize("call", UNINITIALISED)
def test_objects_without_init_raise(call: str) -> None:
    extension()
    done = run_python(
        f"""
        from pympsd_client.native._launches import Launcher, Writer
        try:
            {UNINITIALISED[call]}
        except (TypeError, ValueError) as error:
            print("raised")
        """
    )
    assert (done.returncode, done.stdout) == (0, "raised\n"), done.stderr


# --- records and the ring


def test_the_limits_of_a_plan(rig: Rig) -> None:
    count, size = rig.native.MAX_VALUES, rig.native.MAX_BYTES
    most, more = (Kernel((ctypes.c_ubyte,) * number) for number in (count, count + 1))
    assert rig.add_plan(most, (1,) * count)
    rig.expect_hit(most, tuple(range(count)))
    with pytest.raises(ValueError, match="out of bounds"):
        rig.add_plan(more, (1,) * (count + 1))
    longest = Kernel((ctypes.c_ulong, ctypes.c_ubyte), (size - LAUNCH_BYTES - 16, 7))
    assert len(longest.record((1, 1), 0)) == size
    assert rig.add_plan(longest, (1, 1))
    rig.expect_hit(longest, (1 << 63, 255))
    with pytest.raises(ValueError, match="out of bounds"):
        rig.add_plan(Kernel((ctypes.c_ulong,), (size - LAUNCH_BYTES,)), (1,))


# --- the ring


@pytest.mark.parametrize("left", [1, 8, 23, 24, 100, len(SIMPLE.record(VALUES, 0)) - 1])
@pytest.mark.parametrize("rounds", [1, 1 << 30])
def test_a_record_that_meets_the_end_is_split(plan: Rig, left: int, rounds: int) -> None:
    begin = rounds * RING_BYTES - left
    record = SIMPLE.record(VALUES, plan.numbers[-1] + 1)
    for put in (lambda: plan.launch(SIMPLE, VALUES) is DONE, lambda: plan.area.writer.put(record)):
        plan.area.data[:] = bytes(RING_BYTES)
        plan.area.begin_at(begin)
        guard = plan.area.everything()
        assert put()
        assert plan.area.words[TAIL // 8] == begin + len(record)
        assert bytes(plan.area.data[-left:]) == record[:left]
        assert bytes(plan.area.data[: len(record) - left]) == record[left:]
        assert not any(plan.area.data[len(record) - left : -left])
        now = plan.area.everything()
        assert (now[:256], now[-256:]) == (guard[:256], guard[-256:])


def test_a_record_that_ends_at_the_end_is_not_split(plan: Rig) -> None:
    record = SIMPLE.record(VALUES, plan.numbers[-1] + 1)
    plan.area.begin_at(RING_BYTES - len(record))
    first = plan.area.data[0]
    assert plan.launch(SIMPLE, VALUES) is DONE
    assert bytes(plan.area.data[-len(record) :]) == record
    assert plan.area.data[0] == first


@pytest.mark.parametrize("position", [RING_BYTES, 5 * RING_BYTES + 4321])
def test_a_full_ring_takes_nothing(plan: Rig, position: int) -> None:
    record = SIMPLE.record(VALUES, 0)
    for used in (RING_BYTES, RING_BYTES - 1, RING_BYTES - len(record) + 1):
        plan.area.begin_at(position, used)
        before = plan.area.everything()
        assert plan.area.writer.put(record) is False
        assert plan.area.everything() == before
        plan.expect_miss(SIMPLE, VALUES)
    plan.area.begin_at(position, RING_BYTES - len(record))
    assert plan.launch(SIMPLE, VALUES) is DONE
    assert plan.area.words[TAIL // 8] == position + len(record)
    plan.area.begin_at(position, RING_BYTES - len(record))
    assert plan.area.writer.put(record) is True


@pytest.mark.parametrize("ahead", [1, 8, 64, RING_BYTES, 1 << 62, 1 << 63])
def test_a_head_beyond_the_tail_is_a_full_ring(plan: Rig, ahead: int) -> None:
    plan.area.words[TAIL // 8], plan.area.words[HEAD // 8] = 4096, 4096 + ahead
    before = plan.area.everything()
    assert plan.area.writer.put(b"x" * 24) is False
    assert plan.area.everything() == before
    plan.expect_miss(SIMPLE, VALUES)


def test_a_record_longer_than_the_ring_never_fits(rig: Rig) -> None:
    assert rig.area.writer.put(bytes(RING_BYTES)) is True
    rig.area.begin_at(0)
    before = rig.area.everything()
    assert rig.area.writer.put(b"x" * (RING_BYTES + 1)) is False
    assert rig.area.everything() == before


@pytest.mark.parametrize("asleep", [1, 1 << 63])
def test_the_bell_is_rung_after_the_record_is_published(plan: Rig, asleep: int) -> None:
    plan.expect_hit(SIMPLE, VALUES)
    assert plan.rung == []
    plan.area.words[ASLEEP // 8] = asleep
    before = plan.area.words[TAIL // 8]
    assert plan.launch(SIMPLE, VALUES) is RUNG
    assert plan.rung == [before + len(SIMPLE.record(VALUES, 0))]
    assert plan.area.take() == SIMPLE.record(VALUES, plan.numbers[-1])
    plan.area.words[ASLEEP // 8] = 0
    plan.expect_hit(SIMPLE, VALUES)
    assert len(plan.rung) == 1


def test_an_error_of_the_bell_is_raised(rig: Rig) -> None:
    def fail() -> Any:
        raise KeyboardInterrupt

    assert rig.add_plan(SIMPLE, VALUES, bell=fail)
    rig.area.words[ASLEEP // 8] = 1
    with pytest.raises(KeyboardInterrupt):
        rig.launch(SIMPLE, VALUES)
    assert rig.area.take()
    assert rig.slow_calls == []


def test_the_bell_may_invalidate_all_plans(rig: Rig) -> None:
    def bell() -> Any:
        rig.launcher.invalidate()
        return RUNG

    assert rig.add_plan(SIMPLE, VALUES, bell=bell)
    del bell
    rig.area.words[ASLEEP // 8] = 1
    assert rig.launch(SIMPLE, VALUES) is RUNG
    rig.expect_miss(SIMPLE, VALUES)
