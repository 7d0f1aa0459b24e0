"""What launches without the interpreter put into the ring, and what becomes of the ring."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd.wire.ring_layout import ASLEEP, HEAD, RING_BYTES, TAIL
from pympsd_client import driver as cuda
from pympsd_client._arguments.bindings import CUdeviceptr
from pympsd_client._arguments.kernel_parameters import code_of
from pympsd_client._command_stream.operations import LAUNCH_BYTES
from tests.client.launch_cache_rig import SIMPLE, TYPES, VALUES, Number, plan, rig
from tests.client.ring_area import DONE, RUNG, SLOW, Kernel, Rig

__all__ = ["plan", "rig"]

R = cuda.CUresult


class Index:
    """What struct takes for a number, and int() too."""

    def __index__(self) -> int:
        return 3


# --- values

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
    assert rig.add_plan(kernel, _ones(kernel))
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
    assert rig.add_plan(kernel, _ones(kernel))
    code = code_of(ctype)
    for value in (*EDGES, 0, 1, -1):
        if code == "?" or _packed(kernel, (1, value, 2), 0) is None:
            rig.expect_miss(kernel, (1, value, 2))
        else:
            rig.expect_hit(kernel, (255, value, 254))


@pytest.mark.parametrize("value", [SINGLE, -SINGLE, 3.5e38, -1e300, np.inf, -np.inf, 1e-46, -0.0, -1.0, -1, 16777217])
def test_singles_at_the_edges(rig: Rig, value: float) -> None:
    kernel = Kernel((ctypes.c_float,))
    assert rig.add_plan(kernel, (1.0,))
    if _packed(kernel, (value,), 0) is None:
        rig.expect_miss(kernel, (value,))
    else:
        rig.expect_hit(kernel, (value,))


@pytest.mark.parametrize("value", [None, "5", "x", 10**400, -1, 1 << 64, float("nan"), Index(), object(), []])
def test_what_may_be_no_handle_is_pythons_to_judge(rig: Rig, value: Any) -> None:
    kernel = Kernel((None,))
    assert rig.add_plan(kernel, (1,))
    rig.expect_miss(kernel, (value,))


def test_handles_are_taken_as_what_int_makes_of_them(rig: Rig) -> None:
    kernel = Kernel((None,))
    assert rig.add_plan(kernel, (1,))
    for value in (0, 5, True, 2.9, CUdeviceptr(9), Number((1 << 64) - 1), R.CUDA_ERROR_UNKNOWN, np.uint64(8)):
        rig.expect_hit(kernel, (value,))


def test_a_plan_has_room_for_so_much(rig: Rig) -> None:
    count, size = rig.native.MOST_VALUES, rig.native.MOST_BYTES
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
        plan.expect_miss(SIMPLE, VALUES)
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
    plan.expect_miss(SIMPLE, VALUES)


def test_a_record_longer_than_the_ring_never_fits(rig: Rig) -> None:
    assert rig.area.writer.put(bytes(RING_BYTES)) is True
    rig.area.begin_at(0)
    before = rig.area.everything()
    assert rig.area.writer.put(b"x" * (RING_BYTES + 1)) is False
    assert rig.area.everything() == before


@pytest.mark.parametrize("asleep", [1, 1 << 63])
def test_an_executor_that_sleeps_is_woken_once_the_record_is_there(plan: Rig, asleep: int) -> None:
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


def test_what_a_bell_raises_is_raised(rig: Rig) -> None:
    def fail() -> Any:
        raise KeyboardInterrupt

    assert rig.add_plan(SIMPLE, VALUES, bell=fail)
    rig.area.words[ASLEEP // 8] = 1
    with pytest.raises(KeyboardInterrupt):
        rig.launch(SIMPLE, VALUES)
    assert rig.area.take()
    assert rig.slow_calls == []


def test_a_bell_may_have_all_forgotten(rig: Rig) -> None:
    def bell() -> Any:
        rig.launcher.invalidate()
        return RUNG

    assert rig.add_plan(SIMPLE, VALUES, bell=bell)
    del bell
    rig.area.words[ASLEEP // 8] = 1
    assert rig.launch(SIMPLE, VALUES) is RUNG
    rig.expect_miss(SIMPLE, VALUES)
