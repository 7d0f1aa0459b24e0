"""Timing for the benchmarks: medians of repeated runs, and a table of figures with their bounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from attrs import define, field


def median_seconds(work: Callable[[], object], times: int, warm: int = 2) -> float:
    """Return the median wall time of ``work``."""
    for _ in range(warm):
        work()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


@define
class Report:
    """Figures with their bounds, printed as they are added."""

    rows: list[tuple[str, float, float, str]] = field(factory=list)

    def add(self, what: str, figure: float, bound: float, unit: str) -> None:
        """Add a figure that must be at most its bound."""
        self.rows.append((what, figure, bound, unit))
        verdict = "ok" if figure <= bound else "OVER"
        print(f"{what:<72} {figure:10.2f} {unit:<3} (at most {bound:g}) {verdict}", flush=True)

    @property
    def over(self) -> int:
        """The number of figures over their bounds."""
        return sum(figure > bound for _, figure, bound, _ in self.rows)
