"""Launches per second over all clients of a way, for every kernel and number of clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from attrs import evolve

from gpu import ways
from gpu.clients import Crowd, Failure
from gpu.figures import Run
from gpu.kernels import KERNELS, UNBOUNDED, Kernel

SECTION: Final = "launches"
WARM_SECONDS: Final = 0.2
TAIL_SECONDS: Final = 0.1
MAX_FAILURES: Final = 3
"""The number of failures after which the rest of a way is skipped."""
UNBOUNDED_CLIENTS: Final = 16
_NANO: Final = 1_000_000_000


def measure(run: Run, way: ways.Way) -> None:
    """Measure every cell of one way; after a failed one, which is noted, start new clients."""
    crowd = Crowd(way.start, way.shared)
    failures = 0
    try:
        for count, kernel, name in _cells(way, run.counts):
            cell = f"{kernel.name}, {name}, N={count}"
            try:
                if failures == MAX_FAILURES:
                    raise Failure(f"given up after {MAX_FAILURES} failures")
                run.check_time()
                batch = kernel.batch if name == way.name else UNBOUNDED
                rate = _rate(run, way, crowd, count, evolve(kernel, batch=batch // 8 if run.rehearsal else batch))
            except ways.WrongWorker:
                raise
            except Failure as error:
                failures += failures < MAX_FAILURES
                crowd.end()
                run.figures.fail(cell, str(error))
            else:
                run.figures.put(rate, SECTION, name, kernel.name, str(count))
                print(f"{cell:<56} {rate:>12,.0f} /s", flush=True)
    finally:
        crowd.end()


def _cells(way: ways.Way, counts: tuple[int, ...]) -> Iterator[tuple[int, Kernel, str]]:
    """Yield the number of clients, the kernel, and the name of the figure."""
    for count in counts if way.name != ways.BINDINGS else (1,):
        for kernel in KERNELS:
            yield count, kernel, way.name
        if way.shared and count == UNBOUNDED_CLIENTS:
            for kernel in KERNELS:
                if kernel.nanoseconds <= 100_000:  # 1,024 unfinished launches are to end within a tenth of a second
                    yield count, kernel, ways.UNBOUNDED


def _rate(run: Run, way: ways.Way, crowd: Crowd, count: int, kernel: Kernel) -> float:
    crowd.grow(count)
    way.check()
    warm = min(WARM_SECONDS, run.seconds)
    begin = time.monotonic_ns() + int(warm * _NANO)
    finish = begin + int(run.seconds * _NANO)
    stop = finish + int(TAIL_SECONDS * _NANO)
    words = f"launch {kernel.words()} {kernel.batch} {begin} {finish} {stop}"
    rates = crowd.ask(words, warm + run.seconds + TAIL_SECONDS)
    if len(rates) != count:
        raise Failure(f"{len(rates)} clients answered, {count} were asked")
    return sum(rates)
