"""The percentage of time in which kernels run, from samples of a counter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd_server.executor.memory.device_memory import MIN_PERIOD, UtilizationSamples

SECOND = 1_000_000_000
NANOSECONDS = st.integers(0, 10 * SECOND)


def _percentages(*samples: tuple[float, float]) -> list[int]:
    """Return what each sample returns; times and counters are in seconds."""
    device = UtilizationSamples()
    return [device.add(int(now * SECOND), int(busy * SECOND)) for now, busy in samples]


def test_the_last_complete_period_counts() -> None:
    assert _percentages((5, 3), (5.01, 3.01), (6, 3.5), (7, 4.5), (8, 4.5)) == [0, 0, 50, 100, 0]
    assert _percentages((0, 0), (1, 0.004), (2, 0.01)) == [0, 0, 1], "rounded"


def test_reports_in_quick_succession_are_one_period() -> None:
    assert _percentages((0, 0), (1, 1), (1.1, 1), (1.16, 1), (1.2, 1)) == [0, 100, 100, 100, 0]
    assert _percentages((0, 0), (0.1, 0.1), (0.2, 0.1)) == [0, 0, 50]


def test_a_pause_is_not_part_of_a_period() -> None:
    device = UtilizationSamples()
    device.add(0, 0)
    device.stop()
    assert device.add(100 * SECOND, 0) == 0
    assert device.add(101 * SECOND, SECOND) == 100


@given(st.lists(st.tuples(NANOSECONDS, NANOSECONDS), min_size=1))
def test_a_device_that_is_always_busy_or_always_idle_is_so_in_every_sample(steps: list[tuple[int, int]]) -> None:
    now = busy = 0
    idle, full, other = UtilizationSamples(), UtilizationSamples(), UtilizationSamples()
    for elapsed, ran in steps:
        now, busy = now + elapsed, busy + ran
        assert idle.add(now, 7) == 0
        assert full.add(now, now) in {0, 100}
        assert 0 <= other.add(now, busy) <= 100
    assert full.add(now + MIN_PERIOD, now + MIN_PERIOD) == 100
