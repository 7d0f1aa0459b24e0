"""How the benchmarks time: medians of repeated runs, and a table of figures beside what they are held against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from attrs import define, field


def median_seconds(work: Callable[[], object], times: int, warm: int = 2) -> float:
    """Return the median wall time of some work."""
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
    """Figures with their bounds; printed as they come."""

    rows: list[tuple[str, float, float, str]] = field(factory=list)

    def add(self, what: str, figure: float, bound: float, unit: str) -> None:
        """Note a figure that is to be at most its bound."""
        self.rows.append((what, figure, bound, unit))
        verdict = "ok" if figure <= bound else "OVER"
        print(f"{what:<72} {figure:10.2f} {unit:<3} (at most {bound:g}) {verdict}", flush=True)

    @property
    def over(self) -> int:
        """How many figures are over their bounds."""
        return sum(figure > bound for _, figure, bound, _ in self.rows)
