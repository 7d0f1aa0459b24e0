"""The percentage of time in which kernels run, as NVML has it, from a counter of nanoseconds.

The problem: NVML reports the share of the last *sample period* in which a kernel ran on the GPU (nvmlUtilization_t:
between 1/6 s and 1 s). The backend counts only how long kernels have run since the device was opened, and reports are
also sent at other moments, for instance when a client frees memory, so two of them may be a microsecond apart.

The idea: a period begins when the last one ends, and ends at the first report after at least MIN_PERIOD. Until then
the last percentage counts. An example, with the counter in parentheses::

    0 s (0 s)   0.01 s (0.01 s)   1.0 s (0.5 s)   2.0 s (1.5 s)   3.0 s (1.5 s)
    0 %         0 %: too early    50 %            100 %           0 %

Nothing is measured while nobody can launch a kernel: `stop` ends the period without a result, and the next one begins
with the next report, so a long pause is not part of a period.
"""

from typing import Final

from attrs import define, field

MIN_PERIOD: Final = 1_000_000_000 // 6
"""The shortest sample period, in nanoseconds."""


@define
class UtilizationSamples:
    """The sample periods of a device, one after the other."""

    percentage: int = field(default=0, init=False)
    """The percentage of the last complete period: 0 to 100."""
    _began: tuple[int, int] | None = field(default=None, init=False)
    """The time and the counter at the beginning of this period."""

    def add(self, now: int, busy: int) -> int:
        """Return the percentage at the time ``now``, when kernels have run for ``busy``; both are in nanoseconds."""
        if self._began is None:
            self._began = now, busy
        elapsed, ran = now - self._began[0], busy - self._began[1]
        if elapsed >= MIN_PERIOD:
            self.percentage = min(100, max(0, round(100 * ran / elapsed)))
            self._began = now, busy
        return self.percentage

    def stop(self) -> None:
        """End the period: the next call of `add` begins another."""
        self._began = None
