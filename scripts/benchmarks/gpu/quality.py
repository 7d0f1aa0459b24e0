"""Quality of service: a small kernel's latency next to a neighbour that fills the GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from gpu import ways
from gpu.clients import START_SECONDS, Client, Failure, end_all
from gpu.figures import Run
from gpu.kernels import SMALL, Kernel, filling
from gpu.single import quantile

SECTION: Final = "qos"
ALONE: Final = "alone"
FULL: Final = "100 % each"
BELOW: Final = "neighbour below normal priority"
HALVES: Final = "50 % each"
_HALF: Final = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
_MULTIPROCESSORS: Final = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
_LEAD_SECONDS: Final = 0.2
_MOST: Final = 20_000
_FEWEST: Final = 100
"""With fewer samples there is no 99th percentile."""
_NANO: Final = 1_000_000_000


@frozen
class Situation:
    """The clients, and their settings (environment variables, as any MPS reads them)."""

    name: str
    small: Mapping[str, str]
    neighbour: Mapping[str, str] | None


SITUATIONS: Final = (
    Situation(ALONE, {}, None),
    Situation(FULL, {}, {}),
    Situation(BELOW, {}, {"CUDA_MPS_CLIENT_PRIORITY": "1"}),
    Situation(HALVES, _HALF, _HALF),
)


def measure(run: Run, way: ways.Way) -> None:
    """Measure the situations that a way supports: without any MPS there are no settings."""
    for situation in SITUATIONS if way.name != ways.SLICING else SITUATIONS[:2]:
        cell = f"{SMALL.name} {situation.name}, {way.name}"
        try:
            run.check_time()
            samples = _samples(run, way, situation)
            if len(samples) < (1 if run.rehearsal else _FEWEST):
                raise Failure(f"{len(samples)} launches only")
            for name, part in (("p50", 0.5), ("p99", 0.99)):
                run.figures.put(quantile(samples, part) / 1000, SECTION, way.name, situation.name, name)
        except ways.WrongWorker:
            raise
        except Failure as error:
            run.figures.fail(cell, str(error))
        else:
            p50, p99 = (run.figures.get(SECTION, way.name, situation.name, name) for name in ("p50", "p99"))
            print(f"{cell:<64} p50 {p50:>9.1f} µs, p99 {p99:>9.1f} µs ({len(samples)} launches)", flush=True)


def _samples(run: Run, way: ways.Way, situation: Situation) -> list[float]:
    clients: list[Client] = []
    try:
        small = _ready(clients, way, situation.small)
        neighbour = None if situation.neighbour is None else _ready(clients, way, situation.neighbour)
        way.check()
        return _with_neighbour(run, small, neighbour)
    finally:
        end_all(clients)


def _ready(clients: list[Client], way: ways.Way, environment: Mapping[str, str]) -> Client:
    clients.append(way.start(**environment))
    clients[-1].answer(START_SECONDS)
    return clients[-1]


def _with_neighbour(run: Run, small: Client, neighbour: Client | None) -> list[float]:
    """Return ns of each launch and synchronise, while the neighbour works from before the first to after the last."""
    seconds = 2 * run.seconds
    begin = time.monotonic_ns() + int(_LEAD_SECONDS * _NANO)
    finish = begin + int(seconds * _NANO)
    if neighbour is not None:
        neighbour.tell(f"fill {_neighbour(run, small).words()} 0 {finish + _NANO // 10}")
    answer = small.ask(f"wait {SMALL.words()} {begin} {finish} {_MOST}", _LEAD_SECONDS + seconds)
    if neighbour is not None:
        neighbour.answer(START_SECONDS)
    return [float(number) for number in answer.split()]


def _neighbour(run: Run, client: Client) -> Kernel:
    if run.rehearsal:  # the emulated GPU runs all threads on one core
        return filling(1, waves=1)
    return filling(int(client.ask(f"attribute {_MULTIPROCESSORS}")))
