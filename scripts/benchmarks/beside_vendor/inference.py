"""The ``inference`` section: unmodified PyTorch processes without MPS, with the vendor's daemon, and with pympsd.

The three ways take turns in each round, with new processes for each cell. A way's figures are the steps per second
of all its processes together and the 99th percentile of all their steps, in milliseconds; those of several rounds are
summarised by their median.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpu import ways
from gpu.clients import Crowd, Failure
from gpu.figures import Figures, Run
from gpu.ratios import AT_LEAST, AT_MOST, Row, ratio

from beside_vendor.daemons import Daemon, Programs

SECTION: Final = "inference"
NAME: Final = "PyTorch inference"
COUNTS: Final = (1, 4, 8)
WITHOUT: Final = "without MPS"
RATE, P99 = "steps/s", "p99, ms"
RATE_BOUND: Final = 0.97
_PROGRAM: Final = Path(__file__).with_name("inference_program.py")
_SECONDS: Final = 3.0
_LEAD_SECONDS: Final = 0.5
_MAX_ROUNDS: Final = 2


def inference(run: Run, daemons: tuple[Daemon, Daemon], programs: Programs, rounds: int) -> None:
    """Measure PyTorch inference in all three ways; leave it out if PyTorch is not installed."""
    if run.rehearsal or importlib.util.find_spec("torch") is None:
        run.figures.leave_out(NAME, "this is a rehearsal, or PyTorch is not installed for this interpreter")
        return
    command = (sys.executable, str(_PROGRAM))
    with tempfile.TemporaryDirectory(prefix="pympsd-bench-") as nowhere:
        without = ways.Way(WITHOUT, command, ways.plain_environment(nowhere))
        every = (without, *(daemon.way(daemon.name, command) for daemon in daemons))
        for number in range(min(rounds, _MAX_ROUNDS)):
            for count in COUNTS:
                for way in every if number % 2 == 0 else every[::-1]:
                    _cell(run, way, count, number)


def _cell(run: Run, way: ways.Way, count: int, number: int) -> None:
    crowd = Crowd(way.start)
    try:
        run.check_time()
        crowd.grow(count)
        way.check()
        begin = time.monotonic_ns() + int(_LEAD_SECONDS * 1e9)
        microseconds = crowd.ask(f"run {begin} {begin + int(_SECONDS * 1e9)}", _LEAD_SECONDS + _SECONDS)
    except Failure as error:
        run.figures.fail(f"{NAME}, {way.name}, N={count}", str(error))
        return
    finally:
        crowd.end()
    rate, p99 = len(microseconds) / _SECONDS, statistics.quantiles(microseconds, n=100)[98] / 1000
    run.figures.put(rate, SECTION, way.name, RATE, str(count), str(number))
    run.figures.put(p99, SECTION, way.name, P99, str(count), str(number))
    print(f"{f'PyTorch inference, {way.name}, N={count}':<56} {rate:>10,.0f} steps/s   p99 {p99:.2f} ms", flush=True)


def rows(figures: Figures) -> Iterator[Row]:
    """Yield pympsd's figures over those of the vendor's daemon and of no MPS, by number of processes."""
    if any(note["cell"] == NAME for note in figures.left_out):
        return
    for what, sense, bound in ((RATE, AT_LEAST, RATE_BOUND), (P99, AT_MOST, None)):
        for against in (ways.VENDOR, WITHOUT):
            ratios = {
                count: ratio(_median(figures, ways.PYMPSD, what, count), _median(figures, against, what, count))
                for count in COUNTS
            }
            is_judged = bound is not None and against == ways.VENDOR
            yield Row(f"{NAME}, {what}", against, ratios, sense, bound if is_judged else None, COUNTS)


def _median(figures: Figures, way: str, what: str, count: int) -> float | None:
    rounds = figures.values.get(SECTION, {}).get(way, {}).get(what, {}).get(str(count), {})
    return statistics.median(rounds.values()) if rounds else None
