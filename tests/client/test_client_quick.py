"""Launches without the interpreter: what they put into the ring, when they are Python's, and that nobody can tell."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import math
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import define, field
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import wait_until

from pympsd.wire.ring_layout import ASLEEP, HEAD, RING_BYTES, TAIL
from pympsd_client import _doors_module, _host_calls, _launch, _quick, _runners, last_error
from pympsd_client import driver as cuda
from pympsd_client._bindings import CUdeviceptr, CUfunction, CUstream
from pympsd_client._context import Connection, handles
from pympsd_client._errors import CudaError, lost
from pympsd_client._fallback import PrivateExecutors
from pympsd_client._parameters import _CODES, code_of
from pympsd_client._process import here
from pympsd_client._records import LAUNCH_BYTES
from pympsd_client._threads import mine

from .conftest import ok
from .ring_area import DONE, FUNCTION, RUNG, SIZES, SLOW, STREAM, Kernel, Rig, extension
from .test_client_process import _run
from .test_client_streams import PTX, STORE, Kernels

R = cuda.CUresult
SECONDS = 30.0
"""The absolute limit of every wait."""
SIMPLE = Kernel((ctypes.c_uint, None))
VALUES = (7, 0x7000_0000_0000)
SLOTS = 1024
"""As in launches.c."""


@pytest.fixture
def rig() -> Rig:
    """A Launcher that has seen nothing yet."""
    return Rig(extension())


@pytest.fixture
def plan(rig: Rig) -> Rig:
    """A Launcher that remembers a launch of SIMPLE."""
    assert rig.remember(SIMPLE, (1, 2))
    return rig


class Number:
    """A handle: it has an int, and something happens when it is asked for."""

    def __init__(self, value: int, act: Callable[[], object] = lambda: None) -> None:
        self._value, self._act = value, act

    def __int__(self) -> int:
        self._act()
        return self._value


class Index:
    """What struct takes for a number, and int() too."""

    def __index__(self) -> int:
        return 3


# --- values

TYPES = (*_CODES, None)
BITS = {"b": 8, "B": 8, "h": 16, "H": 16, "i": 32, "I": 32, "q": 64, "Q": 64, "o": 64}
EDGES = [
    sign * (1 << bits) + off for bits in (7, 8, 15, 16, 31, 32, 63, 64, 128) for sign in (1, -1) for off in (-1, 0, 1)
]
SINGLE = float(np.finfo(np.float32).max)
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from(EDGES),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from(["", "5", "x", b"5", (), 10**400, 1 << 1023, -(1 << 1024), SINGLE, 2 * SINGLE, -1, -1.0]),
    st.sampled_from([np.int8(-1), np.int32(7), np.uint64((1 << 64) - 1), np.float32(1.5), np.float64(2.5), np.True_]),
    st.sampled_from([ctypes.c_int(1), ctypes.c_float(1), ctypes.c_void_p(), R.CUDA_ERROR_UNKNOWN, Index()]),
    st.integers(0, (1 << 64) - 1).map(CUdeviceptr),
    st.sampled_from(EDGES).map(Number),
)


def _limits(code: str) -> tuple[int, int]:
    bits = BITS[code]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if code.islower() and code != "o" else (0, (1 << bits) - 1)


def _plain(ctype: Any) -> st.SearchStrategy[Any]:
    """Values that need no Python."""
    code = code_of(ctype)
    if code == "?":
        return st.booleans()
    if code in "fd":
        # No signalling NaN: what a processor makes of it is not Python's to say.
        numbers = st.floats(width=32 if code == "f" else 64).map(
            lambda number: number if number == number else np.nan
        )
        return st.one_of(numbers, st.integers(-(1 << 100), 1 << 100), st.sampled_from([SINGLE, -SINGLE]))
    least, most = _limits(code)
    whole = st.one_of(st.integers(least, most), st.sampled_from([least, most]))
    return st.one_of(whole, whole.map(CUdeviceptr), whole.map(Number)) if code == "o" else whole


@st.composite
def _launches(draw: st.DrawFn) -> tuple[Kernel, tuple[Any, ...], bool]:
    """A kernel, values for it, and whether they are plain ones."""
    types = tuple(draw(st.lists(st.sampled_from(TYPES), max_size=24)))
    gaps = draw(st.lists(st.integers(0, 9), min_size=len(types), max_size=len(types)))
    odd = draw(st.integers(0, 2 * len(types)))  # one value may be anything, so that it decides
    values = [draw(ANYTHING if place == odd else _plain(ctype)) for place, ctype in enumerate(types)]
    return Kernel(types, gaps), tuple(values), odd >= len(types)


def _ones(kernel: Kernel) -> tuple[Any, ...]:
    return tuple(1.0 if code in "fd" else 1 for _, code in kernel.places)


def _packed(kernel: Kernel, values: tuple[Any, ...], number: int) -> bytes | None:
    """Return what Python makes of a launch, None where it raises."""
    try:
        return kernel.record(values, number)
    except Exception:
        return None


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_launches())
def test_values_are_packed_as_python_packs_them(rig: Rig, launch: tuple[Kernel, tuple[Any, ...], bool]) -> None:
    kernel, values, is_plain = launch
    assert rig.remember(kernel, _ones(kernel))
    expected = _packed(kernel, values, rig.numbers[-1] + 1)
    calls, before = len(rig.slow_calls), rig.area.everything()
    answer = rig.launch(kernel, values)
    if answer is DONE:
        assert rig.area.take() == expected
        assert len(rig.slow_calls) == calls
    else:
        assert answer is SLOW
        assert len(rig.slow_calls) == calls + 1
        assert rig.area.everything() == before
        assert not is_plain


@pytest.mark.parametrize("ctype", TYPES, ids=lambda ctype: getattr(ctype, "__name__", "None"))
def test_every_value_at_the_edges(rig: Rig, ctype: Any) -> None:
    kernel = Kernel((ctypes.c_ubyte, ctype, ctypes.c_ubyte))
    assert rig.remember(kernel, _ones(kernel))
    code = code_of(ctype)
    for value in (*EDGES, 0, 1, -1):
        if code == "?" or _packed(kernel, (1, value, 2), 0) is None:
            rig.expect_slow(kernel, (1, value, 2))
        else:
            rig.expect_quick(kernel, (255, value, 254))


@pytest.mark.parametrize("value", [SINGLE, -SINGLE, 3.5e38, -1e300, np.inf, -np.inf, 1e-46, -0.0, -1.0, -1, 16777217])
def test_singles_at_the_edges(rig: Rig, value: float) -> None:
    kernel = Kernel((ctypes.c_float,))
    assert rig.remember(kernel, (1.0,))
    if _packed(kernel, (value,), 0) is None:
        rig.expect_slow(kernel, (value,))
    else:
        rig.expect_quick(kernel, (value,))


@pytest.mark.parametrize("value", [None, "5", "x", 10**400, -1, 1 << 64, float("nan"), Index(), object(), []])
def test_what_may_be_no_handle_is_pythons_to_judge(rig: Rig, value: Any) -> None:
    kernel = Kernel((None,))
    assert rig.remember(kernel, (1,))
    rig.expect_slow(kernel, (value,))


def test_handles_are_taken_as_what_int_makes_of_them(rig: Rig) -> None:
    kernel = Kernel((None,))
    assert rig.remember(kernel, (1,))
    for value in (0, 5, True, 2.9, CUdeviceptr(9), Number((1 << 64) - 1), R.CUDA_ERROR_UNKNOWN, np.uint64(8)):
        rig.expect_quick(kernel, (value,))


def test_a_plan_has_room_for_so_much(rig: Rig) -> None:
    count, size = rig.native.MOST_VALUES, rig.native.MOST_BYTES
    most, more = (Kernel((ctypes.c_ubyte,) * number) for number in (count, count + 1))
    assert rig.remember(most, (1,) * count)
    rig.expect_quick(most, tuple(range(count)))
    with pytest.raises(ValueError, match="out of bounds"):
        rig.remember(more, (1,) * (count + 1))
    longest = Kernel((ctypes.c_ulong, ctypes.c_ubyte), (size - LAUNCH_BYTES - 16, 7))
    assert len(longest.record((1, 1), 0)) == size
    assert rig.remember(longest, (1, 1))
    rig.expect_quick(longest, (1 << 63, 255))
    with pytest.raises(ValueError, match="out of bounds"):
        rig.remember(Kernel((ctypes.c_ulong,), (size - LAUNCH_BYTES,)), (1,))


# --- the ring


@pytest.mark.parametrize("left", [1, 8, 23, 24, 100, len(SIMPLE.record(VALUES, 0)) - 1])
@pytest.mark.parametrize("rounds", [1, 1 << 30])
def test_a_record_that_meets_the_end_lies_in_two_pieces(plan: Rig, left: int, rounds: int) -> None:
    begin = rounds * RING_BYTES - left
    record = SIMPLE.record(VALUES, plan.numbers[-1] + 1)
    for put in (lambda: plan.launch(SIMPLE, VALUES) is DONE, lambda: plan.area.writer.put(record)):
        plan.area.data[:] = bytes(RING_BYTES)
        plan.area.begin_at(begin)
        fence = plan.area.everything()
        assert put()
        assert plan.area.words[TAIL // 8] == begin + len(record)
        assert bytes(plan.area.data[-left:]) == record[:left]
        assert bytes(plan.area.data[: len(record) - left]) == record[left:]
        assert not any(plan.area.data[len(record) - left : -left])
        now = plan.area.everything()
        assert (now[:256], now[-256:]) == (fence[:256], fence[-256:])


def test_a_record_that_ends_at_the_end_lies_in_one_piece(plan: Rig) -> None:
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
        plan.expect_slow(SIMPLE, VALUES)
    plan.area.begin_at(position, RING_BYTES - len(record))
    assert plan.launch(SIMPLE, VALUES) is DONE
    assert plan.area.words[TAIL // 8] == position + len(record)
    plan.area.begin_at(position, RING_BYTES - len(record))
    assert plan.area.writer.put(record) is True


@pytest.mark.parametrize("ahead", [1, 8, 64, RING_BYTES, 1 << 62, 1 << 63])
def test_a_head_that_is_ahead_is_a_full_ring(plan: Rig, ahead: int) -> None:
    plan.area.words[TAIL // 8], plan.area.words[HEAD // 8] = 4096, 4096 + ahead
    before = plan.area.everything()
    assert plan.area.writer.put(b"x" * 24) is False
    assert plan.area.everything() == before
    plan.expect_slow(SIMPLE, VALUES)


def test_a_record_longer_than_the_ring_never_fits(rig: Rig) -> None:
    assert rig.area.writer.put(bytes(RING_BYTES)) is True
    rig.area.begin_at(0)
    before = rig.area.everything()
    assert rig.area.writer.put(b"x" * (RING_BYTES + 1)) is False
    assert rig.area.everything() == before


@pytest.mark.parametrize("asleep", [1, 1 << 63])
def test_an_executor_that_sleeps_is_woken_once_the_record_is_there(plan: Rig, asleep: int) -> None:
    plan.expect_quick(SIMPLE, VALUES)
    assert plan.rung == []
    plan.area.words[ASLEEP // 8] = asleep
    before = plan.area.words[TAIL // 8]
    assert plan.launch(SIMPLE, VALUES) is RUNG
    assert plan.rung == [before + len(SIMPLE.record(VALUES, 0))]
    assert plan.area.take() == SIMPLE.record(VALUES, plan.numbers[-1])
    plan.area.words[ASLEEP // 8] = 0
    plan.expect_quick(SIMPLE, VALUES)
    assert len(plan.rung) == 1


def test_what_a_bell_raises_is_raised(rig: Rig) -> None:
    def fail() -> Any:
        raise KeyboardInterrupt

    assert rig.remember(SIMPLE, VALUES, bell=fail)
    rig.area.words[ASLEEP // 8] = 1
    with pytest.raises(KeyboardInterrupt):
        rig.launch(SIMPLE, VALUES)
    assert rig.area.take()
    assert rig.slow_calls == []


def test_a_bell_may_have_all_forgotten(rig: Rig) -> None:
    def bell() -> Any:
        rig.launcher.forget()
        return RUNG

    assert rig.remember(SIMPLE, VALUES, bell=bell)
    del bell
    rig.area.words[ASLEEP // 8] = 1
    assert rig.launch(SIMPLE, VALUES) is RUNG
    rig.expect_slow(SIMPLE, VALUES)


# --- plans

OTHERS: dict[str, dict[str, Any]] = {
    "kernel": {"f": FUNCTION + 1},
    "kernel's low half": {"f": FUNCTION & 0xFFFFFFFF},
    "stream": {"hStream": STREAM + 1},
    "no stream": {"hStream": None},
    "default stream": {"hStream": 0},
    "stream's low half": {"hStream": STREAM & 0xFFFFFFFF},
    "types": {"kernelParams": (VALUES, (ctypes.c_int, None))},
    "fewer types": {"kernelParams": (VALUES, (ctypes.c_uint,))},
    "more types": {"kernelParams": (VALUES, (ctypes.c_uint, None, None))},
    "fewer values": {"kernelParams": (VALUES[:1], SIMPLE.types)},
    "more values": {"kernelParams": ((*VALUES, 1), SIMPLE.types)},
    "no values": {"kernelParams": ((), SIMPLE.types)},
    "a list of values": {"kernelParams": (list(VALUES), SIMPLE.types)},
    "a list of types": {"kernelParams": (VALUES, list(SIMPLE.types))},
    "a list": {"kernelParams": [VALUES, SIMPLE.types]},
    "one tuple": {"kernelParams": (VALUES,)},
    "three": {"kernelParams": (VALUES, SIMPLE.types, 0)},
    "an address": {"kernelParams": 0x1234},
    "nothing": {"kernelParams": None},
    "extra": {"extra": 0x1234},
    "extra as a handle": {"extra": CUdeviceptr(0)},
    "extra False": {"extra": False},
    "a kernel that is none": {"f": "kernel"},
    "no kernel": {"f": None},
    "a huge kernel": {"f": FUNCTION + (1 << 64)},
    "a negative stream": {"hStream": STREAM - (1 << 64)},
    "a stream that is none": {"hStream": b"stream"},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_launch_is_pythons(plan: Rig, other: str) -> None:
    plan.expect_slow(SIMPLE, VALUES, **OTHERS[other])
    plan.expect_quick(SIMPLE, VALUES)


@pytest.mark.parametrize("place", range(7))
def test_another_size_is_pythons(plan: Rig, place: int) -> None:
    size = SIZES[place]
    for other in (size + 1, size + (1 << 32), size - (1 << 32), -1, 1 << 64, float(size), None, "1", np.uint32(size)):
        plan.expect_slow(SIMPLE, VALUES, sizes=(*SIZES[:place], other, *SIZES[place + 1 :]))
    plan.expect_quick(SIMPLE, VALUES)


def test_the_same_launch_in_other_objects_is_quick(plan: Rig) -> None:
    plan.expect_quick(SIMPLE, VALUES, f=CUfunction(FUNCTION), hStream=CUstream(STREAM))
    plan.expect_quick(SIMPLE, VALUES, f=Number(FUNCTION), hStream=Number(STREAM))
    plan.expect_quick(
        SIMPLE, VALUES, extra=None, kernelParams=((*VALUES[:1], *VALUES[1:]), (*SIMPLE.types[:1], None))
    )


def test_no_stream_is_the_default_stream(rig: Rig) -> None:
    assert rig.remember(SIMPLE, VALUES, stream=0)
    for stream in (None, CUstream(0)):
        assert rig.launch(SIMPLE, VALUES, hStream=stream) is DONE
        assert rig.area.take() == SIMPLE.record(VALUES, rig.numbers[-1], 0)


@pytest.mark.parametrize("count", [*range(11), 12, 30])
def test_a_wrong_number_of_arguments_is_pythons(plan: Rig, count: int) -> None:
    plan.expect_all_slow((*plan.arguments(SIMPLE, VALUES), *range(20))[:count])


def test_keywords_are_pythons(plan: Rig) -> None:
    arguments = plan.arguments(SIMPLE, VALUES)
    plan.expect_all_slow(arguments[:10], extra=arguments[10])
    plan.expect_all_slow(arguments, another=VALUES)
    plan.expect_all_slow((), f=FUNCTION, hStream=0, kernelParams=())


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
        plan.expect_slow(SIMPLE, VALUES)
    del plan.threads.stack
    plan.expect_slow(SIMPLE, VALUES)
    plan.threads.stack = [object(), ours]
    plan.expect_quick(SIMPLE, VALUES)


def test_each_thread_has_its_own_current_context() -> None:
    class Mine(threading.local):
        def __init__(self) -> None:
            self.stack: list[Any] = []

    own = Mine()
    rig = Rig(extension(), own)
    assert rig.remember(SIMPLE, VALUES)
    own.stack.append(rig.context)
    rig.expect_quick(SIMPLE, VALUES)

    def elsewhere() -> None:
        rig.expect_slow(SIMPLE, VALUES)
        own.stack.append(rig.context)
        rig.expect_quick(SIMPLE, VALUES)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(elsewhere).result(SECONDS)
    rig.expect_quick(SIMPLE, VALUES)


def test_forgotten_plans_are_no_more(plan: Rig) -> None:
    epoch = plan.launcher.epoch
    plan.expect_quick(SIMPLE, VALUES)
    plan.launcher.forget()
    assert plan.launcher.epoch == epoch + 1
    plan.expect_slow(SIMPLE, VALUES)
    assert not plan.remember(SIMPLE, VALUES, epoch=epoch)
    assert not plan.remember(SIMPLE, VALUES, epoch=epoch + 2)
    plan.expect_slow(SIMPLE, VALUES)
    assert plan.remember(SIMPLE, VALUES)
    plan.expect_quick(SIMPLE, VALUES)
    plan.launcher.forget()
    assert plan.remember(SIMPLE, VALUES)
    plan.launcher.forget()
    plan.expect_slow(SIMPLE, VALUES)


def test_a_newer_plan_takes_the_place_of_an_older(plan: Rig) -> None:
    record = SIMPLE.record(VALUES, 0)
    changed = record[:8] + b"\xff" * 8 + record[16:]
    assert plan.remember(SIMPLE, VALUES, record=changed)
    assert plan.launch(SIMPLE, VALUES) is DONE
    assert plan.area.take()[8:16] == b"\xff" * 8


def test_a_plan_is_wanted_at_the_second_sight(rig: Rig) -> None:
    wants: list[bool] = []

    def see(**changes: Any) -> None:
        rig.launch(SIMPLE, VALUES, **changes)
        wants.append(rig.launcher.wants)

    assert rig.launcher.wants is False
    see()
    see()
    see()
    see(f=FUNCTION + 1)
    assert wants == [False, True, True, False]
    rig.launcher.forget()
    see()
    see()
    see(extra=5)
    assert rig.remember(SIMPLE, VALUES)
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
        assert rig.remember(SIMPLE, VALUES, function=function, stream=stream, sizes=sizes, record=bytes(record))
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
    plan.expect_quick(SIMPLE, VALUES)


def test_types_are_told_apart_where_plans_share_a_place(rig: Rig) -> None:
    source, kernel, values = random.Random(20260102), Kernel((ctypes.c_ulong,) * 4), (1,) * 4
    assert rig.remember(kernel, values)
    for types in {tuple(source.choices(TYPES, k=4)) for _ in range(12 * SLOTS)} - {kernel.types}:
        assert rig.launch(kernel, values, kernelParams=(values, types)) is SLOW
    rig.expect_quick(kernel, values)


# --- what happens in the midst of a call

ACTS: dict[str, Callable[[Rig], object]] = {
    "forget": lambda rig: rig.launcher.forget(),
    "another plan": lambda rig: rig.remember(SIMPLE, VALUES),
    "forget and remember": lambda rig: (rig.launcher.forget(), rig.remember(SIMPLE, VALUES)),
    "another context": lambda rig: rig.threads.stack.append(object()),
    "no stack": lambda rig: rig.threads.__dict__.clear(),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_value_may_change_everything(plan: Rig, act: str) -> None:
    plan.expect_slow(SIMPLE, (1, Number(2, lambda: ACTS[act](plan))))


@pytest.mark.parametrize("act", ["forget", "another context"])
@pytest.mark.parametrize("place", ["f", "hStream"])
def test_a_handle_may_change_everything(plan: Rig, act: str, place: str) -> None:
    number = Number({"f": FUNCTION, "hStream": STREAM}[place], lambda: ACTS[act](plan))
    plan.expect_slow(SIMPLE, VALUES, **{place: number})


@pytest.mark.parametrize("act", ["forget", "another plan", "forget and remember"])
def test_a_sequence_number_may_change_everything(rig: Rig, act: str) -> None:
    def sequence() -> int:
        ACTS[act](rig)
        return 5

    assert rig.remember(SIMPLE, VALUES, sequence=sequence)
    rig.expect_slow(SIMPLE, VALUES)


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
    assert rig.remember(SIMPLE, VALUES)
    rig.expect_slow(SIMPLE, VALUES)
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
        plan.expect_slow(SIMPLE, (1, number))
    else:
        plan.expect_slow(SIMPLE, VALUES, **{place: number})
    plan.expect_quick(SIMPLE, VALUES)


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
    plan.expect_quick(SIMPLE, VALUES)


@pytest.mark.parametrize("number", [-1, 1 << 64, "1", None])
def test_a_sequence_number_that_is_none_leaves_no_error(rig: Rig, number: Any) -> None:
    assert rig.remember(SIMPLE, VALUES, sequence=lambda: number)
    rig.expect_slow(SIMPLE, VALUES)


def test_no_sequence_number_leaves_no_error(rig: Rig) -> None:
    assert rig.remember(SIMPLE, VALUES, sequence=iter(()).__next__)
    rig.expect_slow(SIMPLE, VALUES)


# --- what it holds on to


def _many_launches(rig: Rig, kernel: Kernel, values: tuple[Any, ...], **remembered: Any) -> None:
    for _ in range(5):
        assert rig.remember(kernel, (1, 2), **remembered)
    assert rig.remember(kernel, (1, 2), stream=STREAM + 1, **remembered)
    for _ in range(1000):
        assert rig.launch(kernel, values) is DONE
        rig.area.take()
    for changes in OTHERS.values():
        rig.launch(kernel, values, **changes)
    rig.launch(kernel, (-1, 2))
    rig.slow_calls.clear()


@pytest.mark.parametrize("end", [lambda rig: rig.launcher.forget(), Rig.renew], ids=["forgotten", "gone"])
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
    plan.expect_quick(SIMPLE, VALUES)
    plan.expect_slow(SIMPLE, VALUES, f=1)


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
        {"writer": object()},
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
        rig.remember(SIMPLE, VALUES, **changes)
    rig.expect_slow(SIMPLE, VALUES)


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
        rig.remember(SIMPLE, VALUES, **BEYOND[beyond])
    rig.expect_slow(SIMPLE, VALUES)


def test_a_ring_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        extension().Writer(None, 0, 0, 0, 0, 0, 0)


UNMADE = {
    "launch": "Launcher.__new__(Launcher).cuLaunchKernel()",
    "launch of eleven": "Launcher.__new__(Launcher).cuLaunchKernel(*[0] * 9, ((), ()), 0)",
    "put": "Writer.__new__(Writer).put(bytes(8))",
    "remember": "Launcher(0, 0, 0).remember(0, 1, 1, (1,) * 7, (), 0, 0, 0, Writer.__new__(Writer), bytes(8), 0, ())",
    "forget": "Launcher.__new__(Launcher).forget(); raise TypeError",
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


# --- which one a process has


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


SAY = """
from pympsd_client import _quick, driver
door = driver.cuLaunchKernel
print(_quick.is_native(), _quick.launcher() is not None, door.__name__, "Start a kernel" in door.__doc__)
"""
WITHOUT = "import sys; sys.modules['pympsd_client.native._launches'] = None\n"


def test_python_never_loads_the_extension() -> None:
    done = _python(
        SAY + "import sys; print(*[name for name in sys.modules if '_launches' in name])", PYMPSD_LAUNCHES="python"
    )
    assert (done.returncode, done.stdout) == (0, "False False cuLaunchKernel True\n\n"), done.stderr


@pytest.mark.parametrize("choice", [{}, {"PYMPSD_LAUNCHES": "auto"}, {"PYMPSD_LAUNCHES": "native"}], ids=str)
def test_native_is_what_there_is(choice: dict[str, str]) -> None:
    extension()
    done = _python(SAY, **choice)
    assert (done.returncode, done.stdout) == (0, "True True cuLaunchKernel True\n"), done.stderr


@pytest.mark.parametrize("choice", [{}, {"PYMPSD_LAUNCHES": "auto"}], ids=str)
def test_without_the_extension_launches_are_pythons(choice: dict[str, str]) -> None:
    done = _python(WITHOUT + SAY, **choice)
    assert (done.returncode, done.stdout) == (0, "False False cuLaunchKernel True\n"), done.stderr


def test_an_extension_that_was_asked_for_and_is_not_there_is_missed() -> None:
    done = _python(WITHOUT + SAY, PYMPSD_LAUNCHES="native")
    assert done.returncode == 1
    assert "ImportError: PYMPSD_LAUNCHES is native and launches are Python's here" in done.stderr
    assert "install pympsd where a C compiler and Python's headers are" in done.stderr


@pytest.mark.parametrize("choice", ["", "Native", "c", "python "])
def test_another_choice_is_refused_by_name(choice: str) -> None:
    done = _python(SAY, PYMPSD_LAUNCHES=choice)
    assert done.returncode == 1
    assert f"ValueError: PYMPSD_LAUNCHES is {choice!r}: auto, native, python are allowed" in done.stderr


# --- real executors: nobody can tell which launches were native


@define(eq=False)
class Launches:
    """Which launches were Python's. ``native``: whether the others may be native ones."""

    native: bool
    in_python: list[int] = field(factory=list)

    def familiar(self, *arguments: Any) -> tuple[Any, ...]:
        """Launch three times, so that the same launch is a native one from now on; return the arguments."""
        for _ in range(2):
            ok(cuda.cuLaunchKernel(*arguments))
        self.expect_familiar(*arguments)
        return arguments

    def expect_familiar(self, *arguments: Any) -> None:
        """Launch once more; it must be a native one."""
        before = len(self.in_python)
        ok(cuda.cuLaunchKernel(*arguments))
        assert (len(self.in_python) == before) == self.native


@pytest.fixture(scope="module")
def executors() -> Iterator[PrivateExecutors]:
    """Two devices with native workers, which have a ring."""
    extension()
    if not _quick.is_native():
        pytest.skip(f"{_quick.CHOICE} has all launches be Python's")
    connection = _executors("2xH200")
    yield connection
    connection.close()


def _executors(devices: str) -> PrivateExecutors:
    chosen = {"PYMPSD_EMULATED_DEVICES": devices, "PYMPSD_BACKEND": "emulated", "PYMPSD_WORKER": "native"}
    connection = PrivateExecutors(chosen)
    for device in connection.devices:
        opened = connection.open_context(device, 0)
        connection.close_context(device, opened.serial)
        assert opened.transport.writer is not None
    return connection


@pytest.fixture(params=[True, False], ids=["native", "python"])
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Every test passes with Python's launches too."""
    watched = Launches(request.param)
    real = _launch.launch

    def launch(*arguments: Any) -> None:
        watched.in_python.append(1)
        real(*arguments)

    monkeypatch.setattr(_doors_module, "launch", launch)
    monkeypatch.setattr(here, "calls_back", False)  # another test may have had a host function
    monkeypatch.setattr(_runners, "IDLE_S", 0.02)
    monkeypatch.setattr(_host_calls, "IDLE_S", 0.02)
    if not watched.native:
        monkeypatch.setattr(_launch, "launcher", lambda: None)
    _quick.forget()
    return watched


@pytest.fixture
def devices(
    launches: Launches, executors: PrivateExecutors, fresh_process: Callable[[Connection], None]
) -> Iterator[PrivateExecutors]:
    """CUDA initialised on them; contexts left over are destroyed."""
    yield from _initialised(executors, fresh_process)


@pytest.fixture
def mortal(launches: Launches, fresh_process: Callable[[Connection], None]) -> Iterator[PrivateExecutors]:
    """CUDA initialised on a device of the test's own, whose executor may end."""
    extension()
    if not _quick.is_native():
        pytest.skip(f"{_quick.CHOICE} has all launches be Python's")
    connection = _executors("1xH200")
    try:
        yield from _initialised(connection, fresh_process)
    finally:
        connection.close()


def _initialised(
    executors: PrivateExecutors, fresh_process: Callable[[Connection], None]
) -> Iterator[PrivateExecutors]:
    fresh_process(executors)
    yield executors
    mine.streams.handles.clear()
    for context in tuple(handles.contexts.values()):
        with contextlib.suppress(CudaError):  # its executor may have ended
            context.close(executors)


TRAP = b".visible .entry trapped()\n{\n    trap;\n    ret;\n}\n"
ONE = (1, 1, 1, 1, 1, 1, 0)
NOTHING = ((), ())


class Counter:
    """A kernel that counts how often it ran, in the current context."""

    def __init__(self) -> None:
        self.module = ok(cuda.cuModuleLoadData(PTX + TRAP))
        self.function = ok(cuda.cuModuleGetFunction(self.module, b"count"))
        self._address, _ = ok(cuda.cuModuleGetGlobal(self.module, b"counter"))
        self._start = self._read()

    def on(self, stream: Any) -> tuple[Any, ...]:
        """Return the arguments of a launch in a stream."""
        return (self.function, *ONE, stream, NOTHING, 0)

    @property
    def count(self) -> int:
        """How often it ran, all launches so far included."""
        ok(cuda.cuCtxSynchronize())
        return self._read() - self._start

    def _read(self) -> int:
        back = np.zeros(1, dtype=np.uint32)
        ok(cuda.cuMemcpyDtoH(back, self._address, 4))
        return int(back[0])


@pytest.fixture
def context(devices: PrivateExecutors) -> Any:
    """A context, current to the test's thread, on device 0."""
    return ok(cuda.cuCtxCreate(None, 0, 0))


@pytest.fixture
def counter(context: Any) -> Counter:
    """The counting kernel in that context."""
    return Counter()


@pytest.fixture
def stream(context: Any) -> Any:
    """A stream that does not wait for the default stream."""
    return ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))


@pytest.mark.parametrize("place", ["a stream", 0, None, 1])
def test_each_launch_runs_once(launches: Launches, counter: Counter, stream: Any, place: Any) -> None:
    call = counter.on(stream if place == "a stream" else place)
    for _ in range(500):
        ok(cuda.cuLaunchKernel(*call))
    assert len(launches.in_python) == (2 if launches.native else 500)
    assert counter.count == 500


@pytest.mark.parametrize("place", [2, cuda.CU_STREAM_PER_THREAD])
def test_the_threads_own_stream_is_pythons(launches: Launches, counter: Counter, place: Any) -> None:
    for _ in range(5):
        ok(cuda.cuLaunchKernel(*counter.on(place)))
    assert len(launches.in_python) == 5
    assert counter.count == 5


def test_each_launch_has_its_own_values(launches: Launches, context: Any, stream: Any) -> None:
    kernels = Kernels()
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
    addresses = [ok(cuda.cuMemAlloc(4)) for _ in range(50)]
    for types in ((ctypes.c_void_p, ctypes.c_uint), (None, ctypes.c_uint)):
        for number, address in enumerate(addresses):
            given = int(address) if types[0] is not None else address
            ok(cuda.cuLaunchKernel(function, *ONE, stream, ((given, 1000 + number), types), 0))
        assert len(launches.in_python) == (2 if launches.native else 50)
        launches.in_python.clear()
        back = np.zeros(1, dtype=np.uint32)
        for number, address in enumerate(addresses):
            ok(cuda.cuMemcpyDtoHAsync(back, address, 4, stream))
            ok(cuda.cuStreamSynchronize(stream))
            assert back[0] == 1000 + number
            ok(cuda.cuMemsetD32(address, 0, 1))


STORED = struct.Struct("=B7xdH2xfq")
KEPT = (ctypes.c_ubyte, ctypes.c_double, ctypes.c_ushort, ctypes.c_float, ctypes.c_longlong)


def test_values_arrive_with_all_their_bytes(launches: Launches, context: Any) -> None:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), b"keep"))
    out = ok(cuda.cuMemAlloc(STORED.size))
    back = bytearray(STORED.size)
    sent = [
        (200, -2.5, 60000, 0.25, -7), (0, 1e300, 0, -0.0, (1 << 63) - 1), (255, 5, 65535, 3, -(1 << 63)),
        (1, math.inf, 2, -math.inf, 3), (254, 2.0**-1074, 1, 2.0**-149, -1),
    ]  # fmt: skip
    launches.familiar(function, *ONE, 0, ((out, *sent[0]), (None, *KEPT)), 0)
    for values in sent:
        launches.expect_familiar(function, *ONE, 0, ((out, *values), (None, *KEPT)), 0)
        ok(cuda.cuMemcpyDtoH(back, out, STORED.size))
        assert STORED.unpack(back) == values


WRONG: dict[str, tuple[tuple[Any, ...], Any]] = {
    "fewer values": ((0,), TypeError),
    "no values": ((), TypeError),
    "more values": ((0, 1, 2), TypeError),
    "None as a pointer": ((None, 1), TypeError),
    "a list as a pointer": (([], 1), TypeError),
    "a float as a number": ((0, 1.5), TypeError),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("pointer", [None, ctypes.c_void_p], ids=["None", "c_void_p"])
def test_wrong_values_of_a_familiar_launch_raise(launches: Launches, context: Any, pointer: Any, wrong: str) -> None:
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), b"store"))
    out = int(ok(cuda.cuMemAlloc(4)))
    launches.familiar(function, *ONE, 0, ((out, 1), (pointer, ctypes.c_uint)), 0)
    values, error = WRONG[wrong]
    with pytest.raises(error):
        cuda.cuLaunchKernel(function, *ONE, 0, (values, (pointer, ctypes.c_uint)), 0)
    ok(cuda.cuCtxSynchronize())


def test_other_ways_to_say_a_familiar_launch(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    names = "f gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes hStream kernelParams extra"
    ok(cuda.cuLaunchKernel(**dict(zip(names.split(), call, strict=True))))
    ok(cuda.cuLaunchKernel(*call[:9], 0, 0))
    ok(cuda.cuLaunchKernel(*call[:9], None, 0))
    with pytest.raises(TypeError):
        cuda.cuLaunchKernel(*call[:10])
    assert counter.count == 6


def test_a_kernel_with_more_parameters_than_a_plan_has_room_for(launches: Launches, context: Any) -> None:
    count = 130
    declared = ", ".join(f".param .u8 p{number}" for number in range(count)).encode()
    module = ok(cuda.cuModuleLoadData(PTX + b".visible .entry many(" + declared + b")\n{\n    ret;\n}\n"))
    function = ok(cuda.cuModuleGetFunction(module, b"many"))
    for _ in range(4):
        ok(cuda.cuLaunchKernel(function, *ONE, 0, ((1,) * count, (ctypes.c_ubyte,) * count), 0))
    ok(cuda.cuCtxSynchronize())
    assert len(launches.in_python) == 4


def test_the_door_can_be_pickled() -> None:
    door = cuda.cuLaunchKernel
    assert pickle.loads(pickle.dumps(door)) == door
    assert copy.deepcopy(door) == door


# --- what ends a plan

INVALID_HANDLE = (R.CUDA_ERROR_INVALID_HANDLE,)


def test_a_stream_that_was_destroyed(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    ok(cuda.cuStreamDestroy(stream))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
        assert "no stream of this process" in last_error()
    assert counter.count == 3


def test_a_module_that_was_unloaded(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(stream))
    ok(cuda.cuModuleUnload(counter.module))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
        assert "no kernel of this process" in last_error()
    ok(cuda.cuCtxSynchronize())


def test_a_module_unloaded_while_its_kernel_is_launched(launches: Launches, counter: Counter) -> None:
    call, real = counter.on(0), vars(_doors_module)["launch"]

    def launch(*arguments: Any) -> None:
        # The kernel was found; as another thread may.
        ok(cuda.cuModuleUnload(counter.module))
        real(*arguments)

    ok(cuda.cuLaunchKernel(*call))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_doors_module, "launch", launch)
        cuda.cuLaunchKernel(*call)
    assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE


def test_a_context_that_was_destroyed(launches: Launches, context: Any, counter: Counter) -> None:
    call = launches.familiar(*counter.on(0))
    ok(cuda.cuCtxDestroy(context))
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_INVALID_CONTEXT,)
    ok(cuda.cuCtxCreate(None, 0, 0))
    assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE


def test_a_context_that_another_thread_destroyed(launches: Launches, context: Any, counter: Counter) -> None:
    call = launches.familiar(*counter.on(0))
    with ThreadPoolExecutor(1) as thread:
        ok(thread.submit(cuda.cuCtxDestroy, context).result(SECONDS))
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)


@pytest.mark.parametrize("end", [cuda.cuDevicePrimaryCtxRelease, cuda.cuDevicePrimaryCtxReset])
def test_a_primary_context_that_was_opened_anew(launches: Launches, devices: PrivateExecutors, end: Any) -> None:
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    call = launches.familiar(*Counter().on(0))
    ok(end(0))
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
    ok(cuda.cuDevicePrimaryCtxRetain(0))
    assert cuda.cuLaunchKernel(*call) == INVALID_HANDLE
    counter = Counter()
    assert counter.count == 0
    launches.familiar(*counter.on(0))
    assert counter.count == 3
    ok(cuda.cuDevicePrimaryCtxRelease(0))


def test_less_dynamic_shared_memory_than_before(launches: Launches, counter: Counter) -> None:
    attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(cuda.cuFuncSetAttribute(counter.function, attribute, 100_000))
    call = launches.familiar(counter.function, 1, 1, 1, 1, 1, 1, 100_000, 0, NOTHING, 0)
    ok(cuda.cuFuncSetAttribute(counter.function, attribute, 99_999))
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_INVALID_VALUE,)
        assert "MAX_DYNAMIC_SHARED_SIZE_BYTES" in last_error()
    assert counter.count == 3
    ok(cuda.cuFuncSetAttribute(counter.function, attribute, 100_000))
    launches.familiar(*call)
    assert counter.count == 6


def test_a_trap_in_another_stream(launches: Launches, counter: Counter, stream: Any) -> None:
    call = launches.familiar(*counter.on(0))
    trapped = ok(cuda.cuModuleGetFunction(counter.module, b"trapped"))
    ok(cuda.cuLaunchKernel(trapped, *ONE, stream, NOTHING, 0))
    failed = (R.CUDA_ERROR_LAUNCH_FAILED,)
    assert cuda.cuStreamSynchronize(stream) == failed
    message = last_error()
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == failed
        assert last_error() == message


def test_a_familiar_launch_that_goes_astray(launches: Launches, context: Any) -> None:
    kernels = Kernels()
    function = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
    call = launches.familiar(function, *ONE, 0, ((int(kernels.result), 1), STORE), 0)
    launches.expect_familiar(function, *ONE, 0, ((0x1234, 1), STORE), 0)
    illegal = (R.CUDA_ERROR_ILLEGAL_ADDRESS,)
    assert cuda.cuCtxSynchronize() == illegal
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == illegal
    other = ok(cuda.cuCtxCreate(None, 0, 0))
    counter = Counter()
    launches.familiar(*counter.on(0))
    assert counter.count == 3
    ok(cuda.cuCtxDestroy(other))


@pytest.mark.parametrize("kind", ["function", "callback"])
def test_after_the_first_host_function_all_launches_are_pythons(
    launches: Launches, counter: Counter, stream: Any, kind: str
) -> None:
    call = launches.familiar(*counter.on(stream))
    told: SimpleQueue[Any] = SimpleQueue()

    def function(*arguments: Any) -> None:
        told.put((cuda.cuLaunchKernel(*call), last_error()))

    if kind == "function":
        ok(cuda.cuLaunchHostFunc(stream, function, 0))
    else:
        ok(cuda.cuStreamAddCallback(stream, function, 0, 0))
    answer, message = told.get(timeout=SECONDS)
    assert answer == (R.CUDA_ERROR_NOT_PERMITTED,)
    assert "makes no CUDA calls" in message
    launches.in_python.clear()
    for _ in range(5):
        ok(cuda.cuLaunchKernel(*call))
    assert len(launches.in_python) == 5
    assert counter.count == 8


def test_an_executor_that_was_killed(launches: Launches, mortal: PrivateExecutors) -> None:
    ok(cuda.cuCtxCreate(None, 0, 0))
    call = launches.familiar(*Counter().on(0))
    mortal._running[0]._process.kill()
    gone = (R.CUDA_ERROR_MPS_RPC_FAILURE,)
    assert cuda.cuCtxSynchronize() == gone
    message = last_error()
    for _ in range(3):
        assert cuda.cuLaunchKernel(*call) == gone
        assert last_error() == message


def test_what_is_launched_while_an_end_is_told_is_not_remembered(
    launches: Launches, mortal: PrivateExecutors
) -> None:
    context = handles.contexts[int(ok(cuda.cuCtxCreate(None, 0, 0)))]
    call = launches.familiar(*Counter().on(0))
    transport = context.usable().transport

    def on_end(reason: str) -> CudaError:
        # As another thread may.
        for _ in range(3):
            cuda.cuLaunchKernel(*call)
        return lost(reason)

    transport.__dict__["_on_end"] = on_end
    transport._end("it has ended")
    assert cuda.cuLaunchKernel(*call) == (R.CUDA_ERROR_MPS_RPC_FAILURE,)


FORK = f"""
    from pympsd_client import _doors_module
    calls, real = [], _doors_module.launch
    def launch(*arguments):
        calls.append(1)
        real(*arguments)
    _doors_module.launch = launch
    ready()
    module = cuda.cuModuleLoadData(open({str(Path(__file__).with_name("kernels.ptx"))!r}, "rb").read())[1]
    call = (cuda.cuModuleGetFunction(module, b"count")[1], 1, 1, 1, 1, 1, 1, 0, 0, ((), ()), 0)
    print(*[name(cuda.cuLaunchKernel(*call)) for _ in range(3)], flush=True)
    child = os.fork()
    if not child:
        print(name(cuda.cuLaunchKernel(*call)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(name(cuda.cuLaunchKernel(*call)), name(cuda.cuCtxSynchronize()), len(calls))
"""


@pytest.mark.parametrize(("choice", "in_python"), [("native", 2), ("python", 4)])
def test_a_forked_child_launches_nothing(choice: str, in_python: int) -> None:
    extension()
    environment = {"PYMPSD_LAUNCHES": choice, "PYMPSD_WORKER": "native"}
    done = _run(FORK, "-Wignore::RuntimeWarning", **environment)
    won = "CUDA_SUCCESS"
    lines = [f"{won} {won} {won}", "CUDA_ERROR_NOT_INITIALIZED", f"{won} {won} {in_python}", ""]
    assert done.stdout.split("\n") == lines, done.stderr


# --- threads


def test_another_current_context_is_an_error(launches: Launches, context: Any, counter: Counter) -> None:
    call = launches.familiar(*counter.on(0))

    def elsewhere() -> list[tuple[Any, ...]]:
        answers = [cuda.cuLaunchKernel(*call)]
        other = ok(cuda.cuCtxCreate(None, 0, 1))
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxPushCurrent(context))
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxPopCurrent())
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxDestroy(other))
        return answers

    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(elsewhere).result(SECONDS)
    assert [answer[0] for answer in answers] == [
        R.CUDA_ERROR_INVALID_CONTEXT, R.CUDA_ERROR_INVALID_HANDLE, R.CUDA_SUCCESS, R.CUDA_ERROR_INVALID_HANDLE,
    ]  # fmt: skip
    launches.familiar(*call)
    assert counter.count == 7


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_threads", "devices")
def test_threads_launch_in_contexts_of_their_own(launches: Launches) -> None:
    def work(number: int) -> bool:
        context = ok(cuda.cuCtxCreate(None, 0, number % 2))
        kernels, counter, stream = Kernels(), Counter(), ok(cuda.cuStreamCreate(1))
        store = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
        sent = np.random.default_rng(number).integers(0, 256, 100_000, np.uint8)
        back, address = np.zeros_like(sent), ok(cuda.cuMemAlloc(sent.nbytes))
        right = True
        for value in range(100):
            ok(cuda.cuLaunchKernel(*counter.on(stream)))
            ok(cuda.cuLaunchKernel(store, *ONE, stream, ((int(kernels.result), 1000 * number + value), STORE), 0))
            if value % 5 == number:
                ok(cuda.cuMemcpyHtoD(address, sent, sent.nbytes))
                ok(cuda.cuMemcpyDtoH(back, address, sent.nbytes))
                right = right and bool((sent == back).all()) and kernels.read(stream) == 1000 * number + value
        right = right and counter.count == 100
        ok(cuda.cuCtxDestroy(context))
        return right

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4), timeout=SECONDS)) == [True] * 4
    assert (len(launches.in_python) < 800) == launches.native


@pytest.mark.usefixtures("busy_threads")
def test_threads_launch_in_one_context_while_plans_are_forgotten(
    launches: Launches, context: Any, counter: Counter
) -> None:
    def work(number: int) -> None:
        ok(cuda.cuCtxSetCurrent(context))
        stream = ok(cuda.cuStreamCreate(1))
        for turn in range(300):
            ok(cuda.cuLaunchKernel(*counter.on(stream)))
            if turn % 50 == 10 * number:
                ok(cuda.cuStreamDestroy(ok(cuda.cuStreamCreate(1))))
        ok(cuda.cuStreamSynchronize(stream))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4), timeout=SECONDS)) == [None] * 4
    assert counter.count == 1200
    assert (len(launches.in_python) < 600) == launches.native


# --- the ring of a real executor


def _ring_of(context: Any) -> memoryview:
    ring = handles.contexts[int(context)].usable().transport._ring
    assert ring is not None
    return ring._words


def test_an_executor_that_sleeps_takes_a_native_launch(
    launches: Launches, context: Any, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, words = launches.familiar(*counter.on(0)), _ring_of(context)
    transport = handles.contexts[int(context)].usable().transport
    transmit, bells = transport._transmit, []

    def watched(*arguments: Any) -> int:
        bells.append(arguments)
        return transmit(*arguments)

    monkeypatch.setitem(transport.__dict__, "_transmit", watched)
    for _ in range(5):
        wait_until(lambda: words[ASLEEP // 8] != 0)
        launches.expect_familiar(*call)
        wait_until(lambda: words[HEAD // 8] == words[TAIL // 8])
    assert bells  # without them it would look again only after a while
    assert counter.count == 8


def test_a_full_ring_holds_launches_up(
    launches: Launches, devices: PrivateExecutors, context: Any, counter: Counter
) -> None:
    call, words = launches.familiar(*counter.on(0)), _ring_of(context)
    executor, count = devices._running[0]._process.pid, 6000
    wait_until(lambda: words[HEAD // 8] == words[TAIL // 8])

    def launch() -> int:
        ok(cuda.cuCtxSetCurrent(context))
        return [cuda.cuLaunchKernel(*call) for _ in range(count)].count((R.CUDA_SUCCESS,))

    os.kill(executor, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as thread:
            launched = thread.submit(launch)
            try:
                wait_until(lambda: RING_BYTES - (words[TAIL // 8] - words[HEAD // 8]) < 200)
                assert not launched.done()
            finally:
                os.kill(executor, signal.SIGCONT)
            assert launched.result(SECONDS) == count
    finally:
        os.kill(executor, signal.SIGCONT)
    assert counter.count == count + 3
