"""What may happen in the midst of a launch, what a Launcher holds on to, and what is made wrongly."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.launch_cache_rig import OTHERS, SIMPLE, VALUES, Number, _python, plan, rig
from tests.client.ring_area import DONE, FUNCTION, SIZES, SLOW, STREAM, Kernel, Rig, extension

__all__ = ["plan", "rig"]

# --- what happens in the midst of a call

ACTS: dict[str, Callable[[Rig], object]] = {
    "forget": lambda rig: rig.launcher.invalidate(),
    "another plan": lambda rig: rig.add_plan(SIMPLE, VALUES),
    "forget and remember": lambda rig: (rig.launcher.invalidate(), rig.add_plan(SIMPLE, VALUES)),
    "another context": lambda rig: rig.threads.stack.append(object()),
    "no stack": lambda rig: rig.threads.__dict__.clear(),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_value_may_change_everything(plan: Rig, act: str) -> None:
    plan.expect_miss(SIMPLE, (1, Number(2, lambda: ACTS[act](plan))))


@pytest.mark.parametrize("act", ["forget", "another context"])
@pytest.mark.parametrize("place", ["f", "hStream"])
def test_a_handle_may_change_everything(plan: Rig, act: str, place: str) -> None:
    number = Number({"f": FUNCTION, "hStream": STREAM}[place], lambda: ACTS[act](plan))
    plan.expect_miss(SIMPLE, VALUES, **{place: number})


@pytest.mark.parametrize("act", ["forget", "another plan", "forget and remember"])
def test_a_sequence_number_may_change_everything(rig: Rig, act: str) -> None:
    def sequence() -> int:
        ACTS[act](rig)
        return 5

    assert rig.add_plan(SIMPLE, VALUES, sequence=sequence)
    rig.expect_miss(SIMPLE, VALUES)


@pytest.mark.parametrize("act", ["forget", "another plan", "forget and remember"])
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


def test_a_launch_in_the_midst_of_a_launch(plan: Rig) -> None:
    inner = Number(2, lambda: plan.launch(SIMPLE, (8, 9)))
    assert plan.launch(SIMPLE, (1, inner)) is DONE
    first, second = plan.numbers[-2:]
    assert plan.area.take() == SIMPLE.record((8, 9), first) + SIMPLE.record((1, 2), second)
    assert plan.slow_calls == []


@pytest.mark.parametrize("place", ["f", "hStream", "value"])
def test_an_object_without_an_int_after_all_leaves_no_error(plan: Rig, place: str) -> None:
    def fail() -> None:
        raise ValueError("no int today")

    number = Number(STREAM, fail)
    if place == "value":
        plan.expect_miss(SIMPLE, (1, number))
    else:
        plan.expect_miss(SIMPLE, VALUES, **{place: number})
    plan.expect_hit(SIMPLE, VALUES)


@pytest.mark.parametrize("place", ["f", "hStream", "value"])
def test_ctrl_c_in_the_midst_is_not_lost(plan: Rig, place: str) -> None:
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
def test_a_sequence_number_that_is_none_leaves_no_error(rig: Rig, number: Any) -> None:
    assert rig.add_plan(SIMPLE, VALUES, sequence=lambda: number)
    rig.expect_miss(SIMPLE, VALUES)


def test_no_sequence_number_leaves_no_error(rig: Rig) -> None:
    assert rig.add_plan(SIMPLE, VALUES, sequence=iter(()).__next__)
    rig.expect_miss(SIMPLE, VALUES)


# --- what it holds on to


def _many_launches(rig: Rig, kernel: Kernel, values: tuple[Any, ...], **remembered: Any) -> None:
    for _ in range(5):
        assert rig.add_plan(kernel, (1, 2), **remembered)
    assert rig.add_plan(kernel, (1, 2), stream=STREAM + 1, **remembered)
    for _ in range(1000):
        assert rig.launch(kernel, values) is DONE
        rig.area.take()
    for changes in OTHERS.values():
        rig.launch(kernel, values, **changes)
    rig.launch(kernel, (-1, 2))
    rig.slow_calls.clear()


@pytest.mark.parametrize("end", [lambda rig: rig.launcher.invalidate(), Rig.renew], ids=["forgotten", "gone"])
def test_nothing_is_held_in_the_end(rig: Rig, end: Callable[[Rig], None]) -> None:
    number, value = 1 << 50, 1 << 51

    def sequence() -> int:
        return number

    kernel, values = Kernel((ctypes.c_uint, None)), (123456, Number(value))
    held = (
        sequence, kernel.types, rig.context, number, value, values, *values, rig.bell, rig.area.writer,
        rig.area.memory, rig.threads, rig.threads.stack, DONE, SLOW, FUNCTION, STREAM,
    )  # fmt: skip
    gc.collect()  # what earlier tests have left may refer to some of them
    before = [sys.getrefcount(one) for one in held]
    _many_launches(rig, kernel, values, sequence=sequence)
    assert [sys.getrefcount(one) > was for one, was in zip(held[:3], before, strict=False)] == [True] * 3
    end(rig)
    assert [sys.getrefcount(one) for one in held] == before


# --- what is made wrongly


@pytest.mark.parametrize("arguments", [(), (len,), (len, DONE), (len, DONE, None, None)])
def test_a_launcher_takes_three_things(arguments: tuple[Any, ...]) -> None:
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
def test_a_plan_takes_what_it_takes(rig: Rig, changes: dict[str, Any]) -> None:
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
def test_a_plan_that_leads_beyond_the_record_is_refused(rig: Rig, beyond: str) -> None:
    with pytest.raises(ValueError, match="out of bounds"):
        rig.add_plan(SIMPLE, VALUES, **BEYOND[beyond])
    rig.expect_miss(SIMPLE, VALUES)


def test_a_ring_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        extension().Writer(None, 0, 0, 0, 0, 0, 0)


UNMADE = {
    "launch": "Launcher.__new__(Launcher).cuLaunchKernel()",
    "launch of eleven": "Launcher.__new__(Launcher).cuLaunchKernel(*[0] * 9, ((), ()), 0)",
    "put": "Writer.__new__(Writer).put(bytes(8))",
    "remember": "Launcher(0, 0, 0).add_plan(0, 1, 1, (1,) * 7, (), 0, 0, 0, Writer.__new__(Writer), bytes(8), 0, ())",
    "forget": "Launcher.__new__(Launcher).invalidate(); raise TypeError",
}


@pytest.mark.parametrize("call", UNMADE)
def test_what_was_never_made_raises(call: str) -> None:
    extension()
    done = _python(
        f"""
        from pympsd_client.native._launches import Launcher, Writer
        try:
            {UNMADE[call]}
        except (TypeError, ValueError) as error:
            print("raised")
        """
    )
    assert (done.returncode, done.stdout) == (0, "raised\n"), done.stderr
